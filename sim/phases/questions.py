"""What a mechanism costs one client, without a run: its own plan, and figures that a run finds out
on its way."""

from dataclasses import replace

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.events import HeterogeneousGaussian, ImportanceSampledGaussian
from mechanisms.dphero import HeroPlan
from mechanisms.dpis_plan import DpisPlan
from mechanisms.noise_shape import smallest_scale
from mechanisms.plan import Plan, Terms, merge
from mechanisms.registry import MECHANISMS
from mechanisms.trials import TrialPlan
from sim.commands.account import SHARED, Question
from sim.config.fields import Config
from sim.job.job import TRAIN
from sim.phases import sharing, training
from sim.phases.phase import Outlook
from sim.phases.prices import Price, Record, figures_of, outlook_of, prices

CLIENT = (0,)


def answer(question: Question) -> Record:
    """The figures that a question asks for.

    Raises:
        ValueError: the budget does not pay for it, or the data cannot be used.
    """
    config, one_record = question.config, (1,) if question.word else None
    outlook = outlook_of(config, question.records or one_record)
    if question.word == SHARED:
        return figures_of(config, [price_shared(outlook)], question.orders) | shared_settings(
            config
        )
    if question.found == (None, None, None):
        return figures_of(config, prices(outlook), question.orders)
    price = price_found(question, outlook)
    result = figures_of(config, [price], question.orders)
    result |= {"steps": training.local_steps(config, int(outlook.sizes[0]))}
    if question.eigenvalues is not None:
        scales = [e.smallest_scale for e in price.charges if isinstance(e, HeterogeneousGaussian)]
        result |= {"effective_noise_multiplier": result["noise_multiplier"] * min([1.0, *scales])}
    named = {
        "trials": question.trials,
        "norm_sum": question.norm_sum,
        "eigenvalues": question.eigenvalues,
    }
    return result | {name: value for name, value in named.items() if value is not None}


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


def shared_settings(config: Config) -> Record:
    """What one client shares, in place of a mechanism's settings."""
    names = ("share_budget", "share_rate", "share_views", "label_epsilon", "public_labels")
    return {"mechanism": SHARED} | {name: getattr(config.fedfed, name) for name in names}


def price_found(question: Question, outlook: Outlook) -> Price:
    """The price of one client's round, with a figure that a run finds out.

    Raises:
        ValueError: no noise is large enough, or the figure does not belong to the mechanism.
    """
    config, size = question.config, int(outlook.sizes[0])
    privacy, accepted = config.privacy, training.local_steps(config, size)
    own = getattr(config, privacy.mechanism, None)
    terms = Terms(
        privacy.of_size(size), own, question.trials or accepted, config.rounds.rounds, size
    )
    if config.rounds.rounds != 1:
        raise ValueError(
            f"rounds is {config.rounds.rounds}, but --trials and its like are of one round: use "
            "--steps"
        )

    def price(noise: float) -> Price:
        plan = MECHANISMS[privacy.mechanism].plan(terms, noise)
        return Price(TRAIN, CLIENT, 1, plan, _charges(question, plan, accepted), {})

    noise = privacy.noise_multiplier
    if noise is None:
        noise = smallest(
            lambda s: price(s).charges, terms.target, privacy.delta, column=privacy.budget
        )
    return price(noise)


def _charges(question: Question, plan: Plan, accepted: int) -> Charges:
    """What so many accepted steps of a plan cost.

    Raises:
        ValueError: the mechanism has no such figure, or it is out of bounds.
    """
    trials, norm_sum, eigenvalues = question.found
    if trials is not None and isinstance(plan, TrialPlan) and not plan.most_rejections:
        if trials < accepted:
            raise ValueError(
                f"--trials = {trials} must be at least --steps = {accepted}, the accepted ones"
            )
        return merge(plan.round_charges(1), plan.claims(accepted, 1))
    if norm_sum is not None and isinstance(plan, DpisPlan):
        sizes = (plan.sample_rate * plan.records, plan.clip_norm, norm_sum, plan.records)
        return {ImportanceSampledGaussian(*sizes, plan.noise_multiplier): accepted}
    if eigenvalues is not None and isinstance(plan, HeroPlan):
        return replace(plan, floor=smallest_scale([eigenvalues])).round_charges(1)
    raise ValueError(
        "--trials is for tests of which each is charged, --norm-sum for dpis, --eigenvalues for "
        "dphero: leave it out"
    )
