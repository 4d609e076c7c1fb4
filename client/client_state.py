"""The state that clients keep between rounds: the optimizer's, the mechanism's lasting memory, and
the parameters of the model that are their own.

It never leaves the node. It is written to disk, one file per group and round, before the round's
upload leaves, so a resumed run continues from exactly the state it had.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from client.tensors import ROUND, RUN, read, sealed
from mechanisms import durable
from mechanisms.cohort import LocalState

OWN = "params"
"""The name of the parameters that are a client's own among what it keeps."""
Resume = Callable[[LocalState], LocalState]
"""Replaces parts of the fresh state at the start of a local round by what the clients kept."""


class NoState:
    """Clients that keep nothing."""

    @contextmanager
    def round(self, round_: int) -> Iterator[None]:
        """Do nothing: there is no state to read or write."""
        yield

    def keep(self, clients: np.ndarray, trained: Callable[[Resume], LocalState]) -> LocalState:
        """Train clients from fresh states."""
        return trained(lambda fresh: fresh)


class ClientState:
    """The kept state of one group's clients.

    Args:
        folder: where this group's files are.
        lasting: names of the mechanism's memory that are kept along with the optimizer's state.
        optimizer: whether the optimizer's state is kept.
        own: bool ``[P]``, the parameters with which a client goes on from where it ended its last
            round, whatever the server's model; None for none.
        run: the digest of the run's manifest, which the files name.
        checkpoints: how many the server keeps, from each of which it may go on.
    """

    def __init__(
        self,
        folder: Path,
        lasting: Sequence[str],
        optimizer: bool = True,
        own: np.ndarray | None = None,
        run: str = "",
        checkpoints: int = 2,
    ):
        self._folder, self._lasting, self._run = folder, lasting, run
        self._optimizer, self._kept = optimizer, checkpoints + 1  # that of an unfinished round
        self._own = None if own is None else torch.from_numpy(own)
        self._round, self._begun = 0, False
        self._rows: dict[int, dict[str, np.ndarray]] = {}

    @contextmanager
    def round(self, round_: int) -> Iterator[None]:
        """Load the newest state from before ``round_``; on exit, write the state after it."""
        self._open(round_)
        yield
        self._write(round_)

    def keep(self, clients: np.ndarray, trained: Callable[[Resume], LocalState]) -> LocalState:
        """Train clients from the state they kept, and keep the state at the end of their round."""
        state = trained(functools.partial(self._resume, clients))
        self._begun = True
        named = {name: tensor.cpu().numpy() for name, tensor in self._named(state).items()}
        for k, client in enumerate(clients.tolist()):
            self._rows[client] = {name: np.array(rows[k]) for name, rows in named.items()}
        return state

    def _open(self, round_: int) -> None:
        """Load the newest state before ``round_``; later ones, left by a crash, are ignored."""
        before = [n for n in self._saved() if n < round_]
        newest = before[-1] if before else 0
        if newest == self._round and not self._begun:
            return
        self._round, self._begun = newest, False
        tensors = {"clients": np.empty(0, np.int64)}
        if newest:
            tensors = _read(self._path(newest), newest, self._run)
        clients = tensors.pop("clients").tolist()
        self._rows = {
            client: {n: rows[k] for n, rows in tensors.items()} for k, client in enumerate(clients)
        }

    def _resume(self, clients: np.ndarray, fresh: LocalState) -> LocalState:
        """The clients' state at the start of a round: what each kept, else its row of ``fresh``."""
        known = [int(c) in self._rows for c in clients]
        if not any(known):
            return fresh
        named = self._named(fresh)
        kept = {
            name: torch.stack(
                [
                    torch.as_tensor(self._rows[int(c)][name]).to(tensor) if has else tensor[k]
                    for k, (c, has) in enumerate(zip(clients, known, strict=True))
                ]
            )
            for name, tensor in named.items()
        }
        if self._optimizer:
            optimizer = tuple(kept[f"optimizer.{n}"] for n in range(len(fresh.optimizer)))
            fresh = replace(fresh, optimizer=optimizer)
        if self._own is not None:
            params = fresh.params.clone()
            params[:, self._own.to(params.device)] = kept[OWN]
            fresh = replace(fresh, params=params)
        return fresh.remember(**{name: kept[name] for name in self._lasting})

    def _write(self, round_: int) -> None:
        """Write the state after ``round_`` to disk and delete all but the newest files up to it:
        later ones are of a course that a server has left, by going on from a copy."""
        durable.make_folder(self._folder, private=True)
        clients = sorted(self._rows)
        names = self._rows[clients[0]]
        tensors = {name: np.stack([self._rows[c][name] for c in clients]) for name in names}
        tensors["clients"] = np.array(clients, dtype=np.int64)
        durable.write(self._path(round_), sealed(tensors, _labels(round_, self._run)), private=True)
        self._round, self._begun = round_, False
        saved = self._saved()
        kept = [number for number in saved if number <= round_][-self._kept :]
        for other in set(saved) - set(kept):
            self._path(other).unlink()

    def _named(self, state: LocalState) -> Mapping[str, torch.Tensor]:
        kept = {name: state.memory[name] for name in self._lasting}
        if self._optimizer:
            kept |= {f"optimizer.{n}": tensor for n, tensor in enumerate(state.optimizer)}
        if self._own is not None:
            kept[OWN] = state.params[:, self._own.to(state.params.device)]
        return kept

    def _path(self, round_: int) -> Path:
        return self._folder / f"round-{round_:06d}.safetensors"

    def _saved(self) -> list[int]:
        return sorted(durable.numbered(self._folder, ".safetensors"))


def own_parameters(folder: Path, run: str = "") -> dict[int, np.ndarray]:
    """The parameters that are their own, by client, after the newest round of a group's files.

    Raises:
        ValueError: that file is damaged, or of another run or round.
    """
    files = durable.numbered(folder, ".safetensors")
    if not files:
        return {}
    tensors = _read(files[max(files)], max(files), run)
    return dict(zip(tensors["clients"].tolist(), tensors[OWN], strict=True))


def _labels(round_: int, run: str) -> dict[str, str]:
    return {ROUND: str(round_), RUN: run}


def _read(path: Path, round_: int, run: str) -> dict[str, np.ndarray]:
    return read(path, **_labels(round_, run))[1]
