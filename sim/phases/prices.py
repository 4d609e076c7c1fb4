"""The most that a run can cost, before it begins: the price of its plans, phase by phase."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms import personal
from mechanisms.accounting import accountant
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.choosing import epsilon_of_best
from mechanisms.accounting.curves import COLUMNS
from mechanisms.accounting.events import to_dict
from mechanisms.accounting.ranges import format_ranges
from mechanisms.plan import Plan, Terms, affordable_rounds, kinds_of, merge, planned
from mechanisms.registry import NOTHING, settings_of
from sim.config.caveats import caveats_of
from sim.config.checks import check_parts
from sim.config.fields import Config
from sim.config.settings import Data
from sim.config.use import unused
from sim.job.job import TRAIN
from sim.phases import course
from sim.phases.build import split, with_clients
from sim.phases.phase import Outlook

Entries = dict[str, Any]


@dataclass(frozen=True)
class Price:
    """The most that clients with equal plans pay in a phase.

    Attributes:
        phase: the phase's name.
        clients: the clients' numbers.
        rounds: how many of the phase's rounds their budget pays for.
        plan: their plan.
        charges: charges for these rounds: event -> count.
        before: charges of earlier phases.
        budget: the clients' epsilon where clients have budgets of their own, else None.
    """

    phase: str
    clients: Sequence[int]
    rounds: int
    plan: Plan
    charges: Charges
    before: Charges
    budget: float | None = None

    @property
    def whole(self) -> Charges:
        """All charges from the first phase to this one."""
        return merge(self.before, self.charges)


def outlook_of(config: Config, records: Sequence[int] | None) -> Outlook:
    """The inputs of plans, from the partitioned data set or from the clients' ``records`` alone.

    Raises:
        ValueError: the data cannot be used, or ``records`` does not fit the clients.
    """
    check_parts(config)
    if records is None:
        dataset, parts, holdout, _ = split(config)
        config = with_clients(config, parts.clients, dataset)
        return Outlook(config, dataset.x.shape[1:], parts.sizes, holdout is not None)
    stated = config.data.clients != Data.model_fields["clients"].default
    of_data = config.data.partition == "given" and not stated
    clients = len(records) if of_data else config.data.clients
    if len(records) not in (1, clients) or min(records) < 1:
        raise ValueError(
            f"--records has {len(records)} numbers, the smallest {min(records)}, for {clients} "
            "clients: give one of at least 1 for all of them, or one for each"
        )
    sizes = np.broadcast_to(np.array(records, dtype=np.int64), clients)
    config = with_clients(config, clients)
    return Outlook(config, (1,), sizes, config.data.public_records > 0)


def prices(outlook: Outlook) -> list[Price]:
    """The price of every phase; of training, one for each group of clients with equal plans.

    Raises:
        ValueError: the budget does not pay for one round.
    """
    config, found, before = outlook.config, list[Price](), NOTHING
    everybody, plans = range(len(outlook.sizes)), course.plan(outlook)
    for phase in course.BEFORE:
        if phase.name in plans:
            plan, rounds = plans[phase.name].plans[0], phase.rounds(config)
            found.append(Price(phase.name, everybody, rounds, plan, planned(plan, rounds), before))
            before = found[-1].whole
    most, own = config.rounds.rounds, settings_of(config.privacy, config)
    table, budgets = plans[TRAIN], personal.of_clients(config.privacy, len(outlook.sizes))
    targets, target_of = np.unique(budgets, return_inverse=True)
    kinds, kind = kinds_of(table.which, target_of)
    for number, (p, t) in enumerate(kinds.tolist()):
        plan, target, clients = table.plans[p], float(targets[t]), np.flatnonzero(kind == number)
        size = int(outlook.sizes[clients[0]])
        privacy = config.privacy.of_budget(target).of_size(size)
        terms = Terms(privacy, own, plan.steps, most, size, tuple(before.items()))
        rounds = affordable_rounds(plan, terms, most) if config.private else most
        charges, own_budget = planned(plan, rounds), target if config.privacy.budgets else None
        found.append(Price(TRAIN, clients.tolist(), rounds, plan, charges, before, own_budget))
    return found


def of_best(runs: Iterable[Sequence[Price]], delta: float, mean: float) -> float:
    """The certified epsilon of the best of a random number of runs, ``mean`` on average, each of
    which has one of these prices; infinite if none is proved."""
    every = {frozenset(price.whole.items()): price.whole for run in runs for price in last(run)}

    def epsilon_at(part: float) -> float:
        return max(accountant.epsilon(charges, part).epsilon for charges in every.values())

    return epsilon_of_best(epsilon_at, delta, mean)


def last(found: Sequence[Price]) -> list[Price]:
    """The prices of the last phase, whose ``whole`` is what each group of clients pays."""
    return [price for price in found if price.phase == found[-1].phase]


def figures_of(config: Config, found: Sequence[Price], orders: Sequence[float] | None) -> Entries:
    """The price of the client that pays most, with its events, and a row for each phase."""
    delta = config.privacy.delta
    largest = max(last(found), key=lambda price: accountant.epsilon(price.whole, delta).epsilon)
    rows = [row(price) | figures(price.charges, delta) for price in found]
    result = settings(config) | row(largest) | figures(largest.whole, delta)
    result |= {"caveats": list(caveats_of(largest.whole)), "phases": rows}
    if orders is None:
        return result
    result["orders"] = list(orders)
    for column in COLUMNS:
        result[f"rdp_{column}"] = accountant.rdp(largest.whole, orders, column).tolist()
    return result


def settings(config: Config) -> Entries:
    """The mechanism with its own settings, and the guarantee's delta."""
    privacy = config.privacy
    own, idle = settings_of(privacy, config), set(unused(config))
    every = own.model_dump() if own else {}
    named = {name: value for name, value in every.items() if name not in idle}
    result = {"mechanism": privacy.mechanism} | named | {"delta": privacy.delta}
    aimless = privacy.epsilon is None or "epsilon" in idle
    return result if aimless else result | {"epsilon_target": privacy.epsilon}


def row(price: Price) -> Entries:
    """A price as a row: phase, clients, the plan's parameters, and events."""
    parameters = ("sample_rate", "unit_rate", "noise_multiplier", "steps")
    named = {name: getattr(price.plan, name) for name in parameters if hasattr(price.plan, name)}
    ordered = sorted(price.charges.items(), key=repr)
    events = [{**to_dict(event), "count": int(count)} for event, count in ordered]
    head: Entries = {"phase": price.phase, "clients": format_ranges(price.clients)}
    head |= {} if price.budget is None else {"budget": price.budget}
    return head | named | {"rounds": price.rounds, "events": events}


def figures(charges: Charges, delta: float) -> Entries:
    """Certified epsilon and what proves it; by Renyi orders alone, certified and published."""
    certified = accountant.epsilon(charges, delta)
    renyi = accountant.by_renyi(charges, delta)
    published = accountant.epsilon(charges, delta, "published")
    result: Entries = {"epsilon_certified": certified.epsilon, "method": certified.method}
    result |= {"epsilon_renyi": renyi.epsilon, "order": renyi.order}
    return result | {"epsilon_published": published.epsilon, "order_published": published.order}
