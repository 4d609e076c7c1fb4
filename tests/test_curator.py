"""Clients that trust the server: what they contribute, what it releases, and who pays for it."""

import functools
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms import contributions, grid, shares
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from mechanisms.contributions import ContributionPlan
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.mechanism import local_round
from mechanisms.plan import planned
from mechanisms.registry import MECHANISMS
from server import loop
from server.curator import LEDGER, Curator
from server.guarantees import CLIENT as OTHERS
from server.guarantees import READER, SERVER, guarantees
from server.store import Store
from sim import run
from sim.auditing import trainings
from sim.auditing.session import audit
from sim.config import configuration
from sim.engines.inline import inline_exchange
from sim.phases import training, trust
from sim.phases.build import build
from sim.showing import wording
from strategies.fedavg import fedavg
from strategies.settings import Aggregation
from tests import small, worlds
from tests.gaussian import SPOILERS, alarms
from tests.refusing import check_refused

CLIENTS, ROUNDS = 12, 4
RECORD = {"trust": "server"}
CLIENT_UNIT = {"trust": "server", "unit": "client", "fraction": 0.5, "steps": 3}
UNITS = {"record": RECORD, "client": CLIENT_UNIT}
SETTINGS = {
    "clients": CLIENTS,
    "partition": "iid",
    "groups": 3,
    "rounds": ROUNDS,
    "sample_rate": 0.5,
    "engine": "inline",
}
UNEQUAL = {name: value for name, value in SETTINGS.items() if name != "sample_rate"} | {
    "partition": "quantity",
    "dirichlet": 0.7,
    "min_records": 3,
    "batch_size": 3,
}
"""Clients whose rates follow from a batch size."""


class World(worlds.Loop):
    settings = SETTINGS

    @property
    def paid(self) -> dict:
        return ledger.read(self.folder / "ledger")

    def releases(self) -> list[str]:
        """The names that were charged, a line each."""
        lines = (self.folder / "ledger" / LEDGER).read_text().splitlines()
        return [json.loads(line)["release"] for line in lines]

    def run_and_payments(self) -> tuple[loop.Standing, list[dict[int, int]]]:
        """The run's end, and how many events each client had paid for when the requests of each
        round left."""
        federation, store, paid_before = self.federation, self.store, []
        real = self.exchange(self.folder, None)

        def exchange(requests):
            paid_before.append({c: sum(events.values()) for c, events in self.paid.items()})
            return real(requests)

        end = loop.run(federation, exchange, store, loop.restore(federation, store), [])
        return end, paid_before


class Unequal(World):
    """Of clients with different rates."""

    settings = UNEQUAL


def plan_of(
    rate: float, steps: int = 1, clip: float = 1.0, clipping: str = "flat"
) -> ContributionPlan:
    """Without noise."""
    return ContributionPlan(1.0, steps, 0.0, clip, clipping, 0.0, rate)


def rows(unit: str, plan: object, module=None) -> tuple[torch.Tensor, torch.Tensor]:
    """What four clients contribute, as sums in units of the clip norm, and their final models."""
    mechanism, sent = contributions.of_unit(unit, 0.5)
    world = small.cohort([plan] * 4, module=module)
    start = small.start(module or small.model())
    end = local_round(mechanism, world, start)
    return sent.rows(world, start, end).double() / grid.PART, end.params


def test_a_protected_client_draws_its_batches_as_planned_and_pays_for_the_sum():
    """A shuffled batch of 60 has all records of each client, divided by what is expected."""
    whole, _ = rows("client", plan_of(0.5, clip=1e3))
    plan = replace(plan_of(0.5, clip=1e3), sample_rate=0.02, sampling="shuffled", records=3_000)
    found, _ = rows("client", plan)
    assert whole.abs().sum() > 0 and torch.allclose(found, 50.0 * whole, rtol=1e-4, atol=1e-7)
    assert replace(plan, noise_multiplier=1.0).round_charges(1) == {SampledGaussian(0.5, 1.0): 1}


@pytest.mark.parametrize("unit", UNITS)
def test_every_client_pays_for_every_round_before_a_request_leaves(tmp_path, unit):
    """Whoever enters it. Kills a charge of those alone who were asked, and one that comes after."""
    world = World(tmp_path, UNITS[unit])
    _, paid_before = world.run_and_payments()
    assert paid_before == [dict.fromkeys(range(CLIENTS), n) for n in range(1, ROUNDS + 1)]
    rate = 0.5  # of a record in a batch, or of a client in a round
    plan = world.job.plans.of(0)
    event = SampledGaussian(rate, plan.noise_multiplier)
    assert world.paid == {c: {event: ROUNDS} for c in range(CLIENTS)}
    assert [path.name for path in (tmp_path / "ledger").iterdir()] == [LEDGER]
    assert epsilon(planned(plan, ROUNDS), 1e-5).epsilon == pytest.approx(8.0, abs=0.01)


