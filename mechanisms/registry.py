"""The mechanisms by name, or of the user's own, and the plans of all clients."""

import math
from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType

import numpy as np

from mechanisms import personal, plugins
from mechanisms.accounting.accountant import Charges, epsilon
from mechanisms.mechanism import Mechanism
from mechanisms.own import check_charges, checked
from mechanisms.plan import Claimant, Plan, PlanTable, Terms, affordable_rounds, kinds_of, tabulate
from mechanisms.settings import MECHANISM_NAMES, Privacy, Settings, validated

MECHANISMS: dict[str, Mechanism] = {
    name: import_module(f"mechanisms.{name}").MECHANISM for name in MECHANISM_NAMES
}
"""Each is the ``MECHANISM`` of the module of its name."""

NOTHING: Charges = MappingProxyType({})
FORM = "a mechanisms.mechanism.Mechanism"


def mechanism_of(privacy: Privacy) -> Mechanism:
    """The mechanism that the settings name.

    Raises:
        ValueError: one of the user's own cannot be imported, is none, or is not private.
    """
    if privacy.mechanism in MECHANISMS:
        return MECHANISMS[privacy.mechanism]
    found = plugins.plugin("mechanism", privacy.mechanism, FORM)
    said = f"mechanism = {privacy.mechanism!r}"
    if not isinstance(found, Mechanism):
        raise ValueError(f"{said} is a {type(found).__name__}: name {FORM}")
    if not found.private:
        raise ValueError(f"{said} is not private, as only --mechanism none may be: use that")
    kind = found.settings
    if not (kind is None or (isinstance(kind, type) and issubclass(kind, Settings))):
        raise ValueError(
            f"{said} has settings = {kind!r}: name a subclass of mechanisms.settings.Settings"
        )
    return checked(privacy.mechanism, found)


def settings_of(privacy: Privacy, tables: object) -> Settings | None:
    """The mechanism's own settings, if it has any: the field of its name in ``tables``, or what
    ``mechanism_settings`` says, as the class of the user's own mechanism reads it.

    Raises:
        ValueError: a setting is unknown or out of its bound.
    """
    if privacy.mechanism in MECHANISMS:
        return getattr(tables, privacy.mechanism, None)
    given = plugins.values("mechanism_settings", privacy.mechanism_settings)
    kind, said = mechanism_of(privacy).settings, f"mechanism_settings of {privacy.mechanism}"
    if kind is not None:
        try:
            return validated(kind, given)
        except ValueError as fault:
            raise ValueError(f"{said}: {fault}") from None
    if given:
        name, value = next(iter(given.items()))
        raise ValueError(
            f"{said}: {name} = {value!r} is refused (it has no settings of its own): leave it out"
        )
    return None


def plan_table(
    privacy: Privacy,
    own: Settings | None,
    steps: int | np.ndarray,
    rounds: int,
    sizes: np.ndarray,
    prior: Charges = NOTHING,
    mechanism: Mechanism | None = None,
) -> PlanTable:
    """Every client's plan, its noise calibrated so that ``rounds`` rounds meet (epsilon, delta).

    Args:
        privacy: the privacy settings; with a noise multiplier given, epsilon only bounds the number
            of rounds. Personal budgets are those of the clients' numbers.
        own: the mechanism's own settings, if it has any.
        steps: local steps a round, of all clients or of each, ``[clients]``.
        rounds: rounds in which a client is to take part.
        sizes: public numbers of records, int64 ``[clients]``.
        prior: what every client pays besides these rounds out of the same budget.
        mechanism: whose plans they are; None: the one that the privacy settings name.

    Raises:
        ValueError: the budget does not pay for one round, or the run's length would depend on
            outputs.
    """
    mechanism = mechanism or mechanism_of(privacy)
    sized = mechanism.sized or privacy.batch_size is not None or privacy.sampling != "poisson"
    seen = sizes if sized else np.ones_like(sizes)
    targets, target_of = np.unique(personal.of_clients(privacy, len(sizes)), return_inverse=True)
    of_target = [privacy.of_budget(target) for target in targets.tolist()]
    kinds, which = kinds_of(seen, np.broadcast_to(steps, sizes.shape), target_of)
    terms = [
        Terms(of_target[t].of_size(size), own, count, rounds, size, tuple(prior.items()))
        for size, count, t in kinds.tolist()
    ]
    return tabulate(_plans(mechanism, terms), which)


def _plans(mechanism: Mechanism, terms: Sequence[Terms]) -> Sequence[Plan]:
    """A plan for each of the terms, which differ in rate, steps, size and budget alone."""
    noise = terms[0].privacy.noise_multiplier
    if not mechanism.private:
        return [mechanism.plan(one, 0.0) for one in terms]
    name, first = terms[0].privacy.mechanism, mechanism.plan(terms[0], noise or 1.0)
    own = name not in MECHANISMS
    if own:
        check_charges(name, first, terms[0].rounds)
    _check_length(first, terms[0])
    if noise is None:
        plans = mechanism.calibrate(mechanism.plan, terms)
    else:
        plans = [mechanism.plan(one, noise) for one in terms]
    if own or noise is not None:
        for plan, one in zip(plans, terms, strict=True):
            affordable_rounds(plan, one, at_most=1)
    return plans


def _check_length(plan: Plan, terms: Terms) -> None:
    """Refuse a published budget if outputs would decide the number of rounds of a run with a finite
    certified epsilon.

    That epsilon would be taken at a time that outputs choose, which no theorem covers.
    """
    charges = plan.most_claims(1) if isinstance(plan, Claimant) else {}
    if (
        terms.privacy.budget == "published"
        and charges
        and epsilon(plan.round_charges(1), 0.5).epsilon < math.inf
    ):
        raise ValueError(
            f"budget is published, but what {terms.privacy.mechanism} accepts is public here, so "
            "that the run's length would depend on it and no epsilon would be proved: use a test "
            "with hidden rejections (--dpsur-accounting selective; --screening-data own with "
            "--screening-clip), or --budget certified"
        )
