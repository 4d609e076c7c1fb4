"""Every phase of a run that releases something: its noise, its draws, its charge and its name."""

import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.messages import Upload
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import Charges, epsilon
from mechanisms.accounting.events import Gaussian
from server import loop, orders
from server.store import Store
from sim.job.job import Job
from sim.phases import course, evaluation, generator, training
from sim.phases.course import Host, before_training
from sim.phases.phase import mean_sums
from tests import phases
from tests.gaussian import SPOILERS, alarms
from tests.phases import CLIENTS, PHASES, Broken, ask, charged
from tests.running import best_orders, in_progress
from tests.test_budgets import true_delta
from tests.test_fedfed import World
from tests.worlds import Crash

SOURCES = {"simulation": False, "release": True}
DELTA = 1e-5
CONTROLS = ("noise x 0.67", "noise x 1.5", "Laplace of the same deviation")


def test_every_phase_is_in_the_table(tmp_path):
    """A phase that is built, or named, without a row in the table of phases fails; of scores it
    pays for alone, `test_released_scores.py` has the laws."""
    built = set(Host(phases.job(tmp_path), tmp_path)._builders)
    named = {phase.name for phase in course.PHASES}
    assert {evaluation.NAME, *(phase.name for phase in PHASES.values())} == built == named


@pytest.mark.parametrize("release", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("name", PHASES)
def test_the_noise_of_every_phase_has_the_scale_that_its_ledger_says(tmp_path, name, release):
    """From the upload of one client to its line in the ledger. False alarm: 1e-6 each.

    Kills noise that is left out, or has another scale than is charged, wherever it is handed on.
    """
    phase, job, node = phases.node(name, tmp_path, release)
    sample = phase.noise(job, node.train(ask(phase, job, 1, [1])))[:20_000]
    std = phase.multiplier(charged(tmp_path, 1))
    assert sample.size >= 800 and alarms(sample, std) == set()
    assert all(alarms(SPOILERS[spoil](sample, std), std) for spoil in CONTROLS)


@pytest.mark.parametrize("release", SOURCES.values(), ids=SOURCES)
def test_noise_is_drawn_anew_for_every_round_client_and_phase(tmp_path, release):
    """From one model in two rounds, whose noise is all that is uploaded: no two are correlated.
    False alarm: 1e-6.

    Kills a node that asks for the draws of another round, or of another client.
    """
    drawn = []
    for name in PHASES:
        phase, job, node = phases.node(name, tmp_path / name, release)
        for (nth, round_), client in itertools.product(enumerate(phase.rounds, 1), range(CLIENTS)):
            asked = ask(phase, job, round_, [client], nth)
            asked = replace(asked, release=f"{asked.release}-{client}")
            drawn.append(phase.noise(job, node.train(asked))[:800])
    related = np.abs(np.corrcoef(np.stack(drawn)) - np.eye(len(drawn)))
    assert len(drawn) == 2 * CLIENTS * len(PHASES) and related.max() < 6 / 800**0.5


@pytest.mark.parametrize("name", PHASES)
def test_clients_draw_together_what_each_draws_alone(tmp_path, name):
    """In a simulation, bit for bit. Kills noise of the cohort's first clients, whoever they are."""
    phase, job, node = phases.node(name, tmp_path)
    alone = [node.train(ask(phase, job, 1, [client])) for client in range(CLIENTS)]
    whole = node.train(ask(phase, job, 1, [0, 1, 2]))
    assert (whole.total == sum(one.total for one in alone)).all()
    assert whole.weight == sum(one.weight for one in alone)
    if whole.shared:
        order = np.argsort(whole.shared["client"], kind="stable")
        for part in ("x", "y", "client"):
            assert np.array_equal(
                whole.shared[part][order], np.concatenate([one.shared[part] for one in alone])
            )


@pytest.mark.parametrize("name", PHASES)
def test_no_client_of_a_release_has_the_noise_of_another(tmp_path, name):
    """Together it is that of independent clients. False alarm: 1e-6; one noise for all must be
    noticed."""
    phase, job, node = phases.node(name, tmp_path, release=True)
    upload = node.train(ask(phase, job, 1, [0, 1, 2]))
    sample, std = phase.noise(job, upload)[:20_000], phase.multiplier(charged(tmp_path, 0))
    if upload.shared:
        rows = np.unique(upload.shared["x"], axis=0)
        assert len(rows) == len(upload.shared["x"]) and alarms(sample, std) == set()
    else:
        assert alarms(sample, std * CLIENTS**0.5) == set() and alarms(sample, std * CLIENTS)


@pytest.mark.parametrize("release", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("name", PHASES)
def test_the_charge_of_every_phase_is_on_disk_before_a_record_is_looked_at(tmp_path, name, release):
    """That of every asked client. Kills a charge that is written after what it pays for was
    drawn."""
    phase = PHASES[name]
    job = phases.job(tmp_path, release, phase.width, **phase.given)
    broken = replace(job, partition=Broken(job.partition.indices, job.partition.offsets))
    with pytest.raises(RuntimeError, match="a record was looked at"):
        Host(broken, tmp_path).node(0, phase.name).train(ask(phase, job, 1, [0, 2]))
    planned = {client: phase.plans(job).of(client).round_charges(1) for client in (0, 2)}
    assert ledger.read(tmp_path / "ledger") == planned


@pytest.mark.parametrize("release", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("name", PHASES)
def test_what_is_asked_again_is_the_same_draw_in_a_simulation_and_another_one_in_a_release(
    tmp_path, name, release
):
    """And is charged so: once, or twice."""
    phase, job, node = phases.node(name, tmp_path, release)
    asked = ask(phase, job, 1, [2])
    named = [replace(asked, release=f"again-{n}") if release else asked for n in range(2)]
    first, again = (phase.noise(job, node.train(one)) for one in named)
    assert np.array_equal(first, again) != release
    (paid,) = ledger.read(tmp_path / "ledger").values()
    once = phase.plans(job).of(2).round_charges(1)
    assert paid == {event: count * (1 + release) for event, count in once.items()}


def prepared(folder: Path, given: dict) -> tuple[World, Job]:
    """A run of FedFed whose training is yet to come."""
    world = World(folder, given)
    (world.run_dir / "ledger").mkdir(parents=True)
    return world, before_training(world.job, world.run_dir, world.exchange(world.run_dir, None))


@pytest.mark.parametrize("release", SOURCES.values(), ids=SOURCES)
def test_a_release_name_belongs_to_one_round_of_one_phase(tmp_path, release):
    """Over a whole run with all phases: a second release under a name would not be charged."""
    given = {
        "standardize": "private",
        "shared_source": "distilled",
        "share_budget": 0.5,
        "distill_rounds": 2,
    }
    world, job = prepared(tmp_path, given | {"release": release})
    exchange, store = world.exchange(world.run_dir, None), Store(world.run_dir, keep_checkpoints=2)
    federation = training.federation(job, world.run_dir)
    loop.run(federation, exchange, store, loop.restore(federation, store), [])
    asked = {(request.phase, request.round, request.release) for request in world.asked}
    assert [len({one[part] for one in asked}) for part in (0, 1, 2)] == [4, len(asked), len(asked)]
    assert {phase for phase, _, _ in asked} == {phase.name for phase in PHASES.values()}
    rounds = {phase: sorted(n for own, n, _ in asked if own == phase) for phase, _, _ in asked}
    assert rounds == {"statistics": [-3], "distill": [-2, -1], "share": [0], "train": [1, 2]}


EVERY_PHASE = {"standardize": "private", "prototype_features": "distilled", "distill_rounds": 2}


def shown(folder: Path) -> tuple[list[float], list[Charges]]:
    """The largest certified epsilon after each round of a run, in whichever phase, and what its
    first client had paid by then."""
    parts = ("statistics", "distill", "share", "")
    files = [folder / part / "rounds.jsonl" for part in parts]
    lines = [json.loads(x) for file in files if file.exists() for x in file.open()]
    paid = [ledger.read(folder / "ledger", up_to_round=line["round"])[0] for line in lines]
    return [line["epsilon_certified_max"] for line in lines], paid


@pytest.mark.usefixtures("no_report")
def test_what_is_shown_holds_for_whoever_stops_a_run_in_any_of_its_phases(tmp_path):
    """By what he has seen. All releases are Gaussians of all records here, so that the true delta
    of the best rule for stopping can be computed. Kills a share of delta, or orders, for each
    phase; and the closing figure at its end, which is none of the run's."""
    world = World(tmp_path, EVERY_PHASE | {"rounds": 4, "sample_rate": 1.0, "share_budget": 0.5})
    found, paid = shown(world.run().run_dir)
    squares = [sum(n / event.noise_multiplier**2 for event, n in one.items()) for one in paid]
    noise = list(1 / np.sqrt(np.diff(squares, prepend=0.0)))
    closing = [epsilon(one, DELTA).epsilon for one in paid]
    assert len(found) == 8 and found[-1] == closing[-1] and max(found) <= 8.0
    assert 0.5 * DELTA < true_delta(noise, found) <= DELTA
    at_the_ends = [closing[n] if n in (0, 2, 3, 7) else found[n] for n in range(8)]
    assert true_delta(noise, at_the_ends) > 1.1 * DELTA


def test_figures_are_at_orders_of_the_whole_run_in_each_of_its_phases(tmp_path):
    """As they are written down. Kills orders that leave out what earlier phases cost, and what
    these cost by themselves."""
    world, job = prepared(tmp_path, EVERY_PHASE | {"rounds": 9})
    found, paid = shown(world.run_dir)
    statistics, distilled, end = paid[0], paid[2], paid[3]
    fixed = best_orders(job.plans.of(0), 9, DELTA, [statistics, distilled, end])
    training.federation(job, tmp_path).write_orders(tmp_path)
    assert tuple(sorted(orders.read(tmp_path)[0])) == fixed and len(fixed) > 3
    assert found == [min(8.0, in_progress(one, DELTA, fixed)) for one in paid]


def test_the_order_that_an_allotment_names_is_that_of_all_phases(tmp_path):
    """Of a sampled adaptive run, at whose end nothing else proves its epsilon."""
    world, job = prepared(tmp_path, {"mechanism": "dpis", "shared_source": "prototypes"})
    found, paid = shown(world.run_dir)
    order = job.plans.of(0).allotment.order
    assert found == [in_progress(paid[0], DELTA, [order])]
    assert found[0] > epsilon(paid[0], DELTA, orders=[order]).epsilon


def test_rounds_before_training_that_were_finished_keep_their_records_when_a_run_goes_on(tmp_path):
    """Whatever number the first of them has. Kills a file that is cut back to none of them."""
    world = World(
        tmp_path, {"shared_source": "distilled", "share_budget": 0.5, "distill_rounds": 3}
    )
    (world.run_dir / "ledger").mkdir(parents=True)
    with pytest.raises(Crash):
        before_training(world.job, world.run_dir, world.exchange(world.run_dir, (-1, 0)))
    before_training(world.job, world.run_dir, world.exchange(world.run_dir, None))
    lines = (world.run_dir / "distill" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [-3, -2, -1]


def test_rounds_before_training_have_their_numbers_whichever_phases_take_place(tmp_path):
    """No generator is trained here: its two numbers stay free. Kills numbers that depend on it."""
    world, _ = prepared(
        tmp_path, {"standardize": "private", "shared_source": "prototypes", "distill_rounds": 2}
    )
    assert {(request.phase, request.round) for request in world.asked} == {
        ("statistics", -3),
        ("share", 0),
    }


def test_everybody_takes_part_in_what_precedes_training_whatever_the_fraction(tmp_path):
    world, _ = prepared(
        tmp_path, {"standardize": "private", "shared_source": "prototypes", "fraction": 0.5}
    )
    asked = {
        phase: sorted(c for r in world.asked if r.phase == phase for c in r.clients)
        for phase in ("statistics", "share")
    }
    assert asked == {"statistics": [*range(6)], "share": [*range(6)]}


def test_a_release_that_nobody_can_pay_is_refused_before_training(tmp_path):
    """Everything was spent by attempts that are lost. Kills a run that trains without what it was
    to share."""
    world = World(tmp_path, {"shared_source": "prototypes"})
    for group in range(3):
        with ledger.Ledger(world.run_dir / "ledger" / f"group-{group:04d}.jsonl") as file:
            file.charge("lost", -1, range(6), {Gaussian(0.4): 1})
    with pytest.raises(ValueError, match="is spent before training"):
        before_training(world.job, world.run_dir, world.exchange(world.run_dir, None))
    assert not world.asked


@pytest.mark.parametrize("given", [{"standardize": "private", "shared_source": "none"}, {}])
def test_a_result_that_is_lost_is_missed_before_training(tmp_path, given):
    """The phase is over, so that nothing would make it again. Kills a run that trains without."""
    world, _ = prepared(tmp_path, given)
    (result,) = world.run_dir.glob("*.safetensors")
    result.unlink()
    with pytest.raises(
        ValueError, match=rf"{result.name} is missing, the result of a phase .* copy"
    ):
        before_training(world.job, world.run_dir, world.exchange(world.run_dir, None))


@pytest.mark.parametrize("lost", [0, 1])
def test_each_of_several_results_is_missed(tmp_path, lost):
    """That of a later phase was there, and the run trained without the earlier one's."""
    world, _ = prepared(tmp_path, {"standardize": "private", "shared_source": "prototypes"})
    results = sorted(world.run_dir.glob("*.safetensors"))
    assert len(results) == 2
    results[lost].unlink()
    with pytest.raises(ValueError, match=rf"{results[lost].name} is missing, the result of a"):
        before_training(world.job, world.run_dir, world.exchange(world.run_dir, None))


def test_a_phase_that_is_over_is_not_begun_anew(tmp_path):
    """Its result was lost with its folder while training went on: clients shared a second time."""
    world, _ = prepared(tmp_path, {"shared_source": "prototypes"})
    (result,) = world.run_dir.glob("*.safetensors")
    result.unlink()
    shutil.rmtree(world.run_dir / "share")
    with ledger.Ledger(world.run_dir / "ledger" / "group-0000.jsonl") as paid:
        paid.charge("round-1", 1, [0], {Gaussian(1.0): 1})
    asked = len(world.asked)
    with pytest.raises(ValueError, match=rf"{result.name} is missing, the result of a phase"):
        before_training(world.job, world.run_dir, world.exchange(world.run_dir, None))
    assert len(world.asked) == asked


@pytest.mark.parametrize(
    "given", [{"standardize": "private"}, {"shared_source": "prototypes"}], ids=str
)
def test_means_over_clients_of_unequal_sizes_are_means_over_records(tmp_path, given):
    """Without noise. Kills the size of one client for the mean of all."""
    plain = {
        "mechanism": "none",
        "partition": "quantity",
        "dirichlet": 0.7,
        "shared_source": "none",
    }
    world, after = prepared(tmp_path, plain | given)
    data, sizes = world.job.dataset, world.job.partition.sizes
    assert len(set(sizes)) > 3
    if "standardize" in given:
        assert np.allclose(after.dataset.x.mean(axis=0), 0, atol=1e-4)
        assert np.allclose(after.dataset.x.std(axis=0), 1, atol=1e-3)
    else:
        sums = np.stack([data.x[data.y == label].sum(axis=0) for label in range(3)])
        assert np.allclose(world.shared["x"], sums * 3 / len(data.y), atol=1e-5)


def test_a_mean_is_over_those_who_have_released_and_their_records(tmp_path):
    """A client may have retired. Kills the records of all clients beside the sums of some."""
    job = World(tmp_path, {"partition": "quantity", "dirichlet": 0.7}).job
    sizes = job.partition.sizes
    uploads = [
        Upload(0, group, np.array([client]), np.array([total], np.int64) * 2**32, 1)
        for group, (client, total) in enumerate([(4, 3), (1, 7)])
    ]
    mean, records = mean_sums(job, uploads)
    assert mean.tolist() == [5.0] and records == (sizes[4] + sizes[1]) / 2 != sizes.mean()


@pytest.mark.parametrize("name", ["statistics", "class sums"])
def test_the_result_of_a_phase_is_whole_or_not_there(tmp_path, monkeypatch, name):
    """A run that goes on takes the file for the whole result. Kills one that is filled in place."""
    phase, job, node = phases.node(name, tmp_path)
    upload = node.train(ask(phase, job, 1, [0, 1, 2]))
    (row,) = [one for one in course.PHASES if one.name == phase.name]

    def broken(handle: int) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            row.federation(job, tmp_path).collect([upload])
    assert not (tmp_path / row.result).exists()
    row.federation(job, tmp_path).collect([upload])
    assert (tmp_path / row.result).exists()


def test_two_phases_with_the_same_noise_are_charged_twice(tmp_path):
    """Statistics and class sums, each a Gaussian release of multiplier 8. Kills one name for
    both."""
    same = {"standardize": "private", "standardize_noise": 8.0, "share_noise": 8.0}
    world, _ = prepared(tmp_path, same | {"shared_source": "prototypes"})
    assert [paid[Gaussian(8.0)] for paid in world.spent().values()] == [2] * 6


def test_a_generator_that_is_lost_is_missed(tmp_path):
    """Kills a release of records that nothing has split."""
    job = phases.job(tmp_path, **phases.DISTILLED)
    with pytest.raises(ValueError, match="distill has no complete checkpoint of the generator"):
        generator.trained(job, tmp_path)
    assert len(generator.trained(phases.job(tmp_path, **phases.PROTOTYPES), tmp_path)) == 0
