"""The server over a Flower Grid: which node hosts which group, and the exchange of requests."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from client.app import KEEPS, decode_upload, encode_request, settings_of
from client.messages import TrainRequest, Upload
from server.federation import Exchange

PATIENCE = 120.0
"""Seconds to wait for the first answer of every group's Flower node."""

POLL = 0.2
"""Seconds between two checks for answers."""

log = logging.getLogger("flwr")


class Host(NamedTuple):
    """The Flower node of a group: its id, and whether it keeps its ledger to itself."""

    node: int
    keeps: bool


class _Place(NamedTuple):
    """What a node says of itself."""

    group: int
    groups: int
    keeps: bool


def find_groups(grid: Grid, patience: float = PATIENCE) -> list[Host]:
    """The nodes by group number; asks every Flower node which group it hosts.

    If several nodes host one group, one of them gets the work. A registered node that is gone is
    ignored.

    Raises:
        RuntimeError: no node answered for some groups, or a node answered with an error.
        ValueError: the nodes' configurations contradict each other.
    """
    if math.isfinite(patience):
        log.info("Waiting up to %g s for the Flower nodes", patience)
    hosts: list[Host | None] = []
    for places in _answers(grid, patience):
        hosts = _hosts(places)
        found = [host for host in hosts if host is not None]
        if hosts and len(found) == len(hosts):
            return found
    missing = [str(group) for group, host in enumerate(hosts) if host is None]
    of = f"group {', '.join(missing)} of {len(hosts)}" if hosts else "any group"
    raise RuntimeError(
        f"no Flower node answered within {patience:g} s for {of}: start a SuperNode for each "
        'group, with --node-config "partition-id=0 num-partitions=2" and so on'
    )


def _answers(grid: Grid, patience: float) -> Iterator[dict[int, _Place]]:
    """The places by node id: all answers so far, yielded after every poll."""
    asked: set[int] = set()
    waiting: set[str] = set()
    places: dict[int, _Place] = {}
    deadline = time.monotonic() + patience
    while True:  # at least once, however long that takes
        new = [node for node in grid.get_node_ids() if node not in asked]
        asked.update(new)
        waiting.update(
            grid.push_messages([Message(RecordDict(), node, MessageType.QUERY) for node in new])
        )
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            node = reply.metadata.src_node_id
            if node in asked:  # otherwise the SuperLink reports that a node is gone
                said = settings_of(_content(reply, f"Flower node {node}"))
                places[node] = _Place(said["partition-id"], said["num-partitions"], said[KEEPS])
        yield places
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL)


def _hosts(places: Mapping[int, _Place]) -> list[Host | None]:
    """The nodes by group number, None for a group without a node so far."""
    size = max((place.groups for place in places.values()), default=0)
    hosts: list[Host | None] = [None] * size
    for node, (group, groups, keeps) in sorted(places.items()):
        if groups != size or not 0 <= group < size:
            raise ValueError(
                f"a Flower node says partition-id={group} num-partitions={groups}, but there are "
                f"{size} partitions: start all SuperNodes with the same num-partitions, and each "
                "with a partition-id from 0 to below it"
            )
        if hosts[group] is None:
            hosts[group] = Host(node, keeps)
    return hosts


def consult(grid: Grid, nodes: Sequence[int], run: Mapping[str, str]) -> None:
    """Ask the groups' nodes about a run, before anything of it is written.

    Raises:
        RuntimeError: one refuses it (its group and the reason are named).
    """
    content = RecordDict({"config": ConfigRecord(dict(run))})
    messages = [
        Message(content, node, MessageType.QUERY, group_id=f"group {group}")
        for group, node in enumerate(nodes)
    ]
    for reply in grid.send_and_receive(messages):
        _content(reply, reply.metadata.group_id)


def exchange_over(grid: Grid, nodes: Sequence[int], run: dict[str, str]) -> Exchange:
    """An exchange that sends each request to its group's node; ``run`` travels with every message.

    Raises:
        RuntimeError: a node answered with an error (its group and the reason are named), something
            else than it was asked for, or not at all.
    """

    def exchange(requests: Sequence[TrainRequest]) -> Iterator[Upload]:
        def message(r: TrainRequest) -> Message:
            content, name = encode_request(r, run), f"group {r.group}"
            return Message(content, nodes[r.group], MessageType.TRAIN, group_id=name)

        messages = [message(r) for r in requests]
        asked = {r.group: r for r in requests}
        silent, failed = len(messages), []
        for reply in grid.send_and_receive(messages):  # all, so that nobody works in vain
            silent -= 1
            if reply.has_error():
                failed.append(reply)
            else:
                upload = decode_upload(reply.content)
                _check_asked(upload, asked.pop(upload.group, None), reply.metadata.group_id)
                yield upload
        if silent:
            raise RuntimeError(f"{silent} of {len(messages)} groups sent no reply")
        for reply in failed:
            _content(reply, reply.metadata.group_id)

    return exchange


def _check_asked(upload: Upload, request: TrainRequest | None, sender: str) -> None:
    """Refuse what was not asked for: a sum of other clients, or one that was added already, moves a
    trusted server's sum by more than its noise is made for.

    Raises:
        RuntimeError: it is of another round, group or clients, or a second one.
    """
    if (
        request is None
        or f"group {upload.group}" != sender
        or upload.round != request.round
        or not np.array_equal(upload.clients, request.clients)
    ):
        raise RuntimeError(
            f"{sender} sent an upload of group {upload.group} and round {upload.round}, which is "
            "not what it was asked for: start one node for each group, and resume the run"
        )


def _content(reply: Message, sender: str) -> RecordDict:
    if reply.has_error():
        raise RuntimeError(f"{sender} failed: {reply.error.reason}")
    return reply.content
