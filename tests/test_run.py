"""The real command: the same bits however it is carried, killed and resumed, and one line for every
fault."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from sim.commands.guard import main_guard
from sim.config import configuration as config
from sim.phases import training
from sim.run import command
from tests.folders import model, rounds
from tests.processes import NEEDS_PROC, wait_for

pytestmark = pytest.mark.usefixtures("no_report")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    """A user's own data set, so that children need not import scikit-learn."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "records.npz"
    x, y = rng.normal(size=(400, 8)).astype(np.float32), rng.integers(0, 3, 400)
    np.savez(path, x=x, y=y, x_test=x[:50], y_test=y[:50])
    return str(path)


def run(out: Path, name: str, *flags: str) -> Path:
    """The command in this process, with the inline engine unless told otherwise; returns the run
    directory."""
    argv = ["--engine=inline", "--quiet", f"--out={out}", f"--name={name}", *flags]
    assert main_guard(command, argv) == 0
    return out / name


def resume(folder: Path) -> Path:
    assert main_guard(command, ["--resume", str(folder), "--quiet", "--engine=inline"]) == 0
    return folder


def child(*flags: str) -> subprocess.Popen:
    """The command as a user starts it."""
    words = [sys.executable, "-m", "sim.run", "--quiet", *flags]
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def accuracies(folder: Path) -> list[float]:
    return [
        json.loads(line)["accuracy"] for line in (folder / "rounds.jsonl").read_text().splitlines()
    ]


def same(a: Path, b: Path) -> bool:
    """Bit-identical model, equal ledger and equal rounds."""
    ledgers = ledger.read(a / "ledger") == ledger.read(b / "ledger")
    return model(a) == model(b) and ledgers and accuracies(a) == accuracies(b)


# --- the same bits
# -------------------------------------------------------------------------------------------------

KINDS = {
    "the defaults": ("--rounds=2",),
    "poisson batches": (
        "--rounds=2",
        "--model=mlp",
        "--sample-rate=0.4",
        "--steps=3",
        "--momentum=0.5",
    ),
    "full batches": ("--rounds=2", "--model=mlp", "--steps=3", "--optimizer=adam", "--lr=0.01"),
    "some clients": ("--rounds=3", "--fraction=0.3", "--partition=iid"),
}


@pytest.mark.parametrize("flags", KINDS.values(), ids=KINDS)
def test_any_number_of_groups_gives_the_same_bits(tmp_path, flags):
    """100 clients of the digits in 1, 2 and 4 groups."""
    flags = ("--chunk-clients=25", *flags)
    one, two, four = (run(tmp_path, f"g{n}", f"--groups={n}", *flags) for n in (1, 2, 4))
    assert same(one, two) and same(one, four)
    assert [len(list((folder / "ledger").iterdir())) for folder in (one, two, four)] == [1, 2, 4]


def test_another_chunk_size_changes_rounding_alone(tmp_path):
    flags = ("--rounds=2", "--model=mlp", "--steps=3", "--groups=1")
    a, b = (run(tmp_path, f"c{n}", f"--chunk-clients={n}", *flags) for n in (25, 7))
    for name, tensor in load_file(a / "model.safetensors").items():
        np.testing.assert_allclose(load_file(b / "model.safetensors")[name], tensor, atol=1e-4)
    assert ledger.read(a / "ledger") == ledger.read(b / "ledger")


def test_another_seed_gives_another_model(tmp_path, records):
    a, b, c = (
        run(tmp_path, n, f"--dataset={records}", "--rounds=1", f"--seed={s}")
        for n, s in ("a0", "b0", "c1")
    )
    assert same(a, b) and model(a) != model(c)


RAY = (
    "--engine=ray",
    "--rounds=25",
    "--clients=20",
    "--sample-rate=0.5",
    "--steps=2",
    "--groups=4",
    "--chunk-clients=5",
)


def test_a_process_computes_with_one_thread_even_where_numpy_was_there_first():
    lines = (
        "import numpy; from threadpoolctl import threadpool_info as pools; from sim.job.device "
        "import single_thread",
        "assert max(pool['num_threads'] for pool in pools()) == 2",
        "single_thread()",
        "assert {pool['num_threads'] for pool in pools()} == {1} == "
        "{__import__('torch').get_num_threads()}",
    )
    threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", "; ".join(lines)], cwd=ROOT, env=os.environ | threads, check=True
    )


