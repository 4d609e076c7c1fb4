"""The settings of a central guarantee for whole users, as the peers' scripts take them.

The noise on a round's sum has standard deviation ``noise_multiplier * CLIP_NORM`` for a cohort of
``noise_cohort`` users. pfl trains fewer and scales the noise down with them, so that a simulation
of 50 users a round shows what 1,000 would learn (`noise_cohort_size` in its benchmarks).
"""

import argparse

from yardstick import COHORT, USERS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a guarantee; without a noise multiplier there is none."""
    parser.add_argument("--noise-multiplier", type=float, help="none: without privacy")
    parser.add_argument("--noise-cohort", type=int, default=COHORT, help="users a round, charged")
    parser.add_argument("--population", type=int, default=USERS, help="all users, charged")
    parser.add_argument("--charged-rounds", type=int, help="'none': as many as are trained")
    parser.add_argument("--delta", type=float, default=1e-5)


def noise_scale(arguments: argparse.Namespace) -> float:
    """By what the noise of a round is multiplied, since fewer users train in it."""
    return COHORT / arguments.noise_cohort
