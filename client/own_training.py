"""DPSGD as a call, for the training handler of an app of one's own: the unit is one record.

The app keeps its model, its data and its messages, and gives its training loop away. It may send
the parameters that `RecordDp.fit` leaves in the model; whatever else it makes of the records, such
as a loss, is not private.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from client.messages import TrainRequest
from client.node import GroupData, Node, Training
from client.own_ledger import OwnLedger, check_rounds
from client.settings import Local
from client.sums import SCALE
from mechanisms import dpsgd
from mechanisms.accounting import accountant
from mechanisms.accounting.ledger import release_name
from mechanisms.default_arithmetic import default_arithmetic, one_thread
from mechanisms.gradients.materialised import Loss
from mechanisms.gradients.record_gradients import RecordGradients, cross_entropy
from mechanisms.optimizers import OPTIMIZERS
from mechanisms.plan import Plan, PlanTable, planned
from mechanisms.registry import plan_table
from mechanisms.settings import Privacy, validated

NO_SETTINGS: Mapping[str, object] = {}


@dataclass(frozen=True)
class RecordDp:
    """A frozen plan for rounds of DPSGD, with ledgers.

    Every call of `fit` is a release: it draws from the operating system's entropy, on the grid, and
    is charged before a record is looked at, also if it is asked for twice. It computes with the
    defaults of PyTorch and NumPy, whatever the program has set, and one thread at a time.

    Attributes:
        folder: of the ledgers; absolute, and made before the first round.
        rounds: how many rounds the budget is for, at least 1. Further ones are refused.
        epsilon, delta: budget of any one record over all rounds; adjacency is zero-out, so the
            number of records is public.
        clip_norm: bound on the norm of a record's gradient.
        batch_size: expected batch, drawn by a coin of each record; None: all records.
        steps: steps in a round.
        lr, momentum, optimizer: of the local optimizer, ``sgd`` or ``adam``.
        loss: from outputs and targets ``[B, ...]`` to the loss ``[B]`` of each record, from that
            record alone.

    Raises:
        ValueError: a value is out of its bound.
    """

    folder: str | Path
    rounds: int
    epsilon: float = 8.0
    delta: float = 1e-5
    clip_norm: float = 1.0
    batch_size: int | None = None
    steps: int = 1
    lr: float = 1.0
    momentum: float = 0.0
    optimizer: str = "sgd"
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        OwnLedger(self._home)
        self._privacy, self._local  # noqa: B018, as they check

    def plan(self, records: int) -> Plan:
        """The plan for so many records, with the smallest noise that meets the budget.

        Raises:
            ValueError: no noise is large enough.
        """
        return _plan(self._privacy, self.steps, self.rounds, records)

    def certified(self, records: int) -> float:
        """The certified epsilon of all rounds together, at most the budget."""
        charges = planned(self.plan(records), self.rounds)
        return accountant.epsilon(charges, self.delta).epsilon

    def fit(
        self, module: nn.Module, x: Any, y: Any, node: Mapping[str, object] = NO_SETTINGS
    ) -> None:
        """Train a round from the module's parameters, and replace them by the released ones.

        Args:
            module: float32 on the CPU, without layers that mix records.
            x, y: the client's records ``[n, ...]`` and targets ``[n, ...]``, NumPy's or PyTorch's.
            node: Flower's ``context.node_config``, which says whose data they are.

        Raises:
            ValueError: the budget is used up; records and targets, the module or the loss do not
                fit. The module is as it was.
        """
        x, y = (_tensor(one) for one in (x, y))
        if not 0 < len(x) == len(y):
            raise ValueError(
                f"x has {len(x)} records and y {len(y)} targets, they must be as many, and at "
                "least 1: give a target for each record"
            )
        kinds = {(p.dtype, p.device.type) for p in module.parameters()}
        if kinds != {(torch.float32, "cpu")}:
            raise ValueError(
                f"the module's parameters are {sorted(map(str, kinds))}, they must be float32 on "
                "the CPU: call module.float().cpu()"
            )
        own, plan = OwnLedger.of(self._home, node), self.plan(len(y))
        with default_arithmetic(), one_thread():
            gradients = RecordGradients(module, self.loss)
            _try(gradients, x, y)
            start = gradients.layout.initial(module)
            with own.next_round(plan, self.rounds) as (ledger, nth):
                here = np.array([own.client])
                data = GroupData(
                    x, y, lambda _: np.arange(len(y)), [here], np.ones(own.clients, dtype=np.int64)
                )
                plans = PlanTable((plan,), np.zeros(own.clients, dtype=np.int64))
                name = release_name(nth, None)
                host = Node(self._training(gradients), data, plans, ledger, None)
                asked = TrainRequest(nth, 0, name, here, np.array([nth]), start.numpy())
                moved = torch.from_numpy(host.train(asked).total) / SCALE
        released = gradients.layout.unflatten((start.double() + moved).float())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in released:
                    parameter.copy_(released[name])

    def _training(self, gradients: RecordGradients) -> Training:
        return Training(
            dpsgd.MECHANISM,
            gradients,
            OPTIMIZERS[self.optimizer](self.momentum),
            lambda round_, taken, steps: torch.full_like(taken, self.lr),
            seed=None,
        )

    @property
    def _home(self) -> Path:
        return Path(self.folder).expanduser()

    @property
    def _privacy(self) -> Privacy:
        names = ("epsilon", "delta", "clip_norm", "batch_size")
        return validated(Privacy, {name: getattr(self, name) for name in names})

    @property
    def _local(self) -> Local:
        names = ("steps", "lr", "momentum", "optimizer")
        return validated(Local, {name: getattr(self, name) for name in names})


@functools.cache
def _plan(privacy: Privacy, steps: int, rounds: int, records: int) -> Plan:
    return plan_table(privacy, None, steps, rounds, np.array([records])).of(0)


def _try(gradients: RecordGradients, x: torch.Tensor, y: torch.Tensor) -> None:
    """Try module and loss on made-up records, before anything is charged.

    Raises:
        ValueError: one of them fails, or mixes records.
    """
    made_up = (one.new_zeros(1, 2, *one.shape[1:]) for one in (x, y))
    try:
        gradients.refuse_mixing(*made_up)
    except (AttributeError, IndexError, RuntimeError, TypeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"the module or the loss fails on made-up records, x {list(x.shape[1:])} and y "
            f"{list(y.shape[1:])} each ({reason}): correct it; nothing was charged"
        ) from error


def _tensor(values: Any) -> torch.Tensor:
    """The values as a tensor on the CPU, float32 or int64."""
    tensor = torch.as_tensor(values).detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor.long()
