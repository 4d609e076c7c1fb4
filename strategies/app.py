"""Flower's strategies as ours: only how they aggregate replies, which hold what clients released.

A strategy sees a model of one flat array, ``params``. Where its result depends on the clients'
weighted mean alone, it gets one reply that holds the mean; any other gets a reply of each client.
It is made anew for each round and given what it kept, so that a resumed run goes on as it was. What
it asks of nodes is refused: this project picks clients, and they train by its settings.
"""

import gc
import inspect
import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from mechanisms.plugins import one_line
from strategies.strategy import ServerState, Strategy

Make = Callable[[], flower.Strategy]
MEAN = (flower.FedAvg, flower.FedAvgM, flower.FedAdagrad, flower.FedAdam, flower.FedYogi)
"""Those that see the weighted mean alone."""
_NOISE = (
    "its clipping and noise are in no ledger, and of replies that are private already: use --trust "
    "server --unit client for a guarantee at the server"
)
_TREES = "it puts decision trees together, not the parameters of a model: use another strategy"
REFUSED: dict[type[flower.Strategy], str] = {
    flower.FedProx: "its pull is the clients' part, which is not Flower's here: use --strategy "
    "fedprox with --proximal-mu",
    flower.QFedAvg: "it needs the training loss of every client, which nobody has paid for: use "
    "another strategy",
    flower.FedXgbBagging: _TREES,
    flower.FedXgbCyclic: _TREES,
    flower.DifferentialPrivacyServerSideFixedClipping: _NOISE,
    flower.DifferentialPrivacyServerSideAdaptiveClipping: _NOISE,
    flower.DifferentialPrivacyClientSideFixedClipping: _NOISE,
    flower.DifferentialPrivacyClientSideAdaptiveClipping: _NOISE,
}
"""Flower's own that cannot be run, and why."""
OF_NODES = {"__init__", "summary", "configure_train", "configure_evaluate", "aggregate_evaluate"}
"""Methods that do not decide what becomes of replies."""
KEY, COUNT = "params", "num-examples"
MEMORY = "memory"
NODES = 10
"""Nodes that a strategy sees at least, so that it shows whether it would leave some out."""


def wrapped(name: str, make: Make, weights: Callable[[np.ndarray], np.ndarray]) -> Strategy:
    """A strategy of Flower's as ours.

    Args:
        name: what the user calls it, for messages.
        make: makes it anew, as before the first round.
        weights: of clients, from the public numbers of their records.

    Raises:
        ValueError: it is one of those that cannot be run.
    """
    kind = type(make())
    refuse(name, kind)

    def each(
        state: ServerState, params: np.ndarray, updates: np.ndarray, counts: np.ndarray
    ) -> tuple[ServerState, np.ndarray]:
        strategy = make()
        number = _recall(strategy, state) + 1
        try:
            with _apart():
                _configure(strategy, number, params, len(updates))
                models = (params + updates).astype(np.float32)
                answers = [
                    _reply(strategy, node, model, int(count))
                    for node, (model, count) in enumerate(zip(models, counts, strict=True), 1)
                ]
                arrays, _ = strategy.aggregate_train(number, answers)
            after = params if arrays is None else _flat(arrays, params)
            return _kept(strategy, number), after
        except (Exception, SystemExit) as error:  # the user's code can raise anything
            raise ValueError(
                f"strategy = {name!r} fails in round {number} ({one_line(error)})"
            ) from error

    def of_mean(
        state: ServerState, params: np.ndarray, update: np.ndarray
    ) -> tuple[ServerState, np.ndarray]:
        return each(state, params, update[None], np.ones(1, np.int64))

    return Strategy(
        weights, lambda params: _kept(make(), 0), of_mean, each=None if by_mean(kind) else each
    )


def refuse(name: str, kind: type) -> None:
    """Refuse Flower's own strategies that cannot be run, and those derived from them.

    Raises:
        ValueError: says why.
    """
    for refused, why in REFUSED.items():
        if issubclass(kind, refused):
            raise ValueError(f"strategy = {name!r} is Flower's {refused.__name__}: {why}")


def by_mean(kind: type[flower.Strategy]) -> bool:
    """Whether the replies' weighted mean is all that a class looks at: one of `MEAN`, or derived
    from one without a method that could look at more."""
    for one in kind.__mro__:
        if one in MEAN:
            return True
        if {name for name, found in vars(one).items() if callable(found)} - OF_NODES:
            return False
    return False


class _Nodes(Grid):
    """Nodes that are there and never asked."""

    def __init__(self, count: int):
        self._count, self._times = count, 0

    def get_node_ids(self) -> Iterable[int]:
        self._times += 1
        if self._times > NODES:
            raise ValueError(f"it waits for more than {self._count} nodes: lower what it waits for")
        return range(1, self._count + 1)

    def _refused(self, *_: object, **__: object) -> Any:
        raise ValueError("it sends messages of its own, which nobody would answer: leave that out")

    set_run = create_message = push_messages = pull_messages = send_and_receive = _refused
    run = property(_refused)


