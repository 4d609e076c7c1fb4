"""The Renyi curve of ONE application of each kind of event, in two columns.

`certified` is proved; `published` is what the mechanism's paper claims (equal where the paper is
right). Counts do not appear here: `accounting.accountant` multiplies them. A new kind of event
registers one function with `curve.register`.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import events, fixed_batch, sampled_gaussian
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.selective import selective
from mechanisms.accounting.trial_cap import cap_probability
from mechanisms.accounting.visible import every_trial, visible

Floats = NDArray[np.float64]

COLUMNS = ("certified", "published")

MANY = 100  # this many curves or more are computed together
MAX_KEPT = 100_000  # curves; some 100 MB
MAX_POINTS = 1_000_000  # values at single orders; likewise
_KEPT: dict[tuple[events.Event, tuple[float, ...], str], Floats] = {}
SLOW = ("visible", "selective", "clipped")  # accountings whose curves are searches


def rdp(event: events.Event, orders: Sequence[float], column: str) -> Floats:
    """Renyi divergence of one application of `event`.

    Args:
        event: the event.
        orders: Renyi orders above 1, shape ``[n]``.
        column: "certified" or "published".

    Returns:
        float64 ``[n]`` in nats, read-only and cached; ``inf`` where nothing finite holds, never
        NaN.

    Raises:
        ValueError: unknown column, an order not above 1, or an event without a curve.
    """
    key = (event, tuple(map(float, orders)), column)
    if key not in _KEPT:
        _keep(key, _checked(*key))
    return _KEPT[key]


def slow(event: events.Event, column: str) -> bool:
    """Whether the curve takes milliseconds at each order: :func:`at` evaluates a single one."""
    tested = isinstance(event, events.DpsurStep | events.ScreenedStep) and event.accounting in SLOW
    return (tested and column == "certified") or isinstance(event, events.FixedBatchGaussian)


@functools.lru_cache(maxsize=MAX_POINTS)
def at(event: events.Event, order: float, column: str) -> float:
    """``rdp(event, [order], column)[0]``, cached by order."""
    return float(_checked(event, (order,), column)[0])


def precompute(given: Iterable[events.Event], orders: Sequence[float], column: str) -> None:
    """Compute the curves of many Poisson-sampled Gaussians (and claims) together, for :func:`rdp`.

    Values may differ in the last bits from curves computed one by one.
    """
    grid = tuple(map(float, orders))
    kinds: Any = events.SampledGaussian
    if column == "published":
        kinds = events.SampledGaussian | events.PaperClaim
    new = {e for e in given if isinstance(e, kinds) and e.sample_rate < 1.0}
    todo = sorted((e for e in new if (e, grid, column) not in _KEPT), key=repr)
    if len(todo) < MANY:
        return
    rates, noises = [e.sample_rate for e in todo], [e.noise_multiplier for e in todo]
    values = np.stack([sampled_gaussian.rdp(rates, noises, order) for order in grid], axis=1)
    for event, row in zip(todo, values, strict=True):
        _keep((event, grid, column), row.copy())


def _keep(key: tuple[events.Event, tuple[float, ...], str], values: Floats) -> None:
    if len(_KEPT) >= MAX_KEPT:
        _KEPT.clear()
    values.setflags(write=False)
    _KEPT[key] = values


def _checked(event: events.Event, orders: tuple[float, ...], column: str) -> Floats:
    if column not in COLUMNS:
        raise ValueError(
            f"column = {column!r} must be one of {', '.join(COLUMNS)}; certified is the proved one"
        )
    if not all(order > 1.0 for order in orders):
        raise ValueError(
            f"orders = {list(orders)} must all be above 1; Renyi divergence is used above 1 only"
        )
    values = np.asarray(curve(event, np.array(orders), column), dtype=np.float64)
    return np.where(np.isnan(values), np.inf, values)


@functools.singledispatch
def curve(event: events.Event, orders: Floats, column: str) -> Floats:
    """Uncached divergence of one application; one registered function per kind of event."""
    raise ValueError(
        f"event {event!r} has no curve; register one for {type(event).__name__} in {__name__}"
    )


@curve.register
def _sampled_gaussian(event: events.SampledGaussian, orders: Floats, column: str) -> Floats:
    return sampled_gaussian.curve(event.sample_rate, event.noise_multiplier, orders)


@curve.register
def _fixed_batch(event: events.FixedBatchGaussian, orders: Floats, column: str) -> Floats:
    return fixed_batch.curve(event.sample_rate, event.noise_multiplier, orders)


@curve.register
def _gaussian(event: events.Gaussian, orders: Floats, column: str) -> Floats:
    return sampled_gaussian.curve(1.0, event.noise_multiplier, orders)


@curve.register
def _paper_claim(event: events.PaperClaim, orders: Floats, column: str) -> Floats:
    if column == "certified":
        return np.zeros(orders.shape)
    return sampled_gaussian.curve(event.sample_rate, event.noise_multiplier, orders)


@curve.register
def _unprotected(event: events.Unprotected, orders: Floats, column: str) -> Floats:
    return np.full(orders.shape, np.inf)


@curve.register
def _unproved(event: events.Unproved, orders: Floats, column: str) -> Floats:
    return np.full(orders.shape, np.inf if column == "certified" else 0.0)


@curve.register
def _dpsur_step(event: events.DpsurStep, orders: Floats, column: str) -> Floats:
    if column == "published":
        return np.zeros(orders.shape)
    prices = {"visible": visible, "selective": selective, "every-trial": every_trial}
    price = prices[event.accounting]
    return price(event.sample_rate, event.noise_multiplier, Acceptance.of(event), orders)


@curve.register
def _importance_sampled(
    event: events.ImportanceSampledGaussian, orders: Floats, column: str
) -> Floats:
    """Lemma 3.1 at the largest gradient norm, |g| = C."""
    rate = event.batch_size * event.clip_norm / event.norm_sum
    return sampled_gaussian.curve(
        rate, event.noise_multiplier * event.clip_norm * event.records / event.norm_sum, orders
    )


@curve.register
def _noisy_norm_sum(event: events.NoisyNormSum, orders: Floats, column: str) -> Floats:
    # a record adds |g| / p_K, but the noise s_K C stands outside that factor: multiplier s_K p_K
    factor = event.sample_rate if column == "certified" else 1.0
    return sampled_gaussian.curve(event.sample_rate, event.noise_multiplier * factor, orders)


@curve.register
def _heterogeneous(event: events.HeterogeneousGaussian, orders: Floats, column: str) -> Floats:
    # noise of at least s min(v) in every direction: more noise elsewhere is post-processing
    factor = event.smallest_scale if column == "certified" else 1.0
    if factor == 0.0:
        return np.full(orders.shape, np.inf)
    return sampled_gaussian.curve(event.sample_rate, event.noise_multiplier * factor, orders)


@curve.register
def _screened_step(event: events.ScreenedStep, orders: Floats, column: str) -> Floats:
    if column == "published":
        return np.zeros(orders.shape)
    if event.accounting == "unproved":
        return np.full(orders.shape, np.inf)
    if event.accounting == "public-test":
        return sampled_gaussian.curve(event.sample_rate, event.noise_multiplier, orders)
    return selective(event.sample_rate, event.noise_multiplier, Acceptance.of(event), orders)


@curve.register
def _free(
    event: events.TrialCap | events.Covered | events.PublicLabels | events.SummedShares,
    orders: Floats,
    column: str,
) -> Floats:
    """Paid for elsewhere, by delta, or outside the guarantee."""
    return np.zeros(orders.shape)


@curve.register
def _allotment(event: events.Allotment, orders: Floats, column: str) -> Floats:
    """A payment at one order: converting at any other gives no guarantee."""
    if column == "published":
        return np.zeros(orders.shape)
    return np.where(orders == event.order, event.rdp, np.inf)


@curve.register
def _gaussian_allotment(event: events.GaussianAllotment, orders: Floats, column: str) -> Floats:
    """A Gaussian: its releases are dominated by one at every order."""
    if column == "published":
        return np.zeros(orders.shape)
    return sampled_gaussian.curve(1.0, event.noise_multiplier, orders)


@functools.singledispatch
def failure(event: events.Event) -> float:
    """Probability that ONE application of `event` violates its curve, a part of delta; mostly 0."""
    return 0.0


@failure.register
def _too_many_rejections(event: events.TrialCap) -> float:
    return cap_probability(event.lowest_acceptance, int(event.most_rejections), 1)


@failure.register
def _summed_shares(event: events.SummedShares) -> float:
    return event.failure


@curve.register
def _visible_choice(event: events.VisibleChoice, orders: Floats, column: str) -> Floats:
    """``log(1 - p + p exp(a (a-1) / (2 s^2))) / (a-1)``, from the excess over one, which keeps the
    digits of small values."""
    with np.errstate(over="ignore", divide="ignore"):
        exponent = orders * (orders - 1.0) / (2.0 * event.noise_multiplier) / event.noise_multiplier
        log_excess = np.log(event.share_rate) + exponent + np.log(-np.expm1(-exponent))
    return np.asarray(np.logaddexp(0.0, log_excess) / (orders - 1.0))


@curve.register
def _randomized_response(event: events.RandomizedResponse, orders: Floats, column: str) -> Floats:
    # epsilon-DP implies (epsilon^2 / 2)-zCDP (Bun and Steinke 2016, Proposition 1.4)
    with np.errstate(over="ignore"):
        return np.minimum(event.epsilon, orders * event.epsilon * event.epsilon / 2.0)
