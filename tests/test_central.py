"""One client that holds all records is K = 1 of the same code; batches, validation records, the
paper's budget."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.calibration import smallest
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.plan import merge, most, planned
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.settings import Dpsur, Privacy, Screening
from server.budgets import Budgets
from server.orders import Course
from sim import central
from sim import run as federated
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config import configuration as config
from sim.config.fields import SETTINGS
from sim.config.presets import FIXED
from sim.data.holdout import hold_out
from sim.phases import training
from sim.phases.build import build
from sim.phases.training import local_steps
from sim.showing.report import write_report
from tests.folders import model
from tests.small import plan_table as table_of

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    """A user's own data set of 300 training and 60 test records."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "records.npz"
    y = rng.integers(0, 3, 360)
    x = (rng.normal(size=(360, 6)) + y[:, None]).astype(np.float32)
    np.savez(path, x=x[60:], y=y[60:], x_test=x[:60], y_test=y[:60])
    return str(path)


def run(command, out: Path, name: str, *flags: str) -> Path:
    assert main_guard(command, ["--quiet", f"--out={out}", f"--name={name}", *flags]) == 0
    return out / name


def rounds(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


# --- one client
# --------------------------------------------------------------------------------------------------

CASES = {
    "dpsgd": ("--mechanism=dpsgd", "--batch-size=50", "--epochs=1"),
    "dpsur": ("--mechanism=dpsur", "--batch-size=50", "--steps=4", "--dpsur-validation-rate=0.3"),
    "dpis": ("--mechanism=dpis", "--sample-rate=0.2", "--steps=5", "--optimizer=adam", "--lr=0.05"),
}
AS_ONE = (
    "--clients=1",
    "--partition=iid",
    "--server-lr=1",
    "--server-momentum=0",
    "--keep-state",
    "--groups=1",
)


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES)
def test_a_federation_of_one_client_is_the_central_run_bit_for_bit(tmp_path, records, flags):
    same = (
        f"--dataset={records}",
        "--rounds=3",
        "--clip-norm=0.5",
        "--epsilon=4",
        "--momentum=0.9",
        "--lr=1",
        *flags,
    )
    alone = run(central.command, tmp_path, "alone", *same)
    many = run(federated.command, tmp_path, "many", *same, *AS_ONE, "--engine=inline")
    assert model(alone) == model(many)
    assert ledger.read(alone / "ledger") == ledger.read(many / "ledger")
    assert [r["accuracy"] for r in rounds(alone)] == [r["accuracy"] for r in rounds(many)]


def test_a_round_is_an_interval_between_two_evaluations_and_nothing_else(tmp_path, records):
    """Full batches without noise: six rounds of one step are one round of six. Kills a momentum
    that starts afresh, a momentum or a rate of the server's, and a learning rate that follows
    rounds."""
    flags = (
        f"--dataset={records}",
        "--mechanism=none",
        "--sample-rate=1",
        "--lr=0.3",
        "--lr-schedule=linear",
    )
    six = run(central.command, tmp_path, "six", *flags, "--rounds=6", "--steps=1")
    one = run(central.command, tmp_path, "one", *flags, "--rounds=1", "--steps=6")
    for name, tensor in load_file(six / "model.safetensors").items():
        np.testing.assert_allclose(load_file(one / "model.safetensors")[name], tensor, atol=1e-5)
    assert len(rounds(six)) == 6 and len(rounds(one)) == 1


def test_a_killed_central_run_goes_on(tmp_path, records):
    """From its second round, as if the process had died while it wrote the third."""
    flags = (f"--dataset={records}", "--rounds=3", "--steps=3", "--batch-size=60")
    whole = run(central.command, tmp_path, "whole", *flags)
    before = model(whole), rounds(whole)
    for path in (
        whole / "model.safetensors",
        whole / "summary.json",
        *(whole / "checkpoints").glob("*3.*"),
    ):
        path.unlink()
    assert main_guard(central.command, ["--resume", str(whole), "--quiet"]) == 0
    assert model(whole) == before[0] and [r["accuracy"] for r in rounds(whole)] == [
        r["accuracy"] for r in before[1]
    ]


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_one_client_has_no_choice_in_is_refused(name, capsys):
    flag = SETTINGS[name].flag
    given = [flag] if SETTINGS[name].kind is bool else [flag, "1"]
    assert main_guard(central.command, given) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("error: ") and flag in said and "sim.run" in said and said.count("\n") == 1
    )