def test_a_round_that_is_written_down_is_paid_for(tmp_path):
    """Though nobody may know by whose records."""
    world = World(tmp_path, RECORD).crashed(3, 1)
    path = tmp_path / "ledger" / LEDGER
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    for label in (tmp_path / "checkpoints").iterdir():
        if "000002" in label.name:
            label.unlink()
    with pytest.raises(ledger.Older, match=r"charges of 0 clients in round 2, but .* tells of 1"):
        world.run()


@pytest.mark.parametrize("release", [False, True])
def test_clients_enter_rounds_by_coins_of_the_charged_rate(tmp_path, release):
    """Exact tests at level 1e-6 over rounds and clients; a fixed number and 1.2 times the rate are
    noticed. Kills a sample of a fixed size, and the coins of an earlier round."""
    seed = None if release else 3
    plans = small.plan_table(plan_of(0.3))
    plans = replace(plans, which=np.zeros(500, dtype=np.int64))
    curator = Curator(tmp_path / LEDGER, plans, 1.0, lambda nth: 1.0, seed, 0.3, 150.0, float)
    entered = [np.isin(np.arange(500), curator.entering(n)) for n in range(40)]
    who = np.stack(entered)
    assert stats.binomtest(int(who.sum()), who.size, 0.3).pvalue > 1e-6
    assert stats.binomtest(int(who.sum()), who.size, 0.36).pvalue < 1e-6
    spread = who.sum(axis=1).var(ddof=1) / (500 * 0.3 * 0.7) * 39
    assert 1e-6 < stats.chi2(39).cdf(spread) < 1 - 1e-6
    agree = [int((a == b).sum()) for a, b in itertools.pairwise(entered)]
    assert max(abs(n - 290) for n in agree) < 6 * (500 * 0.58 * 0.42) ** 0.5
    everybody = replace(curator, fraction=1.0).entering(1)
    assert everybody.tolist() == list(range(500))


@pytest.mark.parametrize("seed", [3, None])
def test_an_empty_round_releases_noise_of_the_charged_scale(tmp_path, seed):
    """Deviation s C on the sum: mean times divisor over the factor. False alarm: 1e-6. Draws of two
    rounds differ."""
    plans = small.plan_table(plan_of(1.0))
    curator = Curator(
        tmp_path / LEDGER, plans, 0.5, lambda nth: 1.7 / nth, seed, 1.0, 40.0, lambda n: -0.3
    )
    for nth in (1, 3):
        sample = curator.release(7, nth, 20_000, []) * 40.0 / -0.3
        std = 1.7 / nth * 0.5
        assert alarms(sample, std) == set()
        assert all(alarms(spoil(sample, std), std) for spoil in SPOILERS.values())
    others = curator.release(8, 1, 20_000, []), curator.release(7, 1, 20_000, [])
    assert abs(np.corrcoef(*others)[0, 1]) < 6 / 20_000**0.5


@pytest.mark.parametrize("seed", [3, None])
def test_what_is_released_is_the_exact_sum_of_what_the_groups_send(tmp_path, seed):
    """Little noise: the mean of the contributions. Kills a group left out, another unit, and
    another divisor."""
    given = {"sample_rate": 1.0, "noise_multiplier": 1e-3, "epsilon": None}
    world = World(tmp_path, RECORD | given)
    uploads = list(world.exchange(tmp_path, None)(requests(world)))
    federation = world.federation
    curator = replace(federation.curator, seed=seed)
    found = curator.release(1, 1, len(federation.initial), uploads)
    total = sum(upload.total.astype(np.float64) for upload in uploads) / grid.PART
    assert len(uploads) == 3 and np.abs(total).max() > 1
    assert found == pytest.approx(-1.0 * total / worlds.RECORDS, abs=6e-3 / worlds.RECORDS)


def requests(world: World) -> list:
    federation = world.federation
    asked = []
    with pytest.raises(worlds.Crash):

        def exchange(requests):
            asked.extend(requests)
            raise worlds.Crash

        loop.run(federation, exchange, world.store, loop.restore(federation, world.store), [])
    return asked