ONE_DIES = """
import os, signal, sys
from server.store import Store
from sim.run import command
from tests.processes import descendants
append = Store.append
def appended(self, record):
    append(self, record)
    if record.round == 1:
        workers = [p for p, title in descendants(os.getpid()).items() if "ray::Actor" in title]
        assert len(workers) == 2, workers
        os.kill(workers[0], signal.SIGKILL)
Store.append = appended
command(sys.argv[1:])
"""


@NEEDS_PROC
def test_two_ray_workers_of_which_one_dies_give_the_bits_of_the_inline_engine(tmp_path, records):
    """It dies when the first round is on the disk and the second has not begun."""
    flags = (f"--dataset={records}", *RAY, "--evaluation=clients")
    ray = ("--quiet", "--workers=2", f"--out={tmp_path}", "--name=ray")
    done = subprocess.run(
        [sys.executable, "-c", ONE_DIES, *flags, *ray], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    alone = run(tmp_path, "inline", *flags, "--engine=inline")
    assert same(alone, tmp_path / "ray")
    scores = [(folder / "evaluation.json").read_bytes() for folder in (alone, tmp_path / "ray")]
    assert scores[0] == scores[1]


# --- killed and resumed
# --------------------------------------------------------------------------------------------


def killed(folder: Path, moments: list[tuple[int, float]], *flags: str) -> Path:
    """Start the run, then resume it, again and again; each is killed so many rounds later and so
    many seconds on.

    A first number of -1 means: when the run directory appears.
    """
    for more, delay in moments:
        before = rounds(folder)
        begun = (
            ["--resume", str(folder)]
            if folder.exists()
            else [f"--out={folder.parent}", f"--name={folder.name}"]
        )
        process = child("--engine=inline", *begun, *([] if folder.exists() else flags))
        wait_for(
            lambda more=more, before=before: folder.exists() and rounds(folder) >= before + more,
            process,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0]
        assert process.returncode == -signal.SIGKILL, said
    return folder


def moments(seed: int, count: int) -> list[tuple[int, float]]:
    """One before the first round, the others up to three rounds later and up to 60 ms into the next
    one."""
    rng = random.Random(seed)
    return [(-1, rng.random() * 0.1)] + [
        (rng.randrange(1, 4), rng.random() * 0.06) for _ in range(count - 1)
    ]


LONG = (
    "--rounds=40",
    "--clients=50",
    "--sample-rate=0.5",
    "--steps=3",
    "--groups=2",
    "--fraction=0.8",
)


def test_a_killed_and_resumed_run_is_the_uninterrupted_one(tmp_path, records):
    flags = (f"--dataset={records}", *LONG)
    broken = killed(tmp_path / "broken", moments(1, 2), *flags)
    assert 0 < rounds(broken) < 40 and not (broken / "model.safetensors").exists()
    assert same(resume(broken), run(tmp_path, "straight", *flags))


def test_a_finished_run_can_be_resumed_without_harm(tmp_path, records):
    folder = run(tmp_path, "done", f"--dataset={records}", "--clients=10", "--rounds=2")
    files = [folder / "model.safetensors", folder / "rounds.jsonl", *(folder / "ledger").iterdir()]
    before = [file.read_bytes() for file in files]
    resume(folder)
    assert [file.read_bytes() for file in files] == before


# --- releases
# --------------------------------------------------------------------------------------------------


def releases(folder: Path) -> set[str]:
    lines = (
        line for path in (folder / "ledger").iterdir() for line in path.read_text().splitlines()
    )
    return {json.loads(line)["release"] for line in lines}


def test_two_releases_share_no_draw_and_no_name(tmp_path, records):
    flags = (f"--dataset={records}", "--clients=10", "--rounds=2", "--groups=2", "--release")
    a, b = (run(tmp_path, name, *flags) for name in "ab")
    assert model(a) != model(b)
    assert len(releases(a)) == len(releases(b)) == 2 and not releases(a) & releases(b)


def test_a_killed_release_never_passes_its_target(tmp_path, records):
    """Rounds that were lost are paid for; the last ones are missing instead."""
    folder = killed(
        tmp_path / "a", moments(2, 2), f"--dataset={records}", *LONG, "--release", "--epsilon=3"
    )
    resume(folder)
    spent = ledger.read(folder / "ledger")
    assert len(spent) == 50 and 0 < rounds(folder) <= 40
    assert 2.5 < max(epsilon(charges, 1e-5).epsilon for charges in spent.values()) <= 3.0


def test_a_release_that_died_in_its_only_round_ends_without_one(tmp_path, records):
    folder = run(tmp_path, "a", f"--dataset={records}", "--clients=10", "--rounds=1", "--release")
    for path in [
        folder / "rounds.jsonl",
        *(folder / "checkpoints").iterdir(),
        *(folder / "uploads").iterdir(),
    ]:
        path.unlink()
    resume(folder)
    assert rounds(folder) == 0 and json.loads((folder / "summary.json").read_text())["rounds"] == 0


def test_training_without_privacy_says_so(tmp_path, records):
    folder = run(
        tmp_path, "none", f"--dataset={records}", "--clients=10", "--rounds=2", "--mechanism=none"
    )
    (last,) = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()][1:]
    assert (
        last["epsilon_certified_max"] is last["epsilon_published_max"] is None
        and last["retired"] == 0
    )


