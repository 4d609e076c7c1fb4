"""The many-run audit: below what is certified for every mechanism, near it where that can be, above
it for faults."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.many_run_audit import TARGETS
from mechanisms import dpsgd
from mechanisms.accounting.allotment import movement_of, total
from mechanisms.arithmetic import FLOATS
from mechanisms.cohort import Cohort, LocalState
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.optimizers import Optimizer, sgd
from mechanisms.randomness import Streams
from mechanisms.registry import MECHANISMS
from mechanisms.settings import Dpsur
from mechanisms.sharing import SharingPlan, SingleRecords
from sim.auditing.bounds import threshold_epsilon
from sim.auditing.canaries import CanaryGradients
from sim.auditing.many_run import Statistic, World, many_run_epsilon
from tests.audit_worlds import (
    CLASSES,
    CONFIDENCE,
    DELTA,
    KEY,
    QUIET,
    alone,
    claimed,
    moved,
    plan,
    world,
)

PRIVATE = [name for name, row in MECHANISMS.items() if row.private]
RUNS = 1_000


def bound(world: World, statistic: Statistic = moved, runs: int = RUNS) -> float:
    return many_run_epsilon(world, statistic, runs, DELTA, CONFIDENCE, KEY)


SHOWN = {2.0: 0.05, 4.0: 0.5, 8.0: 1.5}
"""What 1,000 runs show at least of each certified epsilon, whatever the mechanism; of 1 they show
nothing."""


@pytest.mark.parametrize("target", SHOWN)
@pytest.mark.parametrize("mechanism", PRIVATE)
def test_no_mechanism_tells_more_than_is_certified(mechanism, target):
    """With fixed draws; other ones would give a false alarm with a probability below 0.001 in each
    case. Kills: noise, clip or divisor that differ from what is charged.
    """
    one = plan(mechanism, target)
    found = bound(world(mechanism, one))
    assert SHOWN[target] < found <= claimed(one) <= target < 1.5 * claimed(one)


@pytest.mark.parametrize("mechanism", PRIVATE)
def test_every_mechanism_has_a_plan_at_the_benchmark_s_smallest_target(mechanism):
    least = min(TARGETS)
    assert claimed(plan(mechanism, least)) <= least < 1.5 * claimed(plan(mechanism, least))


def test_the_audit_has_teeth():
    """Half of the certified epsilon, for DPSGD at 8."""
    one = plan("dpsgd", 8.0, steps=2)
    assert 0.5 * claimed(one) < bound(world("dpsgd", one), runs=20_000) <= claimed(one)


def test_it_is_reproducible_and_chunks_change_nothing(monkeypatch):
    one = world("dpsgd", plan("dpsgd", 8.0, sample_rate=0.5))
    first = bound(one)
    monkeypatch.setattr("sim.auditing.many_run.AT_A_TIME", 400)
    assert bound(one) == first > 0
    assert many_run_epsilon(one, moved, RUNS, DELTA, CONFIDENCE, b"another key") != first


def test_rounds_go_on_from_the_models_before_them_and_adaptive_plans_pay():
    """Two rounds with an allotment each; the models of the first are the starts of the second."""
    one = dataclasses.replace(world("dpagd", plan("dpagd", 4.0)), rounds=2)
    seen = []
    bound(one, lambda models: seen.append(models) or moved(models), runs=4)
    for models in seen:
        assert models.shape == (3, 4, 6) and not torch.equal(models[1], models[2])
        assert (models[2] - models[0]).abs().max() > (models[1] - models[0]).abs().min()


def models_of(one: World, runs: int) -> torch.Tensor:
    """All models ``[1 + rounds, 2 runs, P]`` that an audit looks at, those of the first data set
    first."""
    seen: list[torch.Tensor] = []
    bound(one, lambda models: seen.append(models) or moved(models), runs=runs)
    return torch.cat(seen, dim=1)


def test_no_two_runs_of_an_audit_share_a_draw(monkeypatch):
    """Neither in one data set nor over both, neither in a cohort nor over two, nor from round to
    round.

    The canary is as good as absent, and there is nothing else: each round's move is its noise.
    """
    monkeypatch.setattr("sim.auditing.many_run.AT_A_TIME", 3)
    one = dataclasses.replace(alone(world("dpsgd", plan("dpsgd", 4.0), size=1e-9)), rounds=2)
    models = models_of(one, 5)
    assert models.shape == (3, 10, 6)
    assert torch.pdist((models[1:] - models[:-1]).flatten(end_dim=1).double()).min() > 1e-3


def test_the_bound_is_that_of_the_statistics_at_the_given_confidence():
    one, samples = world("dpsgd", plan("dpsgd", 8.0)), []
    found = bound(one, lambda models: samples.append(moved(models).double()) or moved(models))
    first, second = (sample.numpy() for sample in samples)
    assert found == threshold_epsilon(first, second, DELTA, CONFIDENCE) > 0
    assert len(first) == len(second) == RUNS and found < threshold_epsilon(
        first, second, DELTA, 0.9
    )


def test_the_data_sets_of_an_audit_differ_in_the_canary_alone():
    """Without noise the first one's runs move by the canary, the second one's do not; both count
    the same records."""
    one = dataclasses.replace(plan("dpsgd", 8.0, steps=1), noise_multiplier=1e-9)
    models = models_of(world("dpsgd", one), 2).double()
    difference = (models[1] - models[0])[:2] - (models[1] - models[0])[2:]
    expected = torch.zeros(2, 6, dtype=torch.float64)
    expected[:, 1] = 0.1 * one.clip_norm / 4
    torch.testing.assert_close(difference, expected, atol=1e-6, rtol=0)


def test_an_adaptive_run_pays_for_each_round_out_of_what_it_has_left(monkeypatch):
    """Each run its own account: an allotment a round, and what its own rounds before have spent."""
    seen = []

    def watched(mechanism, cohort, models):
        end = local_round(mechanism, cohort, models)
        seen.append((cohort.accounts, mechanism.realized(cohort, end)))
        assert cohort.holdout is public and cohort.nth == [(len(seen) - 1) % 3 + 1] * 4
        return end

    monkeypatch.setattr("sim.auditing.many_run.local_round", watched)
    own, public = plan("dpagd", 4.0), (torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    models_of(dataclasses.replace(world("dpagd", own), rounds=3, holdout=public), 4)
    order, amounts = own.allotment.order, set()
    for rounds in (seen[:3], seen[3:]):
        spent = [0.0] * 4
        for nth, (accounts, charges) in enumerate(rounds, 1):
            assert [(a.order, a.allotted) for a in accounts] == [
                (order, nth * own.allotment.rdp)
            ] * 4
            assert [a.spent for a in accounts] == pytest.approx(spent)
            movements = [
                [movement_of(0, event, count) for event, count in one.items()] for one in charges
            ]
            more = [total([m for m in one if m], order).spent for one in movements]
            spent = [before + now for before, now in zip(spent, more, strict=True)]
            amounts |= {round(one, 6) for one in more}
    assert len(seen) == 6 and len(amounts) > 1


# Planted faults. Each is composed of the real parts; what is claimed is what the honest mechanism
# charges.


class Unclipped:
    """Gradients of which every drawn record enters whole."""

    def __init__(self, inner):
        self.layout, self._inner = inner.layout, inner

    def scaled_sum(self, params, x, y, factors, metric):
        return self._inner.scaled_sum(
            params, x, y, lambda norms: (factors(norms) > 0).to(norms), metric
        )


def with_a_memory_of_its_own(momentum: float) -> Optimizer:
    """Momentum that lives outside the state: a rejection does not restore it."""
    velocity = torch.zeros(())

    def init(params: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal velocity
        velocity = torch.zeros_like(params)
        return ()

    def update(gradient, state):
        nonlocal velocity
        velocity = momentum * velocity + gradient
        return velocity, state

    return Optimizer(init, update)


def divided_by_the_drawn_size(cohort: Cohort, state: LocalState) -> LocalState:
    batch = dpsgd.draw(cohort)
    total, _ = dpsgd.clipped_sum(cohort, state, batch)
    drawn = batch.mask.sum(dim=1).clamp(min=1)
    return state.descend(cohort, dpsgd.noised(cohort, state, total) / drawn[:, None])


class SameNoise:
    """Streams that repeat the noise of the first round."""

    def __init__(self, streams, first):
        self.of, self._streams, self._first = streams.of, streams, first

    def begin(self, kind, purpose, size):
        """Nothing is drawn ahead."""

    def normal(self, purpose, size):
        return self._first.setdefault(len(self.of(purpose)), self._streams.normal(purpose, size))


def with_the_noise_of_the_first_round() -> Callable[[Cohort, LocalState], LocalState]:
    first: dict[int, torch.Tensor] = {}

    def step(cohort: Cohort, state: LocalState) -> LocalState:
        if set(cohort.nth) == {1}:
            first.clear()
        return dpsgd.step(
            dataclasses.replace(cohort, streams=SameNoise(cohort.streams, first)), state
        )

    return step


def spread(models: torch.Tensor) -> torch.Tensor:
    return (models[-1] - models[0]).norm(dim=1)


def second_difference(models: torch.Tensor) -> torch.Tensor:
    return (models[2] - 2 * models[1] + models[0]).norm(dim=1)


def half_the_noise(faulty: bool) -> tuple[World, Statistic, float]:
    one = plan("dpsgd", 2.0)
    run = dataclasses.replace(one, noise_multiplier=one.noise_multiplier / 2) if faulty else one
    return world("dpsgd", run), moved, claimed(one)


def no_clip(faulty: bool) -> tuple[World, Statistic, float]:
    one = plan("dpsgd", 2.0)
    honest = world("dpsgd", one)
    gradients = Unclipped(honest.gradients) if faulty else honest.gradients
    return dataclasses.replace(honest, gradients=gradients), moved, claimed(one)


def momentum_of_rejections(faulty: bool) -> tuple[World, Statistic, float]:
    """One trial in ten is accepted, whatever the data."""
    own = Dpsur(dpsur_accounting="selective", dpsur_validation_noise=100.0, dpsur_beta=-250.0)
    noise = 1.25 * plan("dpsgd", 2.0, steps=1).noise_multiplier
    one = plan("dpsur", 2.0, own, steps=1, noise_multiplier=noise)
    optimizer = with_a_memory_of_its_own(0.95) if faulty else sgd(0.95)
    return world("dpsur", one, optimizer=optimizer), moved, claimed(one)


def drawn_divisor(faulty: bool) -> tuple[World, Statistic, float]:
    """Two records or one, in 110 coordinates: the noise itself tells which."""
    one = plan("dpsgd", 2.0, steps=1)
    inner = CanaryGradients(RecordGradients(nn.Linear(10, 10)), 10, torch.tensor([0, 1]), 10.0)
    mechanism = MECHANISMS["dpsgd"]
    mechanism = (
        dataclasses.replace(mechanism, step=divided_by_the_drawn_size) if faulty else mechanism
    )
    two = World(
        mechanism,
        one,
        inner,
        torch.zeros(2, 10),
        torch.tensor([10, 11]),
        1,
        torch.zeros(110),
        sgd(),
    )
    return two, spread, claimed(one)


def unwhitened_clip(faulty: bool) -> tuple[World, Statistic, float]:
    one = plan("dphero", 2.0, steps=1)
    run = dataclasses.replace(one, isotropic=faulty)
    return world("dphero", run, at=QUIET), functools.partial(moved, at=QUIET), claimed(one)


def repeated_noise(faulty: bool) -> tuple[World, Statistic, float]:
    one = plan("dpsgd", 2.0, steps=1, sample_rate=0.5)
    honest = dataclasses.replace(alone(world("dpsgd", one)), rounds=2)
    mechanism = dataclasses.replace(honest.mechanism, step=with_the_noise_of_the_first_round())
    return (
        dataclasses.replace(honest, mechanism=mechanism if faulty else honest.mechanism),
        (second_difference),
        claimed(one, rounds=2),
    )


FAULTS = {
    half_the_noise: 6_000,
    no_clip: 2_000,
    momentum_of_rejections: 1_000,
    drawn_divisor: 2_000,
    unwhitened_clip: 2_000,
    repeated_noise: 2_000,
}
"""With the number of runs that shows it."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(fault):
    """Where nothing is wrong the same audit finds nothing; false alarm below 0.001."""
    faulty, statistic, claim = fault(True)
    assert bound(faulty, statistic, FAULTS[fault]) > claim
    honest, statistic, claim = fault(False)
    assert bound(honest, statistic, FAULTS[fault]) <= claim


