"""A mechanism of the user's own: it is named by what it raises, and what it returns is checked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from mechanisms.accounting.accountant import Charges, rdp
from mechanisms.accounting.allotment import AdaptivePlan, check_covered
from mechanisms.accounting.events import Event
from mechanisms.cohort import Cohort, LocalState
from mechanisms.mechanism import Mechanism
from mechanisms.plan import Plan, Terms
from mechanisms.plugins import one_line

PATIENCE = 1000
"""Attempts at each planned step, on average over a round, after which a round has no end."""


def checked(name: str, given: Mechanism) -> Mechanism:
    """The mechanism, which raises a ValueError where it fails or returns what cannot be used."""

    def plan(terms: Terms, noise: float) -> Plan:
        with _naming(name):
            found = given.plan(terms, noise)
            hash(found)
            if not (hasattr(found, "steps") and hasattr(found, "round_charges")):
                raise TypeError(f"its plan is a {type(found).__name__}, without steps or charges")
            return found

    def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
        with _naming(name), _only_read([params], cohort):
            return _state(given.start(cohort, params), len(cohort.plans), len(params))

    def step(cohort: Cohort, state: LocalState) -> LocalState:
        held = [state.params, *state.optimizer, state.taken, *state.memory.values()]
        with _naming(name), _only_read(held, cohort):
            return _state(given.step(cohort, state), *state.params.shape)

    def metrics(cohort: Cohort, state: LocalState) -> Mapping[str, torch.Tensor]:
        with _naming(name):
            found = dict(given.metrics(cohort, state))
            return {of: _of_clients(one, cohort, f"metric {of!r}") for of, one in found.items()}

    def realized(cohort: Cohort, state: LocalState) -> Sequence[Charges]:
        with _naming(name):
            return _covered(list(given.realized(cohort, state)), cohort)

    def calibrate(plan_of: Callable[[Terms, float], Plan], terms: Sequence[Terms]) -> list[Plan]:
        with _naming(name):
            found = list(given.calibrate(plan_of, terms))
            if len(found) != len(terms):
                raise TypeError(f"it calibrates {len(found)} plans for {len(terms)} terms")
            return found

    active: Callable[[Cohort, LocalState], torch.Tensor] | None = None
    if asked := given.active:

        def active(cohort: Cohort, state: LocalState) -> torch.Tensor:
            with _naming(name):
                return _paid(_of_clients(asked(cohort, state), cohort, "active"), cohort, state)

    return replace(
        given,
        plan=plan,
        start=start,
        step=step,
        active=active,
        metrics=metrics,
        realized=realized,
        calibrate=calibrate,
        patience=PATIENCE,
    )


def check_round(
    name: str, mechanism: Mechanism, cohort: Cohort, params: torch.Tensor, keeps: bool
) -> None:
    """Refuse a mechanism that fails in the first step of a round, before anything is paid for it.

    Args:
        name: what the user calls it, for messages.
        mechanism: as `checked` gives it.
        cohort: made-up clients.
        params: the model ``[P]``.
        keeps: whether clients keep the mechanism's lasting memory.

    Raises:
        ValueError: it fails, or its lasting memory is not there from the start.
    """
    state = mechanism.start(cohort, params)
    with _naming(name):
        missing = [one for one in mechanism.lasting if one not in state.memory]
    if keeps and missing:
        raise ValueError(
            f"mechanism = {name!r} has lasting = {mechanism.lasting!r}, and its start remembers "
            f"{', '.join(state.memory) or 'nothing'}: name in lasting what start remembers, or "
            "leave --keep-state out"
        )
    if mechanism.active is not None:
        mechanism.active(cohort, state)
    state = mechanism.step(cohort, state)
    mechanism.metrics(cohort, state)
    mechanism.realized(cohort, state)


def check_charges(name: str, plan: Plan, rounds: int) -> None:
    """Refuse a plan with a round that costs nothing in the certified column.

    A paper's claim, or an event that is paid for elsewhere, costs nothing there.
    """
    known = set[frozenset[tuple[Event, int]]]()
    for nth in range(1, rounds + 1):
        with _naming(name):
            charges = dict(plan.round_charges(nth))
        if (kind := frozenset(charges.items())) in known:
            continue
        known.add(kind)
        if not rdp(charges, [2.0], "certified").any():
            raise ValueError(
                f"mechanism = {name!r} charges nothing for a round, so that nothing would be "
                f"proved (round {nth}: {charges}): return in round_charges what a round releases"
            )


def _state(found: LocalState, clients: int, size: int) -> LocalState:
    if not isinstance(found, LocalState):
        raise TypeError(f"it returns a {type(found).__name__}, not a LocalState")
    if found.params.shape != (clients, size):
        shape = tuple(found.params.shape)
        raise TypeError(f"it returns params of shape {shape}, not {(clients, size)}")
    return found


def _paid(going: torch.Tensor, cohort: Cohort, state: LocalState) -> torch.Tensor:
    """Who goes on, none of them beyond the steps of its plan."""
    steps = cohort.plan("steps")
    if (going.bool() & (state.taken >= steps)).any():
        raise TypeError(
            f"active goes on after {state.taken.max():g} steps, and its plan has {steps.max():g}, "
            "for which it pays"
        )
    return going


def _covered(found: list[Charges], cohort: Cohort) -> list[Charges]:
    """What clients have released, none of it beyond what their allotments pay for."""
    if len(found) != len(cohort.plans):
        raise TypeError(f"it realized {len(found)} charges for {len(cohort.plans)} clients")
    accounts = iter(cohort.accounts)
    for charges, plan in zip(found, cohort.plans, strict=True):
        check_covered(charges, plan, next(accounts) if isinstance(plan, AdaptivePlan) else None)
    return found


def _of_clients(found: torch.Tensor, cohort: Cohort, what: str) -> torch.Tensor:
    """A tensor with a value for each client."""
    clients = (len(cohort.plans),)
    if not isinstance(found, torch.Tensor) or found.shape != clients:
        form = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise TypeError(f"{what} is {form}, not a tensor of shape {clients}")
    return found


@contextmanager
def _only_read(given: Sequence[torch.Tensor], cohort: Cohort) -> Iterator[None]:
    """Refuse what writes into the tensors that it is given, or into the records.

    Clients that are done keep the state from before a step, so that a step that writes into it
    goes on for them, beyond what they have paid for; and a round that writes into the server's
    model sends no update.
    """
    tensors = [*given, cohort.data.x, cohort.data.y]
    before = list(map(_version, tensors))
    yield
    if list(map(_version, tensors)) != before:
        raise TypeError("it writes into its state or the records, and must return new tensors")


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written into; 0 for one of inference mode, which does not count it."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ValueError(f"mechanism = {name!r} fails ({one_line(error)}): correct it") from error
