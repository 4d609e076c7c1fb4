"""``python -m sim.attack``: it finds memory and nothing in noise; user errors are one line."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mechanisms import durable
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from mechanisms.randomness import generator, seed_key
from sim import attack, report, run
from sim.attacking import repetition
from sim.attacking.membership import split
from sim.auditing.trainings import train
from sim.commands.attack import ATTACKS, OWN, parse
from sim.commands.guard import main_guard
from sim.config.configuration import load
from sim.phases.build import build
from tests.refusing import refusal

NOISE = 1_000.0
MEMORY = (
    "--rounds=60 --steps=3 --batch-size=none --sample-rate=0.5 --clip-norm=0.2 --lr=1 --delta=1e-4"
)
"""A linear model of 200 random features learns random labels by heart, at a rate of 0.2 where
nothing is clipped."""


@pytest.fixture
def data(tmp_path: Path) -> str:
    """240 records whose labels nothing but memory can tell."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(240, 200)), rng.integers(0, 2, 240)
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x[:5], y_test=y[:5])
    return f"--dataset={tmp_path / 'data.npz'}"


def attacked(out: Path, *flags: str) -> dict:
    others = any(flag.startswith("--attacks") and "lira" not in flag for flag in flags)
    models = () if others else ("--models=8",)
    attack.command([*flags, *models, "--quiet", f"--out={out}", "--name=a"])
    return json.loads((out / "a" / "attack.json").read_text())


def test_memory_is_found_and_nothing_is_found_in_noise(data, tmp_path):
    """A false alarm of an interval has probability 0.001. Kills: members taken for others, a target
    trained on all records or on those of the test part, intervals around another attack's
    figure."""
    noisy = ("--mechanism=dpsgd", f"--noise-multiplier={NOISE}", "--epsilon=none")
    found = attacked(tmp_path, data, *MEMORY.split(), *noisy, "--confidence=0.999", "--targets=2")
    private, plain = found["trainings"]
    assert (private["mechanism"], private["budget"]) == ("dpsgd", None)
    assert (plain["mechanism"], plain["budget"], plain["epsilon_certified"]) == ("none", None, None)
    assert (
        private["epsilon_certified"]
        == epsilon({SampledGaussian(0.5, NOISE): 180}, 1e-4).epsilon
        < 0.1
    )
    for one in private["successes"]:
        assert one["low"] < 0.5 < one["high"] and one["low"] < one["accuracy"] < one["high"]
    for one in plain["successes"]:
        assert 0.53 < one["low"] < one["accuracy"] < one["high"] <= 1.0
        assert one["accuracy"] == one["right"] / one["guesses"]
        assert one["advantage"] == pytest.approx(2 * one["accuracy"] - 1)
    assert [one["attack"] for one in plain["successes"]] == ["shadow", "partial", "lira"]
    assert [one["guesses"] for one in plain["successes"]] == [2 * 80, 2 * 40, 2 * 8 * 240]
    assert plain["successes"][2]["area"] > 0.8 > 0.6 > private["successes"][2]["area"]
    assert plain["successes"][0]["area"] is None and 0.2 < plain["test_accuracy"] < 0.8


QUICK = (
    "--rounds=2",
    "--steps=2",
    "--batch-size=none",
    "--sample-rate=0.5",
    "--delta=1e-3",
    "--epsilon=4",
    "--records=120",
)


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing the attackers' forests takes most of the time."""
    monkeypatch.setattr("sim.attacking.membership.TREES", 10)


