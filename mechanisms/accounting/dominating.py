"""The sampled Gaussian that dominates one application of an event, where there is one.

A pair of distributions dominates an event if it is at least as far apart in every hockey-stick
divergence, whatever records and outputs came before. Dominating pairs compose (Zhu, Dong, Wang
2022, "Optimal Accounting of Differential Privacy via Characteristic Function", Theorem 10), so that
charges whose events all have one can be composed by `loss_distribution`. A new kind of event
registers a function with `steps.register`, or keeps its Renyi curve alone.
"""

import functools
from collections.abc import Iterable

from mechanisms.accounting import events
from mechanisms.accounting.loss_distribution import Step

Steps = tuple[Step, ...]


def all_dominated(given: Iterable[events.Event]) -> bool:
    """Whether every event has a dominating pair, or costs nothing."""
    return all(steps(event) is not None for event in given)


@functools.singledispatch
def steps(event: events.Event) -> Steps | None:
    """Rates and noise multipliers of sampled Gaussians that dominate one application together.

    Returns:
        Empty for what costs nothing in the certified column; None if no such pair is known.
    """
    return None


@steps.register
def _sampled(event: events.SampledGaussian) -> Steps:
    return ((event.sample_rate, event.noise_multiplier),)


@steps.register
def _gaussian(event: events.Gaussian) -> Steps:
    return ((1.0, event.noise_multiplier),)


@steps.register
def _heterogeneous(event: events.HeterogeneousGaussian) -> Steps | None:
    # noise of at least s min(v) in every direction: more noise elsewhere is post-processing
    least = event.noise_multiplier * event.smallest_scale
    return ((event.sample_rate, least),) if least else None


@steps.register
def _free(event: events.PaperClaim | events.ClassicClaim | events.PublicLabels) -> Steps:
    return ()
