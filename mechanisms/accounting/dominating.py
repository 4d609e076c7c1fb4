"""The pairs that dominate one application of an event, where there are some.

A pair of distributions dominates an event if it is at least as far apart in every hockey-stick
divergence, whatever records and outputs came before. Charges whose events all have pairs are
composed by `loss_distribution`. A new kind of event registers a function with `pairs.register`, or
keeps its Renyi curve alone.

A tested step (`Acceptance`) with proposals P, Q and probabilities of acceptance a, a' releases
``P a`` and the bit. By joint convexity the sampled Gaussian is the worst proposal, and a hockey
stick is convex in (a, a'), so that at each point a corner is the worst: the expectation of the
largest of a few lines in the likelihood ratio (`profile.largest`). Many such steps are also taken
together, and those with hidden rejections only so (`smoothing`); so are many batches of a fixed
size.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from mechanisms.accounting import curves, events, smoothing
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.finite import Finite
from mechanisms.accounting.fixed_step import FixedStep
from mechanisms.accounting.known import check_count
from mechanisms.accounting.profile import Case, Dominating, Pair, Part, both_ways, largest
from mechanisms.accounting.smoothing import Step
from mechanisms.accounting.tested_step import Trial

Pairs = tuple[Pair, ...]
Steps = dict[Dominating, int]
"""How often each pair is applied."""
MAX_TOGETHER = 4
"""Most kinds of steps that are taken together, the most frequent ones: each takes tenths of a
second, and pays for a noise of its own."""
ORDER = 1.25
"""Renyi order that the spread of a step's losses is estimated from."""


def each(
    charges: Mapping[events.Event, int],
    pairs_of: Callable[[events.Event], Sequence[Dominating] | None],
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
    """Sets of pairs that dominate all applications together, each set by itself; none if there is
    an event without a pair.

    Tested steps are taken together or, if their rejections are seen, by themselves.
    """
    steps = {event: step for event, n in charges.items() if n and (step := repeated(event))}
    hidden = frozenset(event for event, step in steps.items() if step.hidden)
    if len(hidden) > MAX_TOGETHER:
        return []
    seen = [event for event in steps if event not in hidden and charges[event] > 1]
    seen.sort(key=lambda event: (-charges[event], repr(event)))
    several = hidden | set(seen[: MAX_TOGETHER - len(hidden)])
    found = [_way(charges, one) for one in sorted({hidden, several}, key=len)]
    return [one for one in found if one is not None]


def _way(charges: Mapping[events.Event, int], together: frozenset[events.Event]) -> Steps | None:
    """The pairs if these kinds of steps are taken together, each behind a noise of its own; None if
    another event has no pair."""
    ordered = sorted(together, key=repr)
    covers = {event: found for event in ordered if (found := _together(event))}
    steps = each(charges, lambda event: covers[event][:1] if event in covers else pairs(event))
    if steps is not None:
        for _, noise in covers.values():
            steps[noise] = steps.get(noise, 0) + 1
    return steps


def _together(event: events.Event) -> tuple[Finite, Finite] | None:
    step = repeated(event)
    # near order 1 a divergence is half the variance of the losses, times the order
    variance = 2.0 * curves.at(event, ORDER, "certified") / ORDER
    return smoothing.together(step, math.sqrt(variance)) if step else None


def repeated(event: events.Event) -> Step | None:
    """The step of an event of which many are taken together: a test whose rejected proposals are
    never seen, or a batch of a fixed size that is not all."""
    match event:
        case events.FixedBatchGaussian() if event.sample_rate < 1.0:
            return FixedStep(event.sample_rate, event.noise_multiplier)
        case events.DpsurStep(accounting="visible" | "selective"):
            hidden = event.accounting == "selective"
            return Trial(event.sample_rate, event.noise_multiplier, Acceptance.of(event), hidden)
        case events.ScreenedStep(accounting="clipped"):
            return Trial(event.sample_rate, event.noise_multiplier, Acceptance.of(event), True)
    return None


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
    event: events.PaperClaim
    | events.PublicLabels
    | events.Covered
    | events.SummedShares
    | events.TrialCap,
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
        return None  # hidden rejections
    return (sampled(event.sample_rate, event.noise_multiplier),)


@pairs.register
@functools.lru_cache(maxsize=10_000)
def _tested(event: events.DpsurStep) -> Pairs | None:
    if event.accounting == "selective":
        return None
    removing, adding = (_cases(event, adding) for adding in (False, True))
    return (Pair(removing, adding),)


def _cases(event: events.DpsurStep, adding: bool) -> tuple[Case, ...]:
    accepted = [pair if adding else pair[::-1] for pair in Acceptance.of(event).corners]
    rejected = [(1.0 - a, 1.0 - b) for a, b in accepted]
    neither, always = (0.0, 0.0), (1.0, 1.0)
    lines = [[neither, *accepted], [always, *rejected]]  # the bit "rejected" counts in the second
    if event.accounting == "every-trial":  # rejected proposals are seen too
        lines = [[neither, always, *accepted, *rejected]]
    return tuple(largest(one, event.sample_rate, event.noise_multiplier) for one in lines)
