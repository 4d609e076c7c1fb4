"""The server's state after each round: a safetensors file and a small JSON that vouches for it.

The JSON is written last. It holds the digests of the tensors, of itself and of other files of its
round, and the places at which the ledger's files were: an incomplete checkpoint is not taken for
one, nor an older ledger for the checkpoint's. A damaged checkpoint is skipped with a warning, and
the one before it is used.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load, save

from mechanisms import durable
from server import sealed_json

if TYPE_CHECKING:  # it loads torch, and a report reads labels
    from strategies.strategy import ServerState

STATE, FLIGHT = "state.", "flight."


@dataclass(frozen=True)
class Checkpoint:
    """The state after some rounds.

    Attributes:
        round: number of finished rounds.
        params: the model, float32 ``[P]``.
        state: the strategy's state.
        taken: int64 ``[clients]``, the number of rounds in which each client took part.
        flight: who is at work on which model (`server.buffer.Flight`), if the server does not wait
            for all.
        label: what the file that vouches for it says; empty before it is saved.
    """

    round: int
    params: np.ndarray
    state: ServerState
    taken: np.ndarray
    flight: Mapping[str, np.ndarray] = field(default_factory=dict)
    label: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The folder of checkpoints; the newest ``keep`` are kept."""

    def __init__(self, folder: Path, keep: int):
        self._folder, self._keep, self._made = folder, keep, False

    def save(self, checkpoint: Checkpoint, beside: Mapping[str, Any]) -> None:
        """Write a checkpoint, then remove those that are too old.

        ``beside`` is what its label says of other files (`server.store.Store.save`).
        """
        if not self._made:
            durable.make_folder(self._folder)
            self._made = True
        tensors = {"params": checkpoint.params, "taken": checkpoint.taken}
        tensors |= {f"{STATE}{name}": value for name, value in checkpoint.state.items()}
        tensors |= {f"{FLIGHT}{name}": value for name, value in checkpoint.flight.items()}
        content = save(tensors)
        path = self.path(checkpoint.round)
        durable.write(path, content)
        tensors_digest = hashlib.sha256(content).hexdigest()
        label = {"round": checkpoint.round, "tensors": tensors_digest, **beside}
        durable.write(path.with_suffix(".json"), sealed_json.dumps(label))
        for old in self.labels()[self._keep :]:
            old.with_suffix(".safetensors").unlink(missing_ok=True)
            old.unlink()

    def path(self, round_: int) -> Path:
        """The file of a round's tensors."""
        return self._folder / f"round-{round_:06d}.safetensors"

    def labels(self) -> list[Path]:
        """The files that vouch for checkpoints, the newest first."""
        found = durable.numbered(self._folder, ".json")
        return [found[number] for number in sorted(found, reverse=True)]

    def after(self, round_: int) -> int:
        """How many later rounds have a file that vouches for them, damaged or not."""
        return sum(number > round_ for number in durable.numbered(self._folder, ".json"))

    def check_files(self) -> None:
        """Refuse what the checkpoint of a repeated round could not replace, before that is paid.

        Raises:
            ValueError: there is something else than a file, such as a folder.
        """
        for label in self.labels():
            durable.check_file(label)
            durable.check_file(label.with_suffix(".safetensors"))

    def newest(self, warn: bool = True) -> Checkpoint | None:
        """The newest complete checkpoint, or None; damaged ones are skipped, with a warning if
        ``warn``. A run that goes on meanwhile removes old ones, but not before it has saved newer.

        Raises:
            OSError: one cannot be read, which may be whole: going on from the one before it would
                repeat a finished round.
        """
        for label in self.labels():
            try:
                return read(label)
            except (FileNotFoundError, ValueError, KeyError, TypeError) as fault:
                if label not in self.labels():
                    return self.newest(warn)
                if warn:
                    warnings.warn(
                        f"checkpoint {label.stem} is damaged ({fault}); using the one before it",
                        stacklevel=2,
                    )
        return None


def read(label: Path) -> Checkpoint:
    """The checkpoint of a label.

    Raises:
        ValueError, OSError, KeyError, TypeError: it is damaged, or its tensors are missing.
    """
    fields = sealed_json.loads(durable.read(label))
    content = durable.read(label.with_suffix(".safetensors"))
    if hashlib.sha256(content).hexdigest() != fields["tensors"]:
        raise ValueError("its digest does not match")
    if label.stem != f"round-{fields['round']:06d}":
        raise ValueError("it names another round")
    tensors = load(content)
    state, flight = (
        {name.removeprefix(kind): one for name, one in tensors.items() if name.startswith(kind)}
        for kind in (STATE, FLIGHT)
    )
    params, taken = tensors["params"], tensors["taken"]
    return Checkpoint(fields["round"], params, state, taken, flight, fields)