def test_a_record_s_part_of_the_sum_is_its_clipped_gradient():
    """Full batches: the same sums as DPSGD without noise takes its step along."""
    plan = DpsgdPlan(1.0, 0.0, 0.05, 1)
    parts, _ = rows("record", plan)
    world = small.cohort([plan] * 4)
    start = small.start(small.model())
    end = local_round(MECHANISMS["dpsgd"], world, start)
    sizes = torch.tensor([[len(own)] for own in small.OWNED])
    steps = (start - end.params) / world.learning_rate(0 * end.taken)[:, None] * sizes
    assert (parts * 0.05 - steps).abs().max() < 1e-5 and steps.abs().max() > 0.1


@pytest.mark.parametrize("clipping", ["flat", "auto"])
@pytest.mark.parametrize("clip", [1e-3, 0.4, 1e3])
def test_a_client_s_part_of_the_sum_is_its_clipped_update(clip, clipping):
    """Norm at most C to rounding; left as it is below C. Kills clipping by record, and none."""
    parts, ends = rows("client", plan_of(0.5, 3, clip, clipping))
    plain = local_round(
        MECHANISMS["none"],
        small.cohort([plan_of(0.5, 3, clip, clipping)] * 4),
        small.start(small.model()),
    ).params
    updates = (plain - small.start(small.model())).double()
    norms = updates.norm(dim=1, keepdim=True)
    scale = torch.clamp(clip / norms, max=1.0) if clipping == "flat" else clip / (norms + 0.01)
    assert torch.equal(ends, plain)
    assert (parts * clip - updates * scale).abs().max() < 1e-6 * clip
    assert float(parts.norm(dim=1).max()) <= 1 + 1e-6


def test_an_update_that_is_not_finite_adds_nothing():
    """Kills NaN, or the largest integer, in everybody's sum."""
    module = small.model()
    with torch.no_grad():
        module[2].weight[0, 0] = torch.inf
    parts, ends = rows("client", plan_of(0.5, 2), module)
    assert not torch.isfinite(ends).all()
    assert (parts == 0).all()


@pytest.mark.parametrize("unit", UNITS)
def test_groups_engines_and_resumption_change_no_bit(tmp_path, unit):
    whole = World(tmp_path / "a", UNITS[unit]).run()
    other = World(tmp_path / "b", UNITS[unit] | {"groups": 1, "chunk_clients": 4}).run()
    assert np.abs(whole.now.params - other.now.params).max() < 1e-5
    grouped = World(tmp_path / "c", UNITS[unit] | {"chunk_clients": 4, "groups": 2}).run()
    assert np.array_equal(other.now.params, grouped.now.params)
    broken = World(tmp_path / "d", UNITS[unit]).crashed(3, 1)
    resumed = broken.run()
    assert np.array_equal(whole.now.params, resumed.now.params)
    assert broken.releases() == [f"round-{n}" for n in range(1, ROUNDS + 1)]


@pytest.mark.parametrize("unit", UNITS)
def test_a_release_that_is_interrupted_draws_and_pays_again(tmp_path, unit):
    """And leaves nothing on disk that was not noised. Kills a round whose charge is shared by two
    releases, and uploads that are kept."""
    given = {"release": True, "epsilon": 50.0, "noise_multiplier": 3.0}
    given |= {"fraction": 0.99} if unit == "client" else {}
    world = World(tmp_path, UNITS[unit] | given).crashed(2, 1)
    assert not list(tmp_path.rglob("uploads/*"))
    world.run()
    names = world.releases()
    assert [name.rpartition("-")[0] for name in names] == [
        f"round-{n}" for n in (1, 2, 2, *range(3, ROUNDS + 1))
    ]
    assert len(set(names)) == ROUNDS + 1
    assert {sum(events.values()) for events in world.paid.values()} == {ROUNDS + 1}
    assert not list(tmp_path.rglob("uploads/*"))


def test_the_run_ends_for_all_when_one_client_s_budget_is_used_up(tmp_path):
    """Unequal rates, by a batch size: the dearest client ends the run, and nobody overspends."""
    given = {"noise_multiplier": 3.0, "epsilon": 2.5, "rounds": 90}
    world = Unequal(tmp_path, RECORD | given)
    standing = world.run()
    spent = standing.budgets.epsilons("certified")
    assert 1 < len(standing.records) < 90 and standing.records[-1].retired == CLIENTS
    assert spent.max() <= 2.5 and spent.min() < 0.9 * spent.max()
    assert standing.now.taken.tolist() == [len(standing.records)] * CLIENTS


