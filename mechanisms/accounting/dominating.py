"""The pairs that dominate one application of an event, where there are some.

A pair of distributions dominates an event if it is at least as far apart in every hockey-stick
divergence, whatever records and outputs came before. Charges whose events all have pairs are
composed by `loss_distribution`. A new kind of event registers a function with `pairs.register`, or
keeps its Renyi curve alone.

A tested step (`Acceptance`) with proposals P, Q and probabilities of acceptance a, a' releases
``P a`` and the bit. By joint convexity the sampled Gaussian is the worst proposal, and a hockey
stick is convex in (a, a'), so that at each point a corner is the worst: the expectation of the
largest of a few lines in the likelihood ratio (`profile.largest`). Many trials with a public bit
are also taken together (`blocks`).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from mechanisms.accounting import blocks, events
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.known import check_count
from mechanisms.accounting.profile import Case, Dominating, Pair, Part, both_ways, largest

Pairs = tuple[Pair, ...]
Steps = dict[Dominating, int]
"""How often each pair is applied."""


def each(
    charges: Mapping[events.Event, int], pairs_of: Callable[[events.Event], Sequence[Pair] | None]
) -> Steps | None:
    """The pairs of all applications, each by itself; None if an event has none.

    Raises:
        ValueError: a count that is not a non-negative integer.
    """
    steps: Steps = {}
    for event, count in sorted(charges.items(), key=repr):
        check_count(event, count)
        found = pairs_of(event) if count else ()
        if found is None:
            return None
        for pair in found:
            steps[pair] = steps.get(pair, 0) + int(count)
    return steps


def ways(charges: Mapping[events.Event, int]) -> list[Steps]:
    """Sets of pairs that dominate all applications together, each set by itself; none if an event
    has no pair.

    Trials of one kind may be taken together whatever lies between them, if all else counts as pairs
    that depend on nothing: so of several kinds, only those that are the most (Theorem 28).
    """
    steps = each(charges, pairs)
    if steps is None:
        return []
    tested = [
        event
        for event, count in charges.items()
        if count > 1 and isinstance(event, events.DpsurStep) and event.accounting == "visible"
    ]
    if not tested:
        return [steps]
    most = max(tested, key=lambda event: (charges[event], repr(event)))
    others = each({event: n for event, n in charges.items() if event != most}, pairs) or {}
    (single,) = pairs(most) or ()
    return [steps, others | blocks.split(most, single, int(charges[most]))]


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
