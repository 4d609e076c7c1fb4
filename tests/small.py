"""A small federation: four clients with random records, and a model of two layers."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from client.client_state import ClientState
from client.messages import TrainRequest
from client.node import GroupData, Node, Training
from client.uploads import Uploads
from mechanisms.accounting.ledger import Ledger
from mechanisms.cohort import Cohort
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.guide import GuideOf, alone
from mechanisms.mechanism import Mechanism
from mechanisms.optimizers import Optimizer, sgd
from mechanisms.plan import Plan, PlanTable
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import CohortData
from tests.record_models import plain_gradient

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(60, 6)).astype(np.float32))
Y = torch.from_numpy(RNG.integers(0, 3, 60))
OWNED = tuple(np.arange(60)[a:b] for a, b in ((0, 8), (8, 20), (20, 59), (59, 60)))
"""The record numbers of clients 0 to 3."""

CPU, SEED = torch.device("cpu"), 3


def model() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    rng = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = 0.7 * torch.randn(parameter.shape, generator=rng)
    return module


@functools.cache
def gradients() -> RecordGradients:
    """Those of the model. The trial of a model takes longer than a step."""
    return RecordGradients(model())


def start(module: nn.Module) -> torch.Tensor:
    """The model's parameters ``[P]``."""
    return RecordGradients(module).layout.initial(module)


def streams(clients: Sequence[int], seed: int = SEED) -> Streams:
    """The streams of round 1, at their start."""
    return Streams(seed_key(seed), 1, clients, CPU)


def cohort(
    plans: Sequence[Plan],
    clients: Sequence[int] | None = None,
    module: nn.Module | None = None,
    x: torch.Tensor = X,
    optimizer: Optimizer | None = None,
    seed: int = SEED,
    nth: int = 1,
) -> Cohort:
    """Some of the clients (the first ones, by default), with a plan for each, in their ``nth``
    round."""
    clients = range(len(plans)) if clients is None else clients
    return Cohort(
        gradients=RecordGradients(module) if module else gradients(),
        data=CohortData(x, Y, [OWNED[c] for c in clients]),
        plans=plans,
        streams=streams(clients, seed),
        optimizer=optimizer or sgd(),
        learning_rate=lambda taken: 0.5 / (1 + taken),
        nth=[nth] * len(plans),
    )


def twins(plan: Plan, count: int) -> Cohort:
    """So many clients that all hold the records of client 0, each with draws of its own."""
    data = CohortData(X, Y, [OWNED[0]] * count)
    own = {"plans": [plan] * count, "streams": streams(range(count)), "nth": [1] * count}
    return replace(cohort([plan]), data=data, **own)


def plan_table(*plans: Plan) -> PlanTable:
    """A plan for each client."""
    distinct = tuple(dict.fromkeys(plans))
    return PlanTable(distinct, np.array([distinct.index(p) for p in plans]))


def node(
    folder: Path,
    seed: int | None = SEED,
    chunks: Sequence[Sequence[int]] = ((0, 2), (1, 3)),
    plans: PlanTable | None = None,
    module: nn.Module | None = None,
    group: int = 0,
    mechanism: Mechanism = MECHANISMS["dpsgd"],
    rate: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    optimizer: Optimizer | None = None,
    guide: GuideOf = alone,
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    client_state: ClientState | None = None,
) -> Node:
    """A node, of DPSGD unless it is said otherwise, whose files are in ``folder``."""
    sizes = np.array([len(own) for own in OWNED])
    own = RecordGradients(module) if module else gradients()
    training = Training(mechanism, own, optimizer or sgd(), rate or _rate, seed, guide=guide)
    data = GroupData(
        X, Y, lambda client: OWNED[client], [np.array(c) for c in chunks], sizes, shared=shared
    )
    plans = plans or plan_table(*[DpsgdPlan(0.5, 1.0, 1.0, 3)] * 4)
    return Node(
        training,
        data,
        plans,
        Ledger(folder / "ledger" / f"{group}.jsonl"),
        Uploads(folder / "uploads"),
        client_state,
    )


def request(
    round_: int, clients: Sequence[int], params: torch.Tensor | None = None, group: int = 0
) -> TrainRequest:
    """A request whose clients took part in every round before."""
    params = start(model()) if params is None else params
    nth = np.full(len(clients), round_)
    return TrainRequest(
        round_, group, f"round-{round_}", np.array(clients, dtype=np.int64), nth, params.numpy()
    )


def _rate(round_: int, taken: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    return 0.5 / (round_ + taken)


def plain_gradients(
    module: nn.Module, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> list[torch.Tensor]:
    """Each record's gradient ``[P]`` by plain autograd, one record at a time."""
    return [plain_gradient(module, params, *one) for one in zip(x, y, strict=True)]
