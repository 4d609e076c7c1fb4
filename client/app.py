"""The Flower ClientApp: a message in, a message out; the work is client/node.py's."""

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.messages import TrainRequest, Upload
from client.node import Node

NodeOf = Callable[[ConfigRecord, Context], Node]
"""Finds or builds the node that a message is for: from the message's configuration and the Flower context."""


def encode_request(request: TrainRequest, run: dict[str, str]) -> RecordDict:
    """A request as Flower content; ``run`` is what a node needs to build itself."""
    ask = {"round": request.round, "group": request.group, "release": request.release}
    arrays = ArrayRecord({"params": Array(request.params), "clients": Array(request.clients)})
    return RecordDict({"arrays": arrays, "config": ConfigRecord(ask | run)})


def decode_request(content: RecordDict) -> TrainRequest:
    """The inverse of ``encode_request``."""
    arrays, ask = content["arrays"], content["config"]
    clients, params = arrays["clients"].numpy(), arrays["params"].numpy()
    return TrainRequest(ask["round"], ask["group"], ask["release"], clients, params)


def encode_upload(upload: Upload) -> RecordDict:
    """An upload as Flower content."""
    answer = {"round": upload.round, "group": upload.group, "weight": upload.weight, "seconds": upload.seconds}
    arrays = ArrayRecord({"total": Array(upload.total), "clients": Array(upload.clients)})
    return RecordDict({"arrays": arrays, "config": ConfigRecord(answer)})


def decode_upload(content: RecordDict) -> Upload:
    """The inverse of ``encode_upload``."""
    arrays, answer = content["arrays"], content["config"]
    clients, total = arrays["clients"].numpy(), arrays["total"].numpy()
    return Upload(answer["round"], answer["group"], clients, total, answer["weight"], answer["seconds"])


def client_app(node_of: NodeOf) -> ClientApp:
    """A ClientApp whose ``train`` trains a group, and whose ``query`` says which group this Flower node hosts.

    Flower's simulation engine and ``--node-config "partition-id=0 num-partitions=2"`` both name the group.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = node_of(message.content["config"], context)
        return Message(encode_upload(node.train(decode_request(message.content))), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        place = {name: int(context.node_config[name]) for name in ("partition-id", "num-partitions")}
        return Message(RecordDict({"config": ConfigRecord(place)}), reply_to=message)

    return app
