"""The pairs that dominate one application of an event, where there are some.

A pair of distributions dominates an event if it is at least as far apart in every hockey-stick
divergence, whatever records and outputs came before. Charges whose events all have pairs are
composed by `loss_distribution`. A new kind of event registers a function with `pairs.register`, or
keeps its Renyi curve alone.

A tested step (`Acceptance`) with proposals P, Q and probabilities of acceptance a, a' releases
``P a`` and the bit. By joint convexity the sampled Gaussian is the worst proposal, and a hockey
stick is convex in (a, a'), so that at each point a corner is the worst: the expectation of the
largest of a few lines in the likelihood ratio (`profile.largest`).
"""

import functools
import math

from mechanisms.accounting import events
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.profile import Case, Pair, Part, both_ways, largest

Pairs = tuple[Pair, ...]


@functools.lru_cache(maxsize=100_000)
def sampled(rate: float, noise: float) -> Pair:
    """SGM(rate, noise) itself."""
    return both_ways(Part(1.0, 0.0, rate, noise))


@functools.singledispatch
def pairs(event: events.Event) -> Pairs | None:
    """Pairs that dominate one application together.

    Returns:
        Empty for what costs nothing in the certified column; None if no pair is known.
    """
    return None


@pairs.register
def _sampled(event: events.SampledGaussian) -> Pairs:
    return (sampled(event.sample_rate, event.noise_multiplier),)


@pairs.register
def _fixed_batch(event: events.FixedBatchGaussian) -> Pairs:
    rate, noise = event.sample_rate, event.noise_multiplier
    return (both_ways(Part(1.0, 0.0, rate, noise, replaced=True)),)


@pairs.register
def _gaussian(event: events.Gaussian) -> Pairs:
    return (sampled(1.0, event.noise_multiplier),)


@pairs.register
def _heterogeneous(event: events.HeterogeneousGaussian) -> Pairs | None:
    # noise of at least s min(v) in every direction: more noise elsewhere is post-processing
    least = event.noise_multiplier * event.smallest_scale
    return (sampled(event.sample_rate, least),) if least else None


@pairs.register
def _free(
    event: events.PaperClaim | events.PublicLabels | events.Covered | events.SummedShares,
) -> Pairs:
    return ()


@pairs.register
def _visible_choice(event: events.VisibleChoice) -> Pairs:
    return (both_ways(Part(event.share_rate, 0.0, 1.0, event.noise_multiplier)),)


@pairs.register
def _randomized_response(event: events.RandomizedResponse) -> Pairs:
    """Any pure epsilon is dominated by two answers (Kairouz, Oh, Viswanath 2015)."""
    likely = 1.0 / (1.0 + math.exp(-event.epsilon))
    answers = ((likely, event.epsilon), (1.0 - likely, -event.epsilon))
    return (both_ways(*(Part(mass, loss, 1.0, math.inf) for mass, loss in answers)),)


@pairs.register
def _screened(event: events.ScreenedStep) -> Pairs | None:
    if event.accounting != "public-test":
        return None  # hidden rejections: `selective`
    return (sampled(event.sample_rate, event.noise_multiplier),)


@pairs.register
@functools.lru_cache(maxsize=10_000)
def _tested(event: events.DpsurStep) -> Pairs | None:
    if event.accounting == "selective":
        return None
    acceptance = Acceptance.of_noisy_loss(event.validation_rate, event.validation_noise, event.beta)
    removing, adding = (_cases(event, acceptance, adding) for adding in (False, True))
    return (Pair(removing, adding),)


def _cases(event: events.DpsurStep, acceptance: Acceptance, adding: bool) -> tuple[Case, ...]:
    low, high, share = acceptance.lowest, acceptance.highest, acceptance.rate
    corners = [(a, (1.0 - share) * a + share * z) for a in (low, high) for z in (low, high)]
    accepted = corners if adding else [(within, without) for without, within in corners]
    rejected = [(1.0 - a, 1.0 - b) for a, b in accepted]
    neither, always = (0.0, 0.0), (1.0, 1.0)
    lines = [[neither, *accepted], [always, *rejected]]  # the bit "rejected" counts in the second
    if event.accounting == "every-trial":  # rejected proposals are seen too
        lines = [[neither, always, *accepted, *rejected]]
    return tuple(largest(one, event.sample_rate, event.noise_multiplier) for one in lines)
