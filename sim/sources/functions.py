"""A data set that a function of the user's own makes, ``package.module:function``."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from mechanisms.plugins import one_line, plugin

NAMES = ("x", "y", "x_test", "y_test")
FORM = "a function without arguments that returns (x, y), (x, y, x_test, y_test) or a dictionary"


def call(name: str) -> dict[str, np.ndarray]:
    """The arrays by name that the function returns.

    Raises:
        ValueError: it cannot be found or called, or returns something else.
    """
    found = plugin("dataset", name, FORM)
    if not callable(found):
        raise ValueError(f"dataset = {name!r} is a {type(found).__name__}: name {FORM}")
    try:
        given = cast(Callable[[], Any], found)()
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ValueError(
            f"dataset = {name!r} fails ({one_line(error)}): it must be {FORM}"
        ) from error
    return by_name(given, f"dataset = {name!r}")


def by_name(given: Any, said: str) -> dict[str, np.ndarray]:
    """Arrays by name, from a dictionary or a tuple of two or four, of NumPy, PyTorch or lists.

    Raises:
        ValueError: it is neither, or holds what is no array; the message begins with ``said``.
    """
    if isinstance(given, Mapping):
        named = dict(given)
    elif isinstance(given, tuple | list) and len(given) in (2, 4):
        named = dict(zip(NAMES, given, strict=False))
    else:
        count = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise ValueError(
            f"{said} is a {type(given).__name__}{count}: give (x, y), (x, y, x_test, y_test), or a "
            "dictionary of arrays such as {'x': x, 'y': y, 'client': client}"
        )
    return {str(name): _array(str(name), one, said) for name, one in named.items()}


def _array(name: str, given: Any, said: str) -> np.ndarray:
    """The given array, or that of a tensor or list."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise ValueError(
            f"{said}: {name} has {np.ma.count_masked(given)} masked entries, which would count: "
            "fill them in, or drop their records"
        )
    try:
        return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    except (TypeError, ValueError, RuntimeError) as fault:
        reason = " ".join(str(fault).split())
        raise ValueError(
            f"{said}: {name} is no array of numbers ({reason}): give one of NumPy or PyTorch"
        ) from None
