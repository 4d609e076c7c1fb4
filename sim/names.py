"""The nearest known name: what an error about an unknown name suggests."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, known: Iterable[str]) -> str:
    """Half a sentence for an error: the nearest known name if one is near, and all of them."""
    names = list(known)
    near = get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names)}"
