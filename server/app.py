"""The Flower ServerApp and the exchange of requests over a Flower Grid; the work is server/loop.py's."""

import time
from collections.abc import Callable, Iterator, Sequence

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from client.app import decode_upload, encode_request
from client.messages import TrainRequest, Upload
from server.federation import Exchange

PATIENCE = 60.0
"""Seconds to wait for Flower nodes to register."""


def server_app(run: Callable[[Context, Grid], None]) -> ServerApp:
    """A ServerApp around ``run``, which builds a federation and gives its loop an exchange over the grid."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(context, grid)

    return app


def find_groups(grid: Grid) -> list[int]:
    """Ask every Flower node once which group it hosts: node ids by group number.

    Raises:
        RuntimeError: the nodes of some groups did not register within a minute.
    """
    host: dict[int, int] = {}
    deadline, expected = time.monotonic() + PATIENCE, None
    while time.monotonic() < deadline:
        ask = [
            Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)
            for node in grid.get_node_ids()
            if node not in host.values()
        ]
        for reply in grid.send_and_receive(ask) if ask else []:
            place = _content(reply)["config"]
            host[place["partition-id"]] = reply.metadata.src_node_id
            expected = place["num-partitions"]
        if expected is not None and len(host) >= expected:
            return [host[group] for group in range(expected)]
        time.sleep(0.5)
    raise RuntimeError(
        f"{len(host)} of {expected or 'an unknown number of'} Flower nodes registered within {PATIENCE:g} s"
    )


def exchange_over(grid: Grid, nodes: Sequence[int], run: dict[str, str]) -> Exchange:
    """An exchange that sends each group's request to its Flower node; ``run`` travels with every message.

    Raises:
        RuntimeError: a node answered with an error (its group and reason are named).
    """

    def exchange(requests: Sequence[TrainRequest]) -> Iterator[Upload]:
        messages = [
            Message(encode_request(r, run), dst_node_id=nodes[r.group], message_type=MessageType.TRAIN)
            for r in requests
        ]
        replies = list(grid.send_and_receive(messages))
        if len(replies) < len(messages):
            raise RuntimeError(f"{len(messages) - len(replies)} of {len(messages)} groups sent no reply")
        for reply in replies:
            yield decode_upload(_content(reply))

    return exchange


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise RuntimeError(f"Flower node {reply.metadata.src_node_id} failed: {reply.error.reason}")
    return reply.content