def test_one_noise_is_enough_for_each_client_s_rate(tmp_path):
    """Calibrated to the largest rate: kills a calibration to the first client's, or the mean's."""
    plans = Unequal(tmp_path, RECORD).job.plans.plans
    assert len(plans) > 2 and len({plan.noise_multiplier for plan in plans}) == 1
    spent = [epsilon(planned(plan, ROUNDS), 1e-5).epsilon for plan in plans]
    assert 7.9 < max(spent) <= 8.0


def test_a_round_that_nobody_enters_is_charged_and_moves_the_model(tmp_path):
    """By its noise. Kills an empty round that is skipped, or that ends the run."""
    given = {"fraction": 1e-6, "noise_multiplier": 2.0, "epsilon": None, "server_momentum": 0.0}
    world, models = World(tmp_path, CLIENT_UNIT | given), []
    federation, store = world.federation, world.store

    def watch(record):
        models.append(store.checkpoints.newest().params)

    exchange = world.exchange(tmp_path, None)
    loop.run(federation, exchange, store, loop.restore(federation, store), [watch])
    assert not world.asked and len(models) == ROUNDS
    steps = np.diff([federation.initial, *models], axis=0)
    assert (np.abs(steps).max(axis=1) > 0).all() and len(world.releases()) == ROUNDS
    noise = steps.ravel() * 1e-6 * CLIENTS
    assert 1.2 < noise.std() < 2.8 and len(noise) == 60


def test_falling_noise_is_charged_as_it_is_drawn(tmp_path):
    world = World(tmp_path, CLIENT_UNIT | {"noise_decay": 0.2})
    world.run()
    plan = world.job.plans.of(0)
    expected = {SampledGaussian(0.5, plan.noise_multiplier * np.exp(-0.2 * n)): 1 for n in range(4)}
    assert world.paid[3] == pytest.approx(expected) and len(expected) == ROUNDS
    curator = world.federation.curator
    assert [SampledGaussian(0.5, curator.multiplier(nth)) for nth in (1, 2, 3, 4)] == list(expected)


def test_who_enters_a_round_is_not_written_down(tmp_path):
    """Neither by whom nor by how many, nor how long a round of a release took."""
    world = World(tmp_path, CLIENT_UNIT)
    standing = world.run()
    asked = {
        request.round: sum(len(r.clients) for r in world.asked if r.round == request.round)
        for request in world.asked
    }
    assert len(set(asked.values())) > 1
    assert {record.participants for record in standing.records} == {None}
    assert standing.now.taken.tolist() == [ROUNDS] * CLIENTS
    given = {"release": True, "epsilon": 50.0, "noise_multiplier": 3.0}
    for own, timed in ((CLIENT_UNIT, False), (CLIENT_UNIT | {"fraction": 1.0}, True)):
        job = World(tmp_path / str(timed), own | given).job
        assert training.federation(job, tmp_path).timed == timed


def test_in_a_release_each_client_is_computed_by_itself(tmp_path):
    """No client's batch changes the shape in which another is computed."""
    given = {"release": True, "epsilon": 50.0, "noise_multiplier": 3.0}
    for unit, alone in (("client", True), ("record", False)):
        job = World(tmp_path / unit, UNITS[unit] | given).job
        sizes = {len(chunk) for group in job.groups for chunk in group}
        assert (sizes == {1}) == alone


def outcome(folder: Path, given: dict, alone: bool) -> tuple[np.ndarray, float, dict]:
    """Model, accuracy and a client's charges of a run on digits; ``alone``: of `sim.central`."""
    one = {"sample_rate": 1.0, "steps": 1, "momentum": 0.0, "batch_size": None}
    many = {"clients": 100, "trust": "server", "server_momentum": 0.0}
    settings = one if alone else many
    shared = {"rounds": 12, "evaluate_every": 12, "engine": "inline", "clip_norm": 1.0, "lr": 2.0}
    config = configuration.load(None, shared | settings | given, central=alone)
    job = build(config)
    (folder / "ledger").mkdir(parents=True)
    federation, store = training.federation(job, folder), Store(folder, 2)
    exchange = inline_exchange(job, folder)
    end = loop.run(federation, exchange, store, loop.restore(federation, store), [])
    return end.now.params, end.records[-1].accuracy, ledger.read(folder / "ledger")[0]