# --- faults
# --------------------------------------------------------------------------------------------------


class Mixing(torch.nn.Sequential):
    """A user's model that no clipping can make private."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))


class Centred(torch.nn.Sequential):
    """Another one, of which no layer shows it."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


def npz(folder: Path, **arrays: np.ndarray) -> str:
    np.savez(folder / "bad.npz", **arrays)
    return str(folder / "bad.npz")


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
X, Y = np.ones((20, 3)), np.arange(20) % 3
FAULTS = {
    "--clients=0": ["clients is 0", "at least 1"],
    "--clients=-5": ["clients is -5", "at least 1"],
    "--clients=401": ["clients = 401", "400", "--clients"],
    "--clients=201": ["clients = 201", "min_records = 2", "--min-records"],
    "--dirichlet=0": ["dirichlet is 0", "above 0"],
    "--epsilon=-1": ["epsilon is -1", "above 0"],
    "--delta=2": ["delta is 2", "[1e-300, 1)"],
    "--delta=0.01 --strict-delta": ["delta = 0.01", "1 / 400", "lower --delta"],
    "--sample-rate=0": ["sample_rate is 0", "(0, 1]"],
    "--fraction=1.1": ["fraction is 1.1", "(0, 1]"],
    "--rounds=-1": ["rounds is -1", "at least 1"],
    "--dataset=minst": ["minst", "mnist"],
    "--dataset=nowhere.npz": ["nowhere.npz", "no such file"],
    "--dataset=mnist --data-dir=/nowhere": ["/nowhere", "no directory"],
    "--model=lineer": ["lineer", "linear"],
    "--model=tests.nowhere:Model": ["tests.nowhere", "imported"],
    "--model=tests.test_run:Mixing": ["BatchNorm1d", "GroupNorm"],
    "--model=tests.test_run:Centred --chunk-clients=2": ["Centred", "influence cannot be bounded"],
    "--model=cnn": ["cnn", "images"],
    "--mechanism=dpsdg": ["dpsdg", "dpsgd"],
    "--strategy=fedavgg": ["fedavgg", "fedavg"],
    "--device=cuda": ["cuda", "--device"],
    "--epsilon=1e-6": ["1e-06", "too small", "epsilon"],
    "--epsilon=1 --noise-multiplier=0.3": [
        "epsilon = 1 is too small for a single round",
        "--noise-multiplier",
    ],
    "--out=/proc/nowhere": ["/proc/nowhere", "--out"],
    "--out=": ["out is ''", "--out"],
    "--resume=/tmp": ["/tmp", "no run directory"],
}