@pytest.mark.usefixtures("few_trees")
def test_the_same_seed_gives_the_same_figures_and_attacks_do_not_disturb_each_other(data, tmp_path):
    """Nor do later targets change earlier ones."""
    both = [attacked(tmp_path / str(n), data, *QUICK, "--targets=2") for n in range(2)]
    other = attacked(tmp_path / "other", data, *QUICK, "--targets=2", "--seed=7")
    for one in (*both, other):
        del one["run_dir"], one["seed"]
    assert both[0] == both[1] != other
    for number, name in enumerate(ATTACKS):
        alone = attacked(tmp_path / name, data, *QUICK, "--targets=1", f"--attacks={name}")
        for single, whole in zip(alone["trainings"], both[0]["trainings"], strict=True):
            (success,) = single["successes"]
            assert success["by_target"] == whole["successes"][number]["by_target"][:1]
            assert (single["test_accuracy"] is None) == (name == "lira")


@pytest.mark.usefixtures("few_trees")
def test_json_is_the_file_and_beside_it_are_the_settings(data, tmp_path, capsys):
    quick = [flag for flag in QUICK if flag != "--epsilon=4"]
    own = ["--attacks=partial", "--targets=1", "--mechanism=dpsur", "--epsilons=2,3"]
    flags = [data, *quick, *own]
    attack.command([*flags, "--json", f"--out={tmp_path}", "--name=a"])
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "a" / "attack.json").read_text())
    saved = load(tmp_path / "a" / "config.toml", {}, central=True)
    assert (saved.privacy.mechanism, saved.privacy.epsilon, saved.rounds.rounds) == (
        "dpsur",
        2.0,
        2,
    )
    kinds = [(one["mechanism"], one["budget"]) for one in found["trainings"]]
    assert kinds == [("dpsur", 2.0), ("dpsur", 3.0), ("dpsgd", 2.0), ("dpsgd", 3.0), ("none", None)]
    for one in found["trainings"][:-1]:
        assert 0.9 * one["budget"] < one["epsilon_certified"] <= one["budget"]
    dpsur, dpsgd = found["trainings"][0], found["trainings"][2]
    assert dpsur["epsilon_published"] != dpsur["epsilon_certified"]
    assert dpsgd["epsilon_published"] == pytest.approx(dpsgd["epsilon_certified"], rel=0.25)
    assert {one["records"] for one in found["trainings"]} == {120}
    assert any("proves nothing" in note for note in found["notes"])


@pytest.mark.usefixtures("few_trees")
def test_a_low_success_is_said_to_prove_nothing(data, tmp_path, capsys):
    flags = [data, *QUICK, "--attacks=partial", "--targets=1", f"--out={tmp_path}", "--name=a"]
    attack.command(flags)
    out = capsys.readouterr().out
    assert "An accuracy near 0.5 proves nothing" in out and "0.5 is blind guessing" in out
    attack.command([*flags[:-1], "--name=b", "--quiet"])
    assert capsys.readouterr().out == ""


def test_a_preset_takes_the_papers_settings_for_each_epsilon():
    asked = parse(["--preset=dpsur-pvldb-fmnist", "--epsilons=1,3", "--attacks=lira,shadow"])
    kinds = [
        (c.privacy.mechanism, c.privacy.epsilon, c.privacy.noise_multiplier)
        for c in asked.configs[:-1]
    ]
    noise = {1.0: 4.0, 3.0: 2.15}
    assert kinds == [
        (name, value, noise[value]) for name in ("dpsur", "dpsgd") for value in (1.0, 3.0)
    ]
    assert {c.data.features for c in asked.configs} == {"scattering"} and asked.attacks == (
        "shadow",
        "lira",
    )


def test_without_privacy_the_rate_is_that_of_gradients_that_nothing_clips():
    asked = parse(["--lr=3", "--clip-norm=0.2", "--mechanism=dpis", "--batch-size=64"])
    assert [c.privacy.mechanism for c in asked.configs] == ["dpis", "dpsgd", "none"]
    assert [c.local.lr for c in asked.configs] == pytest.approx([3.0, 3.0, 0.6])
    assert [c.privacy.mechanism for c in parse(["--mechanism=none"]).configs] == ["dpsgd", "none"]
    assert [c.privacy.mechanism for c in parse([]).configs] == ["dpsgd", "none"]
    usual = parse([])
    assert (usual.attacks, usual.targets, usual.models, usual.records) == (ATTACKS, 3, 16, None)
    assert (usual.confidence, usual.json) == (0.95, False)
    for flag, text in (("--targets", "3"), ("--models", "16"), ("--confidence", "0.95")):
        assert f"(default: {text})" in OWN[flag][1]
    given = parse(["--targets=4", "--models=11", "--records=50", "--confidence=0.8", "--json"])
    assert (given.targets, given.models, given.records, given.confidence, given.json) == (
        4,
        11,
        50,
        0.8,
        True,
    )


