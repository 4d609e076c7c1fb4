"""Answers ``sim.account``: the price of a run, or of one client's round of a mechanism."""

from collections.abc import Sequence
from dataclasses import replace

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.events import HeterogeneousGaussian, ImportanceSampledGaussian
from mechanisms.dphero import HeroPlan
from mechanisms.dpis_plan import DpisPlan
from mechanisms.noise_shape import scales
from mechanisms.plan import Plan, Terms, merge
from mechanisms.registry import mechanism_of, settings_of
from mechanisms.trials import TrialPlan
from sim.commands.account import SHARED, Question
from sim.config.fields import Config
from sim.job.job import TRAIN
from sim.phases import sharing, training
from sim.phases.phase import Outlook
from sim.phases.prices import Entries, Price, figures_of, of_best, outlook_of, prices

CLIENT = (0,)

OF_A_RUN = (
    "A quantity that only a run gives was taken for granted: no guarantee of a run, in which it is "
    "bounded beforehand, or released and paid for."
)
"""The caveat of a figure for a given norm sum or given eigenvalues."""


def answer(question: Question) -> Entries:
    """The answer to a parsed command line of ``sim.account``.

    Raises:
        ValueError: the budget does not pay for it, or the data cannot be used.
    """
    config, one_record = question.config, (1,) if question.word else None
    outlook = outlook_of(config, question.records or one_record)
    if question.word == SHARED:
        return _figures(question, [price_shared(outlook)]) | shared_settings(config)
    if question.found == (None, None, None):
        return _figures(question, prices(outlook))
    price = price_found(question, outlook)
    result = figures_of(config, [price], question.orders)
    result |= {"steps": training.local_steps(config, int(outlook.sizes[0]))}
    if question.eigenvalues is not None:
        least = [e.smallest_scale for e in price.charges if isinstance(e, HeterogeneousGaussian)]
        result |= {"effective_noise_multiplier": result["noise_multiplier"] * min([1.0, *least])}
    if question.norm_sum is not None or question.eigenvalues is not None:
        result["caveats"] = [*result["caveats"], OF_A_RUN]
    named = zip(("trials", "norm_sum", "eigenvalues"), question.found, strict=True)
    return result | {name: value for name, value in named if value is not None}


def _figures(question: Question, found: Sequence[Price]) -> Entries:
    """The price, and that of the best of several runs if it is asked for."""
    config, tries = question.config, question.tries
    result = figures_of(config, found, question.orders)
    if tries is None:
        return result
    return result | {"tries": tries, "epsilon_best": of_best([found], config.privacy.delta, tries)}


def price_shared(outlook: Outlook) -> Price:
    """The price of the records that one client shares.

    Raises:
        ValueError: the share of the budget pays for no release.
    """
    table = sharing.plan(outlook, {})
    if table is None:
        raise ValueError("nothing is shared: leave out --strategy and --shared-source")
    plan = table.plans[0]
    return Price(sharing.NAME, CLIENT, 1, plan, plan.round_charges(1), {})


def shared_settings(config: Config) -> Entries:
    """The settings of sharing, in place of a mechanism's."""
    names = ("share_budget", "share_rate", "share_views", "label_epsilon", "public_labels")
    return {"mechanism": SHARED} | {name: getattr(config.fedfed, name) for name in names}


def price_found(question: Question, outlook: Outlook) -> Price:
    """The price of one client's round, given a quantity that is only known during a run.

    Raises:
        ValueError: no noise is large enough, or the quantity does not apply to the mechanism.
    """
    config, size = question.config, int(outlook.sizes[0])
    privacy, accepted = config.privacy, training.local_steps(config, size)
    own = settings_of(privacy, config)
    rounds, trials = config.rounds.rounds, question.trials or accepted
    if rounds != 1:
        raise ValueError(
            f"rounds is {rounds}, but --trials, --norm-sum and --eigenvalues are for one round: "
            "use --steps"
        )
    terms = Terms(privacy.of_size(size), own, trials, rounds, size)

    def price(noise: float) -> Price:
        plan = mechanism_of(privacy).plan(terms, noise)
        return Price(TRAIN, CLIENT, 1, plan, _charges(question, plan, accepted), {})

    noise = privacy.noise_multiplier
    if noise is None:
        noise = smallest(
            lambda s: price(s).charges, terms.target, privacy.delta, column=privacy.budget
        )
    return price(noise)


def _charges(question: Question, plan: Plan, accepted: int) -> Charges:
    """The charges of a plan with ``accepted`` steps.

    Raises:
        ValueError: the given quantity does not apply to the mechanism, or is out of bounds.
    """
    trials, norm_sum, eigenvalues = question.found
    if trials is not None and isinstance(plan, TrialPlan) and not plan.most_rejections:
        if trials < accepted:
            raise ValueError(
                f"--trials = {trials} must be at least --steps = {accepted}, the accepted ones"
            )
        return merge(plan.round_charges(1), plan.claims(accepted, 1))
    if norm_sum is not None and isinstance(plan, DpisPlan):
        batch = plan.sample_rate * plan.records
        if norm_sum < batch * plan.clip_norm:
            raise ValueError(
                f"--norm-sum = {norm_sum:g} must be at least {batch * plan.clip_norm:g}, the "
                "expected batch times --clip-norm"
            )
        sizes = (batch, plan.clip_norm, norm_sum, plan.records)
        return {ImportanceSampledGaussian(*sizes, plan.noise_multiplier): accepted}
    if eigenvalues is not None and isinstance(plan, HeroPlan):
        return replace(plan, floor=min(1.0, *scales(eigenvalues))).round_charges(1)
    raise ValueError(
        "--trials is for mechanisms that charge every test, --norm-sum for dpis, --eigenvalues "
        "for dphero: leave it out"
    )
