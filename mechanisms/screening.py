"""Noise screening: Fu, Chen, Ling, "SA-DPSGD: Differentially Private Stochastic Gradient Descent
based on Simulated Annealing", arXiv 2211.07218, 2022. For K clients at once.

A trial, with the model w, gain Q0 and tau growing with the accepted steps:

    w' = w - lr * direction(g)               g from DPSGD: SGM(q, s)
    dE = loss(w') - loss(w)                  mean losses on one test batch
    accept w' with probability min(1, exp(-dE Q0 tau)), and always after mu0 rejections in a row;
    else restore w and the optimizer's state

``Q0 tau`` is the inverse temperature. Deviation: it grows in equal stages, so that the clipped test
has few curves. In step t of T planned ones it is ``gain * min(1, ceil(t / stage) stage / T)``: the
paper's Q0 is ``gain / T``, or ``screening_q0``. Where trials are public, t counts all trials of
earlier rounds; the paper's tau counts accepted ones.

Guarantee: one record of one client, zero-out adjacency. The paper charges ``SGM(q, s)`` for
accepted steps only, and uses a "test loss" without noise, on records that it does not name: on the
client's own records, no finite epsilon holds for that if rejections are seen, and none below 100 if
they are not (`docs/theory/claims.md`). The choices here:

- ``public-test``: dE on records that are public. A function of the candidate, so each trial is
  charged ``SGM(q, s)``; forced acceptance may stay. A dE that is not finite counts as infinite.
- ``clipped``: dE on a fresh Poisson batch (rate q_v) of the client's own records, clipped to [-c,
  c] (0 for an empty batch, +c where it is not finite), rejections hidden, and a cap M on them in
  place of forced acceptance. Acceptance has a probability in [exp(-c Q0 tau), 1]: the exact bound
  of selective release, one curve for each stage.
- ``unproved``: as published. Charged an infinite epsilon.
"""

import math
from dataclasses import dataclass

import torch

from mechanisms import dpsgd, trials
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import ClassicClaim, ScreenedStep, TrialCap
from mechanisms.cohort import Cohort, LocalState
from mechanisms.mechanism import Mechanism
from mechanisms.plan import Terms, merge
from mechanisms.sampling import Batch, poisson
from mechanisms.settings import Screening
from mechanisms.trials import TrialPlan

MAX_CHANGE = 1e300
"""Bound on |dE|, in nats; the clip c acts through the lowest acceptance probability (`lowest`)."""


