"""DPSUR: Fu, Ye, Hu, Chen, Wang, Wang, Ran, "DPSUR: Accelerating Differentially Private Stochastic
Gradient Descent Using Selective Update and Release", PVLDB 17(6), 2024. For K clients at once.

A trial (Algorithms 1 and 2), with the model w, clip C_v, threshold beta and noise s_v of the test:

    w'  = w - lr * direction(g)              g from DPSGD: SGM(q_t, s_t), Poisson batch B_t
    dE  = loss(w', B_v) - loss(w, B_v)       mean losses, B_v a fresh Poisson batch of rate q_v,
                                             independent of B_t
    dE~ = clip(dE, -C_v, C_v) + N(0, (2 C_v s_v)^2)
    accept w' iff dE~ < beta C_v             else restore w and the optimizer's state

An empty B_v gives dE = 0. A dE that is not finite counts as +C_v: a candidate that is never
accepted would break every bound below. Both losses are on the same batch; the paper's code reuses
the loss of the last accepted model, an un-noised statistic of an old batch, and keeps the momentum
of rejected trials. Within a round the learning rate follows the accepted steps alone.

Guarantee: one record of one client, zero-out adjacency. The paper (Theorems 5.1, 5.5, 5.6) charges
accepted steps only, ``SGM(q_t, s_t) + SGM(q_v, s_v)`` each: it takes the test for post-processing.
What is released is the proposal weighted by its probability of acceptance, and that depends on the
data a second time (`docs/theory/claims.md` has counterexamples). The certified cost depends on
``accounting``, which is fixed in advance and recorded in every event:

- ``visible`` (the default): the accept/reject bits are public, rejected candidates are not; each
  trial is charged.
- ``selective``: accepted steps alone are released; each is charged, and a part of delta pays for
  the cap on rejections.
- ``every-trial``: each trial is charged as if rejected candidates were public too.
"""

from dataclasses import dataclass

import torch

from mechanisms import dpsgd, trials
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import DpsurStep, PaperClaim, TrialCap
from mechanisms.arithmetic import LossTest
from mechanisms.cohort import Cohort, LocalState
from mechanisms.mechanism import Mechanism
from mechanisms.plan import Terms, merge, steady
from mechanisms.sampling import poisson
from mechanisms.settings import Dpsur
from mechanisms.trials import TrialPlan

NOISE_RATIO = 3.0
"""s_v over s_t, if s_v is not given."""


@steady
@dataclass(frozen=True, kw_only=True)
class DpsurPlan(TrialPlan):
    """A client's plan: the proposals', and the test's.

    Attributes:
        validation_rate: q_v in (0, 1].
        validation_noise: s_v, noise of the test in units of its sensitivity 2 C_v.
        loss_clip: C_v, in nats.
        beta: the threshold, in units of C_v.
        accounting: ``visible``, ``selective`` or ``every-trial``.
    """

    validation_rate: float
    validation_noise: float
    loss_clip: float
    beta: float
    accounting: str

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "DpsurPlan":
        """The plan of some terms with this noise multiplier.

        Raises:
            ValueError: ``selective``, and acceptance is too improbable for a cap on rejections.
        """
        own = terms.own_of(Dpsur, "DPSUR")
        given = own.dpsur_validation_noise
        test_noise = NOISE_RATIO * noise if given is None else given
        most = _cap(own, terms, test_noise) if own.dpsur_accounting == "selective" else 0
        return cls(
            **cls.poisson(terms, noise),
            most_rejections=most,
            validation_rate=own.dpsur_validation_rate,
            validation_noise=test_noise,
            loss_clip=own.dpsur_loss_clip,
            beta=own.dpsur_beta,
            accounting=own.dpsur_accounting,
        )

    def round_charges(self, nth: int) -> Charges:
        """``steps`` trials; ``selective``: ``steps`` accepted steps, their cap, and what the paper
        charges for them."""
        step = DpsurStep(
            self.sample_rate,
            self.multiplier(nth),
            self.validation_rate,
            self.validation_noise,
            self.beta,
            self.accounting,
        )
        if not self.most_rejections:
            return {step: self.steps}
        cap = TrialCap(Acceptance.of(step).lowest, self.most_rejections)
        return merge({step: self.steps, cap: self.steps}, self.claims(self.steps, nth))

    def claims(self, accepted: int, nth: int) -> Charges:
        """The paper's charges by Theorems 5.1, 5.5 and 5.6."""
        proposal = PaperClaim(self.sample_rate, self.multiplier(nth))
        test = PaperClaim(self.validation_rate, self.validation_noise)
        return merge({proposal: accepted}, {test: accepted})


def _cap(own: Dpsur, terms: Terms, test_noise: float) -> int:
    """M, or one of infinite cost if there is none while the test's noise is searched for."""
    lowest = Acceptance.of_noisy_loss(own.dpsur_validation_rate, test_noise, own.dpsur_beta).lowest
    most = trials.most_rejections(
        lowest, terms.steps * terms.rounds, own.dpsur_cap_share * terms.privacy.delta
    )
    if most is None and own.dpsur_validation_noise is not None:
        trials.refuse(lowest)
    return 1 if most is None else most


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One trial of every client."""
    candidate = dpsgd.step(cohort, state)
    rates = cohort.exact("validation_rate")
    batch = poisson(cohort.data, rates, cohort.streams.of("validation"))
    change = trials.loss_change(cohort, state, candidate, batch, rates)
    return trials.settle(state, candidate, accepted(cohort, change))


def accepted(cohort: Cohort, change: torch.Tensor) -> torch.Tensor:
    """Bool ``[K]``: whether a change dE ``[K]`` of the mean loss, float64, passes the noisy
    test."""
    test = LossTest(*(cohort.exact(name) for name in ("loss_clip", "validation_noise", "beta")))
    change = trials.clipped(change, cohort.plan("loss_clip"))
    return cohort.arithmetic.below(change, test, cohort.streams, "validation noise")


MECHANISM = Mechanism(
    DpsurPlan.of,
    step,
    trials.active,
    start=trials.start,
    metrics=trials.metrics,
    realized=trials.realized,
    note="DPSUR's paper charges accepted steps only and takes the test for post-processing; "
    "but what is released is the proposal weighted by its probability of acceptance, which "
    "depends on the data again.",
)
