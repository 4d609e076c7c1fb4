"""Trackers have what ``rounds.jsonl`` has: each round once, nothing else, no more about times."""

import json
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sim.commands.guard import main_guard
from sim.library import api
from sim.run import command
from sim.showing.run import read_run
from sim.tracking.sinks import PROJECT, SINKS
from sim.tracking.tracker import FOLDER, Tracker, values
from tests import unequal

SMALL = {"clients": 3, "rounds": 3, "steps": 2, "chunk_clients": 3}


class Memory:
    """A sink that keeps what it is given, and when it was opened and closed."""

    def __init__(self, fault: Exception | None = None):
        self.written: list[tuple[int, Mapping[str, float]]] = []
        self.closed, self._fault = 0, fault

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._fault:
            raise self._fault
        self.written.append((step, values))

    def close(self) -> None:
        self.closed += 1


def logged(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What ``rounds.jsonl`` says, flat: the law that every tracker is held to."""
    rows = []
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        entries = json.loads(line)
        number, own = entries.pop("round"), entries.pop("metrics")
        flat = entries | {f"metrics/{name}": value for name, value in own.items()}
        rows.append((number, {name: v for name, v in flat.items() if v is not None}))
    return rows


def test_a_tracker_has_the_numbers_of_a_round_and_no_others():
    one = unequal.ROUNDS[0]
    own = {"metrics/acceptance_rate": 0.75, "metrics/noise": 1.5}
    assert values(one) == {
        **{name: value for name, value in vars(one).items() if name not in ("round", "metrics")},
        **own,
    }
    gone = replace(one, accuracy=None, epsilon_certified_max=math.inf, seconds=None)
    assert values(one).keys() - values(gone) == {"accuracy", "epsilon_certified_max", "seconds"}


def test_rounds_are_written_as_they_come():
    sink = Memory()
    tracker = Tracker("memory", lambda: sink)
    for number, record in enumerate(unequal.ROUNDS, 1):
        tracker.round(record)
        assert [step for step, _ in sink.written] == list(range(1, number + 1))
    assert sink.closed == 0
    tracker.close()
    assert sink.closed == 1
    assert sink.written == [(record.round, values(record)) for record in unequal.ROUNDS]


def test_rounds_whose_times_are_hidden_are_written_when_all_are_over():
    """A tracker notes when it is opened and written to. Kills one that is opened, or written to,
    between two such rounds."""
    opened: list[Memory] = []

    def open_sink() -> Memory:
        opened.append(Memory())
        return opened[-1]

    tracker = Tracker("memory", open_sink)
    hidden = [replace(one, seconds=None, seconds_training=None) for one in unequal.ROUNDS]
    for record in hidden:
        tracker.round(record)
        assert not opened
    tracker.close()
    assert len(opened) == 1 and opened[0].closed == 1
    assert opened[0].written == [(record.round, values(record)) for record in hidden]


def test_without_a_round_no_sink_is_opened():
    tracker = Tracker("memory", lambda: pytest.fail("opened"))
    tracker.close()


@pytest.mark.parametrize("opens", [True, False])
def test_a_tracker_that_fails_says_so_once_and_is_left_out(opens):
    fault = OSError("no space")
    sink, tries = Memory(fault), []

    def open_sink() -> Memory:
        tries.append(1)
        if not opens:
            raise fault
        return sink

    tracker = Tracker("memory", open_sink)
    with pytest.warns(UserWarning, match=r"track = memory failed \(OSError: no space\)") as said:
        for record in unequal.ROUNDS:
            tracker.round(record)
        tracker.close()
    assert len(said) == len(tries) == 1 and sink.closed == 0


def test_a_missing_package_is_one_line_with_its_command_before_anything_is_written(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("sim.tracking.tracker.find_spec", lambda name: None)
    assert main_guard(command, ["--track", "wandb", f"--out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "pip install wandb" in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


def tensorboard(folder: Path) -> list[tuple[int, dict[str, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    points = [(n, e.step, e.value) for n in found.Tags()["scalars"] for e in found.Scalars(n)]
    return by_step(points)


def mlflow(folder: Path) -> list[tuple[int, dict[str, float]]]:
    client = __import__("mlflow").tracking.MlflowClient(folder.absolute().as_uri())
    (experiment,) = (one for one in client.search_experiments() if one.name == PROJECT)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and not run.data.params
    assert set(run.data.tags) == {"mlflow.runName"}
    histories = {n: client.get_metric_history(run.info.run_id, n) for n in run.data.metrics}
    return by_step([(n, one.step, one.value) for n, many in histories.items() for one in many])


def wandb(folder: Path) -> list[tuple[int, dict[str, float]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    __import__("wandb").teardown()  # waits until all is written
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, points, at = file.read_bytes(), [], 7  # after the file's own header
    assert data[:4] == b":W&B" and len(data) < 2**15, "one block of LevelDB's log format"
    while at < len(data):
        _, size, kind = struct.unpack_from("<IHB", data, at)  # checksum, length, whole or part
        entries = Record.FromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        assert kind == 1 and not {"stats", "files", "environment"} & {
            field.name for field, _ in entries.ListFields()
        }
        items = {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in entries.history.item
        }
        own = [(name, value) for name, value in items.items() if not name.startswith("_")]
        points += [(name, items["_step"], value) for name, value in own]
    return by_step(points)


def by_step(points: list[tuple[str, int, float]]) -> list[tuple[int, dict[str, float]]]:
    """Rows of values by name; a value that is there twice is a fault."""
    assert len({(name, step) for name, step, _ in points}) == len(points)
    steps = sorted({step for _, step, _ in points})
    return [(n, {name: value for name, step, value in points if step == n}) for n in steps]


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


@pytest.mark.parametrize("name", SINKS)
def test_a_package_gets_each_round_once_and_changes_no_bit(name, tmp_path, no_report):
    """Also after a run that was resumed, whose tracker is made anew."""
    pytest.importorskip(name, reason=f"needs pip install {name}")
    plain = api.train(**SMALL, out=str(tmp_path), name="plain")
    run = api.train(**SMALL, out=str(tmp_path), name="tracked", track=name)
    kept = run.folder / FOLDER / name
    for _ in range(2):
        found, wanted = READERS[name](kept), logged(run.folder)
        assert len(wanted) == SMALL["rounds"] and [n for n, _ in found] == [n for n, _ in wanted]
        for (_, got), (_, said) in zip(found, wanted, strict=True):
            assert got == pytest.approx(said, rel=1e-6)  # TensorBoard keeps float32
        api.train(resume=run.folder)
    same = (folder / "model.safetensors" for folder in (plain.folder, run.folder))
    assert len({file.read_bytes() for file in same}) == 1


def test_a_run_tells_its_tracker_each_round_as_it_comes(tmp_path, monkeypatch, no_report):
    """On the disk before it is told. Kills a tracker that is told the finished rounds only."""
    sink, lines = Memory(), []
    folder = tmp_path / "a"
    monkeypatch.setattr(sink, "write", lambda n, _: lines.append((n, len(logged(folder)))))
    monkeypatch.setitem(SINKS, "wandb", lambda folder, name: sink)
    monkeypatch.setattr("sim.tracking.tracker.find_spec", lambda name: True)
    api.train(**SMALL, out=str(tmp_path), name="a", track="wandb")
    assert lines == [(1, 1), (2, 2), (3, 3)] and sink.closed == 1


def test_a_run_without_a_tracker_makes_no_folder_and_one_is_added_later(
    tmp_path, monkeypatch, no_report
):
    """A finished run is written for a tracker by resuming it."""
    sink, opened = Memory(), []
    monkeypatch.setitem(SINKS, "wandb", lambda folder, name: opened.append((folder, name)) or sink)
    monkeypatch.setattr("sim.tracking.tracker.find_spec", lambda name: True)
    run = api.train(**SMALL, out=str(tmp_path), name="a")
    place = run.folder / FOLDER
    assert not place.exists() and not opened
    (place / "wandb").mkdir(parents=True)
    (place / "wandb" / "old").touch()
    api.train(resume=run.folder, track="wandb")
    assert opened == [(place / "wandb", "a")] and not list((place / "wandb").iterdir())
    assert sink.closed == 1 and sink.written == logged(run.folder)
    assert len(read_run(run.folder).records) == SMALL["rounds"]