def test_files_of_one_client_are_taken_and_others_are_refused(tmp_path, records, capsys):
    alone = run(central.command, tmp_path, "alone", f"--dataset={records}", "--rounds=1")
    run(central.command, tmp_path, "again", f"--config={alone / 'config.toml'}")
    assert model(alone) == model(tmp_path / "again")
    flags = (f"--dataset={records}", "--clients=9", "--rounds=1", "--engine=inline")
    many = run(federated.command, tmp_path, "many", *flags)
    for given in (["--config", str(many / "config.toml")], ["--resume", str(many)]):
        assert main_guard(central.command, given) == 2
        assert "clients is 9" in capsys.readouterr().err


def test_the_help_offers_no_flag_that_is_refused(capsys):
    with pytest.raises(SystemExit):
        central.command(["--help"])
    said = capsys.readouterr().out
    assert "--batch-size" in said and not [n for n in FIXED if f"{SETTINGS[n].flag} " in said]


def test_one_client_is_spoken_of_as_one(tmp_path, records, capsys):
    assert (
        main_guard(
            central.command, [f"--dataset={records}", "--rounds=1", f"--out={tmp_path}", "--name=a"]
        )
        == 0
    )
    said, page = capsys.readouterr().out, write_report(tmp_path / "a").read_text()
    assert "clients" not in said and "median" not in said and "budget" in said
    assert (
        "Clients hold disjoint records" not in page and "One client holds all 300 records" in page
    )


# --- the batch
# --------------------------------------------------------------------------------------------------


def test_a_batch_size_is_a_rate_and_an_amount_of_work_by_client():
    sizes = np.array([10, 40, 160, 40])
    given = config.load(None, {"batch_size": 20, "epochs": 2.0})
    steps = [local_steps(given, int(size)) for size in sizes]
    table = plan_table(given.privacy, None, np.array(steps), 5, sizes)
    assert [table.of(k).sample_rate for k in range(4)] == [1.0, 0.5, 0.125, 0.5]
    assert [table.of(k).steps for k in range(4)] == steps == [2, 4, 16, 4]
    assert table.of(1) is table.of(3)
    assert all(7.9 < epsilon(planned(table.of(k), 5), 1e-5).epsilon <= 8.0 for k in range(4))


def test_the_learning_rate_follows_each_clients_own_steps(tmp_path):
    """A linear schedule ends at the run's last step for everybody, however many steps a round
    has."""
    given = config.load(
        None, {"lr_schedule": "linear", "rounds": 4, "lr": 2.0, "clients": 2, "batch_size": 9}
    )
    node = training.node(build(given), 0, tmp_path)
    steps = torch.tensor([2.0, 10.0])
    assert node._training.learning_rate(4, steps, steps).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(
        node._training.learning_rate(3, steps / 2, steps), 2.0 * (1 - 2.5 / 4), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("mechanism", "own", "decay", "sizes"),
    [
        ("dpsgd", None, 0.0, [30, 31, 50, 75, 1000, 40_000]),
        ("dpsgd", None, 0.1, [30, 75, 1000]),
        ("dpsur", Dpsur(), 0.0, [30, 1000]),
    ],
)
def test_every_size_meets_its_budget_and_hardly_more(mechanism, own, decay, sizes):
    sizes = np.array(sizes)
    privacy = Privacy(mechanism=mechanism, epsilon=3.0, batch_size=25, noise_decay=decay)
    table = plan_table(privacy, own, 2, 6, sizes)
    for client, size in enumerate(sizes):
        assert table.of(client).sample_rate == 25 / size
        assert 0.99 * 3.0 < epsilon(planned(table.of(client), 6), 1e-5).epsilon <= 3.0


def test_many_sizes_are_calibrated_together(monkeypatch):
    """Few are searched for. Kills a calibration that goes by the first client's rate or steps."""
    searched = []
    monkeypatch.setattr(
        "mechanisms.plan.smallest", lambda *given: searched.append(1) or smallest(*given)
    )
    sizes = np.arange(20, 220)
    steps = np.ceil(sizes / 16).astype(int)
    table = plan_table(Privacy(epsilon=5.0, batch_size=16), None, steps, 20, sizes)
    assert len(searched) < 60
    for client in (0, 1, 77, 150, 199):
        plan = table.of(client)
        assert (plan.sample_rate, plan.steps) == (16 / sizes[client], steps[client])
        assert 0.995 * 5.0 < epsilon(planned(plan, 20), 1e-5).epsilon <= 5.0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"batch_size": 7}, {"batch_size": 7, "sample_rate": 1.0}),
        ({"sample_rate": 0.3}, {"batch_size": None, "sample_rate": 0.3}),
    ],
)
def test_a_layer_says_rate_or_batch(tmp_path, flags, expected):
    for text in ("[privacy]\nbatch_size = 3", "[privacy]\nsample_rate = 0.2"):
        (tmp_path / "a.toml").write_text(text)
        given = config.load(tmp_path / "a.toml", flags, central=True)
        assert {name: given.value(name) for name in expected} == expected


