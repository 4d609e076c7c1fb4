"""Runs in this process that can be interrupted: their records, their job, and the requests that
left the server."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from client.messages import TrainRequest, Upload
from server import loop
from server.federation import Exchange, Federation
from server.store import Store
from sim.config import configuration as config
from sim.engines.inline import inline_exchange
from sim.job.job import Job
from sim.phases import training
from sim.phases.build import build

RECORDS = 120


class Crash(Exception):
    """The process dies here, as far as the run can tell."""


@dataclass
class World(ABC):
    """A run, with what is ``given`` over the ``settings`` of its kind."""

    settings: ClassVar[dict] = {}

    folder: Path
    given: dict = field(default_factory=dict)
    asked: list[TrainRequest] = field(default_factory=list)

    @functools.cached_property
    def job(self) -> Job:
        x, y = np.random.default_rng(0).normal(size=(RECORDS, 4)), np.arange(RECORDS) % 3
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez(self.folder / "records.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
        given = {"dataset": str(self.folder / "records.npz")} | self.settings | self.given
        return build(config.load(None, given, lenient=config.SETTINGS))

    @property
    def federation(self) -> Federation:
        """The server's side of training, in the world's folder."""
        return training.federation(self.job, self.folder)

    def exchange(self, folder: Path, crash: tuple[int, int] | None) -> Exchange:
        """With ``crash``, die in that round when that group is asked."""
        real = inline_exchange(self.job, folder)

        def exchange(requests: list[TrainRequest]) -> Iterator[Upload]:
            for request in requests:
                if (request.round, request.group) == crash:
                    raise Crash
                self.asked.append(request)
                yield from real([request])

        return exchange

    @abstractmethod
    def run(self, crash: tuple[int, int] | None = None) -> Any:
        """Begin or go on; with ``crash``, die in that round when that group is asked."""

    def crashed(self, round_: int, group: int) -> Self:
        with pytest.raises(Crash):
            self.run((round_, group))
        return self


class Loop(World):
    """A run of the loop alone."""

    @property
    def store(self) -> Store:
        (self.folder / "ledger").mkdir(exist_ok=True)
        return Store(self.folder, keep_checkpoints=2)

    def run(self, crash: tuple[int, int] | None = None) -> loop.Standing:
        federation = self.federation
        exchange = self.exchange(self.folder, crash)
        return loop.run(federation, exchange, self.store, loop.restore(federation, self.store), [])
