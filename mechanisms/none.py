"""Local training without privacy, the baseline of all mechanisms: DPSGD without clipping and noise.

    g = sum_{i in B} g_i / (q n)          then the optimizer

B, q and n are as in `mechanisms/dpsgd.py`. No norm is needed, so a step costs one backward pass. A
record with a non-finite gradient contributes zero. There is no guarantee: a step is charged an
infinite epsilon.
"""

from dataclasses import dataclass

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import Unprotected
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpsgd import draw, expected_size
from mechanisms.gradients.factors import Unscaled
from mechanisms.mechanism import Mechanism
from mechanisms.plan import Terms, steady
from mechanisms.sampling import Batch


@steady
@dataclass(frozen=True)
class NonPrivatePlan:
    """A client's plan: sample rate q in (0, 1], and local steps a round."""

    sample_rate: float
    steps: int

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "NonPrivatePlan":
        """The plan of some terms; there is no noise."""
        return cls(terms.privacy.sample_rate, terms.steps)

    def round_charges(self, nth: int) -> Charges:
        """``steps`` steps without a guarantee."""
        return {Unprotected(self.sample_rate): self.steps}


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One step of every client on a Poisson batch."""
    return step_on(cohort, state, draw(cohort))


def step_on(cohort: Cohort, state: LocalState, batch: Batch) -> LocalState:
    """One step of every client along its mean gradient, over the expected batch size."""
    shares = Unscaled(batch.mask / expected_size(cohort)[:, None])
    gradient, _ = cohort.gradients.scaled_sum(state.params, batch.x, batch.y, shares)
    return state.descend(cohort, gradient)


MECHANISM = Mechanism(NonPrivatePlan.of, step, lasting=(), private=False)
