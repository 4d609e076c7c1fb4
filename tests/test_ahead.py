"""Draws beside the caller: the same values, made by another thread, each given once."""

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mechanisms import ahead as module
from mechanisms import dpsgd
from mechanisms.ahead import MIN_DRAWS, Ahead
from mechanisms.arithmetic import FLOATS, GRID, Arithmetic
from mechanisms.randomness import Streams, SystemStreams, seed_key
from tests import small

SIZE = MIN_DRAWS // 2 + 1  # odd, and enough for two clients


def drawn(begun: bool) -> list[torch.Tensor]:
    """Three steps of two clients, in which another purpose draws, too."""
    streams, rows = Streams(seed_key(1), 1, [4, 9], torch.device("cpu")), []
    for _ in range(3):
        for kind in ("normal", "rounded"):
            if begun:
                streams.begin(kind, f"{kind} noise", SIZE)
                streams.begin(kind, f"{kind} noise", SIZE)  # at most one draw is under way
            streams.of("batch")[0].random(3)
            rows.append(getattr(streams, kind)(f"{kind} noise", SIZE))
        rows.append(streams.normal("normal noise", 5))
    return rows


def test_draws_that_were_begun_are_those_that_would_have_been_made():
    """Kills a draw that is given twice or lost, and draws in another order."""
    assert all(map(torch.equal, drawn(True), drawn(False)))


def test_a_release_never_gives_a_draw_twice():
    streams = SystemStreams(2, torch.device("cpu"))
    for _ in range(2):
        streams.begin("rounded", "noise", SIZE)
    rows = torch.cat([streams.rounded("noise", SIZE) for _ in range(2)])
    assert len({tuple(row[:9].tolist()) for row in rows}) == 4


@pytest.mark.parametrize("size, beside", [(MIN_DRAWS - 1, False), (MIN_DRAWS, True)])
def test_many_draws_are_made_by_another_thread(size, beside):
    ahead, threads = Ahead(1), []

    def draw(purpose: str, size: int) -> torch.Tensor:
        threads.append(threading.current_thread())
        return torch.zeros(1, size)

    ahead.begin(draw, "noise", size)
    assert ahead.take(draw, "noise", size).shape == (1, size)
    assert (threads[0] is not threading.current_thread()) is beside and len(threads) == 1


class Watched(Streams):
    """Streams that know which threads drew noise."""

    def of(self, purpose: str) -> Sequence[np.random.Generator]:
        if purpose == "noise":
            self.threads.append(threading.current_thread())
        return super().of(purpose)


@pytest.mark.parametrize("arithmetic", [FLOATS, GRID])
def test_a_step_draws_its_noise_beside_its_gradients(monkeypatch, arithmetic: Arithmetic):
    monkeypatch.setattr(module, "MIN_DRAWS", 1)
    world = small.cohort([dpsgd.DpsgdPlan(0.5, 1.0, 1.0, 3)])
    streams = Watched(seed_key(1), 1, [0], small.CPU)
    streams.threads = []
    world = dataclasses.replace(world, arithmetic=arithmetic, streams=streams)
    dpsgd.step(world, dpsgd.start(world, small.start(small.model())))
    assert len(streams.threads) == 1 and streams.threads[0] is not threading.current_thread()


def test_other_draws_than_those_begun_are_refused():
    streams = Streams(seed_key(1), 1, [4, 9], torch.device("cpu"))
    streams.begin("normal", "noise", SIZE)
    with pytest.raises(ValueError, match=f"^5 draws for 'noise' were asked for, but {SIZE} have"):
        streams.normal("noise", 5)


def test_what_fails_beside_the_caller_is_raised_where_it_is_asked_for():
    def draw(purpose: str, size: int) -> torch.Tensor:
        raise OSError("no entropy")

    ahead = Ahead(1)
    ahead.begin(draw, "noise", MIN_DRAWS)
    with pytest.raises(OSError, match="no entropy"):
        ahead.take(draw, "noise", MIN_DRAWS)
