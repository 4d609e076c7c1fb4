"""Finished uploads of a release on disk, so that a crash elsewhere makes no client pay twice."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from client.messages import Upload
from mechanisms import durable

SHARED = "shared."


class Uploads:
    """The folder of finished uploads: one file per group, named by round and group."""

    def __init__(self, folder: Path):
        self._folder = folder

    def keep(self, upload: Upload, params: np.ndarray) -> None:
        """Write an upload made from the model ``params``; it replaces its group's earlier ones."""
        durable.make_folder(self._folder, private=True)
        path = self._folder / f"round-{upload.round:06d}-group-{upload.group:04d}.safetensors"
        metrics = json.dumps([upload.group, upload.weight, upload.metrics])
        tensors = {"total": upload.total, "clients": upload.clients}
        tensors |= {SHARED + name: array for name, array in upload.shared.items()}
        metadata = {"upload": metrics, "model": _digest(params)}
        metadata["content"] = _content(metrics, tensors)
        durable.write(path, save(tensors, metadata=metadata), private=True)
        for old in self._folder.glob(f"*-group-{upload.group:04d}.safetensors"):
            if old != path:
                old.unlink()

    def finished(self, round_: int, params: np.ndarray) -> list[Upload]:
        """This round's uploads that were made from exactly this model, by group.

        A damaged one is left out, as if the crash had come before it: its clients pay again.
        """
        found = []
        for path in sorted(self._folder.glob(f"round-{round_:06d}-group-*.safetensors")):
            try:
                labels, tensors = read(path)
            except ValueError:
                continue
            if labels.get("model") == _digest(params):
                group, weight, metrics = json.loads(labels["upload"])
                total, clients = tensors.pop("total"), tensors.pop("clients")
                shared = {name.removeprefix(SHARED): array for name, array in tensors.items()}
                found.append(Upload(round_, group, clients, total, weight, metrics, shared=shared))
        return found


def read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """What an upload's file says, and its tensors.

    Raises:
        ValueError: it is damaged.
    """
    try:
        with safe_open(path, "np") as file:
            labels, names = file.metadata() or {}, file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as fault:
        raise ValueError(str(fault)) from None
    if labels.get("content") != _content(labels.get("upload", ""), tensors):
        raise ValueError("its digest does not match")
    return labels, tensors


def _content(metrics: str, tensors: Mapping[str, np.ndarray]) -> str:
    """The digest of all that an upload says."""
    parts = [part for name in sorted(tensors) for part in (name.encode(), tensors[name].tobytes())]
    return hashlib.blake2b(metrics.encode() + b"".join(parts)).hexdigest()


def _digest(params: np.ndarray) -> str:
    return hashlib.blake2b(params.tobytes()).hexdigest()