def refusal(capsys, *argv: str) -> str:
    """What the command says when it refuses: a single line, and exit code 2."""
    capsys.readouterr()
    assert main_guard(command, ["--engine=inline", "--quiet", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=NO_CUDA if "cuda" in line else ()) for line in FAULTS]
)
def test_a_fault_is_one_line_and_leaves_nothing(tmp_path, capsys, records, line):
    said = refusal(capsys, f"--dataset={records}", f"--out={tmp_path}", *line.split())
    assert [part for part in FAULTS[line] if part not in said] == []
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_tried_before_the_run_begins_on_every_device(
    tmp_path, capsys, records, monkeypatch
):
    """Where a step is measured in advance, that tries the model, too; where the user says how many
    clients a chunk has, none is."""
    monkeypatch.setattr("sim.phases.build.step_entries", lambda job: 0)
    said = refusal(
        capsys, f"--dataset={records}", f"--out={tmp_path}", "--model=tests.test_run:Centred"
    )
    assert "influence cannot be bounded" in said and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line", ["--dataset=minst", "--dataset=nowhere.npz", "--dataset=mnist --data-dir=/nowhere"]
)
def test_data_that_are_not_there_are_told_before_ray_begins(tmp_path, line):
    """A start cannot be broken off: kills one that the user has to wait for to read of a wrong
    path."""
    code = "import sys; from sim.commands.guard import main_guard; from sim.run import command; "
    code += "print(main_guard(command), 'ray' in sys.modules, 'torch' in sys.modules)"
    words = [sys.executable, "-c", code, f"--out={tmp_path}", *line.split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False", "False"]
    assert [part for part in FAULTS[line] if part not in done.stderr] == [] and list(
        tmp_path.iterdir()
    ) == []


BAD_ARRAYS = {
    "no x": ({"y": Y}, "'x' is missing"),
    "NaN": ({"x": np.where(np.arange(3) == 1, np.nan, X), "y": Y}, "x[0, 1] = nan"),
    "labels": ({"x": X, "y": Y - 1}, "y[0] = -1"),
    "lengths": ({"x": X, "y": Y[:7]}, "20 records, y 7 labels"),
}


@pytest.mark.parametrize(("arrays", "words"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_a_faulty_npz_is_named(tmp_path, capsys, arrays, words):
    out = tmp_path / "runs"
    said = refusal(capsys, f"--dataset={npz(tmp_path, **arrays)}", f"--out={out}", "--clients=2")
    assert words in said and "bad.npz" in said and list(out.iterdir()) == []


def test_a_taken_name_and_a_changed_configuration_are_refused(tmp_path, capsys, records):
    folder = run(tmp_path, "taken", f"--dataset={records}", "--clients=10", "--rounds=1")
    before = sorted(folder.rglob("*"))
    assert "exists" in refusal(capsys, f"--dataset={records}", f"--out={tmp_path}", "--name=taken")
    assert "clients is 10" in refusal(capsys, "--resume", str(folder), "--clients=11")
    said = refusal(capsys, "--resume", str(folder), "--rounds=2")
    assert "rounds is 1" in said and "with more rounds, which ends when --epsilon is spent" in said
    assert sorted(folder.rglob("*")) == before


def test_the_process_itself_ends_with_code_2(tmp_path):
    words = [sys.executable, "-m", "sim.run", "--epsilon", "-1", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.startswith("error: epsilon is -1.0") and done.stderr.count("\n") == 1


# --- what is planned
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "steps", "participations"),
    [
        ({"steps": 3, "rounds": 10}, 3, 10),
        ({"epochs": 2.0, "sample_rate": 0.3, "rounds": 10, "fraction": 0.25}, 7, 3),
        ({"epochs": 0.9, "sample_rate": 0.3, "rounds": 100, "fraction": 0.07}, 3, 7),
        ({"epochs": 2.1, "sample_rate": 0.3, "rounds": 10}, 7, 10),
        ({"epochs": 0.1, "sample_rate": 1.0, "rounds": 9, "max_participations": 4}, 1, 4),
        ({"rounds": 2, "max_participations": 4}, 1, 2),
        ({"epochs": 1e6, "sample_rate": 1.0, "rounds": 1}, 10**6, 1),
    ],
)
def test_local_steps_and_participations_are_rounded_up_and_no_further(flags, steps, participations):
    given = config.load(None, flags)
    assert (training.local_steps(given, 9), training.participations(given)) == (
        steps,
        participations,
    )
