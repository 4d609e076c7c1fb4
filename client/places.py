"""Where ledgers ended after the last answer: one that is lost or cut off since then is missed."""

import json
from collections.abc import Mapping
from pathlib import Path

from mechanisms import durable
from mechanisms.journal import Place


def remember(file: Path, ledgers: Mapping[Path, Place]) -> None:
    """Write down where ledgers end, which are in or below the file's folder."""
    places = {str(path.relative_to(file.parent)): place for path, place in ledgers.items()}
    durable.write(file, json.dumps(places).encode(), private=True)


def known(file: Path) -> dict[Path, Place]:
    """The places by ledger; empty before the first answer.

    Raises:
        ValueError: the file is damaged.
    """
    if not file.exists():
        return {}
    try:
        places = json.loads(durable.read(file))
        return {file.parent / name: _place(*place) for name, place in places.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError(f"{file} is damaged ({fault}): restore it from a copy") from None


def _place(number: object, chain: object) -> Place:
    if not isinstance(number, int) or not isinstance(chain, str):
        raise ValueError(f"{number!r}, {chain!r} is no place")
    return Place(number, chain)