def test_models_are_trained_on_the_parts_of_one_split_with_draws_of_their_own(data, monkeypatch):
    """A shadow model with the target's noise, or one trained on the target's members, would make an
    attack's figure meaningless; as would a test accuracy on members."""
    job = build(parse([data, *QUICK]).configs[0])
    calls = []

    def watched(of, owned, key):
        calls.append((owned, key))
        place = float(len(calls))
        return replace(train(of, owned, key), epsilon=5 + place, epsilon_published=9 - place)

    monkeypatch.setattr(repetition, "train", watched)
    found = repetition.repetition(job, 5, ATTACKS, 9)
    parts = split(240, generator(seed_key(5), "parts"))
    (target, shadow, many), keys = [owned for owned, _ in calls], [key for _, key in calls]
    assert [set(target[0]), set(shadow[0])] == [set(parts.target_in), set(parts.shadow_in)]
    assert len(many) == 9 and all(90 < len(one) < 150 for one in many) and len(set(keys)) == 3
    assert (found.certified, found.published) == (8.0, 8.0)  # the largest of the three
    model = train(job, target, keys[0])
    said = model.probabilities(parts.target_out)[0].argmax(dim=1).numpy()
    assert found.test_accuracy == (said == job.dataset.y[parts.target_out]).mean()
    assert found.ratios.right.shape == (9, 240)
    assert {name: tally.guesses for name, tally in found.tallies.items()} == {
        "shadow": 80,
        "partial": 40,
    }


def test_some_records_are_records_with_their_labels(data):
    job = build(parse([data, *QUICK]).configs[0])
    some = repetition.some_records(job, 50).dataset
    label = {x.tobytes(): y for x, y in zip(job.dataset.x, job.dataset.y, strict=True)}
    assert [label[x.tobytes()] for x in some.x] == some.y.tolist()
    assert len({x.tobytes() for x in some.x}) == 50 == len(some.y)
    assert repetition.some_records(job, None) is job
    everything = repetition.some_records(job, 240).dataset
    assert {x.tobytes() for x in everything.x} == set(label)
    with pytest.raises(ValueError, match="--records 241 must be at most the 240 training records"):
        repetition.some_records(job, 241)


@pytest.mark.parametrize(
    "flag",
    [
        "--release",
        "--noise-decay=0.1",
        "--standardize=private",
        "--track=wandb",
        "--evaluation=detailed",
        "--evaluation=released",
        "--evaluate-every=2",
    ],
)
def test_what_the_attacked_trainings_would_pass_over_is_refused(flag):
    with pytest.raises(ValueError, match=f"^{flag.split('=')[0]}.* has no effect here"):
        parse([flag])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--attacks=shadow,liras"], "'liras'; did you mean lira?"),
        (["--attacks="], "--attacks has ''"),
        (["--epsilons=1,x"], "--epsilons is 'x'; it must be a number"),
        (["--epsilons=1,2,1.0"], "1,2,1.0 has a value twice"),
        (["--epsilons=-1"], "epsilon"),
        (["--epsilons="], "--epsilons is ''; it must be a number"),
        (["--targets=0"], "--targets 0 must be from 1 to 1000000"),
        (["--targets=two"], "--targets is 'two'; it must be an integer"),
        (["--models=1000001"], "--models 1000001 must be from 8 to 1000000"),
        (["--models=7"], "--models 7 must be from 8 to 1000000"),
        (["--records=23"], "--records 23 must be from 24 to 1000000"),
        (["--records=99999"], "--records 99999 must be at most the 1437 training records"),
        (["--confidence=1"], "--confidence 1 must be in (0, 1)"),
        (["--confidence=sure"], "--confidence is 'sure'; it must be a number"),
        (["--resume=absent"], "absent: an attack trains from the beginning: leave --resume out"),
        (["--epsilons=1,2", "--epsilon=3"], "--epsilons 1,2 is instead of --epsilon: drop one"),
        (["--attacks=shadow", "--models=9"], "--models 9 is LiRA's, which --attacks leaves out"),
        (["--clients=3"], "--clients has no effect"),
        (["--epsilom=3"], "did you mean --epsilon"),
        (["--noise-multiplier=0.01", "--epsilon=1"], "too small for a single round"),
    ],
)
def test_a_user_error_is_one_line_and_nothing_is_written(tmp_path, capsys, flags, named):
    assert main_guard(attack.command, [*flags, f"--out={tmp_path}", "--name=a"]) == 2
    error = capsys.readouterr().err
    assert named in error.splitlines()[-1] and "error: " in error and not list(tmp_path.iterdir())


