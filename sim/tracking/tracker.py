"""Writes the rounds of a run for a tracker, into the run directory.

A tracker gets what ``rounds.jsonl`` has and nothing else. Its package is optional.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

from mechanisms import durable
from server.records import RoundRecord
from sim.tracking.sinks import SINKS, Sink

FOLDER = "tracking"
"""In the run directory: a folder for each tracker."""
MISSING = (
    "track is {0}, but the package {0} is not installed: pip install {0}, or leave --track out"
)


def check(name: str) -> None:
    """Refuse a tracker whose package is missing.

    Raises:
        ValueError: it is not installed.
    """
    if name in SINKS and find_spec(name) is None:
        raise ValueError(MISSING.format(name))


def values(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name; those of the mechanism begin with ``metrics/``."""
    fields = record.to_json()
    own = {f"metrics/{name}": value for name, value in fields.pop("metrics").items()}
    del fields["round"]
    return {name: value for name, value in {**fields, **own}.items() if value is not None}


class Tracker:
    """An observer of rounds.

    It opens its sink when it first writes. Rounds without times are written when it is closed:
    trackers note when they are written to, which would tell how long each of them took.

    If the sink fails, the run goes on without it.

    Args:
        name: the tracker, for a warning.
        open_sink: opens an empty sink.
    """

    def __init__(self, name: str, open_sink: Callable[[], Sink]):
        self._name = name
        self._open = open_sink
        self._sink: Sink | None = None
        self._held: list[RoundRecord] = []
        self._failed = False

    def round(self, record: RoundRecord) -> None:
        """Called when a round is finished."""
        self._held.append(record)
        if record.seconds is not None:
            self._attempt(self._write)

    def close(self) -> None:
        """Called when the run ends, however it ends."""
        self._attempt(self._write)
        if self._sink is not None:
            self._attempt(self._sink.close)

    def _write(self) -> None:
        for record in self._held:
            self._sink = self._sink or self._open()
            self._sink.write(record.round, values(record))
        self._held.clear()

    def _attempt(self, act: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            act()
        except Exception as fault:
            self._failed = True
            warnings.warn(
                f"track = {self._name} failed ({type(fault).__name__}: {fault}), and the run goes "
                "on without it: rounds.jsonl has every round, and --resume writes them all again",
                stacklevel=2,
            )


@contextmanager
def tracking(
    name: str, run_dir: Path, finished: Sequence[RoundRecord]
) -> Iterator[list[Callable[[RoundRecord], None]]]:
    """The observers that a run's tracker has: one, or none for the tracker ``none``.

    The tracker's folder is made anew, with the ``finished`` rounds, so that it has each round once,
    wherever the run was interrupted.

    Raises:
        ValueError: its package is not installed.
    """
    if name not in SINKS:
        yield []
        return
    check(name)
    folder = run_dir / FOLDER / name

    def open_sink() -> Sink:
        shutil.rmtree(folder, ignore_errors=True)
        durable.make_folder(folder)
        return SINKS[name](folder, run_dir.resolve().name)

    with closing(Tracker(name, open_sink)) as tracker:
        for record in finished:
            tracker.round(record)
        yield [tracker.round]
