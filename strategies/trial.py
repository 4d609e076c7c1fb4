"""A strategy of the user's own: what it gives is checked in each round, and tried before a run on
made-up updates, whether it is the same again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from mechanisms.guide import Guide, Surroundings, alone
from mechanisms.plugins import one_line
from strategies.strategy import ServerState, Strategy

PARAMETERS, MAX_CLIENTS = 7, 1000
MAX_WEIGHT = 2**27
"""Maximum of all clients' weights together: weighted sums have room for 2^31 (`client.sums`), and
so for updates of up to 16."""


def check(name: str, strategy: Strategy, clients: int) -> None:
    """Refuse a strategy that cannot work.

    Args:
        name: what the user calls it, for messages.
        strategy: the strategy.
        clients: how many answer in a round.

    Raises:
        ValueError: it fails, returns no state and finite model, differs when it is called again,
            or leaves the model as it is although it looks at every client.
    """
    said = f"strategy = {name!r}"
    with _naming(said):
        once, again = (_after(strategy, min(clients, MAX_CLIENTS)) for _ in range(2))
    if not np.isfinite(once).all():
        raise ValueError(f"{said} gives a model that is not finite for small updates: correct it")
    if not np.array_equal(once, again):
        raise ValueError(
            f"{said} gives another model when it is called again with the same: draw nothing in "
            "it, and keep all that lasts in its state"
        )
    if strategy.each is not None and not once.any():
        raise ValueError(
            f"{said} leaves the model as it is when {clients} clients answer: let more of them "
            "take part, or give it other settings"
        )


def _after(strategy: Strategy, clients: int) -> np.ndarray:
    """The model after two rounds of the same updates, from zero."""
    params = np.zeros(PARAMETERS, np.float32)
    state, columns = strategy.init(params), PARAMETERS + strategy.sent.extra
    updates = np.cos(np.arange(1.0, 1 + clients * columns)).reshape(clients, columns)
    weights = np.arange(1, 1 + clients)
    for _ in range(2):
        if strategy.each is None:
            state, params = strategy.aggregate(state, params, weights @ updates / weights.sum())
        else:
            state, params = strategy.each(state, params, updates, weights)
        _check(state, params, PARAMETERS)
    return params


def checked(name: str, strategy: Strategy) -> Strategy:
    """The strategy, which is named by what it raises in a round, or returns that cannot be used."""

    def of(step: Callable[..., Any]) -> Callable[..., tuple[ServerState, np.ndarray]]:
        def stepped(
            state: ServerState, params: np.ndarray, *uploads: np.ndarray
        ) -> tuple[ServerState, np.ndarray]:
            size = len(params)
            with _naming(f"strategy = {name!r}"):
                state, params = step(state, params.copy(), *uploads)  # clients may be at work on it
                _check(state, params, size)
            return state, params

        return stepped

    def guide(around: Surroundings) -> Guide:
        """Its own copies: they may be the server's model, from which an update is taken."""
        found = strategy.guide(replace(around, start=around.start.clone()))
        return lambda params, gradient: found(params.clone(), gradient)

    each = strategy.each and of(strategy.each)
    guided = alone if strategy.guide is alone else guide
    return replace(strategy, aggregate=of(strategy.aggregate), each=each, guide=guided)


@contextmanager
def _naming(said: str) -> Iterator[None]:
    """Have the user's own code fail by a ValueError whose message begins with ``said``."""
    try:
        yield
    except MemoryError:
        raise
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(reason if reason.startswith(said) else f"{said}: {reason}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{said} fails ({one_line(error)}): correct it") from error


def check_weights(name: str, strategy: Strategy, sizes: np.ndarray) -> None:
    """Refuse a strategy that cannot weight the clients with these numbers of records ``[clients]``.

    Raises:
        ValueError: it fails, does not give each an integer of at least 0, or gives all none, or
            more than sums have room for.
    """
    with _naming(f"strategy = {name!r}"):
        weights, clients = strategy.weights(sizes.copy()), len(sizes)
        found = np.asarray(weights)
        whole = isinstance(weights, np.ndarray) and found.dtype.kind in "iu"
        if not whole or found.shape != (clients,) or found.min() < 0:
            raise ValueError(
                f"its weights are of {found.dtype} and shape {found.shape} for {clients} clients: "
                "return an array with an integer of at least 0 for each"
            )
        if not 1 <= (total := sum(found.tolist())) <= MAX_WEIGHT:
            raise ValueError(
                f"its weights of {clients} clients, with {sizes.min()} to {sizes.max()} records, "
                f"add up to {total}, which must be from 1 to {MAX_WEIGHT}: scale them"
            )


def _check(state: ServerState, params: np.ndarray, size: int) -> None:
    arrays = state.values() if isinstance(state, dict) else [state]
    if not all(isinstance(one, np.ndarray) and _is_storable(one.dtype) for one in arrays):
        raise ValueError("its state must be a dictionary of NumPy arrays of numbers: make it so")
    form = getattr(params, "dtype", type(params)), getattr(params, "shape", ())
    if form != (np.float32, (size,)):
        raise ValueError(
            f"it gives a model of {form[0]} and shape {form[1]} for one of float32 and shape "
            f"{(size,)}: return it as it came"
        )


def _is_storable(kind: np.dtype[Any]) -> bool:
    """Whether checkpoints have room for arrays of this type."""
    return kind.kind in "biuf" and kind.itemsize <= 8