def _configure(strategy: flower.Strategy, number: int, params: np.ndarray, replies: int) -> None:
    """Let the strategy prepare a round, as it may remember the model.

    Raises:
        ValueError: it would leave out nodes, send them another model, or tell them what to do.
    """
    wanted = (getattr(strategy, name, 0) for name in ("min_available_nodes", "min_train_nodes"))
    nodes = max(NODES, replies, *wanted)
    model = ArrayRecord({KEY: Array(params.copy())})
    messages = list(strategy.configure_train(number, model, ConfigRecord(), _Nodes(nodes)))
    if len(messages) < nodes:
        raise ValueError(
            f"it asks {len(messages)} of {nodes} nodes, but --fraction decides here: let it ask all"
        )
    for content in {id(message.content): message.content for message in messages}.values():
        told = {k: v for record in content.config_records.values() for k, v in record.items()}
        told.pop("server-round", None)
        if told:
            raise ValueError(f"it tells clients {told}, which train by --steps, --lr and so on")
        for arrays in content.array_records.values():
            if not np.array_equal(_flat(arrays, params), params):
                raise ValueError(
                    "it sends clients another model than the round's: let it send that"
                )


def _reply(strategy: flower.Strategy, node: int, model: np.ndarray, count: int) -> Message:
    """The reply of a node: its model, and how much it counts."""
    weight = MetricRecord({str(getattr(strategy, "weighted_by_key", COUNT)): count})
    content = RecordDict({"arrays": ArrayRecord({KEY: Array(model)}), "metrics": weight})
    asked = Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
    return Message(content, reply_to=asked)


def _flat(arrays: Mapping[str, Array], params: np.ndarray) -> np.ndarray:
    """The model ``[P]`` in an ArrayRecord."""
    if list(arrays) != [KEY] or arrays[KEY].numpy().shape != params.shape:
        found = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"it gives {found}, not one array {KEY!r} of shape {params.shape}")
    return arrays[KEY].numpy().astype(np.float32)


@cache
def _frozen_before() -> bool:
    """Whether the process has frozen objects of its own, which then stay frozen. It is asked once:
    counting a million of them takes a tenth of a second."""
    return gc.get_freeze_count() > 0


@contextmanager
def _apart() -> Iterator[None]:
    """Run a strategy of Flower's without its log lines, and with Python's generator in a new state
    each time, so that the trial before a run finds a strategy whose model depends on its draws.

    Flower makes messages in a task: this process poses as one where there is none. And it collects
    garbage for every reply, which is quick if the objects from before are frozen.
    """
    log, state = logging.getLogger("flwr"), random.getstate()
    level = log.level
    log.setLevel(logging.ERROR)
    random.setstate(random.Random().getstate())
    for name in ("task_id", "run_id", "node_id"):
        if getattr(TaskIdentity, f"_{name}") is None:
            setattr(TaskIdentity, name, 1)
    frozen = _frozen_before()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        log.setLevel(level)
        random.setstate(state)


def _kept(strategy: flower.Strategy, number: int) -> ServerState:
    """All that a strategy keeps after a round, as arrays by name.

    Raises:
        ValueError: it keeps what a checkpoint cannot hold.
    """
    arrays: ServerState = {}
    form = {name: _form(name, value, arrays) for name, value in vars(strategy).items()}
    text = json.dumps({"round": number, "attributes": form}).encode()
    return {**arrays, MEMORY: np.frombuffer(text, np.uint8).copy()}


def _recall(strategy: flower.Strategy, state: ServerState) -> int:
    """Give a new strategy what it kept; the number of rounds that are over."""
    memory = json.loads(state[MEMORY].tobytes())
    for name, form in memory["attributes"].items():
        if form != ["same"]:
            setattr(strategy, name, _value(form, state))
    return int(memory["round"])


def _form(path: str, value: Any, arrays: ServerState) -> list[Any]:
    """A value as JSON, with its arrays aside; functions and classes are as they were made."""
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        arrays[path] = np.array(value, order="C")
        return ["array", path]
    if isinstance(value, ArrayRecord):
        by_name = {name: array.numpy() for name, array in value.items()}
        return ["record", *_form(path, by_name, arrays)]
    if type(value) in (list, tuple):
        parts = [_form(f"{path}.{n}", one, arrays) for n, one in enumerate(value)]
        return [type(value).__name__, parts]
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        return ["dict", [[k, _form(f"{path}.{k}", v, arrays)] for k, v in value.items()]]
    if inspect.isroutine(value) or inspect.isclass(value):
        return ["same"]
    raise ValueError(
        f"it keeps {path}, a {type(value).__name__}, which a checkpoint cannot hold: keep numbers, "
        "text, NumPy arrays, and lists and dictionaries of them"
    )


def _value(form: list[Any], arrays: ServerState) -> Any:
    """The inverse of `_form`."""
    kind, *rest = form
    if kind == "plain":
        return rest[0]
    if kind == "array":
        found = arrays[rest[0]]
        return found.copy() if found.ndim else found[()]
    if kind == "record":
        return ArrayRecord({name: Array(one) for name, one in _value(rest, arrays).items()})
    if kind == "dict":
        return {key: _value(one, arrays) for key, one in rest[0]}
    parts = [_value(one, arrays) for one in rest[0]]
    return parts if kind == "list" else tuple(parts)
