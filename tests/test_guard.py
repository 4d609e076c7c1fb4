"""Whatever ends a command early is one line on stderr, with its remedy and an exit code."""

import copy
import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sim import central, run
from sim.__main__ import COMMANDS
from sim.commands.guard import INTERRUPTED, MACHINE, USER, main_guard
from sim.engines import session
from sim.phases import training

SMALL = ["--clients=4", "--rounds=3", "--engine=inline", "--quiet", "--epsilon=none"]
SMALL += ["--noise-multiplier=1"]


class Own(nn.Module):
    """A linear model of the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


class ExitsAtOnce(nn.Module):
    def __init__(self) -> None:
        sys.exit(3)


class ExitsLater(Own):
    """Its first call is the one that the class is tried by."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 1:
            sys.exit(3)
        return super().forward(x)


class Infinite(Own):
    def __init__(self) -> None:
        super().__init__()
        self.layer.bias.data.fill_(torch.inf)


class Double(Own):
    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double()).float()


class Halves(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).half()


RAISED = [
    (KeyboardInterrupt(), "interrupted", INTERRUPTED),
    (GeneratorExit("odd"), "error: GeneratorExit: odd (python -X dev shows where)", MACHINE),
    (ValueError("name is 3:\n  drop it"), "error: name is 3: drop it", USER),
    (
        OSError(errno.ENOSPC, "No space left on device", "runs/a"),
        "error: runs/a: No space left on device: make room on the disk",
        MACHINE,
    ),
    (
        OSError(errno.EACCES, "Permission denied", "runs/a/config.toml"),
        "error: runs/a/config.toml: Permission denied: change who may read and write it, or use "
        "another folder",
        MACHINE,
    ),
    (
        OSError(errno.EIO, "Input/output error"),
        "error: Input/output error: check the disk",
        MACHINE,
    ),
    (OSError("lost"), "error: OSError: lost (python -X dev shows where)", MACHINE),
    (
        MemoryError("9 TiB"),
        "error: out of memory (9 TiB): use fewer --workers, a smaller --chunk-clients or fewer "
        "records, or a larger machine",
        MACHINE,
    ),
    (
        torch.OutOfMemoryError("on CUDA"),
        "error: out of memory (on CUDA): use fewer --workers, a smaller --chunk-clients or fewer "
        "records, or a larger machine",
        MACHINE,
    ),
    (KeyError("bug"), "error: KeyError: 'bug' (python -X dev shows where)", MACHINE),
    (RuntimeError("bug"), "error: RuntimeError: bug (python -X dev shows where)", MACHINE),
]


@pytest.mark.parametrize(("fault", "line", "code"), RAISED, ids=[line for _, line, _ in RAISED])
@pytest.mark.parametrize("note", ["", "; go on\nby --resume"], ids=["", "with a note"])
def test_whatever_is_raised_is_one_line(capfd, fault, line, code, note):
    def command(argv: object) -> None:
        raised = copy.copy(fault)
        if note:
            raised.add_note(note.removeprefix("; "))
        raise raised

    assert main_guard(command, []) == code
    assert capfd.readouterr() == ("", line + note.replace("\n", " ") + "\n")


def test_an_argument_that_no_file_can_hold_is_refused(capsys):
    assert main_guard(lambda argv: None, ["--out", os.fsdecode(b"a\xff")]) == USER
    assert capsys.readouterr().err == (
        "error: argument 'a\\udcff' is not valid UTF-8: use another name\n"
    )


