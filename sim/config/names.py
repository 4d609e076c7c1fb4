"""The nearest known name: what an error about an unknown name suggests."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name in lower case that is most like this one; None where none reaches ``likeness``, in [0, 1]."""
    return next(iter(get_close_matches(name.lower(), list(known), n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` with the nearest known name, or nothing where none is near."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """Half a sentence for an error: the nearest known name if one is near, and all of them."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    return f"{hint}known: {', '.join(names)}"