def test_a_name_that_is_taken_is_refused_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sim.attacking.session.repetition", lambda *given: pytest.fail("trained"))
    (tmp_path / "a").mkdir()
    assert main_guard(attack.command, [f"--out={tmp_path}", "--name=a"]) == 2
    assert capsys.readouterr().err.endswith("/a exists; give another --name\n")


@pytest.mark.usefixtures("few_trees")
def test_a_run_that_has_taken_the_name_meanwhile_is_left_alone(data, tmp_path, monkeypatch):
    """Attacks that begin in the same second choose the same name, too."""
    taken, trained = tmp_path / "a" / "config.toml", repetition.repetition

    def meanwhile(*given):
        taken.parent.mkdir(exist_ok=True)
        taken.write_text("another's")
        return trained(*given)

    monkeypatch.setattr("sim.attacking.session.repetition", meanwhile)
    own = ["--attacks=partial", "--targets=1", "--quiet", f"--out={tmp_path}", "--name=a"]
    attack.command([data, *QUICK, *own])
    assert taken.read_text() == "another's" and not (tmp_path / "a" / "attack.json").exists()
    found = json.loads((tmp_path / "a-2" / "attack.json").read_text())
    assert found["run_dir"] == str(tmp_path / "a-2")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("file", ["config.toml", "attack.json"])
def test_an_attack_that_cannot_write_leaves_no_run_directory(data, tmp_path, monkeypatch, file):
    whole = durable.write

    def write(path, *given, **named):
        if path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        whole(path, *given, **named)

    monkeypatch.setattr(durable, "write", write)
    own = ["--attacks=partial", "--targets=1", "--quiet", f"--out={tmp_path}", "--name=a"]
    assert main_guard(attack.command, [data, *QUICK, *own]) == 1
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(durable, "write", whole)
    attack.command([data, *QUICK, *own])
    assert sorted(path.name for path in (tmp_path / "a").glob("*.*")) == [
        "attack.json",
        "config.toml",
    ]


@pytest.mark.usefixtures("few_trees")
def test_a_folder_of_an_attack_is_taken_for_no_run(data, tmp_path, capsys):
    attacked(tmp_path, data, *QUICK, "--attacks=partial", "--targets=1")
    for command, words in ((report.command, ()), (run.command, ("--resume",))):
        said = refusal(capsys, command, [*words, str(tmp_path / "a")])
        assert "/a is no run directory, but has the results of an attack in attack.json" in said


def test_the_help_names_the_flags(capsys):
    with pytest.raises(SystemExit):
        attack.command(["--help"])
    out = capsys.readouterr().out
    assert all(
        flag in out for flag in ("--attacks", "--epsilons", "--targets", "--models", "--mechanism")
    )
    assert "--config" in out and "--resume" not in out