STOPPED = """
import runpy, sys
class Interrupted:
    def find_spec(self, name, *rest):
        if name == "pydantic":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("words", [[f"sim.{name}"] for name in COMMANDS] + [["sim", "run"]])
def test_an_interrupt_while_modules_are_imported_is_one_line(words):
    """Kills a command whose module imports before the guard is there."""
    done = subprocess.run([sys.executable, "-c", STOPPED, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_stdout_that_is_full_is_one_line():
    line = "from sim.commands.guard import main_guard; raise SystemExit(main_guard(print, ['x']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", line],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
    assert (done.returncode, done.stderr) == (
        MACHINE,
        "error: No space left on device: make room on the disk\n",
    )


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (KeyError("late"), "KeyError: 'late'"),
        (SystemExit(3), "RuntimeError: the code of the model or the data called sys.exit(3)"),
    ],
)
def test_what_is_raised_within_a_run_is_one_line_that_says_how_to_go_on(
    tmp_path, capfd, monkeypatch, fault, what
):
    looks = iter([(0.5, 1.0)])

    def evaluate(job: object, params: object) -> tuple[float, float]:
        for look in looks:
            return look
        raise fault

    monkeypatch.setattr(training, "evaluate", evaluate)
    assert main_guard(run.command, [*SMALL, f"--out={tmp_path}", "--name=a"]) == MACHINE
    assert capfd.readouterr().err == (
        f"error: {what} (python -X dev shows where); finished rounds are kept: resume the run by "
        f"--resume {tmp_path}/a\n"
    )
    assert len((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()) == 1


def test_nobody_who_reads_is_one_line_and_no_fault_of_the_model(tmp_path, capfd, monkeypatch):
    """A command whose reader went away ended without a word, or a run with a false accusation."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "sim.account", "--noise-multiplier=1"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    said = "error: Broken pipe: read all that is printed"
    assert (done.returncode, done.stderr) == (MACHINE, f"{said}\n")

    def gone(*_: object) -> None:
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904, as Rich does

    monkeypatch.setattr(training, "evaluate", gone)
    assert main_guard(run.command, [*SMALL, f"--out={tmp_path}", "--name=a"]) == MACHINE
    assert capfd.readouterr().err.startswith(f"{said}; finished rounds are kept: resume the run")


def test_without_a_stdout_a_command_ends_as_with_one():
    line = "from sim.commands.guard import main_guard; raise SystemExit(main_guard(print, ['x']))"
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" >&-', sys.executable, line])
    assert done.returncode == 0


def test_whatever_ends_a_run_says_how_to_go_on_and_a_users_error_what_is_paid(tmp_path):
    for fault in (KeyboardInterrupt(), GeneratorExit(), MemoryError(), OSError(), SystemExit(3)):
        with pytest.raises(BaseException) as raised, session._resumable(tmp_path, 0):
            raise fault
        (note,) = raised.value.__notes__
        assert note.endswith(f"resume the run by --resume {tmp_path}")
    for said, notes in (
        ("training diverged", [f"the run directory {tmp_path} keeps what clients have paid"]),
        (f"{tmp_path}/orders.json is damaged", []),
    ):
        with pytest.raises(ValueError) as refused, session._resumable(tmp_path, 0):
            raise ValueError(said)
        assert getattr(refused.value, "__notes__", []) == notes


def deep(folder: Path) -> list[str]:
    (folder / "deep.toml").write_text("x = " + "[" * 5000 + "]" * 5000)
    return [f"--config={folder / 'deep.toml'}"]


def huge(folder: Path) -> list[str]:
    """Arrays of 16 TB, by their headers."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (2 * 10**12,)}
    with zipfile.ZipFile(folder / "huge.npz", "w") as file:
        for name in ("x", "y"):
            with file.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array_header_1_0(array, header)
    return [f"--dataset={folder / 'huge.npz'}"]


REFUSED = [
    ("ExitsAtOnce", [], "cannot be built (SystemExit: "),
    ("ExitsLater", [], "fails when it is tried on records (SystemExit: 3)"),
    ("Double", [], "layer.weight is of torch.float64, not torch.float32: make it so"),
    ("Infinite", [], "layer.bias is not finite before training: correct its constructor"),
    ("Halves", [], "output is of torch.float16, not torch.float32: make it so"),
    ("Own", ["--epochs=1e6", "--sample-rate=0.5"], "at most 1000000 are possible: give fewer --ep"),
    ("Own", ["--rounds=99999999999999999999"], "at most 1000000: "),
    ("Own", deep, "deep.toml is not a TOML file: "),
    ("Own", huge, "huge.npz does not fit into memory"),
]


@pytest.mark.parametrize(
    ("model", "given", "what"), REFUSED, ids=[f"{model}: {what}" for model, _, what in REFUSED]
)
@pytest.mark.parametrize("command", [run.command, central.command], ids=["run", "central"])
def test_it_is_refused_before_anything_is_written(tmp_path, capfd, model, given, what, command):
    own = given(tmp_path) if callable(given) else given
    flags = SMALL if command is run.command else ["--rounds=3", "--quiet", "--epsilon=none"]
    flags = [*flags, "--noise-multiplier=1", f"--out={tmp_path / 'runs'}"]
    assert main_guard(command, [*flags, f"--model={__name__}:{model}", *own]) == USER
    said = capfd.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and what in said
    assert not any((tmp_path / "runs").glob("*"))
