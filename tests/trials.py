"""A crowd of clients for one trial each, and the test of how often they accept."""

import dataclasses
from typing import Any

import numpy as np
import torch
from scipy import stats

from mechanisms.cohort import Cohort, LocalState
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import Mechanism
from mechanisms.optimizers import sgd
from mechanisms.plan import Plan
from mechanisms.randomness import Streams, seed_key
from mechanisms.sampling import CohortData
from tests.small import CPU, X, Y, model, start

CROWD, TRIALS = 400, 5
FALSE_ALARM = 1e-6


def crowd(plan: Plan, rate: float = 0.1, clients: int = CROWD, nth: int = 1) -> Cohort:
    """Clients with 3 to 20 records each; at a positive learning rate their loss falls, at a
    negative one it rises."""
    rng = np.random.default_rng(0)
    records = [rng.choice(60, rng.integers(3, 21), replace=False) for _ in range(clients)]
    return Cohort(
        gradients=RecordGradients(model()),
        data=CohortData(X, Y, records),
        plans=[plan] * clients,
        streams=Streams(seed_key(3), 1, range(clients), CPU),
        optimizer=sgd(),
        learning_rate=lambda taken: torch.full_like(taken, rate),
        nth=[nth] * clients,
        holdout=(X, Y),
    )


def accepted(mechanism: Mechanism, world: Cohort, trials: int = TRIALS) -> np.ndarray:
    """Bool ``[trials, clients]``: who accepts in trials that all start from the model's first
    parameters."""
    first = mechanism.start(world, start(model()))
    return np.stack([(mechanism.step(world, first).taken > 0).numpy() for _ in range(trials)])


def alarms(accepted: np.ndarray, probability: float) -> set[str]:
    """What differs from independent coins of this probability; each test has a third of the
    false-alarm rate."""
    trials, clients = accepted.shape
    total, each = accepted.sum(), accepted.sum(axis=0)
    if probability in (0.0, 1.0):
        return set() if total == probability * accepted.size else {"frequency"}
    frequency = stats.binomtest(int(total), accepted.size, probability).pvalue
    # the sum over clients of the squared deviation is nearly Gaussian: hundreds of bounded terms
    spread = (each - trials * probability) ** 2 / (trials * probability * (1 - probability))
    law = (np.arange(trials + 1) - trials * probability) ** 2 / (
        trials * probability * (1 - probability)
    )
    second = stats.binom.pmf(np.arange(trials + 1), trials, probability) @ law**2
    across = 2 * stats.norm.sf(abs(spread.sum() - clients) / (clients * (second - 1)) ** 0.5)
    # all clients of a trial together
    counts = (accepted.sum(axis=1) - clients * probability) ** 2 / (
        clients * probability * (1 - probability)
    )
    within = stats.chi2.sf(counts.sum(), trials)
    p_values = {"frequency": frequency, "a client's trials": across, "a trial's clients": within}
    return {name for name, p in p_values.items() if p < FALSE_ALARM / 3}


def everything(state: LocalState) -> list[torch.Tensor]:
    """All tensors of a state."""
    return [
        state.params,
        *state.optimizer,
        state.taken,
        *(state.memory[name] for name in sorted(state.memory)),
    ]


def same(one: LocalState, other: LocalState) -> bool:
    """Whether two states agree in every bit."""
    return all(torch.equal(a, b) for a, b in zip(everything(one), everything(other), strict=True))


class ChangedNoise:
    """A cohort's streams, but for the noise of some (trial, client): there the proposal is another
    one."""

    def __init__(self, streams: Streams, where: np.ndarray):
        self._streams, self._where, self._trial = streams, where, -1

    def of(self, purpose: str) -> list[np.random.Generator]:
        return self._streams.of(purpose)

    def begin(self, *what: Any) -> None:
        self._streams.begin(*what)

    def normal(self, purpose: str, size: int) -> torch.Tensor:
        draws = self._streams.normal(purpose, size)
        if purpose != "noise":
            return draws
        self._trial += 1
        changed = torch.from_numpy(self._where[self._trial])[:, None]
        return torch.where(changed, -2 * draws, draws)


def with_changed_noise(world: Cohort, where: np.ndarray) -> Cohort:
    """The cohort, at its beginning, with other noise in the trials ``where [trials, K]``."""
    streams: Any = ChangedNoise(world.streams, where)
    return dataclasses.replace(world, streams=streams)
