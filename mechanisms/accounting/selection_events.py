"""Privacy events of mechanisms that test a proposal and may reject it; collected in
`accounting.events`."""

from dataclasses import dataclass
from typing import ClassVar

from mechanisms.accounting.event import Event, number, positive, rate, share, text, whole

ACCOUNTING = ("visible", "selective", "every-trial")
SCREENING = ("public-test", "clipped", "unproved")


@dataclass(frozen=True)
class DpsurStep(Event):
    """DPSUR (Fu et al., PVLDB 17(6), 2024): a proposal from SGM(q_t, s_t) and its noisy acceptance
    test; published 0.

    The test compares the loss difference, clipped to C_v, plus noise of 2 C_v s_v with beta C_v on
    a Poisson batch of its own. Count trials for "visible" and "every-trial", accepted steps for
    "selective".

    Attributes:
        sample_rate: q_t, in (0, 1].
        noise_multiplier: s_t, positive.
        validation_rate: q_v, in (0, 1].
        validation_noise: s_v, noise of the test in units of its sensitivity 2 C_v, positive.
        beta: threshold in units of C_v.
        accounting: "visible" (the accept/reject bit is public, rejected proposals stay hidden),
            "selective" (rejections are hidden altogether) or "every-trial" (rejected proposals are
            public too).
    """

    kind: ClassVar[str] = "dpsur_step"
    sample_rate: float = rate()
    noise_multiplier: float = positive()
    validation_rate: float = rate()
    validation_noise: float = positive()
    beta: float = number()
    accounting: str = text(*ACCOUNTING)


@dataclass(frozen=True)
class ScreenedStep(Event):
    """Noise screening (Fu, Chen, Ling 2022): a proposal from SGM(q, s) and its acceptance test;
    published 0.

    Attributes:
        sample_rate: q, in (0, 1].
        noise_multiplier: s, positive.
        test_rate: q_v, probability that a record is in the test batch, in (0, 1]; unused unless
            "clipped".
        lowest_acceptance: exp(-c Q0 tau) for loss differences clipped to [-c, c], in [0, 1]; unused
            unless "clipped".
        accounting: "public-test" (test data outside the guarantee: count trials, SGM(q, s) each),
            "clipped" (own records, clipped differences, hidden rejections: count accepted steps) or
            "unproved" (infinite).
    """

    kind: ClassVar[str] = "screened_step"
    sample_rate: float = rate()
    noise_multiplier: float = positive()
    test_rate: float = rate()
    lowest_acceptance: float = share()
    accounting: str = text(*SCREENING)


@dataclass(frozen=True)
class TrialCap(Event):
    """After M rejections in a row a client stops for the round (`accounting.trial_cap`).

    Each planned accepted step ends this way with probability at most ``(1 - lo)^M``, which is a
    part of delta. Its Renyi curve is 0; it is charged with each step that hides its rejections.

    Attributes:
        lowest_acceptance: lo, the least probability of acceptance, in [0, 1].
        most_rejections: M, a whole number of at least 1.
    """

    kind: ClassVar[str] = "trial_cap"
    lowest_acceptance: float = share()
    most_rejections: float = whole()
