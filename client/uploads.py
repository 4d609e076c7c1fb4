"""Finished uploads of a release on disk, so that a crash elsewhere makes no client pay twice."""

import hashlib
import json
from pathlib import Path

import numpy as np

from client.messages import Upload
from client.tensors import LEDGER, RUN, read, sealed
from mechanisms import durable
from mechanisms.journal import last_place

SHARED = "shared."


class Uploads:
    """The folder of finished uploads: one file per group, named by round and group.

    Args:
        folder: where they are.
        run: the digest of the run's manifest, which they name.
        ledger: the file that has paid for those that are kept; it must go as far from then on.
    """

    def __init__(self, folder: Path, run: str = "", ledger: Path | None = None):
        self._folder, self._run, self._ledger = folder, run, ledger

    def keep(self, upload: Upload, params: np.ndarray) -> None:
        """Write an upload made from the model ``params``; it replaces its group's earlier ones."""
        durable.make_folder(self._folder, private=True)
        path = self._folder / _name(upload.round, upload.group)
        metrics = json.dumps([upload.group, upload.weight, upload.metrics])
        tensors = {"total": upload.total, "clients": upload.clients}
        tensors |= {SHARED + name: array for name, array in upload.shared.items()}
        labels = {"upload": metrics, "model": _digest(params), RUN: self._run}
        if self._ledger is not None:
            labels[LEDGER] = json.dumps({self._ledger.name: last_place(self._ledger)})
        content = sealed(tensors, labels)
        durable.write(path, content, private=True)
        for old in self._folder.glob(f"*-group-{upload.group:04d}.safetensors"):
            if old != path:
                old.unlink()

    def finished(self, round_: int, params: np.ndarray) -> list[Upload]:
        """This round's uploads that were made from exactly this model, by group.

        A damaged one, or one of another run, is left out, as if the crash had come before it: its
        clients pay again. So is one that is not named by its round and group, as a copy that a sync
        client has left.
        """
        found = []
        for path in sorted(self._folder.glob(f"round-{round_:06d}-group-*.safetensors")):
            try:
                labels, tensors = self.read(path)
            except (ValueError, FileNotFoundError):  # the latter of a link that leads nowhere
                continue
            if labels.get("model") == _digest(params):
                group, weight, metrics = json.loads(labels["upload"])
                if path.name != _name(round_, group):
                    continue
                total, clients = tensors.pop("total"), tensors.pop("clients")
                shared = {name.removeprefix(SHARED): array for name, array in tensors.items()}
                found.append(Upload(round_, group, clients, total, weight, metrics, shared=shared))
        return found

    def read(self, path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
        """The labels and tensors of a file.

        Raises:
            ValueError: it is damaged, or of another run.
        """
        return read(path, **{RUN: self._run})


def _name(round_: int, group: int) -> str:
    return f"round-{round_:06d}-group-{group:04d}.safetensors"


def _digest(params: np.ndarray) -> str:
    return hashlib.blake2b(params.tobytes()).hexdigest()
