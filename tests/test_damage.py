"""A run directory that is damaged is refused in one line, or nothing is lost: nobody spends twice.

The run is a release of the real command that died in its third round, with its charges on the disk.
"""

import itertools
import json
import linecache
import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from client import tensors
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from server import checkpoints, loop, orders, paid, sealed_json
from server.checkpoints import Checkpoint, Checkpoints
from server.manifest import run_of
from server.records import RoundRecord, read_rounds
from server.store import Store
from sim import account, report
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.engines.start import train
from sim.job import manifest
from sim.library.result import Result
from sim.library.whole import look
from sim.run import command
from sim.showing.audit import Audit
from tests.crashing import Killed, Noting
from tests.folders import contents
from tests.vouched import fix_orders

pytestmark = pytest.mark.usefixtures("no_report")
FLAGS = (
    "--clients=4 --groups=2 --chunk-clients=2 --partition=iid --model=linear --engine=inline "
    "--quiet --rounds=4 --release --epsilon=50 --noise-multiplier=3 --keep-state --momentum=0.5"
)
IN_PHASES = FLAGS.replace("--keep-state --momentum=0.5", "--standardize=private")
"""Statistics of the channels come before training."""
FIRST, SECOND = "ledger/group-0000.jsonl", "ledger/group-0001.jsonl"


def start(root: Path, dies_at: float = float("inf"), flags: str = FLAGS) -> Noting:
    asked = [*flags.split(), f"--dataset={root / 'data.npz'}", f"--out={root / 'runs'}"]
    with Noting(root, dies_at=dies_at) as noting:
        train(parse([*asked, "--name=run"], "run", ""))
    return noting


def noted(root: Path, flags: str) -> tuple[Path, list]:
    """The folder of a finished run, and what it did to its files."""
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
    np.savez(root / "data.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engines.session.write_report", lambda folder: None)
        return root, start(root, flags=flags).operations


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return noted(tmp_path_factory.mktemp("whole"), FLAGS)


@pytest.fixture(scope="module")
def in_phases(tmp_path_factory):
    return noted(tmp_path_factory.mktemp("in_phases"), IN_PHASES)


def died(whole, root: Path, name: str, after: int, flags: str = FLAGS) -> Path:
    """A run that died so many operations after it had given a file its name."""
    source, operations = whole
    if root != source:
        shutil.copy(source / "data.npz", root)
    named = next(n for n, (what, to) in enumerate(operations) if what == "move" and to[-1] == name)
    with pytest.raises(Killed):
        start(root, named + after, flags)
    return root / "runs" / "run"


@pytest.fixture(scope="module")
def unfinished(whole, tmp_path_factory):
    """Its newest checkpoint is of round 2, and the first group's charge of round 3 is ahead."""
    folder = died(whole, tmp_path_factory.mktemp("unfinished"), "round-000002.json", 6)
    lines = (folder / FIRST).read_bytes().splitlines()
    assert b'"round": 3' in lines[-1] and b'"round": 2' in (folder / SECOND).read_bytes()
    return folder


@pytest.fixture
def run(unfinished, tmp_path):
    """A copy of the unfinished run."""
    return shutil.copytree(unfinished, tmp_path / "runs" / "run")


def flipped(data: bytes) -> bytes:
    """A digit of a count or a noise becomes another one."""
    at = data.index(b'"noise_multiplier": 3') + len('"noise_multiplier": ')
    return data[:at] + b"7" + data[at + 1 :]


def changed(change, name: str = FIRST):
    return lambda run, whole: (run / name).write_bytes(change((run / name).read_bytes()))


def first_lines(count: int, name: str = FIRST):
    return changed(lambda data: b"".join(data.splitlines(keepends=True)[:count]), name)


def exchanged(run: Path, whole) -> None:
    shutil.copy(whole[0] / "runs" / "run" / FIRST, run / FIRST)


