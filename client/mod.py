"""A Flower mod that makes the replies of any ClientApp private: a whole client, locally.

Around a training of which nothing is known, a bound on the whole update is all that can be proved
(`mechanisms/local_update.py`). So of a reply its arrays alone are used, clipped together and
noised; everything else that the app says is dropped, but for metrics that are listed as public.
"""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from client.own_ledger import OwnLedger, check_rounds
from mechanisms.accounting import accountant
from mechanisms.default_arithmetic import default_arithmetic
from mechanisms.entropy import SystemEntropy
from mechanisms.local_update import UpdatePlan
from mechanisms.plan import planned
from mechanisms.settings import Privacy, validated

WEIGHT = "num-examples"
"""The metric by which Flower's strategies weight replies; 1 unless it is listed as public."""
METRICS = "metrics"
"""The name of the reply's record of metrics."""
LOG = logging.getLogger("flwr")

Arrays = Mapping[str, np.ndarray]


class ClientDpMod:
    """Charges, clips and noises what a ClientApp replies to training messages; refuses all others.

    List it first in ``ClientApp(mods=[...])``. A message that is answered twice is charged twice,
    for two draws. An app that fails, or replies other arrays than it received, counts as an update
    of 0, since a failure could depend on records; the node's own log says so.

    Args:
        folder: of the ledgers; absolute, and made before the first round.
        rounds: how many rounds the budget is for, at least 1. Further ones are refused.
        epsilon, delta: budget of everything that a client holds, over all rounds.
        clip_norm: C, bound on an update's L2 norm over all arrays together.
        public: names of the app's metrics that are replied as they are. The guarantee does not
            cover them.

    Attributes:
        plan: the frozen plan.
        epsilon: the certified epsilon of all rounds together, at most the budget.

    Raises:
        ValueError: a value is out of its bound.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rounds: int,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        clip_norm: float = 1.0,
        public: Collection[str] = (),
    ) -> None:
        self._folder, self._rounds = Path(folder).expanduser(), check_rounds(rounds)
        OwnLedger(self._folder)
        self._public = _names(public)
        given = {"epsilon": epsilon, "delta": delta, "clip_norm": clip_norm}
        self.plan = UpdatePlan.of(validated(Privacy, given), rounds)
        self.epsilon = accountant.epsilon(planned(self.plan, rounds), delta).epsilon

    def __call__(self, message: Message, context: Context, app: ClientAppCallable) -> Message:
        """The private reply, or an error that says why there is none."""
        try:
            name, sent = _sent(message)
            start = _flat(sent, sent)
            self.plan.check_size(len(start))
            OwnLedger.of(self._folder, context.node_config).pay(self.plan, self._rounds)
        except ValueError as fault:  # it depends on messages and ledgers alone
            LOG.error(f"ClientDpMod: {fault}")
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, str(fault)), reply_to=message)
        # before the app can write into the message, whose metadata a reply takes
        reply = Message(RecordDict(), reply_to=message)
        moved, metrics = np.zeros_like(start), MetricRecord()
        try:
            found, metrics = self._trained(app(message, context), sent)
            with np.errstate(all="ignore"):
                moved = found - start
        except KeyboardInterrupt:  # by whoever ends the node
            raise
        except BaseException:  # the app's code can raise anything, even what cannot be shown
            LOG.error("ClientDpMod: the app's reply counts as no update", exc_info=True)
        with default_arithmetic():  # the app's code may have set others
            released = self.plan.release(torch.from_numpy(moved), SystemEntropy()).numpy()
        with np.errstate(all="ignore"):
            arrays = _shaped(start + released, sent)
        said = MetricRecord({WEIGHT: 1, **metrics})
        reply.content = RecordDict({name: ArrayRecord(arrays), METRICS: said})
        return reply

    def _trained(self, reply: Message, sent: Arrays) -> tuple[np.ndarray, MetricRecord]:
        """The parameters ``[P]`` of the app's reply, and its public metrics.

        Raises:
            ValueError: it is an error, or has other arrays than were received.
        """
        (arrays,) = reply.content.array_records.values()
        given = {name: array.numpy() for name, array in arrays.items()}
        said = (one for part in reply.content.metric_records.values() for one in part.items())
        listed = MetricRecord({name: value for name, value in said if name in self._public})
        return _flat(given, sent), listed


def _names(public: Collection[str]) -> frozenset[str]:
    if isinstance(public, str):
        return frozenset([public])
    if not (isinstance(public, Collection) and all(isinstance(name, str) for name in public)):
        raise ValueError(f"public is {public!r}, it must be names of the app's metrics: list them")
    return frozenset(public)


def _sent(message: Message) -> tuple[str, dict[str, np.ndarray]]:
    """The name and the arrays of the model in a training message.

    Raises:
        ValueError: another kind of message, none or several models, or one by the name of the
            reply's metrics.
    """
    kind = message.metadata.message_type
    if kind.partition(".")[0] != "train":
        raise ValueError(
            f"a {kind} message is refused, as its answer would not be private: evaluate at the "
            "server, or use the mod for training alone, by @app.train(mods=[...])"
        )
    if len(message.content.array_records) != 1:
        raise ValueError(
            f"the message has {len(message.content.array_records)} array records, it must have 1: "
            "send the model's arrays in one record"
        )
    ((name, record),) = message.content.array_records.items()
    if name == METRICS:
        raise ValueError(
            f"the array record is named {name!r}, as the reply's metrics are, which would take its "
            "place: name it otherwise, such as 'arrays'"
        )
    return name, {key: array.numpy() for key, array in record.items()}


def _flat(arrays: Arrays, like: Arrays) -> np.ndarray:
    """All arrays that are of floats in ``like``, float64 ``[P]``.

    Raises:
        ValueError: names or shapes are not those of ``like``, or none is of floats.
    """
    shapes, wanted = ({k: a.shape for k, a in one.items()} for one in (arrays, like))
    if shapes != wanted:
        raise ValueError(f"the arrays are {shapes}, they must be {wanted}: reply all that came")
    floats = [arrays[name] for name, array in like.items() if _is_float(array)]
    if not floats:
        raise ValueError("the message has no array of floats: there is nothing to train")
    return np.concatenate([array.astype(np.float64).ravel() for array in floats])


def _shaped(flat: np.ndarray, like: Arrays) -> dict[str, Array]:
    """The inverse of `_flat`; arrays that are not of floats are returned as they were sent."""
    arrays, at = {}, 0
    for name, array in like.items():
        if _is_float(array):
            part, at = flat[at : at + array.size], at + array.size
            array = part.reshape(array.shape).astype(array.dtype)
        arrays[name] = Array(array)
    return arrays


def _is_float(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating)
