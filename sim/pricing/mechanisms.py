"""The mechanisms that ``python -m sim.account`` can price: one row each, from flags to charges."""

from collections import Counter

from mechanisms.accounting import bundles, events
from mechanisms.accounting.selection_events import ACCOUNTING, SCREENING
from mechanisms.noise_shape import smallest_scale
from sim.pricing.row import Charges, Flag, Mechanism, Values
from sim.pricing.sharing import SHARING


def _dpsgd(flags: Values, noise_multiplier: float, steps: int) -> Charges:
    return {events.SampledGaussian(flags["sample_rate"], noise_multiplier): steps}


def _dpsur(flags: Values, noise_multiplier: float, steps: int) -> Charges:
    proposal = (flags["sample_rate"], noise_multiplier)
    test = (flags["validation_rate"], flags["validation_noise"], flags["beta"])
    step = events.DpsurStep(*proposal, *test, flags["accounting"])
    if step.accounting != "selective":
        return bundles.dpsur(step, steps, _trials(flags))
    from mechanisms.accounting.acceptance import Acceptance

    lowest = Acceptance.of_noisy_loss(*test).lowest
    return bundles.dpsur(step, steps, steps) + _cap(flags, lowest, steps)


def _dpis(flags: Values, noise_multiplier: float, steps: int) -> Charges:
    sizes = (flags["batch_size"], flags["clip_norm"], flags["norm_sum"], flags["records"])
    return {events.ImportanceSampledGaussian(*sizes, noise_multiplier): steps}


def _hero_scale(flags: Values) -> float:
    scale = smallest_scale([flags["eigenvalues"]])
    return scale if flags["hero_clipping"] == "isotropic" else 1.0


def _dphero(flags: Values, noise_multiplier: float, steps: int) -> Charges:
    return {events.HeterogeneousGaussian(flags["sample_rate"], noise_multiplier, _hero_scale(flags)): steps}


def _screening(flags: Values, noise_multiplier: float, steps: int) -> Charges:
    test = (flags["test_rate"], flags["lowest_acceptance"], flags["accounting"])
    step = events.ScreenedStep(flags["sample_rate"], noise_multiplier, *test)
    if step.accounting == "public-test":
        return bundles.screening(step, steps, _trials(flags))
    charges = bundles.screening(step, steps, steps)
    if step.accounting == "unproved":
        return charges
    if not step.lowest_acceptance:
        raise ValueError(
            "--lowest-acceptance is 0: clipped losses are accepted with probability exp(-c Q0 tau) at least; give that"
        )
    return charges + _cap(flags, step.lowest_acceptance, steps)


def _trials(flags: Values) -> int:
    """The planned trials, where each is charged.

    Raises:
        ValueError: they are not given, and accepted steps do not tell them.
    """
    if flags["trials"] is None:
        raise ValueError(
            f"--trials is missing: {flags['accounting']} charges every trial and --steps counts accepted ones; give "
            "the trials that one client plans in the whole run"
        )
    return int(flags["trials"])


def _cap(flags: Values, lowest_acceptance: float, steps: int) -> Counter[events.Event]:
    """The cap on rejections that a run with these planned accepted steps has, once for each.

    Raises:
        ValueError: delta or its share out of bounds, or acceptance is too improbable for a cap.
    """
    from mechanisms import trials
    from mechanisms.accounting.accountant import check_delta

    delta, part = flags["delta"], flags["cap_share"]
    check_delta(delta)
    if not 0 < part < 1:
        raise ValueError(f"--cap-share = {part} must be in (0, 1): a run has 0.1")
    most = trials.most_rejections(lowest_acceptance, steps, part * delta)
    if most is None:
        trials.refuse(lowest_acceptance)
    return Counter({events.TrialCap(lowest_acceptance, most): steps})


def numbers(text: str) -> list[float]:
    """The numbers of ``3,2,1``."""
    return [float(part) for part in text.split(",")]


SAMPLE_RATE = Flag("sample_rate", float, "probability that a record enters a step's batch, in (0, 1]", required=True)
TRIALS = Flag("trials", int, "a client's planned trials, accepted or not; needed where each of them is charged")
CAP_SHARE = Flag("cap_share", float, "hidden rejections: share of delta for giving up after too many, in (0, 1)", 0.1)

MECHANISMS: dict[str, Mechanism] = {
    "dpsgd": Mechanism("DPSGD (Abadi et al. 2016): Poisson-sampled Gaussian steps", (SAMPLE_RATE,), _dpsgd),
    "dpsur": Mechanism(
        "DPSUR (Fu et al. 2024): steps that pass a noisy test; --steps counts accepted ones",
        (
            SAMPLE_RATE,
            Flag("validation_rate", float, "probability that a record enters a test's batch, in (0, 1]", required=True),
            Flag("validation_noise", float, "noise of the test over its sensitivity 2 C_v", required=True),
            Flag("beta", float, "threshold of the test in units of C_v", -1.0),
            Flag("accounting", str, "what is certified", "visible", choices=ACCOUNTING),
            TRIALS,
            CAP_SHARE,
        ),
        _dpsur,
    ),
    "dpis": Mechanism(
        "DPIS (Wei et al. 2022): importance-sampled Gaussian steps; the releases of K are not included",
        (
            Flag("batch_size", float, "expected batch size b [records]", required=True),
            Flag("clip_norm", float, "bound C on a record's gradient", required=True),
            Flag("norm_sum", float, "sum K of clipped gradient norms in use, at least b C", required=True),
            Flag("records", float, "number of records N", required=True),
        ),
        _dpis,
    ),
    "dphero": Mechanism(
        "DP-Hero (Zheng et al.): noise shaped by a layer's eigenvalues",
        (
            SAMPLE_RATE,
            Flag("eigenvalues", numbers, "eigenvalues of W W^T of one layer, such as 3,2,1", required=True),
            Flag("hero_clipping", str, "how records are clipped", "whitened", choices=("whitened", "isotropic")),
        ),
        _dphero,
        lambda flags, noise: {"effective_noise_multiplier": noise * _hero_scale(flags)},
    ),
    "screening": Mechanism(
        "noise screening (Fu, Chen, Ling 2022): steps that pass a test; --steps counts accepted ones",
        (
            SAMPLE_RATE,
            Flag("accounting", str, "on which data the test runs, and how", "unproved", choices=SCREENING),
            Flag("test_rate", float, "clipped: probability that a record enters a test's batch, in (0, 1]", 1.0),
            Flag(
                "lowest_acceptance", float, "clipped: exp(-c Q0 tau) for loss differences clipped to c, in [0, 1]", 0.0
            ),
            TRIALS,
            CAP_SHARE,
        ),
        _screening,
    ),
    "fedfed": SHARING,
}