def test_all_clients_together_are_one_that_holds_all_records(tmp_path):
    """Full batches and next to no noise: `sim.central`'s model, up to rounding; and the same
    event."""
    given = {"epsilon": None, "noise_multiplier": 1e-9}
    one, many = (outcome(tmp_path / str(alone), given, alone) for alone in (True, False))
    assert np.abs(one[0] - many[0]).max() < 1e-4 * np.abs(one[0]).max()
    assert one[2] == many[2] == {SampledGaussian(1.0, 1e-9): 12}


def test_trusting_the_server_is_as_accurate_as_one_client_with_all_records(tmp_path):
    """At the same epsilon, in the mean of three seeds, within the spread."""
    scores = {True: [], False: []}
    for seed in range(3):
        for alone, found in scores.items():
            folder = tmp_path / f"{seed}-{alone}"
            _, accuracy, charges = outcome(folder, {"seed": seed, "epsilon": 1.0}, alone)
            assert epsilon(charges, 1e-5).epsilon == pytest.approx(1.0, abs=2e-3)
            found.append(accuracy)
    one, trust = (np.array(found) for found in scores.values())
    error = np.sqrt((one.var(ddof=1) + trust.var(ddof=1)) / 3)
    assert abs(one.mean() - trust.mean()) < 4 * error + 0.01 and one.mean() > 0.75


def drifting():
    """FedAvg whose guide moves clients without any record, too: as far as a record does."""
    return replace(fedavg(Aggregation()), guide=lambda _: lambda params, gradient: gradient + 1.0)


def apart():
    """FedAvg with which each client goes on from its own model."""
    return replace(fedavg(Aggregation()), personal=True)


