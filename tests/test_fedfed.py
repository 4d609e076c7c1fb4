"""FedFed end to end, over real clients in this process: what is shared, what it costs, and what a
crash leaves."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import VisibleChoice
from mechanisms.guide import Surroundings
from mechanisms.plan import merge, planned
from mechanisms.registry import MECHANISMS
from sim.commands.guard import main_guard
from sim.engines import session
from sim.job import rundir
from sim.phases.course import before_training
from sim.phases.generator import distiller
from sim.run import command
from sim.showing import wording
from sim.showing.report import write_report
from sim.showing.sharing import SHARED_FILE
from strategies.distillation import Distiller, sensitive
from strategies.fedfed import fedfed
from strategies.settings import Aggregation, FedFed
from tests import small, worlds
from tests.phases import cost_before_training
from tests.processes import wait_for

pytestmark = pytest.mark.usefixtures("no_report")
ROOT = Path(__file__).parent.parent
SETTINGS = {
    "clients": 6,
    "partition": "iid",
    "rounds": 2,
    "sample_rate": 0.5,
    "engine": "inline",
    "chunk_clients": 2,
}
SOURCES = {
    "prototypes": {"shared_source": "prototypes"},
    "distilled": {
        "shared_source": "distilled",
        "share_budget": 0.5,
        "share_rate": 0.7,
        "distill_rounds": 3,
    },
    "distilled prototypes": {
        "prototype_features": "distilled",
        "share_budget": 0.5,
        "distill_rounds": 3,
    },
}


class World(worlds.World):
    """A whole run of FedFed."""

    settings = {"strategy": "fedfed", "groups": 3} | SETTINGS

    def run(self, crash: tuple[int, int] | None = None) -> "World":
        if not self.run_dir.exists():
            rundir.create(self.run_dir, self.job)
        session.run(self.job, self.run_dir, session.Engine(self.exchange(self.run_dir, crash)))
        return self

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def shared(self) -> dict[str, np.ndarray]:
        return load((self.run_dir / SHARED_FILE).read_bytes())

    @property
    def model(self) -> bytes:
        return (self.run_dir / "model.safetensors").read_bytes()

    def spent(self, up_to_round: int | None = None) -> dict:
        return ledger.read(self.run_dir / "ledger", up_to_round)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mechanism", ["dpsgd", "dpis"])
def test_every_client_pays_for_sharing_and_training_what_was_planned_and_no_more(
    tmp_path, source, mechanism
):
    """Kills a release that is not charged, or that training's calibration does not know of."""
    world = World(tmp_path, SOURCES[source] | {"quiet": True, "mechanism": mechanism}).run()
    job, before, after = world.job, world.spent(up_to_round=0), world.spent()
    assert len(before) == len(after) == 6
    for client in range(6):
        assert before[client] == cost_before_training(job)
        share = job.config.fedfed.share_budget * 8.0
        assert 0.98 * share < epsilon(before[client], 1e-5).epsilon <= share
        if mechanism == "dpsgd":
            assert after[client] == merge(
                cost_before_training(job), planned(job.plans.of(client), 2)
            )
        assert 7.9 < epsilon(after[client], 1e-5).epsilon <= 8.0
    summary = json.loads((world.run_dir / "summary.json").read_text())
    assert max(summary["epsilon_certified"]) == max(
        epsilon(charges, 1e-5).epsilon for charges in after.values()
    )


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_shared_and_what_is_learned_do_not_depend_on_the_grouping(tmp_path, source):
    both = [
        World(tmp_path / str(n), SOURCES[source] | {"quiet": True, "groups": n}).run()
        for n in (1, 3)
    ]
    one, three = (world.shared for world in both)
    assert all(np.array_equal(one[name], three[name]) for name in ("x", "y"))
    assert both[0].model == both[1].model


def test_a_seeded_run_that_died_goes_on_to_the_same_end_at_the_same_price(tmp_path):
    given = SOURCES["distilled"] | {"quiet": True}
    whole = World(tmp_path / "whole", given).run()
    for at in ((-3, 1), (-1, 0), (0, 0), (0, 2), (1, 0), (2, 1)):
        broken = World(tmp_path / str(at), given).crashed(*at)
        again = World(broken.folder, given).run()
        assert again.model == whole.model and again.spent() == whole.spent(), at
        assert np.array_equal(again.shared["x"], whole.shared["x"]), at


@pytest.mark.parametrize("at", [(0, 2), (1, 0), (2, 1)])
def test_a_release_that_was_finished_is_not_made_again(tmp_path, at):
    """Kills a server that forgets what groups had released, or D^s itself."""
    given = SOURCES["distilled"] | {"quiet": True, "release": True}
    world = World(tmp_path, given).crashed(*at)
    held = world.shared if at[0] > 0 else None
    again = World(tmp_path, given).run()
    asked = [
        (request.round, request.group)
        for request in world.asked + again.asked
        if request.round <= 0
    ]
    assert len(asked) == len(set(asked)), "no group was asked twice"
    for client in range(6):
        assert again.spent(up_to_round=0)[client] == cost_before_training(world.job)
    assert held is None or np.array_equal(held["x"], again.shared["x"])