def test_rate_and_batch_contradict_each_other(tmp_path):
    with pytest.raises(ValueError, match=r"--sample-rate 1\.0 and --batch-size 3 contradict"):
        parse(["--sample-rate=1.0", "--batch-size=3"], "x", "")
    (tmp_path / "a.toml").write_text("[privacy]\nbatch_size = 3\nsample_rate = 0.2")
    with pytest.raises(ValueError, match=r"sample_rate is 0.2 and batch_size is 3"):
        config.load(tmp_path / "a.toml", {})


# --- records for tuning
# --------------------------------------------------------------------------------------------


def test_validation_records_are_held_by_nobody_and_stand_in_for_the_test(records):
    given = {"dataset": records, "validation_records": 80, "clients": 4}
    test, validation = (
        build(config.load(None, {**given, "evaluate_on": part})) for part in ("test", "validation")
    )
    whole = {row.tobytes() for row in build(config.load(None, {"dataset": records})).dataset.x}
    kept, held = (
        {row.tobytes() for row in part}
        for part in (validation.dataset.x, validation.dataset.x_test)
    )
    assert len(held) == 80 and kept | held == whole and not kept & held
    assert (test.dataset.x == validation.dataset.x).all() and len(test.dataset.y_test) == 60
    assert sorted(validation.partition.indices) == list(range(220))


def test_what_models_are_measured_on_changes_no_model(tmp_path, records):
    flags = (f"--dataset={records}", "--rounds=2", "--validation-records=80")
    a = run(central.command, tmp_path, "a", *flags)
    b = run(central.command, tmp_path, "b", *flags, "--evaluate-on=validation")
    assert model(a) == model(b) and [r["loss"] for r in rounds(a)] != [r["loss"] for r in rounds(b)]
    assert (summary(a)["evaluated_on"], summary(b)["evaluated_on"]) == ("test", "validation")
    assert "Validation accuracy" in write_report(b).read_text()


def test_the_last_model_is_reported_however_much_better_an_earlier_one_was(tmp_path):
    """The test part agrees with what is learned first, that most records are of class 0, and not
    with what is learned next. Kills a selection on the test part, of the figure or of the model."""
    rare = np.arange(100) < 10
    x, test = (
        np.stack([np.ones(100), rare], axis=1).astype(np.float32),
        np.ones((20, 2), dtype=np.float32),
    )
    np.savez(
        tmp_path / "rare.npz", x=x, y=rare.astype(int), x_test=test, y_test=np.zeros(20, dtype=int)
    )
    flags = (f"--dataset={tmp_path / 'rare.npz'}", "--mechanism=none", "--sample-rate=1", "--lr=2")
    folder = run(central.command, tmp_path, "a", *flags, "--steps=5", "--rounds=12")
    found, last = (
        [r["accuracy"] for r in rounds(folder)],
        load_file(folder / "model.safetensors").values(),
    )
    assert found[0] == 1.0 and found[-1] == summary(folder)["accuracy"] == 0.0
    weight, bias = sorted(last, key=lambda tensor: -tensor.ndim)
    assert (test @ weight.T + bias).argmax(axis=1).tolist() == [1] * 20


def test_there_must_be_records_left(records):
    with pytest.raises(ValueError, match="evaluate_on is validation, but validation_records is 0"):
        build(config.load(None, {"dataset": records, "evaluate_on": "validation"}))
    dataset = build(config.load(None, {"dataset": records})).dataset
    with pytest.raises(ValueError, match=r"validation_records is 300.*lower --validation-records"):
        hold_out(dataset, 300, True, np.random.default_rng(0))


