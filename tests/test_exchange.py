"""Requests over a Flower grid: each group's to the node that hosts it."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Message

from client.app import client_app
from client.messages import Answering, TrainRequest, Upload
from server.app import exchange_over
from tests.test_flower import LocalGrid, identity

__all__ = ["identity"]


class Noting(LocalGrid):
    """A grid on which nobody answers, and which knows to whom messages went."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        self.sent = [(one.metadata.dst_node_id, one.content["config"]["group"]) for one in sent]
        return super().push_messages(sent)


@pytest.mark.parametrize("groups", [[1], [2, 0], [0, 1, 2]])
def test_a_request_goes_to_the_node_of_its_group_and_to_no_other(groups):
    """Some groups are asked and others not. Kills nodes by the place of their request."""
    grid, nobody = Noting(dict.fromkeys((4, 8, 6))), (np.zeros(1, np.int64),) * 2
    requests = [
        TrainRequest(1, group, "round-1", *nobody, np.zeros(3, np.float32)) for group in groups
    ]
    with pytest.raises(RuntimeError, match=f"{len(groups)} of {len(groups)} groups sent no reply"):
        list(exchange_over(grid, [4, 8, 6], {})(requests))
    assert grid.sent == [((4, 8, 6)[group], group) for group in groups]


class Echo(Answering):
    """A node whose upload tells its group."""

    def train(self, request: TrainRequest) -> Upload:
        total = np.full(2, request.group, dtype=np.int64)
        return Upload(request.round, request.group, request.clients, total, len(request.clients))


@pytest.mark.parametrize("silent", [4, 8, 6])
def test_a_round_in_which_one_group_of_several_is_silent_does_not_count(silent):
    """Kills a mean over the groups that have answered, as if the others had not been asked."""
    echo, nobody = client_app(lambda config, context: Echo()), (np.zeros(1, np.int64),) * 2
    requests = [
        TrainRequest(1, group, "round-1", *nobody, np.zeros(2, np.float32)) for group in range(3)
    ]
    places: dict[int, dict | None] = {node: {} for node in (4, 8, 6)}
    uploads = exchange_over(LocalGrid(places, echo), [4, 8, 6], {})(requests)
    assert sorted((u.group, u.total.tolist()) for u in uploads) == [(n, [n, n]) for n in range(3)]
    grid = LocalGrid(places | {silent: None}, echo)
    with pytest.raises(RuntimeError, match="1 of 3 groups sent no reply"):
        list(exchange_over(grid, [4, 8, 6], {})(requests))


@pytest.mark.parametrize("faulty", [0, 1, 2])
def test_a_group_that_fails_is_told_once_all_have_answered(faulty):
    """In a release the others' work is paid for, and kept for a resumed run."""

    class Faulty(Echo):
        def train(self, request: TrainRequest) -> Upload:
            return super().train(request) if request.group != faulty else 1 / 0

    grid = LocalGrid({4: {}, 8: {}, 6: {}}, client_app(lambda config, context: Faulty()))
    nobody, heard = (np.zeros(1, np.int64),) * 2, []
    requests = [
        TrainRequest(1, group, "round-1", *nobody, np.zeros(2, np.float32)) for group in range(3)
    ]
    with pytest.raises(RuntimeError, match=f"group {faulty} failed: .*ZeroDivisionError"):
        for upload in exchange_over(grid, [4, 8, 6], {})(requests):
            heard.append(upload.group)
    assert sorted(heard) == [group for group in range(3) if group != faulty]


OTHER = {
    "another round": {"round": 2},
    "another group": {"group": 0},
    "no group that was asked": {"group": 3},
    "other clients": {"clients": np.array([6], dtype=np.int64)},
    "fewer clients": {"clients": np.zeros(0, dtype=np.int64)},
}


@pytest.mark.parametrize("changed", OTHER.values(), ids=OTHER)
def test_an_upload_that_was_not_asked_for_is_refused(changed):
    """A group's sum that a trusted server adds twice is charged once."""

    class Mistaken(Echo):
        def train(self, request: TrainRequest) -> Upload:
            return dataclasses.replace(
                super().train(request), **changed if request.group == 1 else {}
            )

    mistaken = client_app(lambda config, context: Mistaken())
    nobody = (np.array([5], dtype=np.int64),) * 2
    requests = [
        TrainRequest(1, group, "round-1", *nobody, np.zeros(2, np.float32)) for group in range(3)
    ]
    with pytest.raises(RuntimeError, match=r"group 1 sent an upload of .* not what it was asked"):
        list(exchange_over(LocalGrid({4: {}, 8: {}, 6: {}}, mistaken), [4, 8, 6], {})(requests))


def test_a_group_that_answers_twice_is_refused():
    class Twice(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None) -> list[Message]:
            return super().send_and_receive(messages, timeout=timeout) * 2

    grid = Twice({4: {}}, client_app(lambda config, context: Echo()))
    nobody = (np.zeros(1, np.int64),) * 2
    uploads = exchange_over(grid, [4], {})(
        [TrainRequest(1, 0, "round-1", *nobody, np.zeros(2, np.float32))]
    )
    assert next(iter(uploads)).group == 0
    with pytest.raises(RuntimeError, match="not what it was asked for"):
        list(uploads)