DAMAGES = {
    "deleted": lambda run, whole: (run / FIRST).unlink(),
    "emptied": first_lines(0),
    "older": first_lines(1),
    "older, of the last group": first_lines(1, SECOND),
    "a flipped bit": changed(flipped),
    "a lost line": changed(lambda data: data.partition(b"\n")[2]),
    "another group's": lambda run, whole: shutil.copy(run / SECOND, run / FIRST),
    "another run's": exchanged,
    "lines without number and checksum": changed(
        lambda data: b"".join(
            line[: line.index(b', "number"')] + b"}\n" for line in data.splitlines()
        )
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_ledger_is_neither_continued_nor_priced(run, whole, capsys, damage):
    shutil.rmtree(run / "uploads")  # which know of it, too
    ledgers = {run / name: (run / name).read_bytes() for name in (FIRST, SECOND)}
    damage(run, whole)
    before = {path: path.read_bytes() for path in (run / "ledger").iterdir()}
    (path,) = [path for path, lines in ledgers.items() if before.get(path) != lines]
    for ask, argument in ((command, "--resume"), (account.command, "--ledger")):
        assert main_guard(ask, [argument, str(run)]) == 2
        said = capsys.readouterr().err
        assert str(path) in said and "restore" in said and said.count("\n") == 1
    with pytest.raises(ValueError, match=path.name):
        Result(run).epsilon  # noqa: B018
    assert {path: path.read_bytes() for path in (run / "ledger").iterdir()} == before


def test_a_ledger_that_is_a_link_to_a_disk_that_is_away_is_missed(run, capsys):
    """It was `max() arg is an empty sequence`; and no new one is begun where it leads."""
    (run / FIRST).unlink()
    (run / FIRST).symlink_to(run / "away")
    for ask, argument in ((command, "--resume"), (account.command, "--ledger")):
        assert main_guard(ask, [argument, str(run)]) == 2
        said = capsys.readouterr().err
        assert f"{run / FIRST} is missing" in said and "restore" in said and said.count("\n") == 1
    assert not (run / "away").exists()


def test_a_ledger_ahead_of_its_checkpoint_is_continued_and_counted(run):
    """The charge of the round in which the run died is there, though no checkpoint knows it."""
    paid = ledger.read(run / "ledger")
    assert sum(paid[0].values()) > sum(paid[3].values())
    assert main_guard(command, ["--resume", str(run)]) == 0
    after = ledger.read(run / "ledger")
    assert sum(after[0].values()) > sum(after[3].values()) > sum(paid[3].values())


def test_a_last_line_that_lacks_its_end_counts(run):
    """It was cut off, and what it had paid for was free."""
    before, path = ledger.read(run / "ledger"), run / FIRST
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="but for its newline: it counts"):
        assert ledger.read(run / "ledger") == before
    with pytest.warns(UserWarning, match="but for its newline: it counts"):
        assert main_guard(command, ["--resume", str(run)]) == 0
    after = ledger.read(run / "ledger")
    assert sum(after[0].values()) > sum(after[3].values())


def test_a_charge_of_an_earlier_phase_is_known_before_training(in_phases, tmp_path):
    """What the channels' statistics cost is charged before, and training has no checkpoint."""
    folder = died(in_phases, tmp_path, "round--00001.json", 2, IN_PHASES)
    assert list(folder.glob("*/checkpoints/*.json")) and not list(folder.glob("checkpoints/*"))
    (folder / FIRST).write_bytes(b"")
    shutil.rmtree(folder / "statistics" / "uploads")  # which know of it, too
    (folder / "statistics.safetensors").unlink()
    with pytest.raises(ValueError, match=r"group-0000\.jsonl has 0 lines, but had 1"):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))


def edited(**entries):
    """A manifest that somebody else wrote, with a digest that matches."""

    def edit(path: Path) -> None:
        path.write_bytes(sealed_json.dumps(sealed_json.loads(path.read_bytes()) | entries))

    return edit


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])


FIXED = {
    "config.toml is longer": ("config.toml", lambda path: path.write_text(path.read_text() + "\n")),
    "partition.npz is flipped": ("partition.npz", flip),
    "partition.npz is missing": ("partition.npz", Path.unlink),
    "inputs.json is missing": ("inputs.json", Path.unlink),
    "the manifest is flipped": ("manifest.json", flip),
    "the manifest is empty": ("manifest.json", lambda path: path.write_bytes(b"")),
}
OTHERS = {
    "no manifest": Path.unlink,
    **{
        name: edited(**{name: "0"})
        for name in (
            *("version", "share of delta in progress", "torch", "numpy"),
            *("model code", "initial parameters"),
        )
    },
}


@pytest.mark.parametrize("damage", FIXED)
def test_what_is_fixed_is_as_it_was_or_nothing_is_read(run, capsys, damage):
    name, change = FIXED[damage]
    change(run / name)
    asks = (command, "--resume"), (account.command, "--ledger"), (report.command,)
    for ask, *arguments in asks:
        assert main_guard(ask, [*arguments, str(run)]) == 2
        said = capsys.readouterr().err
        assert str(run / name) in said and "restore" in said and said.count("\n") == 1


@pytest.mark.parametrize("other", OTHERS)
def test_a_run_goes_on_with_what_it_began_with_only(run, capsys, other):
    """The same noise on another function would be charged once."""
    OTHERS[other](run / "manifest.json")
    before = ledger.read(run / "ledger")
    assert main_guard(command, ["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(run) in said and "start a new run" in said and said.count("\n") == 1
    assert (other in said or other == "no manifest") and ledger.read(run / "ledger") == before


def test_a_manifest_says_all_that_a_run_began_with(tmp_path, monkeypatch):
    """Kills an entry that is missing and taken to be as it is now."""
    began = {"version": "1", "model code": "2", "strategy code": "3"}
    monkeypatch.setattr(manifest, "_began", lambda job: began)
    whole = {**began, "files": {}}
    for name in (None, *began):
        entries = {key: value for key, value in whole.items() if key != name}
        (tmp_path / "manifest.json").write_bytes(sealed_json.dumps(entries))
        if name is None:
            manifest.check(tmp_path, None)
            continue
        with pytest.raises(ValueError, match=f"{name} = .* began with, None: .* start a new run"):
            manifest.check(tmp_path, None)


def test_a_ledger_that_is_lost_before_the_first_checkpoint_is_missed(whole, tmp_path):
    folder = died(whole, tmp_path, "orders.json", 8)
    assert (folder / FIRST).read_bytes() and not list(folder.glob("checkpoints/*"))
    (folder / FIRST).unlink()
    with pytest.raises(ValueError, match=r"group-0000\.jsonl is missing"):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))


def test_the_code_of_a_model_is_that_of_its_own_modules(monkeypatch):
    """With the functions that its classes call. PyTorch's are known by its version."""

    class Mine(torch.nn.Sequential):
        pass

    class Other(torch.nn.Sequential):
        pass

    codes = [list(manifest._sources(kind(torch.nn.Linear(2, 2)))) for kind in (Mine, Other, Mine)]
    whole = Path(__file__).read_text()
    assert codes[0] == codes[2] == [Mine.__qualname__, whole]
    assert codes[1] == [Other.__qualname__, whole]
    Other.__module__ = "torchmodels"  # of which there is no source
    assert list(manifest._sources(Other())) == [Other.__qualname__]
    Mine.__module__ = "__main__"
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    (_, alone) = manifest._sources(Mine())
    assert alone.strip().startswith("class Mine") and "Other" not in alone


