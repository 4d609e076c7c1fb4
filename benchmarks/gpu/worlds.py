"""What the parts measure: models, made-up records on a device, and steps of both sides."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.yardstick import TwoLayerCNN
from mechanisms.cohort import Cohort
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.none import NonPrivatePlan
from mechanisms.optimizers import sgd
from mechanisms.placing import place
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import CohortData
from sim.data.words import Words
from sim.models.networks import build

RATE, CLASSES, WORDS = 0.1, 10, 1_000
SHAPES = {
    "linear": (1, 28, 28),
    "mlp": (1, 28, 28),
    "lenet": (1, 28, 28),
    "cnn": (1, 28, 28),
    "cnn-cifar": (3, 32, 32),
    "yardstick": (3, 32, 32),
    "lstm": (100,),
}
"""Models, the yardstick of pfl-research among them, and shapes of their records."""

Step = Callable[[], object]


@dataclass(frozen=True)
class World:
    """A model and so many records ``x [N, ...]``, ``y [N]`` on a device."""

    module: nn.Module
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, name: str, records: int, device: torch.device) -> "World":
        """The model of this name with made-up records, the same on each device."""
        rng, shape = np.random.default_rng(0), SHAPES[name]
        words = Words(WORDS) if name == "lstm" else None
        if words:
            x = torch.from_numpy(rng.integers(1, WORDS, (records, *shape)))
        else:
            x = torch.from_numpy(rng.standard_normal((records, *shape), np.float32))
        y = torch.from_numpy(rng.integers(0, CLASSES, records))
        if name == "yardstick":
            torch.manual_seed(0)
            module: nn.Module = TwoLayerCNN()
        else:
            module = build(name, shape, CLASSES, 0, "tanh", words)
        return cls(module.to(device), x.to(device), y.to(device))

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.x.device

    def ours(
        self,
        clients: int,
        steps: int = 1,
        rate: float = 1.0,
        mechanism: str = "dpsgd",
        gradients: RecordGradients | None = None,
    ) -> Callable[[], Tensor]:
        """A local round of so many clients, who share the records evenly: gives models ``[K, P]``.

        Each call is the same round, with the same draws.
        """
        gradients = gradients or RecordGradients(self.module)
        start = place(gradients.layout.initial(self.module), self.device)
        private = DpsgdPlan(rate, 1.0, 1.0, steps)
        plan = private if mechanism == "dpsgd" else NonPrivatePlan(rate, steps)
        owned = np.array_split(np.arange(len(self.y)), clients)

        def round_() -> Tensor:
            cohort = Cohort(
                gradients=gradients,
                data=CohortData(self.x, self.y, owned),
                plans=[plan] * clients,
                streams=Streams(seed_key(0), 1, range(clients), self.device),
                optimizer=sgd(),
                learning_rate=lambda taken: torch.full_like(taken, RATE),
                nth=[1] * clients,
            )
            return local_round(MECHANISMS[mechanism], cohort, start).params

        return round_

    def plain(self, clients: int, steps: int = 1, batch: int | None = None) -> Step:
        """The same by plain PyTorch without privacy, one client after the other; with batches of
        so many records, at random, or of all that a client holds."""
        size = len(self.y) // clients
        start, model = copy.deepcopy(self.module.state_dict()), copy.deepcopy(self.module)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)

        def round_() -> None:
            draws = torch.Generator(self.device).manual_seed(0)
            for client in range(clients):
                model.load_state_dict(start)
                for _ in range(steps):
                    rows = slice(client * size, (client + 1) * size)
                    x, y = self.x[rows], self.y[rows]
                    if batch:
                        some = torch.randint(size, (batch,), generator=draws, device=self.device)
                        x, y = x[some], y[some]
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()

        return round_


def seconds(device: torch.device, repeats: int, **sides: Step) -> dict[str, float]:
    """The least seconds of each side, taken in turns after one of each to warm up."""
    least = dict.fromkeys(sides, float("inf"))
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            synchronize(device)
            began = time.perf_counter()
            side()
            synchronize(device)
            if repeat:
                least[name] = min(least[name], time.perf_counter() - began)
    return least


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