# --- the paper's budget
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ("--mechanism=dpsgd",),
        ("--mechanism=dpsur", "--dpsur-accounting=selective", "--dpsur-validation-rate=0.2"),
        ("--mechanism=dpis",),
        ("--mechanism=dpagd", "--momentum=0"),
        ("--mechanism=screening", "--screening-rate=0.2"),
        ("--mechanism=dphero", "--hero-clipping=isotropic", "--epsilon=2"),
    ],
    ids=lambda flags: flags[0].partition("=")[2],
)
def test_a_published_budget_bounds_the_papers_claim_and_certifies_what_is_proved(
    tmp_path, records, flags, capsys
):
    """The claim is met, and nearly; the certified figure is the ledger's own."""
    flags = (
        f"--dataset={records}",
        "--rounds=3",
        "--steps=4",
        "--batch-size=60",
        "--epsilon=2",
        *flags,
    )
    assert (
        main_guard(central.command, [*flags, f"--out={tmp_path}", "--name=a", "--budget=published"])
        == 0
    )
    said, closing = capsys.readouterr().out, summary(tmp_path / "a")
    charged = ledger.read(tmp_path / "a" / "ledger")[0]
    assert 1.9 < epsilon(charged, 1e-5, "published").epsilon <= 2.0
    assert closing["epsilon_certified"] == [epsilon(charged, 1e-5).epsilon]
    assert closing["budget"] == "published" and "whatever it has become" in said


def test_with_noise_given_a_run_ends_where_the_claim_would_pass_the_budget(tmp_path, records):
    flags = (f"--dataset={records}", "--rounds=60", "--steps=2", "--batch-size=60", "--epsilon=2")
    flags += (
        "--noise-multiplier=2",
        "--mechanism=dpsur",
        "--dpsur-accounting=selective",
        "--dpsur-validation-noise=2",
        "--dpsur-validation-rate=0.2",
    )
    folder = run(central.command, tmp_path, "a", *flags, "--budget=published")
    charged, done = ledger.read(folder / "ledger")[0], len(rounds(folder))
    plan = build(config.load(folder / "config.toml", {})).plans.of(0)
    after = merge(charged, plan.round_charges(done + 1))
    assert 1 < done < 60 and summary(folder)["retired"] == 1
    claims = [epsilon(charges, 1e-5, "published").epsilon for charges in (charged, after)]
    assert claims[0] <= 2.0 < claims[1] and epsilon(charged, 1e-5).epsilon > 2.0


@pytest.mark.filterwarnings("ignore:epsilon")
@pytest.mark.parametrize(
    ("mechanism", "own"),
    [
        ("dpsur", Dpsur()),
        ("dpsur", Dpsur(dpsur_accounting="every-trial")),
        ("screening", Screening(screening_data="public")),
    ],
)
def test_a_length_that_would_follow_from_public_outputs_is_refused(mechanism, own):
    """Epsilon at a moment that the outputs choose would be no guarantee."""
    for noise in (None, 9.0, 0.25, 0.12):
        privacy = Privacy(
            mechanism=mechanism, budget="published", noise_multiplier=noise, sample_rate=0.1
        )
        with pytest.raises(ValueError, match="run's length would depend"):
            plan_table(privacy, own, 2, 3, np.array([50]))


def test_claims_settled_after_a_round_are_expected_before_it():
    """Noise screening as published: what may be accepted counts, or the claim would pass its
    budget."""
    privacy = Privacy(mechanism="screening", budget="published", epsilon=2.0, sample_rate=0.2)
    own = Screening(screening_clip=None, allow_unproved=True)
    plan = plan_table(privacy, own, 4, 3, np.array([50])).of(0)
    claims = [epsilon(planned(plan, n), 1e-5, "published").epsilon for n in (3, 4)]
    assert (
        1.99 < claims[0] <= 2.0 < claims[1] and epsilon(planned(plan, 1), 1e-5).epsilon == math.inf
    )
    accepted = merge(*(most(plan, nth) for nth in (1, 2, 3)))
    course = Course(table_of(plan), 3)
    for spent, able in ((planned(plan, 2), True), (accepted, False)):
        terms = 2.0, 1e-5, {0: spent}, np.array([2]), "published"
        now = Budgets(course.plans, course, *terms)
        assert now.eligible().tolist() == [able]


def test_a_certified_budget_is_the_default_and_looks_at_no_claim():
    assert Privacy().budget == "certified"
    a = DpsgdPlan(1.0, 0.9, 1.0, 2)  # whose best order is no integer, as papers take them
    target = epsilon(planned(a, 3), 1e-5).epsilon
    assert epsilon(planned(a, 3), 1e-5, "published").epsilon > target
    course = Course(table_of(a), 3)
    for column, able in (("certified", True), ("published", False)):
        terms = target, 1e-5, {0: planned(a, 2)}, np.array([2]), column
        now = Budgets(course.plans, course, *terms)
        assert now.eligible().tolist() == [able]
    assert set(MECHANISMS) >= {"dpsur", "screening"}
