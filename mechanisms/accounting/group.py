"""Epsilon for several records of one person: all of them are replaced by null records at once.

Two ways, of which the second one holds for everything:

- Events that have a dominating pair for k records at once (`pairs`) are composed by
  `loss_distribution`. For sampled Gaussians this is the tight one (`mixture`).
- Else k records are replaced one after the other, by the smaller of two bounds. Renyi divergences
  of a chain P, Q, R obey ``D_a(P, R) <= a (u - 1) / (u (a - 1)) D_u(P, Q) + D_v(Q, R)``, ``v = a (u
  - 1) / (u - a)``, for every order u > a (Hölder's inequality; Mironov 2017); for
  Gaussians this is exact, but for the grid of orders. And k steps of a chain that are (eps, d)-DP
  are (k eps, d (1 + e^eps + .. + e^((k - 1) eps)))-DP.

Adjacency for one record is that of `accountant`, whose certified epsilon is the one for k = 1.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from mechanisms.accounting import accountant, dominating, events, trial_cap
from mechanisms.accounting.accountant import ORDERS, Charges
from mechanisms.accounting.mixture import MAX_RECORDS
from mechanisms.accounting.profile import Pair, Part, both_ways

Floats = NDArray[np.float64]

HIGHEST = 600.0
"""Largest epsilon of one record, times the number of records, for which a chain is tried."""
NARROWINGS = 3
"""How often a chain's epsilon is computed again at the delta that it needs itself."""
BISECTIONS = 30


class Guarantee(NamedTuple):
    """An epsilon for several records of one person, and what proves it."""

    epsilon: float
    method: str


def check_records(records: int) -> None:
    """Refuse what is no number of records within its bounds."""
    if not (isinstance(records, int | np.integer) and 1 <= records <= MAX_RECORDS):
        raise ValueError(
            f"group = {records!r} must be a whole number from 1 to {MAX_RECORDS}; it is the number "
            "of records of one person"
        )


def epsilon(charges: Charges, delta: float, records: int) -> Guarantee:
    """The certified epsilon for this many records of one person, at ``delta``, of charges whose end
    is fixed beforehand.

    Raises:
        ValueError: bad records, delta or counts.
    """
    check_records(records)
    if records == 1:
        one = accountant.epsilon(charges, delta)
        return Guarantee(one.epsilon, one.method)
    accountant.check_delta(delta)
    return _epsilon(frozenset(charges.items()), delta, records)


@functools.lru_cache(maxsize=10_000)
def _epsilon(items: frozenset[tuple[events.Event, int]], delta: float, records: int) -> Guarantee:
    charges = dict(items)
    delta *= accountant.share_of_the_end(event for event, count in items if count)
    found = accountant.composed(charges, delta, lambda each: _ways(each, records))
    if math.isfinite(found):
        return Guarantee(found, "loss distributions" if found else "")
    lost = accountant.cap_delta(charges)
    if lost >= delta:
        return Guarantee(math.inf, "")
    caps = events.TrialCap | events.SummedShares
    kept = {e: n for e, n in charges.items() if not isinstance(e, caps)}
    ways = {
        "Renyi orders of a chain": renyi(kept, delta - lost, records),
        "one record after the other": chain(kept, delta - lost, records),
    }
    method = min(ways, key=lambda way: ways[way])
    least = ways[method]
    if lost:
        least = trial_cap.with_cap(least, lost)
    if least > accountant.reach(charges):
        least = math.inf
    return Guarantee(least, method if math.isfinite(least) else "")


def _ways(charges: Charges, records: int) -> list[dominating.Steps]:
    steps = dominating.each(charges, lambda event: pairs(event, records))
    return [] if steps is None else [steps]


def chain(charges: Charges, delta: float, records: int) -> float:
    """``k eps`` with the least eps at which all k steps have their parts of delta."""

    def share(eps: float) -> float:
        """Delta of one record, whose multiples by 1, e^eps, .. e^((k - 1) eps) make up delta."""
        powers = math.fsum(math.exp(eps * (n - records + 1)) for n in range(records))
        return delta * math.exp(-(records - 1) * eps) / powers

    def at(eps: float) -> float:
        return accountant.guarantee(charges, share(eps), "certified", ORDERS).epsilon

    low, high = 0.0, HIGHEST / records
    if at(high) > high:
        return math.inf
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle) > middle else (low, middle)
    for _ in range(NARROWINGS):  # a smaller epsilon needs less of delta, so each is a bound
        high = min(high, accountant.epsilon(charges, share(high)).epsilon)
    return records * high


def renyi(charges: Charges, delta: float, records: int) -> float:
    """The least epsilon of the chain's Renyi divergences."""
    one = accountant.rdp(charges, ORDERS, "certified")

    @functools.cache
    def of(number: int) -> Floats:
        return one if number == 1 else _joined(of(number - number // 2), of(number // 2))

    total = of(records)
    return accountant.convert(total, ORDERS, delta).epsilon if total.any() else 0.0


def _joined(first: Floats, second: Floats) -> Floats:
    """Divergences of P from R ``[len(ORDERS)]``, from those of P from Q and of Q from R."""
    a, u = np.array(ORDERS)[:, None], np.array(ORDERS)[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        v = np.where(u > a, a * (u - 1.0) / (u - a), math.inf)
    place = np.searchsorted(ORDERS, v)  # divergences rise with the order
    sums = a * (u - 1.0) / (u * (a - 1.0)) * first + np.append(second, math.inf)[place]
    return np.asarray(sums.min(axis=1))


@functools.singledispatch
def pairs(event: events.Event, records: int) -> tuple[Pair, ...] | None:
    """Pairs that dominate one application for this many records of one person at once.

    Returns:
        Empty for what costs nothing; None if no pair is known.
    """
    return None


@pairs.register
def _in_one_sum(
    event: events.SampledGaussian
    | events.Gaussian
    | events.HeterogeneousGaussian
    | events.ScreenedStep,
    records: int,
) -> tuple[Pair, ...] | None:
    """A sampled sum with noise, in which there is one record or a `mixture` of several."""
    match dominating.pairs(event):
        case (alone,):
            (part,) = alone.removing[0].parts
            return (both_ways(part._replace(records=records)),)
    return None


@pairs.register
def _each_alone(
    event: events.VisibleChoice
    | events.RandomizedResponse
    | events.PaperClaim
    | events.PublicLabels
    | events.SummedShares
    | events.Covered,
    records: int,
) -> tuple[Pair, ...]:
    """Each record is released by itself, with noise of its own; or nothing is."""
    return records * (dominating.pairs(event) or ())


@pairs.register
def _partial_pass(event: events.PartialPass, records: int) -> tuple[Pair, ...]:
    """The order is public; any j of the records are in these batches with a probability of at most
    p^j, and move their sums by at most j, as if all were in one batch."""
    j = np.arange(1, records + 1)
    at_least = np.minimum(1.0, comb(records, j) * event.share_rate**j)  # j of them or more
    at_least = np.append(np.minimum.accumulate(at_least), 0.0)
    shares = zip(j.tolist(), (-np.diff(at_least)).tolist(), strict=True)
    noise = event.noise_multiplier
    return (both_ways(*(Part(share, 0.0, 1.0, noise, n) for n, share in shares if share)),)
