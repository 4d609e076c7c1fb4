"""What FedFed's clients do before training, planned: what each release draws, and how the budget is split."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.calibration import smallest
from mechanisms.plan import Plan, PlanTable, merge, planned
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.settings import MechanismName, Privacy
from mechanisms.sharing import SharingPlan
from sim.config.configuration import Config
from strategies.settings import FedFed

PUBLIC, NONE = "public", "none"
LABEL_SHARE = 0.25
"""Of the share budget, for labels."""


@dataclass(frozen=True)
class Sharing:
    """The plans of a client before training; the same for all clients.

    Attributes:
        mechanism: by which a generator is trained.
        generator: the plan of that training; None where features are fixed.
        rounds: of that training.
        release: what is then released, once.
    """

    mechanism: MechanismName
    generator: Plan | None
    rounds: int
    release: SharingPlan

    @property
    def charges(self) -> Charges:
        """All that a client pays before training."""
        training = {} if self.generator is None else planned(self.generator, self.rounds)
        return merge(training, self.release.round_charges(1))


def same_for_all(plan: Plan, clients: int) -> PlanTable:
    """One plan for every client."""
    return PlanTable((plan,), np.zeros(clients, dtype=np.int64))


def plan_sharing(config: Config, shape: Sequence[int], target: float, public: bool) -> Sharing | None:
    """The plans for records of ``shape``; None where clients release nothing before training.

    Raises:
        ValueError: public records are to be shared and there are none; the share budget pays for no release.
    """
    own = config.fedfed
    if config.strategy.strategy != "fedfed" or own.shared_source == NONE:
        return None
    if own.shared_source == PUBLIC:
        if not public:
            raise ValueError("shared_source is public, but public_records is 0: give --public-records")
        return None
    if not MECHANISMS[config.privacy.mechanism].private:
        generator = _generator(Privacy(mechanism="none"), own)
        return Sharing("none", generator, own.distill_rounds, _release(own, math.inf, None, 0.0))
    if math.isinf(target) and (own.share_noise is None or own.distills):
        raise ValueError("share_budget is a share of epsilon, which is none: give --epsilon")
    epsilon, delta = own.share_budget * target, config.privacy.delta
    generator = _generator(Privacy(epsilon=own.distill_budget * epsilon, delta=delta, clip_norm=own.distill_clip), own)
    spent = {} if generator is None else planned(generator, own.distill_rounds)
    bound = 0.5 * math.sqrt(math.prod(shape)) if own.share_clip is None else own.share_clip
    labels = own.label_epsilon or LABEL_SHARE * epsilon
    release = functools.partial(_release, own, bound, None if own.public_labels else labels)
    noise = own.share_noise or _least_noise(lambda noise: merge(spent, release(noise).round_charges(1)), config)
    return Sharing("dpsgd", generator, own.distill_rounds, release(noise))


def _generator(privacy: Privacy, own: FedFed) -> Plan | None:
    """One step on all of a client's records in each round; None where features are fixed."""
    one = np.ones(1, dtype=np.int64)
    return plan_table(privacy, None, one, own.distill_rounds, one).plans[0] if own.distills else None


def _release(own: FedFed, bound: float, label_epsilon: float | None, noise: float) -> SharingPlan:
    if own.shared_source == "prototypes":
        return SharingPlan(noise, bound)
    return SharingPlan(noise, bound, True, own.share_rate, own.share_views, label_epsilon)


def _least_noise(charges_of: Callable[[float], Charges], config: Config) -> float:
    """The smallest noise multiplier with which all that precedes training stays within the share budget."""
    share = config.fedfed.share_budget
    epsilon = share * (config.privacy.epsilon or math.inf)
    try:
        return smallest(charges_of, epsilon, config.privacy.delta)
    except ValueError as fault:
        raise ValueError(
            f"share_budget = {share:g} of epsilon is {epsilon:.4g}, which pays for no release ({fault}): raise "
            "--share-budget or --epsilon, or lower --label-epsilon"
        ) from None
