"""How often a record enters a batch, of every kind, is the rate that is charged."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.accounting.events import Allotment, Covered
from mechanisms.arithmetic import FLOATS
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import Batch, CohortData
from mechanisms.settings import Dpis
from tests import releases, small
from tests.releases import PLANS, RECORDS, VARIANTS

RATE, OTHER, CLIENTS = 0.3, 0.6, 300
"""Rates of the batch of a step, and of the batch of a test."""


class Counted(CohortData):
    """Records that note which of them are gathered."""

    def gather(self, chosen: Sequence[np.ndarray]) -> Batch:
        self.__dict__.setdefault("seen", []).append(
            np.array([np.isin(np.arange(RECORDS), own) for own in chosen])
        )
        return super().gather(chosen)


def of_rates(name: str) -> object:
    """The table's plan, with batches that leave somebody out."""
    own = {"dpsur": {"validation_rate": OTHER}, "screening": {"test_rate": OTHER}}.get(
        name.split(",")[0], {}
    )
    if name == "dpis":
        own = {"own": Dpis(dpis_sampling="uniform")}
    return dataclasses.replace((PLANS | VARIANTS)[name], sample_rate=RATE, **own)


KINDS = [name for name in PLANS | VARIANTS if not name.startswith("dpis,")]


def step(name: str) -> tuple[list[np.ndarray], list[float]]:
    """Who was gathered in a step, one ``[clients, records]`` for each batch, and the rates that are
    charged."""
    plan, holders = of_rates(name), releases.owned(np.ones(CLIENTS, dtype=bool))
    world = releases.cohort(plan, holders, small.streams(range(CLIENTS)), releases.Watched(FLOATS))
    world = dataclasses.replace(world, data=Counted(releases.X, releases.Y, holders))
    mechanism, first = MECHANISMS[name.split(",")[0]], torch.zeros(world.gradients.layout.size)
    end = mechanism.step(world, mechanism.start(world, first))
    charges = list(plan.round_charges(1))
    if any(isinstance(event, Allotment) for event in charges):
        charges = [
            event.event for event in mechanism.realized(world, end)[0] if isinstance(event, Covered)
        ]
    rates = [
        getattr(e, field, None)
        for e in charges
        for field in ("sample_rate", "share_rate", "validation_rate", "test_rate")
    ]
    if name.startswith("dpis"):
        rates = [event.batch_size / event.records for event in charges]
    return world.data.__dict__["seen"], [rate for rate in rates if rate]


@pytest.mark.parametrize("name", KINDS)
def test_records_enter_every_batch_with_the_rate_that_is_charged(name):
    """Exact binomial tests at level 1e-6; 1.2 times the rate is noticed. Kills a rate of another
    kind of batch.

    A public test gathers nobody's records, whatever its event says of a rate.
    """
    seen, rates = step(name)
    charged = rates[: len(seen)]
    assert len(seen) == (
        2 if name.split(",")[0] in ("dpsur", "dpagd") or name == "screening" else 1
    )
    assert len(charged) == len(seen)
    for who, rate in zip(seen, charged, strict=True):
        assert who.shape == (CLIENTS, RECORDS)
        assert stats.binomtest(int(who.sum()), who.size, rate).pvalue > 1e-6
        assert stats.binomtest(int(who.sum()), who.size, 1.2 * rate).pvalue < 1e-6


@pytest.mark.parametrize("name", KINDS)
def test_the_batches_of_a_step_and_of_two_clients_are_drawn_on_their_own(name):
    """Fisher's exact tests at level 1e-6, over clients and over kinds of batches; the same draw is
    noticed."""
    seen, _ = step(name)
    pairs = [(who[:-1], who[1:]) for who in seen] + ([(seen[0], seen[1])] if len(seen) > 1 else [])
    for one, other in pairs:
        assert independent(one, other) and not independent(one, one)


def independent(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether coins agree as often as independent ones would."""
    table = [[int(((one == a) & (other == b)).sum()) for b in (False, True)] for a in (False, True)]
    return stats.fisher_exact(table).pvalue > 1e-6