REFUSED = {
    "--mechanism=dpsur": "mechanism is dpsur",
    "--mechanism=none": "mechanism is none",
    "--standardize=private --features=scattering --dataset=mnist": "standardize is private",
    "--strategy=fednova": "strategy is fednova",
    "--strategy=fedprox": "strategy is fedprox",
    "--unit=client --strategy=fedfed": "strategy is fedfed",
    "--unit=client --strategy=tests.test_curator:drifting": "strategy is tests.test_curator:drif",
    "--steps=2": "steps is 2",
    "--epochs=2": "epochs is 2",
    "--fraction=0.5": "fraction is 0.5",
    "--unit=client --release --chunk-clients=2": "chunk_clients is 2",
    "--sampling=fixed": "sampling is fixed",
    "--keep-state": "keep_state is on",
    "--personal-layers=1": "personal_layers is 1",
    "--unit=client --strategy=mrmtl": "strategy is mrmtl",
    "--unit=client --strategy=tests.test_curator:apart": "strategy is tests.test_curator:apart",
    "--optimizer=adam": "optimizer is adam",
    "--weighting=uniform": "weighting is uniform",
    "--clip-quantile=0.5": "clip_quantile is 0.5",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_the_server_s_noise_does_not_cover_is_refused_in_one_line(flags, tmp_path):
    check_refused(["--trust=server", *flags.split()], REFUSED[flags], tmp_path / "runs")


def test_more_than_an_exact_sum_has_room_for_is_refused():
    sizes = np.full(3, grid.MAX_RECORDS // 3 + 1)
    from sim.config.checks import check_sizes

    given = {"clients": 3} | RECORD
    with pytest.raises(ValueError, match=f"{sizes.sum()} parts are added up"):
        check_sizes(configuration.load(None, given), sizes)
    check_sizes(configuration.load(None, given | {"unit": "client"}), sizes)
    check_sizes(configuration.load(None, {"clients": 3}), sizes)
    many, shares = np.ones(grid.MAX_RECORDS, np.int64), given | {"trust": "aggregate"}
    check_sizes(configuration.load(None, shares), many[1:])
    with pytest.raises(ValueError, match=f"{len(many)} parts are added up"):
        check_sizes(configuration.load(None, shares), many)


def test_a_figure_is_given_for_the_trust_that_there_is_alone():
    """Kills an epsilon against a trusted server, and one for a unit that is not protected."""
    local = guarantees("local", "record", 5, 2.0)
    assert [row["adversary"] for row in local] == [SERVER, OTHERS, READER]
    assert {row["epsilon"] for row in local} == {2.0}
    for unit, words in (("record", "one record"), ("client", "one whole client")):
        rows_ = guarantees("server", unit, 5, 2.0)
        assert [row["adversary"] for row in rows_] == [OTHERS, READER, SERVER]
        assert [row["epsilon"] for row in rows_] == [2.0, 2.0, None]
        assert {row["unit"] for row in rows_} == {words}
    assert {row["epsilon"] for row in guarantees("local", "record", 5, np.inf)} == {None}
    assert [row["adversary"] for row in guarantees("local", "record", 1, 1.0)] == [READER]


def test_a_run_in_progress_and_a_finished_one_say_against_whom(tmp_path, capsys):
    """The same table in the terminal, the summary, the report and the ledger's command."""
    from sim import account
    from sim.library.result import Result

    flags = "--trust=server --unit=client --fraction=0.5 --clients=10 --rounds=2 --engine=inline"
    run.command([*flags.split(), f"--out={tmp_path}", "--name=run"])
    shown, folder = capsys.readouterr().out, tmp_path / "run"
    expected = guarantees("server", "client", 10, Result(folder).epsilon)
    assert json.loads((folder / "summary.json").read_text())["guarantees"] == list(expected)
    assert Result(folder).guarantees == expected
    account.command(["--ledger", str(folder)])
    figure = wording.epsilon(Result(folder).epsilon)
    lines = [
        "protected          one whole client",
        f"from other clients epsilon {figure}, seeing every round's model",
        f"from anyone else   epsilon {figure}, seeing the final model",
        "from the server    not at all: trusted with what clients send",
    ]
    for text in (shown, capsys.readouterr().out):
        assert "\n".join(lines) + "\n" in text
    cells = "<td>the server</td><td>what clients send</td><td>one whole client</td><td>none</td>"
    assert cells in (folder / "report.html").read_text()
    account.command(["--verify", str(folder)])
    with pytest.raises(ValueError, match="--group 2"):
        account.command(["--ledger", str(folder), "--group", "2"])
    (folder / "summary.json").unlink()
    rows_ = Result(folder).guarantees
    assert [row["epsilon"] for row in rows_] == [Result(folder).epsilon] * 2 + [None]


AUDITED = {
    "record": {"clients": 20, "noise_multiplier": 2.5},
    "client": {"clients": 400, "unit": "client", "min_records": 1, "noise_multiplier": 3.0},
}


@pytest.mark.parametrize("unit", AUDITED)
@pytest.mark.parametrize("kind", ["server", "aggregate"])
def test_an_audit_at_the_sum_is_below_what_is_certified(kind, unit, tmp_path, monkeypatch):
    """Canaries of all clients, or that are clients, in one sum, seen in the final model. Negative
    control: a tenth of the noise that is charged is noticed."""
    given = {"trust": kind, "rounds": 4, "lr": 1.0, "server_momentum": 0.0} | AUDITED[unit]
    given |= {"epsilon": None, "quiet": True, "out": str(tmp_path)}
    for module in ("auditing", "engines"):
        monkeypatch.setattr(f"sim.{module}.session.write_report", lambda folder: folder)
    curator, shares_of, found = trust.curator, shares.shares_of, []

    def server(factor: float, job, folder) -> Curator:
        own = curator(job, folder)
        return own and replace(own, multiplier=lambda nth: factor * own.multiplier(nth))

    def clients(factor: float, noise: float, *rest) -> shares.Shares:
        return shares_of(factor * noise, *rest)

    for factor in (1.0, 0.1):
        monkeypatch.setattr(trust, "curator", functools.partial(server, factor))
        monkeypatch.setattr(shares, "shares_of", functools.partial(clients, factor))
        count = {"record": None, "client": 400}[unit]
        result = audit(configuration.load(None, given), count, False, 0.95)
        found.append((result.epsilon_lower, result.epsilon_certified))
        assert bool(result.clients) == (unit == "record")
    (lower, certified), (broken, charged) = found
    assert 0.2 < lower < certified == charged < broken


def test_attacks_and_audits_refuse_what_they_cannot_train(tmp_path):
    job = World(tmp_path, RECORD).job
    with pytest.raises(ValueError, match="trust is server"):
        trainings.train(job, [np.arange(9)], b"key")
    given = configuration.load(None, CLIENT_UNIT | {"clients": 20, "out": str(tmp_path)})
    with pytest.raises(ValueError, match="unit is client, but black-box"):
        audit(given, None, True, 0.95)
    with pytest.raises(ValueError, match="canaries = 21 must be a whole number from 1 to 20"):
        audit(given, 21, False, 0.95)
    assert not list(tmp_path.glob("*/config.toml"))
