"""The Flower ClientApp: decodes a request, has client/node.py answer it, encodes the upload.

Requests and uploads carry a digest, which is compared before anything in them is parsed.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.messages import Answering, Payments, TrainRequest, Upload
from mechanisms.accounting.events import from_dict, to_dict
from mechanisms.accounting.ranges import format_ranges, parse_ranges

DIGEST = "digest"
EARLIER = "earlier."
KEEPS = "keeps-ledger"
"""The part of a node's answer that says whether it keeps its ledger to itself."""
NodeOf = Callable[[Mapping[str, Any], Context], Answering]
"""Finds or builds the node for a message, from the message's configuration and Flower's context."""


def encode_request(request: TrainRequest, run: dict[str, str]) -> RecordDict:
    """A request as Flower content; ``run`` is what a node needs to build itself."""
    ask: dict[str, Any] = {"round": request.round, "group": request.group}
    ask |= {"release": request.release, "phase": request.phase}
    arrays = {"params": request.params, "clients": request.clients, "nth": request.nth}
    if request.behind is not None:
        arrays["behind"] = request.behind
        arrays |= {f"{EARLIER}{behind}": model for behind, model in request.earlier.items()}
    return _sealed(RecordDict({"arrays": _arrays(arrays), "config": ConfigRecord(ask | run)}))


def decode_request(content: RecordDict) -> TrainRequest:
    """The inverse of ``encode_request``.

    Raises:
        ValueError: it is damaged.
    """
    _check(content, "a request")
    arrays, ask = content.array_records["arrays"], settings_of(content)
    named = {name: array.numpy() for name, array in arrays.items()}
    clients, nth, params = (named.pop(name) for name in ("clients", "nth", "params"))
    head = (ask["round"], ask["group"], ask["release"], clients, nth, params, ask["phase"])
    behind = named.pop("behind", None)
    earlier = {int(name.removeprefix(EARLIER)): model for name, model in named.items()}
    return TrainRequest(*head, behind, earlier)


def encode_upload(upload: Upload) -> RecordDict:
    """An upload as Flower content."""
    answer: dict[str, Any] = {"round": upload.round, "group": upload.group, "weight": upload.weight}
    answer["metrics"] = json.dumps(upload.metrics)
    payments = [(format_ranges(ids), charges.items()) for ids, charges in upload.realized]
    lines = [(ids, to_dict(event), n) for ids, charges in payments for event, n in charges]
    answer["realized"] = json.dumps(lines)
    arrays = _arrays({"total": upload.total, "clients": upload.clients})
    shared, config = _arrays(upload.shared), ConfigRecord(answer)
    return _sealed(RecordDict({"arrays": arrays, "shared": shared, "config": config}))


def decode_upload(content: RecordDict) -> Upload:
    """The inverse of ``encode_upload``.

    Raises:
        ValueError: it is damaged.
    """
    _check(content, "an upload")
    arrays, answer = content.array_records["arrays"], settings_of(content)
    clients, total = arrays["clients"].numpy(), arrays["total"].numpy()
    metrics = {name: tuple(pair) for name, pair in json.loads(answer["metrics"]).items()}
    lines = json.loads(answer["realized"])
    realized: Payments = [(parse_ranges(ids), {from_dict(event): n}) for ids, event, n in lines]
    head = (answer["round"], answer["group"], clients, total, answer["weight"])
    shared = {name: array.numpy() for name, array in content.array_records["shared"].items()}
    return Upload(*head, metrics, realized, shared)


def settings_of(content: RecordDict) -> dict[str, Any]:
    """The configuration that a message carries."""
    return dict(content.config_records["config"])


def _sealed(content: RecordDict) -> RecordDict:
    """The content with a digest of all that it holds."""
    content.config_records["config"][DIGEST] = _digest(content)
    return content


def _check(content: RecordDict, what: str) -> None:
    config = content.config_records.get("config")
    if config is None or config.get(DIGEST) != _digest(content):
        raise ValueError(
            f"{what} is damaged, or of another version: its digest does not match; resume the run, "
            "with the same version at the server and at its nodes"
        )


def _digest(content: RecordDict) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, record in sorted(content.config_records.items()):
        values = sorted((key, value) for key, value in record.items() if key != DIGEST)
        digest.update(repr((name, values)).encode())
    for name, arrays in sorted(content.array_records.items()):
        for key, array in sorted(arrays.items()):
            digest.update(repr((name, key, array.dtype, tuple(array.shape), array.stype)).encode())
            digest.update(array.data)
    return digest.hexdigest()


def _arrays(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def client_app(
    node_of: NodeOf,
    keeps: Callable[[], bool] = lambda: False,
    consent: Callable[[Mapping[str, Any]], None] = lambda config: None,
) -> ClientApp:
    """A ClientApp that trains a group on ``train``, and on ``query`` says which group it hosts, and
    whether it ``keeps`` its ledger where the server does not see it. If a query has a run's
    configuration, it answers with the error of ``consent`` where that refuses it.

    The group comes from the Flower node's configuration: the simulation engine sets it; elsewhere
    ``--node-config "partition-id=0 num-partitions=2"`` does.

    Raises:
        ValueError: on ``query``, if the node's configuration names no group.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        request = decode_request(message.content)
        node = node_of(settings_of(message.content), context)
        return Message(encode_upload(node.train(request)), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if message.content.config_records:
            consent(settings_of(message.content))
        place = _place(context) | {KEEPS: keeps()}
        return Message(RecordDict({"config": ConfigRecord(place)}), reply_to=message)

    return app


def _place(context: Context) -> dict[str, Any]:
    place = {name: context.node_config.get(name) for name in ("partition-id", "num-partitions")}
    for name, value in place.items():
        if not isinstance(value, int):
            raise ValueError(
                f"{name} is {value!r} in the node's configuration; it must be an integer: start "
                'the SuperNode with, for instance, --node-config "partition-id=0 num-partitions=2"'
            )
    return place