class Repeating:
    """A generator whose rows are all alike."""

    def __init__(self, generator: np.random.Generator):
        self._generator = generator

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.tile(self._generator.standard_normal(shape[1:]), (shape[0], 1))


class OneImage:
    """Streams in which all single records of a client get the noise of the first one."""

    def __init__(self, streams: Streams):
        self._streams = streams

    def of(self, purpose: str) -> list:
        return [
            Repeating(one) if purpose == "slot noise" else one for one in self._streams.of(purpose)
        ]


def shared_pair(faulty: bool, present: bool, plan: SharingPlan) -> np.ndarray:
    """By how much the second of two single records differs from the first; the second is 0 where it
    is absent."""
    records = torch.tensor([[0.0, 0.0], [1.0 if present else 0.0, 0.0]])
    streams = Streams(
        KEY, 1, range(RUNS) if present else range(RUNS, 2 * RUNS), torch.device("cpu")
    )
    release = SingleRecords(plan, lambda x: x, CLASSES)
    given = [records] * RUNS, [torch.zeros(2, dtype=torch.int64)] * RUNS
    released = release(*given, OneImage(streams) if faulty else streams, FLOATS)
    rows = released.records["x"].reshape(RUNS, 2, 2)
    return (rows[:, 1, 0] - rows[:, 0, 0]).astype(np.float64)


def test_one_noise_image_for_all_shared_records_is_caught():
    """FedFed's fault; false alarm below 0.001."""
    one = SharingPlan(2.0, 1.0, singly=True)
    found = {
        faulty: threshold_epsilon(
            *(shared_pair(faulty, p, one) for p in (True, False)), DELTA, CONFIDENCE
        )
        for faulty in (True, False)
    }
    assert found[False] <= claimed(one) < found[True]


def test_canaries_are_labels_above_the_classes():
    assert int(world("dpsgd", plan("dpsgd", 8.0)).y.max()) == CLASSES