def test_functions_that_a_model_calls_stay_as_they_were(whole, tmp_path, monkeypatch):
    """Noise of the same seed on another function was charged once."""
    own = tmp_path / "changing.py"
    own.write_text("""
import torch
def helper(x):
    return 2 * x
class Mine(torch.nn.Sequential):
    def __init__(self, classes):
        super().__init__(torch.nn.Linear(4, classes))
    def forward(self, x):
        return helper(super().forward(x))
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copy(whole[0] / "data.npz", tmp_path)
    start(tmp_path, flags=FLAGS.replace("=linear", "=changing:Mine").replace("--release", ""))
    resumed = ["--resume", str(tmp_path / "runs" / "run"), "--quiet"]
    train(parse(resumed, "run", ""))
    own.write_text(own.read_text().replace("2 * x", "3 * x"))
    monkeypatch.delitem(sys.modules, "changing")
    linecache.checkcache()
    with pytest.raises(ValueError, match="model code = "):
        train(parse(resumed, "run", ""))


@pytest.mark.parametrize("change", [flip, Path.unlink])
def test_what_clients_keep_is_as_it_was_or_the_run_does_not_go_on(run, capsys, change):
    """The state before was taken, or the damaged one, and another model came out."""
    path = run / "clients" / "group-0000" / "round-000002.safetensors"
    change(path)
    assert main_guard(command, ["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said and "restore" in said and said.count("\n") == 1


def sealed_anew(path: Path) -> None:
    """Another result of the same run."""
    said, arrays = tensors.read(path)
    path.write_bytes(tensors.sealed({name: one + 1 for name, one in arrays.items()}, said))


@pytest.mark.parametrize("change", [flip, Path.unlink, sealed_anew])
def test_the_result_of_an_earlier_phase_is_as_it_was_or_the_run_does_not_go_on(
    whole, tmp_path, capsys, change
):
    shutil.copy(whole[0] / "data.npz", tmp_path)
    phases = "--standardize=private --strategy=fedfed --share-noise=9"
    start(tmp_path, flags=FLAGS.replace("--keep-state --momentum=0.5", phases))
    path = tmp_path / "runs" / "run" / "statistics.safetensors"
    change(path)
    assert main_guard(command, ["--resume", str(path.parent)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said and "restore" in said and said.count("\n") == 1


@pytest.mark.parametrize("phase", ["statistics", "shared"])
def test_a_result_that_no_checkpoint_of_training_knows_is_as_it_was_too(
    whole, tmp_path, capsys, phase
):
    """Until the first round was finished another model came out, without a word."""
    shutil.copy(whole[0] / "data.npz", tmp_path)
    flags = IN_PHASES
    if phase == "shared":
        flags = FLAGS.replace("--keep-state", "--strategy=fedfed --share-noise=9")
    operations = start(tmp_path, flags=flags).operations
    shutil.rmtree(tmp_path / "runs")
    run = died((tmp_path, operations), tmp_path, f"{phase}.safetensors", 20, flags)
    assert not list(run.glob("checkpoints/*"))
    flip(run / f"{phase}.safetensors")
    assert main_guard(command, ["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(run / f"{phase}.safetensors") in said and "restore" in said
    assert said.count("\n") == 1


def states(run: Path, capsys) -> tuple[int, dict[str, str]]:
    """What ``--check`` ends with, and says of each file; it changes none."""
    before = contents(run)
    try:
        status = main_guard(account.command, [f"--check={run}", "--json"])
    except SystemExit as end:
        status = end.code
    assert contents(run) == before
    rows = json.loads(capsys.readouterr().out)["files"]
    return status, {row["file"]: row["state"] for row in rows}


ROUNDS = "rounds.jsonl"


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


STATE, CHECKPOINT = "clients/group-0000/round-000002.safetensors", "checkpoints/round-000002"
FOUND = {
    **{damage: (file, "damaged", change) for damage, (file, change) in FIXED.items()},
    "partition.npz is missing": ("partition.npz", "missing", Path.unlink),
    "inputs.json is missing": ("inputs.json", "missing", Path.unlink),
    "the manifest is missing": ("manifest.json", "missing", Path.unlink),
    "the key is missing": ("inputs.key", "missing", Path.unlink),
    "the key is short": ("inputs.key", "damaged", lambda path: path.write_bytes(b"0")),
    "a ledger is missing": (FIRST, "missing", Path.unlink),
    "a ledger is older": (SECOND, "older", lambda path: path.write_bytes(b"")),
    "a ledger is flipped": (FIRST, "damaged", flip),
    "a label is flipped": (f"{CHECKPOINT}.json", "damaged", flip),
    "a checkpoint is flipped": (f"{CHECKPOINT}.safetensors", "damaged", flip),
    "a state is missing": (STATE, "missing", Path.unlink),
    "a state is flipped": (STATE, "damaged", flip),
    "the orders are damaged": ("orders.json", "damaged", lambda path: path.write_bytes(b"[1]")),
    "the orders are flipped": ("orders.json", "damaged", flip),
    "the orders are missing": ("orders.json", "missing", Path.unlink),
    "a round is lost": (ROUNDS, "damaged", lambda path: path.write_bytes(lines_of(path)[0])),
    "all rounds are lost": (ROUNDS, "missing", Path.unlink),
    "the summary is cut": ("summary.json", "damaged", lambda path: path.write_bytes(b"{")),
}


@pytest.mark.parametrize("damage", FOUND)
def test_a_check_names_the_file_that_is_not_whole_and_its_state(run, capsys, damage):
    name, state, change = FOUND[damage]
    if name == "summary.json":
        (run / name).touch()
    else:
        assert states(run, capsys)[0] == 0
    change(run / name)
    status, found = states(run, capsys)
    vouching = name.replace("round-000002.safetensors", "round-000002.json")
    named = vouching if name.startswith("checkpoints") else name
    assert status == 1 and {file: what for file, what in found.items() if what != "whole"} == {
        named: state
    }


def test_a_check_finds_damage_in_uploads_and_in_earlier_phases(whole, tmp_path, capsys):
    shutil.copy(whole[0] / "data.npz", tmp_path)
    start(tmp_path, flags=IN_PHASES)
    run = tmp_path / "runs" / "run"
    status, found = states(run, capsys)
    assert status == 0 and set(found.values()) == {"whole"}
    uploads = sorted((run / "uploads").iterdir())
    labels_ = sorted(run.glob("*/checkpoints/*.json"))
    damaged = {run / "statistics.safetensors", uploads[0], labels_[0]}
    for path in damaged:
        flip(path)
    status, found = states(run, capsys)
    assert status == 1
    assert {run / file for file, state in found.items() if state == "damaged"} == damaged


@pytest.mark.parametrize("name", ["lost", "flipped"])
def test_a_check_misses_the_result_of_a_phase_that_is_over(in_phases, tmp_path, capsys, name):
    """It said that all was whole, and no resumed run would go on."""
    run = died(in_phases, tmp_path, "round-000001.json", -2, IN_PHASES)
    result = run / "statistics.safetensors"
    assert not list(run.glob("checkpoints/*.json")) and states(run, capsys)[0] == 0
    if name == "lost":
        result.unlink()
        shutil.rmtree(run / "statistics")
    else:
        flip(result)
    status, found = states(run, capsys)
    state = "missing" if name == "lost" else "damaged"
    assert status == 1 and found[result.name] == state
    assert main_guard(command, ["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(result) in said and "restore" in said and said.count("\n") == 1


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("lost")])
def test_a_lock_that_nobody_can_hold_is_not_whole(run, capsys, make):
    lock = run / "lock"
    lock.unlink()
    assert states(run, capsys)[0] == 0
    make(lock)
    status, found = states(run, capsys)
    assert status == 1 and found["lock"] == "damaged"
    assert main_guard(command, ["--resume", str(run)]) == 2
    assert "is no file: remove it" in capsys.readouterr().err


def test_a_state_that_a_dead_round_left_is_newer_and_loses_nothing(whole, tmp_path, capsys):
    run = died(whole, tmp_path, STATE.replace("02", "03")[-24:], 1)
    path = STATE.replace("02", "03")
    status, found = states(run, capsys)
    assert status == 0 and found[path] == "newer"
    flip(run / path)
    status, found = states(run, capsys)
    assert status == 1 and found[path] == "damaged"


def test_a_check_is_of_a_run_directory_alone(tmp_path, capsys):
    for asked in ([f"--check={tmp_path}"], ["--check=nowhere"], ["--check=a", "--delta=1e-6"]):
        assert main_guard(account.command, asked) == 2
        said = capsys.readouterr().err
        assert "--check" in said and said.count("\n") == 1


ROUND_DAMAGES = {
    "shortened": lambda path: path.write_bytes(lines_of(path)[0]),
    "edited": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"retired": 0', b'"retired": 1', 1)
    ),
    "glued": lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"", 1)),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", ROUND_DAMAGES)
def test_records_of_rounds_are_as_they_were_or_neither_continued_nor_shown(run, capsys, damage):
    """They were passed over, and the report's plots and times were of other rounds."""
    path = run / ROUNDS
    ROUND_DAMAGES[damage](path)
    for ask, *arguments in ((command, "--resume"), (report.command,)):
        assert main_guard(ask, [*arguments, str(run)]) == 2
        said = capsys.readouterr().err
        assert str(path) in said and "restore" in said and said.count("\n") == 1


def test_records_of_rounds_without_their_checkpoints_are_not_whole(run, capsys):
    """A resumed run refuses them, but a check found nothing."""
    shutil.rmtree(run / "checkpoints")
    status, found = states(run, capsys)
    assert status == 1 and found["checkpoints"] == "missing"
    (run / ROUNDS).unlink()
    status, found = states(run, capsys)
    assert status == 1 and found["checkpoints"] == "missing"


def test_records_that_are_nested_too_deep_are_damaged(tmp_path):
    (tmp_path / ROUNDS).write_text("[" * 5000 + "]" * 4999 + "}\n")
    with pytest.raises(ValueError, match=r"rounds\.jsonl is damaged \("):
        read_rounds(tmp_path / ROUNDS)


def test_a_record_that_no_checkpoint_knows_is_shown_and_written_again(whole, tmp_path):
    run = died(whole, tmp_path, "round-000002.json", -2)
    assert len(lines_of(run / ROUNDS)) == 2 and not (run / f"{CHECKPOINT}.json").exists()
    assert len(Result(run).rounds) == 2
    assert main_guard(command, ["--resume", str(run), "--quiet"]) == 0
    assert [json.loads(line)["round"] for line in lines_of(run / ROUNDS)] == [1, 2, 3, 4]


@pytest.mark.parametrize("change", [flip, Path.unlink])
def test_an_unfinished_run_is_priced_at_the_orders_that_were_written_down(run, capsys, change):
    change(run / "orders.json")
    assert main_guard(account.command, ["--ledger", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(run / "orders.json") in said and "restore it" in said and said.count("\n") == 1


def test_a_check_misses_orders_that_no_checkpoint_knows_yet(whole, tmp_path, capsys):
    """They are written before the first charge, without which no price needs them."""
    for after, expected in ((0, "whole"), (8, "missing")):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        run = died(whole, tmp_path, "orders.json", after)
        assert bool((run / FIRST).read_bytes()) == (expected == "missing")
        (run / "orders.json").unlink(missing_ok=True)
        assert states(run, capsys)[1].get("orders.json", "whole") == expected


def test_orders_that_are_lost_are_written_again_and_damaged_ones_are_not_believed(run, capsys):
    path = run / "orders.json"
    before = path.read_bytes()
    fix_orders(run, [{"orders": [3.0], "clients": "0-3"}])
    assert main_guard(command, ["--resume", str(run)]) == 2 and str(path) in capsys.readouterr().err
    path.unlink()
    assert main_guard(command, ["--resume", str(run)]) == 0 and path.read_bytes() == before


@pytest.mark.parametrize("lines", [[], [{"orders": [], "clients": "0-3"}]])
def test_orders_of_nobody_or_none_at_all_are_damaged(tmp_path, lines):
    (tmp_path / orders.FILE).write_bytes(sealed_json.dumps({"orders": lines}))
    with pytest.raises(ValueError, match="is damaged"):
        orders.read(tmp_path)


def test_orders_under_the_seal_of_others_are_refused(tmp_path):
    path = tmp_path / orders.FILE
    path.write_bytes(sealed_json.dumps({"orders": [{"orders": [3.0], "clients": "0-3"}]}))
    assert orders.read(tmp_path) == dict.fromkeys(range(4), (3.0,))
    path.write_bytes(path.read_bytes().replace(b"3.0", b"4.0"))
    with pytest.raises(ValueError, match="digest"):
        orders.read(tmp_path)


def test_only_its_owner_may_read_what_is_private(whole, tmp_path):
    """Whoever made the run directory decides about the rest, as ever."""
    shutil.copy(whole[0] / "data.npz", tmp_path)
    mask = os.umask(0)
    try:
        start(tmp_path, flags=f"{FLAGS} --standardize=private")
    finally:
        os.umask(mask)
    run = tmp_path / "runs" / "run"
    modes = {str(path.relative_to(run)): path.stat().st_mode & 0o777 for path in run.rglob("*")}
    owners = "inputs.key|config.toml|partition.npz|ledger/.*|clients/.*/.*|(.*/)?uploads/.*"
    folders = "ledger|clients/[^/]*|(.*/)?uploads"
    for name, mode in modes.items():
        if re.fullmatch(folders, name):
            assert mode == 0o700, name
        elif re.fullmatch(owners, name):
            assert mode == 0o600, name
        else:
            assert mode == (0o777 if (run / name).is_dir() else 0o666), name
    assert {"inputs.key", FIRST, STATE, "statistics/uploads", "clients/group-0001"} <= modes.keys()


# --- what a run ends with, and directories that vouch for nothing
# --------------------------------------------------------------------------------------------------


ASKS = {
    "resume": lambda run: main_guard(command, ["--resume", str(run), "--quiet"]),
    "ledger": lambda run: main_guard(account.command, ["--ledger", str(run)]),
    "verify": lambda run: main_guard(account.command, ["--verify", str(run)]),
    "report": lambda run: main_guard(report.command, [str(run)]),
    "comparison": lambda run: main_guard(report.command, [str(run), str(run.parent / "copy")]),
}


def check_refused(run: Path, named: Path, capsys, asks=ASKS, model=True) -> None:
    """Every command that reads a run refuses in one line that names the file and a remedy."""
    before = contents(run)
    for ask, does in asks.items():
        assert does(run) == 2, ask
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1, (ask, said)
        assert str(named) in said and "restore" in said, (ask, said)
    if model:
        with pytest.raises(ValueError, match=re.escape(str(named))):
            Result(run).model()
    assert contents(run) == before


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of the finished run."""
    return Path(shutil.copytree(whole[0] / "runs" / "run", tmp_path / "runs" / "run"))


def test_no_setting_can_be_edited_while_a_run_is_away(run, capsys):
    """Rounds, epsilon and noise were taken from the edited file."""
    path = run / "config.toml"
    before = path.read_text()
    settings = [line for line in before.splitlines() if " = " in line]
    assert len(settings) > 30
    for line in settings:
        name, _, value = line.partition(" = ")
        other = {"true": "false", "false": "true"}.get(value)
        other = other or (value[:-1] + 'x"' if value.endswith('"') else value + "1")
        path.write_text(before.replace(f"\n{line}\n", f"\n{name} = {other}\n"))
        assert path.read_text() != before
        with pytest.raises(ValueError, match=r"config\.toml has been changed: restore it"):
            parse(["--resume", str(run)], "run", "")
    check_refused(run, path, capsys)


@pytest.mark.parametrize("state", ["run", "finished"])
def test_without_its_manifest_nothing_of_a_run_is_believed(request, capsys, state):
    """It was deleted, and all checks with it."""
    run = request.getfixturevalue(state)
    (run / "manifest.json").unlink()
    check_refused(run, run / "manifest.json", capsys)
    status, found = states(run, capsys)
    assert status == 1 and found["manifest.json"] == "missing"


@pytest.mark.parametrize("other", ["orders.json", f"{CHECKPOINT}.json"])
def test_another_file_of_a_run_is_not_its_manifest(run, capsys, other):
    """It is whole as well, and was a `KeyError`."""
    shutil.copy(run / other, run / "manifest.json")
    check_refused(run, run / "manifest.json", capsys)
    status, found = states(run, capsys)
    assert status == 1 and found["manifest.json"] == "damaged"


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_checkpoint_that_is_a_folder_is_not_passed_over(run, capsys, suffix):
    """Its round was trained and charged again, and then its checkpoint could not be written."""
    path = run / f"{CHECKPOINT}{suffix}"
    path.unlink()
    path.mkdir()
    check_refused(run, path, capsys, {"resume": ASKS["resume"]})


WITHOUT_RESUME = {name: ask for name, ask in ASKS.items() if name != "resume"}
"""A resumed run writes its closing files again."""


def cheaper(path: Path) -> None:
    """A summary that says another epsilon."""
    entries = json.loads(path.read_bytes())
    entries["epsilon_certified"][0] = 0.5
    path.write_text(json.dumps(entries))


def of_another_run(path: Path) -> None:
    """A summary that is whole, of another run with the same model."""
    entries = sealed_json.loads(path.read_bytes())
    entries["files"]["manifest.json"] = "0" * 64
    path.write_bytes(sealed_json.dumps(entries))


def again(path: Path) -> None:
    """The last line stands there twice."""
    path.write_bytes(path.read_bytes() + lines_of(path)[-1])


CLOSING = {
    "a round is added": (ROUNDS, again, "damaged"),
    "the model is flipped": ("model.safetensors", flip, "damaged"),
    "the model is missing": ("model.safetensors", Path.unlink, "missing"),
    "the summary is flipped": ("summary.json", flip, "damaged"),
    "the summary is edited": ("summary.json", cheaper, "damaged"),
    "the summary is empty": ("summary.json", lambda path: path.write_bytes(b""), "damaged"),
    "the summary is of another run": ("summary.json", of_another_run, "damaged"),
}


@pytest.mark.parametrize("damage", CLOSING)
def test_what_a_run_ends_with_is_as_it_was_or_refused_and_written_again(finished, capsys, damage):
    """A flipped model was used, and an edited epsilon shown, without a word."""
    name, change, state = CLOSING[damage]
    before = {one: (finished / one).read_bytes() for one in ("model.safetensors", "summary.json")}
    assert states(finished, capsys)[0] == 0
    change(finished / name)
    check_refused(finished, finished / name, capsys, WITHOUT_RESUME)
    status, found = states(finished, capsys)
    assert status == 1 and {one: what for one, what in found.items() if what != "whole"} == {
        name: state
    }
    assert ASKS["resume"](finished) == 0
    assert (finished / "model.safetensors").read_bytes() == before["model.safetensors"]
    assert states(finished, capsys)[0] == 0


def test_a_flipped_model_card_is_found_by_a_check_alone(finished, capsys):
    """People may add to it; it is not read again."""
    flip(finished / "model_card.md")
    status, found = states(finished, capsys)
    assert status == 1 and [file for file, what in found.items() if what != "whole"] == [
        "model_card.md"
    ]
    assert ASKS["report"](finished) == 0


def test_an_empty_summary_makes_no_run_finished(run, capsys):
    """At its end a run is priced at the best order: a lower epsilon than while it is under way."""
    (run / "summary.json").touch()
    check_refused(run, run / "summary.json", capsys, WITHOUT_RESUME)


def test_a_model_of_an_earlier_round_is_told(run):
    with warnings.catch_warnings(action="error"):
        Result(run).model()
    for path in run.glob("checkpoints/round-000002.*"):
        path.unlink()
    with pytest.warns(UserWarning, match="model is that of round 1 of 2"):
        Result(run).model()


MOVED = {
    "at the end of a round": (Store, "append", 2, FLAGS),
    "before the first request": (loop, "_train", 1, FLAGS),
    "before the first request, trusting": (
        *(loop, "_train", 1),
        FLAGS.replace("--keep-state --momentum=0.5", "--trust=server"),
    ),
}


@pytest.mark.parametrize("moment", MOVED)
def test_a_run_that_is_moved_while_it_goes_on_leaves_nothing_where_it_was(whole, tmp_path, moment):
    """A folder with one line was left there, or a round that was charged there alone, and the
    ledger was said to be put back."""
    shutil.copy(whole[0] / "data.npz", tmp_path)
    run, moved = tmp_path / "runs" / "run", tmp_path / "elsewhere"
    where, name, call, flags = MOVED[moment]
    real, calls = getattr(where, name), itertools.count(1)

    def moving(*given):
        if next(calls) == call:
            run.rename(moved)
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, moving)
        with pytest.raises(ValueError, match=f"{run} was moved or removed .* where it is now"):
            start(tmp_path, flags=flags)
    assert not run.exists()
    train(parse([f"--resume={moved}"], "run", ""))
    assert Result(moved).finished


def test_a_model_that_no_summary_vouches_for_is_not_used(finished):
    """The newest checkpoint's is."""
    right = Result(finished).model().state_dict()
    (finished / "summary.json").unlink()
    flip(finished / "model.safetensors")
    found = Result(finished).model().state_dict()
    assert all(torch.equal(found[name], right[name]) for name in right)


LOST = {
    "a file": Path.unlink,
    "its lines": lambda path: path.write_bytes(b""),
    "the folder": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_finished_run_knows_what_was_paid_without_its_checkpoints(finished, capsys, lost):
    """They were gone, and an empty ledger was whole and cost nothing."""
    shutil.rmtree(finished / "checkpoints")
    shutil.rmtree(finished / "uploads")
    assert states(finished, capsys)[0] == 0
    lost(finished / FIRST)
    asks = {ask: ASKS[ask] for ask in ("ledger", "report")}  # the report left its figures out
    check_refused(finished, finished / FIRST, capsys, asks, model=False)
    status, found = states(finished, capsys)
    assert status == 1 and found[FIRST] in ("missing", "older")


OTHER_RUN = {
    "rounds": ("round-000002.json", ["checkpoints", ROUNDS], "checkpoints/round-000004"),
    "a phase's rounds": ("statistics", ["statistics"], "statistics/checkpoints/round--00001"),
    "a phase's result": ("statistics.safetensors", ["statistics.safetensors"], "statistics"),
}


@pytest.mark.parametrize("state", OTHER_RUN)
def test_what_another_run_has_finished_is_not_this_one_s(whole, tmp_path, capsys, state):
    """Models, rounds, statistics and charges of the other fitted, as plans and names were the
    same."""
    at, names, named = OTHER_RUN[state]
    shutil.copy(whole[0] / "data.npz", tmp_path)
    flags = f"{FLAGS.replace('--release', '')} --standardize=private"
    operations = start(tmp_path, flags=f"{flags} --seed=1").operations
    (tmp_path / "runs" / "run").rename(tmp_path / "other")
    at = at if "." in at else "round--00001.json"
    run = died((tmp_path, operations), tmp_path, at, 2, f"{flags} --seed=2")
    if state == "a phase's rounds":
        (run / "statistics.safetensors").unlink()
    for name in names:
        source = tmp_path / "other" / name
        if source.is_dir():
            shutil.rmtree(run / name)
            shutil.copytree(source, run / name)
        else:
            shutil.copy(source, run / name)
    assert ASKS["resume"](run) == 2
    said = capsys.readouterr().err
    assert f"{run / named}.safetensors is of another run: restore" in said
    assert said.count("\n") == 1
    if state != "a phase's result":
        assert "damaged" in states(run, capsys)[1].values()


def test_all_that_another_run_has_written_is_not_priced_as_this_one_s(whole, tmp_path, capsys):
    """Its ledger fits its own checkpoints and rounds, whatever this one's noise had been."""
    run = died(whole, tmp_path, "round-000002.json", 2)
    for name in ("ledger", "checkpoints", ROUNDS, "uploads"):
        other = whole[0] / "runs" / "run" / name
        if other.is_dir():
            shutil.rmtree(run / name)
            shutil.copytree(other, run / name)
        else:
            shutil.copy(other, run / name)
    asks = {ask: ASKS[ask] for ask in ("ledger", "verify", "report")}
    named = run / "checkpoints" / "round-000004.safetensors"
    check_refused(run, named, capsys, asks, model=False)


def test_a_round_that_ends_while_a_ledger_is_read_is_no_loss(finished, monkeypatch):
    """A report of a run that goes on: what must be there is read before what must have it."""
    files, real = [finished / name for name in (ROUNDS, FIRST, SECOND)], paid.read_rounds
    whole = {path: path.read_bytes() for path in files}
    for path in files:
        path.write_bytes(b"".join(lines_of(path)[:3]))

    def goes_on(path: Path) -> tuple:
        for one, content in whole.items():
            one.write_bytes(content)
        return real(path)

    monkeypatch.setattr(paid, "read_rounds", goes_on)
    paid.check_rounds(finished)


@pytest.mark.parametrize("back", [(FIRST, SECOND), (SECOND,)], ids=["of all", "of one group"])
def test_a_round_that_is_written_down_is_paid_for(run, capsys, back):
    """Ledger and newest checkpoint were put back together, and two rounds were free."""
    for name in back:
        first_lines(1, name)(run, None)
    for path in [*run.glob("checkpoints/round-000002.*"), *run.glob("uploads/*")]:
        path.unlink()
    check_refused(run, run / "ledger", capsys, model=False)
    status, found = states(run, capsys)
    assert status == 1 and [one for one in found.items() if one[1] not in ("whole", "newer")] == [
        ("ledger", "older")
    ]


def test_a_ledger_of_another_run_is_not_paid_by(whole, tmp_path, capsys):
    """Before the first checkpoint the other's was taken, whatever its noise had been."""
    run = died(whole, tmp_path, "round-000001-group-0000.safetensors", 2)
    assert not list(run.glob("checkpoints/*"))
    exchanged(run, whole)
    asks = {ask: ASKS[ask] for ask in ("resume", "ledger", "verify", "report")}
    check_refused(run, run / FIRST, capsys, asks, model=False)
    assert states(run, capsys)[1][FIRST] == "damaged"


def test_an_unfinished_run_whose_checkpoints_are_gone_has_no_price(run, whole, capsys):
    """Nothing else knew its ledger, and another run's was priced as this one's."""
    exchanged(run, whole)
    for path in [*run.glob("checkpoints/*"), *run.glob("uploads/*")]:
        path.unlink()
    asks = {ask: ASKS[ask] for ask in ("resume", "ledger", "verify")}
    check_refused(run, run / ROUNDS, capsys, asks, model=False)


def test_a_run_that_goes_on_while_it_is_priced_has_its_checkpoints(run, monkeypatch):
    """Kills checkpoints that are looked at before what must not be ahead of them."""
    real = Checkpoints.after

    def goes_on(self: Checkpoints, round_: int) -> int:
        found = real(self, round_)
        (run / ROUNDS).write_bytes(b"".join(lines_of(run / ROUNDS) * 3))
        return found

    monkeypatch.setattr(Checkpoints, "after", goes_on)
    Store(run, 2).check_unfinished()
    with pytest.raises(ValueError, match=r"rounds\.jsonl tells of 6 rounds, of which .* most 3"):
        Store(run, 2).check_unfinished()


def test_a_checkpoint_that_was_read_may_be_removed(run, monkeypatch):
    """Its label was read anew, after two rounds of a run that went on: no such file."""
    real = Checkpoints.newest

    def goes_on(self: Checkpoints, warn: bool = True) -> Checkpoint | None:
        found = real(self, warn)
        shutil.rmtree(run / "checkpoints")
        return found

    monkeypatch.setattr(Checkpoints, "newest", goes_on)
    Store(run, 2).check_rounds()


def test_a_run_that_goes_on_while_it_is_checked_is_whole(run, monkeypatch):
    """A checkpoint that was too old by the time that it was looked at was missing."""
    real = checkpoints.read

    def goes_on(label: Path) -> Checkpoint:
        for path in run.glob("checkpoints/round-000001.*"):
            path.unlink()
        return real(label)

    monkeypatch.setattr(checkpoints, "read", goes_on)
    assert look(run)["whole"]


def test_a_phase_s_result_knows_what_was_paid_for_it(in_phases, tmp_path, capsys):
    """Its rounds were lost, and the ledger emptied: the run cost nothing."""
    run = died(in_phases, tmp_path, "statistics.safetensors", 2, IN_PHASES)
    shutil.rmtree(run / "statistics")
    (run / FIRST).write_bytes(b"")
    asks = {ask: ASKS[ask] for ask in ("resume", "ledger", "verify", "report")}
    check_refused(run, run / FIRST, capsys, asks, model=False)
    assert states(run, capsys)[1][FIRST] == "older"


def test_a_run_inside_another_one_is_nothing_to_it(run, whole, capsys):
    """It was moved there by mistake, and its ledger was asked for."""
    before = states(run, capsys)
    shutil.copytree(whole[0] / "runs" / "run", run / "inside")
    assert states(run, capsys) == before
    assert ASKS["ledger"](run) == ASKS["resume"](run) == before[0] == 0


@pytest.mark.parametrize("proved", [1.0, None])
def test_rounds_of_earlier_phases_are_compared_with_the_ledger_too(finished, proved):
    """Kills records of rounds that are looked for in training alone. Those of a mechanism of which
    nothing is proved were not compared, and without its ledger it cost nothing."""
    paid.check_rounds(finished)
    (finished / "earlier").mkdir()
    line = RoundRecord.from_json(json.loads(lines_of(finished / ROUNDS)[0]))
    told = json.dumps(line.to_json() | {"participants": 5, "epsilon_certified_max": proved})
    (finished / "earlier" / ROUNDS).write_text(told + "\n")
    with pytest.raises(ledger.Older, match=r"charges of 4 .*earlier/rounds\.jsonl tells of 5"):
        paid.check_rounds(finished)


def test_files_of_others_belong_to_no_checkpoint(in_phases, tmp_path):
    """Whoever tidies up would end the run."""
    run = died(in_phases, tmp_path, "statistics.safetensors", 2, IN_PHASES)
    copy, own = run / "statistics (1).safetensors", run / "own.safetensors"
    shutil.copy(run / "statistics.safetensors", copy)
    own.write_bytes(save({"a": np.zeros(2)}))
    assert ASKS["resume"](run) == 0
    copy.unlink(), own.unlink()
    (run / "summary.json").unlink()
    assert ASKS["resume"](run) == 0
    (run / "statistics.safetensors").unlink()
    assert ASKS["resume"](run) == 2


@pytest.mark.parametrize("name", ["orders.json", "audit.json"])
def test_orders_and_audits_of_another_run_are_not_this_one_s(whole, tmp_path, capsys, name):
    """Orders of the other made epsilon smaller; its audit stood in the report."""
    run = died(whole, tmp_path, "orders.json", 8)
    other = whole[0] / "runs" / "run"
    if name == "audit.json":
        found = Audit("white-box", 0.95, 1e-5, 9, 9, 9, 0.1, 1.0, 1.0, (), "", run_of(other))
        (run / name).write_bytes(sealed_json.dumps(found.to_json()))
    else:
        shutil.copy(other / name, run / name)
    readers = ["report"] if name == "audit.json" else ["resume", "ledger", "verify"]
    check_refused(run, run / name, capsys, {ask: ASKS[ask] for ask in readers}, model=False)
    assert states(run, capsys)[1][name] == "damaged"


def test_charges_of_a_second_process_are_neither_missed_nor_left_out(whole, tmp_path, monkeypatch):
    """The lock's file had been removed: the summary said 3.17 where the ledger says 4.00."""
    shutil.copy(whole[0] / "data.npz", tmp_path)
    run, real = tmp_path / "runs" / "run", loop.run

    def charged(*given):
        end = real(*given)
        (event,) = {event for one in ledger.read(run / "ledger").values() for event in one}
        with ledger.Ledger(run / FIRST) as second:
            second.charge("of-a-second-process", 4, [0], {event: 1})
        return end

    with monkeypatch.context() as patch:
        patch.setattr(loop, "run", charged)
        with pytest.raises(ValueError, match=r"of client 0 .* resume the run"):
            start(tmp_path)
    assert not (run / "summary.json").exists() and ASKS["resume"](run) == 0
    spent = json.loads((run / "summary.json").read_bytes())["epsilon_certified"]
    assert spent[0] > spent[1] and spent[0] == pytest.approx(spent_by(run, 0))


def spent_by(run: Path, client: int) -> float:
    """Certified epsilon of a client by the ledger."""
    return epsilon(ledger.read(run / "ledger")[client], 1e-5).epsilon