@pytest.mark.parametrize("sign", ["distill/checkpoints/*.json", "share/uploads/*", SHARED_FILE])
def test_a_killed_server_goes_on_without_releasing_twice(tmp_path, sign):
    """Killed for real while the generator trains, while groups release, and once D^s is there."""
    np.savez(
        tmp_path / "records.npz",
        x=np.random.default_rng(0).normal(size=(120, 4)),
        y=np.arange(120) % 3,
    )
    given = (
        SETTINGS
        | SOURCES["distilled"]
        | {"strategy": "fedfed", "groups": 3, "dataset": tmp_path / "records.npz"}
    )
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in (given | {"rounds": 20}).items()
    ]
    words = [
        sys.executable,
        "-m",
        "sim.run",
        "--quiet",
        "--release",
        f"--out={tmp_path}",
        "--name=run",
        *flags,
    ]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(lambda: list((tmp_path / "run").glob(sign)), process)
        process.send_signal(signal.SIGKILL)
    path = tmp_path / "run" / SHARED_FILE
    held = path.read_bytes() if path.exists() else None
    assert main_guard(command, ["--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert held is None or path.read_bytes() == held
    spent, before = (
        ledger.read(tmp_path / "run" / "ledger"),
        ledger.read(tmp_path / "run" / "ledger", up_to_round=0),
    )
    assert max(epsilon(charges, 1e-5).epsilon for charges in spent.values()) <= 8.0
    if sign == SHARED_FILE:
        releases = {
            kind: count for kind, count in before[0].items() if isinstance(kind, VisibleChoice)
        }
        assert list(releases.values()) == [1]


def test_a_release_made_twice_is_paid_for_and_a_client_retires_earlier(tmp_path, monkeypatch):
    """The draw is another one, so the price is too; nobody ends above the target."""
    given = SOURCES["prototypes"] | {"quiet": True, "release": True, "share_budget": 0.6}
    world = World(tmp_path, given).crashed(1, 0)
    (world.run_dir / SHARED_FILE).unlink()
    for part in ("share/checkpoints", "share/uploads"):
        for path in (world.run_dir / part).iterdir():
            path.unlink()
    again = World(tmp_path, given)
    again.run()
    spent = again.spent()
    assert all(epsilon(charges, 1e-5).epsilon <= 8.0 for charges in spent.values())
    most = merge(cost_before_training(world.job), planned(world.job.plans.of(0), 2))
    assert any(charges != most for charges in spent.values())


def test_without_a_shared_set_it_is_fedavg_bit_for_bit(tmp_path):
    none = World(tmp_path / "none", {"shared_source": "none", "quiet": True}).run()
    fedavg = World(tmp_path / "fedavg", {"strategy": "fedavg", "quiet": True}).run()
    assert none.model == fedavg.model and none.spent() == fedavg.spent()
    weightless = World(
        tmp_path / "zero", {"shared_weight": 0.0, "mechanism": "none", "quiet": True}
    ).run()
    plain = World(
        tmp_path / "plain", {"strategy": "fedavg", "mechanism": "none", "quiet": True}
    ).run()
    assert weightless.model == plain.model


def test_what_is_shared_leads_the_training(tmp_path):
    """More of it, another model; with its weight alone, where there is none, nothing changes."""
    models = {}
    for source in ("prototypes", "none"):
        for weight in (0.1, 0.6):
            given = {
                "shared_source": source,
                "shared_weight": weight,
                "mechanism": "none",
                "quiet": True,
            }
            models[source, weight] = World(tmp_path / f"{source}-{weight}", given).run().model
    assert models["none", 0.1] == models["none", 0.6] and len(set(models.values())) == 3


@pytest.mark.parametrize("source", SOURCES)
def test_the_report_shows_what_is_shared_and_its_price(tmp_path, source):
    world = World(tmp_path, SOURCES[source] | {"quiet": True}).run()
    page = write_report(world.run_dir).read_text()
    price = epsilon(cost_before_training(world.job), 1e-5).epsilon
    assert (
        "What clients share" in page and f"came before training: {wording.epsilon(price)}" in page
    )


def test_where_nothing_is_shared_the_report_says_nothing_of_it(tmp_path):
    plain = World(tmp_path, {"shared_source": "none", "quiet": True}).run()
    assert "What clients share" not in write_report(plain.run_dir).read_text()


def test_public_records_are_shared_at_no_cost(tmp_path):
    world = World(tmp_path, {"shared_source": "public", "public_records": 20, "quiet": True}).run()
    assert set(world.job.plans_of) == {"train"} and not (world.run_dir / SHARED_FILE).exists()
    spent = world.spent()
    assert len(spent) == 6
    for client, charges in spent.items():
        assert charges == planned(world.job.plans.of(client), 2)


def test_without_privacy_prototypes_are_the_scaled_sums_of_the_classes(tmp_path):
    world = World(tmp_path, {"mechanism": "none", "quiet": True}).run()
    data = world.job.dataset
    sums = np.stack([data.x[data.y == label].sum(axis=0) for label in range(3)])
    assert np.allclose(world.shared["x"], sums * 3 / len(data.y), atol=1e-5)
    assert world.shared["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mechanism", ["dpsgd", "dpsur", "dphero"])
def test_shared_records_join_the_step_after_the_private_sum_and_stay_out_of_it(mechanism):
    """g' = (1 - w) g + w (mean gradient of D^s): the private part of a step is the same whatever
    D^s is."""
    row, plans = MECHANISMS[mechanism], small_plans(mechanism)
    shared = small.X[:5], small.Y[:5]
    far = 100 * small.X[5:10], small.Y[5:10]
    params = small.start(small.model())

    def move(records) -> torch.Tensor:
        world = small.cohort(plans)
        around = Surroundings(world.gradients, world.streams, params, records)
        strategy = fedfed(Aggregation(strategy="fedfed"), FedFed(shared_weight=0.25))
        world = replace(world, guide=strategy.guide(around) if records else world.guide)
        before = row.start(world, params)
        return (row.step(world, before).params - before.params) / -0.5

    def public(records) -> torch.Tensor:
        total = sum(small.plain_gradients(small.model(), params, *records))
        return total / len(records[1])

    private = move(None)
    for records in (shared, far):
        assert torch.allclose(move(records), 0.75 * private + 0.25 * public(records), atol=2e-5)


def small_plans(mechanism: str) -> list:
    from mechanisms.registry import plan_table
    from mechanisms.settings import DpHero, Dpsur, Privacy

    own = {"dpsur": Dpsur(dpsur_beta=30.0), "dphero": DpHero()}.get(mechanism)
    privacy = Privacy(mechanism=mechanism, noise_multiplier=1.0, epsilon=None)
    table = plan_table(privacy, own, np.array([3, 3]), 1, np.array([8, 12]))
    return [table.of(0), table.of(1)]


def test_a_large_shared_set_is_drawn_from_afresh_by_each_client_in_each_step():
    world = small.cohort(small_plans("dpsgd"))
    seen = []

    class Spy:
        def scaled_sum(self, params, x, y, factors):
            seen.append(x)
            return torch.zeros_like(params), None

    around = Surroundings(Spy(), world.streams, small.start(small.model()), (small.X, small.Y))
    guide = fedfed(Aggregation(), FedFed(shared_batch=10)).guide(around)
    for _ in range(2):
        guide(torch.zeros(2, 53), torch.zeros(2, 53))
    batches = [x[k] for x in seen for k in range(2)]
    assert all(len(b) == 10 and len(torch.unique(b, dim=0)) == 10 for b in batches)
    assert not any(torch.equal(a, b) for n, a in enumerate(batches) for b in batches[:n])


def test_the_generator_splits_a_record_in_two_and_its_weights_depend_on_the_seed_alone(tmp_path):
    job = World(tmp_path, SOURCES["distilled"]).job
    first, second = distiller(job), distiller(job)
    torch.rand(3)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert isinstance(first, Distiller)
    x = torch.from_numpy(job.dataset.x[:7])
    robust = first.splitter.decoder(first.splitter.encoder(x))
    assert torch.allclose(sensitive(first.splitter)(x) + robust, x, atol=1e-6)
    assert torch.allclose(first(x)[:, -2], (x - robust).square().mean(dim=1), atol=1e-6)


def test_the_generator_learns_to_keep_what_tells_the_class(tmp_path):
    """Without privacy the objective falls: classes are told from the sensitive part, and that part
    gets small."""
    given = SOURCES["distilled"] | {
        "mechanism": "none",
        "distill_rounds": 100,
        "distill_lr": 0.03,
        "quiet": True,
    }
    x = np.random.default_rng(0).normal(size=(120, 4)) + np.eye(3, 4)[np.arange(120) % 3] * 4
    tmp_path.mkdir(exist_ok=True)
    np.savez(
        tmp_path / "apart.npz", x=x, y=np.arange(120) % 3, x_test=x[:9], y_test=np.arange(9) % 3
    )
    world = World(tmp_path, given | {"dataset": str(tmp_path / "apart.npz")}).run()
    sent, labels = world.shared["x"], world.shared["y"]
    means = np.stack([sent[labels == label].mean(axis=0) for label in range(3)])
    nearest = ((sent[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.9
    assert (sent**2).mean() < 0.8 * (world.job.dataset.x**2).mean()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shared_source": "public"}, "public_records is 0: give --public-records"),
        ({"share_budget": 1e-14}, "pays for no release"),
        ({"epsilon": None, "noise_multiplier": 1.0}, "give --epsilon"),
        ({"mechanism": "dpagd"}, "--strategy fedavg"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_a_remedy(tmp_path, given, words):
    with pytest.raises(ValueError, match=words):
        _ = World(tmp_path, given).job


def test_nothing_is_prepared_for_other_strategies(tmp_path):
    world = World(tmp_path, {"strategy": "fedavg"})
    before_training(
        world.job, tmp_path, exchange=lambda requests: pytest.fail("somebody was asked")
    )