@dataclass(frozen=True, kw_only=True)
class ScreeningPlan(TrialPlan):
    """A client's plan: the proposals', and the test's.

    Attributes:
        gain: inverse temperature at the run's end, per nat.
        stage: accepted steps between two changes of the temperature.
        planned: T, steps of the whole run.
        test_rate: q_v in (0, 1], for own records.
        clip: c, in nats; infinite for none, and for public records.
        forced_after: mu0; unused where a cap is given.
        accounting: ``public-test``, ``clipped`` or ``unproved``.
    """

    gain: float
    stage: int
    planned: int
    test_rate: float
    clip: float
    forced_after: int
    accounting: str

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "ScreeningPlan":
        """The plan of some terms with this noise multiplier.

        Raises:
            ValueError: no epsilon is proved and that is not allowed, or acceptance is too
                improbable for a cap.
        """
        own, planned = terms.own_of(Screening, "noise screening"), terms.steps * terms.rounds
        public = own.screening_data == "public"
        clip = math.inf if public or own.screening_clip is None else own.screening_clip
        accounting = "public-test" if public else "clipped" if clip < math.inf else "unproved"
        if accounting == "unproved":
            _check_unproved(own, terms)
        gain = own.screening_gain if own.screening_q0 is None else own.screening_q0 * planned
        most = _cap(own, terms, math.exp(-clip * gain)) if accounting == "clipped" else 0
        return cls(
            **cls.poisson(terms, noise),
            most_rejections=most,
            gain=gain,
            stage=-(-planned // own.screening_stages),
            planned=planned,
            test_rate=own.screening_rate,
            clip=clip,
            forced_after=own.forced_after,
            accounting=accounting,
        )

    def inverse_temperature(self, nth: int, taken: int) -> float:
        """``Q0 tau`` of the step after ``taken`` accepted ones in the client's ``nth`` round."""
        step = (nth - 1) * self.steps + taken + 1
        return self.gain * min(1.0, -(-step // self.stage) * self.stage / self.planned)

    def round_charges(self, nth: int) -> Charges:
        """``steps`` trials; ``clipped``: ``steps`` accepted steps, their cap, and what the paper
        charges for them."""
        if not self.most_rejections:
            return {self._event(nth, 0.0): self.steps}
        levels = [lowest(self, self.inverse_temperature(nth, taken)) for taken in range(self.steps)]
        steps = (
            {self._event(nth, level): 1, TrialCap(level, self.most_rejections): 1}
            for level in levels
        )
        return merge(*steps, self.claims(self.steps, nth))

    def _event(self, nth: int, lowest: float) -> ScreenedStep:
        return ScreenedStep(
            self.sample_rate, self.multiplier(nth), self.test_rate, lowest, self.accounting
        )

    def claims(self, accepted: int, nth: int) -> Charges:
        """``SGM(q, s)`` for each accepted step, by Theorem 1 (whose formula lacks a logarithm)."""
        return {ClassicClaim(self.sample_rate, self.multiplier(nth)): accepted}


def lowest(plan: ScreeningPlan, inverse: float) -> float:
    """The least probability of acceptance at an inverse temperature, as it is charged."""
    return math.exp(-plan.clip * inverse) if plan.clip < math.inf else 0.0


def _cap(own: Screening, terms: Terms, lowest: float) -> int:
    """M, from the least probability of acceptance in the whole run."""
    most = trials.most_rejections(
        lowest, terms.steps * terms.rounds, own.screening_cap_share * terms.privacy.delta
    )
    return trials.refuse(lowest) if most is None else most


def _check_unproved(own: Screening, terms: Terms) -> None:
    if not own.allow_unproved:
        raise ValueError(
            "screening_clip is none with screening_data = own: no finite epsilon is proved for "
            "that; give --screening-clip, take --screening-data public, or say --allow-unproved"
        )
    if math.isfinite(terms.target) and terms.privacy.budget == "certified":
        raise ValueError(
            f"epsilon is {terms.target:g}, but screening own records without a clip has no finite "
            "epsilon: give --epsilon none and --noise-multiplier, or bound the paper's claim by "
            "--budget published"
        )


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One trial of every client."""
    candidate, plans = dpsgd.step(cohort, state), cohort.plans
    change = _tested_change(cohort, state, candidate)
    taken = zip(plans, cohort.nth, state.taken.tolist(), strict=True)
    inverse = [plan.inverse_temperature(nth, int(steps)) for plan, nth, steps in taken]
    coins = [stream.random(1)[0] for stream in cohort.streams.of("acceptance")]
    passed = [
        coin < max(math.exp(-max(dE, 0.0) * slope), lowest(plan, slope))
        for coin, dE, plan, slope in zip(coins, change.tolist(), plans, inverse, strict=True)
    ]
    force = change.new_tensor([math.inf if p.most_rejections else p.forced_after for p in plans])
    accept = torch.tensor(passed, device=change.device) | (state.memory["refused"] >= force)
    return trials.settle(state, candidate, accept)


def _tested_change(cohort: Cohort, state: LocalState, candidate: LocalState) -> torch.Tensor:
    """dE on the test batch, finite: float64 ``[K]``."""
    rates = cohort.exact("test_rate")
    if cohort.plans[0].accounting == "public-test":
        batch = _public_batch(cohort)
    else:
        batch = poisson(cohort.data, rates, cohort.streams.of("validation"))
    change = trials.loss_change(cohort, state, candidate, batch, rates)
    return trials.clipped(change, torch.full_like(change, MAX_CHANGE))


def _public_batch(cohort: Cohort) -> Batch:
    """All public records, for every client."""
    if cohort.holdout is None:
        raise ValueError(
            "screening_data is public, but there are no public records: give --public-records"
        )
    x, y = (tensor.expand(len(cohort.plans), *tensor.shape) for tensor in cohort.holdout)
    return Batch(x, y, torch.ones(y.shape, dtype=torch.bool, device=y.device))


MECHANISM = Mechanism(
    ScreeningPlan.of,
    step,
    trials.active,
    start=trials.start,
    metrics=trials.metrics,
    realized=trials.realized,
    note="Noise screening's paper charges accepted steps only, as if neither the choice "
    "among proposals nor the loss that it looks at told anything about the data.",
)
