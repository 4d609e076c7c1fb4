"""A strategy of the user's own, tried on made-up updates before a run: what it gives, and whether
it gives the same again."""

import numpy as np

from mechanisms.plugins import one_line
from strategies.strategy import ServerState, Strategy

PARAMETERS, MAX_CLIENTS = 7, 1000


def check(name: str, strategy: Strategy, clients: int) -> None:
    """Refuse a strategy that cannot work.

    Args:
        name: what the user calls it, for messages.
        strategy: the strategy.
        clients: how many answer in a round.

    Raises:
        ValueError: it fails, returns no state and model, differs when it is called again, or leaves
            the model as it is although it looks at every client.
    """
    said = f"strategy = {name!r}"
    try:
        once, again = (_after(strategy, min(clients, MAX_CLIENTS)) for _ in range(2))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(reason if reason.startswith(said) else f"{said}: {reason}") from error
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ValueError(
            f"{said} fails on made-up updates ({one_line(error)}): correct it"
        ) from error
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
        _check(state, params)
    return params


def _check(state: ServerState, params: np.ndarray) -> None:
    arrays = state.values() if isinstance(state, dict) else [state]
    if not all(isinstance(one, np.ndarray) and one.dtype.kind in "biuf" for one in arrays):
        raise ValueError("its state must be a dictionary of NumPy arrays of numbers: make it so")
    form = getattr(params, "dtype", type(params)), getattr(params, "shape", ())
    if form != (np.float32, (PARAMETERS,)):
        raise ValueError(
            f"it gives a model of {form[0]} and shape {form[1]} for one of float32 and shape "
            f"{(PARAMETERS,)}: return it as it came"
        )
