"""Buffered asynchronous rounds: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated
Learning with Buffered Asynchronous Aggregation" (FedBuff), AISTATS 2022.

Each client works on the model that there is when it begins, for as long as it needs. A round is a
step of the server: it ends when K answers have come, and idle clients begin anew after it. The
model of the others is then one step older. An answer to a model that is tau steps old counts
``1 / sqrt(1 + tau)`` in the mean (`client/node.py`).

Time is virtual. A client is trained when its answer is due, from the model with which it began, so
it pays in the round in which its update leaves it. The update is made of an earlier released model
and of charged releases: being late costs no privacy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mechanisms.randomness import generator, seed_key

IDLE = -1


@dataclass(frozen=True)
class Buffer:
    """When clients answer.

    Attributes:
        size: K, answers per round.
        at_once: how many clients work at the same time.
        slowness: float64 ``[clients]``, how many times longer than others each client needs.
        seed: of the durations.
    """

    size: int
    at_once: int
    slowness: np.ndarray
    seed: int

    def durations(self, number: int) -> np.ndarray:
        """How long each client needs if it begins in round ``number``, float64 ``[clients]``: the
        absolute value of a normal draw, times its slowness [times the scale of that normal]."""
        draws = generator(seed_key(self.seed), "duration", number).normal(size=len(self.slowness))
        return np.abs(draws) * self.slowness


class Flight:
    """The clients at work, and the models with which they began; updated as a run goes on.

    Attributes:
        clock: virtual time at which the last round ended.
        begun: int64 ``[clients]``, how many rounds were finished when each began; ``IDLE`` for who
            does not work.
        due: float64 ``[clients]``, the virtual time at which each answers.
        models: by number of finished rounds, the models with which clients at work began.
    """

    def __init__(self, clients: int, tensors: Mapping[str, np.ndarray]):
        self.clock = float(tensors.get("clock", [0.0])[0])
        self.begun = np.array(tensors.get("begun", np.full(clients, IDLE)))
        self.due = np.array(tensors.get("due", np.zeros(clients)))
        of = tensors.get("of", ())
        self.models = {int(n): tensors["models"][at] for at, n in enumerate(of)}

    def tensors(self) -> dict[str, np.ndarray]:
        """A copy of the state, for a checkpoint."""
        state = {
            "clock": np.array([self.clock]),
            "begun": self.begun.copy(),
            "due": self.due.copy(),
        }
        if self.models:
            state["of"] = np.array(list(self.models), dtype=np.int64)
            state["models"] = np.stack(list(self.models.values()))
        return state

    @property
    def working(self) -> np.ndarray:
        """Bool ``[clients]``: who works."""
        return self.begun != IDLE

    def begin(
        self, clients: np.ndarray, durations: np.ndarray, rounds: int, model: np.ndarray
    ) -> None:
        """Have idle clients begin with the model ``[P]`` after so many rounds."""
        self.begun[clients], self.due[clients] = rounds, self.clock + durations[clients]
        self.models[rounds] = model

    def next(self, size: int) -> np.ndarray:
        """The next ``size`` clients to answer, or all at work if these are fewer; ascending."""
        working = np.flatnonzero(self.working)
        order = np.argsort(self.due[working], kind="stable")
        return np.sort(working[order[:size]])

    def models_of(
        self, clients: np.ndarray, rounds: int
    ) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """How many models each client's own is behind after so many rounds, int64, and the older
        ones of these by that number."""
        behind = rounds - self.begun[clients]
        return behind, {age: self.models[rounds - age] for age in np.unique(behind).tolist() if age}

    def land(self, clients: np.ndarray) -> None:
        """Note that these have answered, and forget the models that nobody works on any more."""
        if clients.size:
            self.clock = max(self.clock, float(self.due[clients].max()))
        self.begun[clients] = IDLE
        self.models = {n: model for n, model in self.models.items() if n in self.begun}
