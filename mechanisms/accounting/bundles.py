"""The charges of mechanisms whose certified and published costs count different things, put together.

Each function returns charges (event -> number of applications) that hold both columns: events of the proof, which cost
nothing in the published column, beside `PaperClaim` events, which cost nothing in the certified one.
"""

from collections import Counter

from mechanisms.accounting.events import ClassicClaim, DpsurStep, Event, PaperClaim, ScreenedStep
from mechanisms.accounting.selection_events import ACCOUNTING, SCREENING


def dpsur(step: DpsurStep, accepted: int, trials: int) -> Counter[Event]:
    """DPSUR with `accepted` planned steps in `trials` planned trials.

    Certified: every trial ("visible", "every-trial") or every accepted step ("selective"). Published (Theorems 5.1,
    5.5, 5.6): SGM(q_t, s_t) + SGM(q_v, s_v) for every accepted step.

    Raises:
        ValueError: not 0 < accepted <= trials.
    """
    _check_counts(accepted, trials)
    charges: Counter[Event] = Counter({step: accepted if step.accounting == ACCOUNTING[1] else trials})
    charges[PaperClaim(step.sample_rate, step.noise_multiplier)] += accepted
    charges[PaperClaim(step.validation_rate, step.validation_noise)] += accepted
    return charges


def screening(step: ScreenedStep, accepted: int, trials: int) -> Counter[Event]:
    """Noise screening with `accepted` planned steps in `trials` planned trials.

    Certified: every trial ("public-test"), every accepted step ("clipped"), or infinite ("unproved"). Published: SGM(q,
    s) for every accepted step, converted as in the paper's Theorem 1.

    Raises:
        ValueError: not 0 < accepted <= trials.
    """
    _check_counts(accepted, trials)
    charges: Counter[Event] = Counter({step: trials if step.accounting == SCREENING[0] else accepted})
    charges[ClassicClaim(step.sample_rate, step.noise_multiplier)] += accepted
    return charges


def _check_counts(accepted: int, trials: int) -> None:
    if not 0 < accepted <= trials:
        raise ValueError(f"accepted = {accepted} must be in [1, trials = {trials}]; every accepted step is a trial")
