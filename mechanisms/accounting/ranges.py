"""Sets of client ids as short text: ``"0-99,105"``."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_CLIENTS = 10**7
"""Ids are below it: no text stands for more than 80 MB of them."""
PATTERN = re.compile(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", re.ASCII)


def format_ranges(ids: Sequence[int] | NDArray[np.int64]) -> str:
    """Distinct ids (at least 0, any order, shape ``[n]``) as ascending ranges; "" for none."""
    ordered = np.sort(np.asarray(ids, dtype=np.int64))
    if not ordered.size:
        return ""
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate(([0], breaks + 1))].tolist()
    lasts = ordered[np.concatenate((breaks, [ordered.size - 1]))].tolist()
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def parse_ranges(text: str) -> NDArray[np.int64]:
    """The ids that :func:`format_ranges` wrote, ascending, int64 ``[n]``.

    Raises:
        ValueError: the text is no list of ascending, disjoint ranges of ids below 10^7.
    """
    if text == "":
        return np.empty(0, dtype=np.int64)
    firsts, lasts = parse_pairs(text)
    lengths = lasts - firsts + 1
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum(), dtype=np.int64) + np.repeat(firsts - starts, lengths)


def parse_pairs(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the last id of each range, of which there is at least one.

    Raises:
        ValueError: as :func:`parse_ranges`.
    """
    if not PATTERN.fullmatch(text):
        raise ValueError(
            f"ranges = {text[:60]!r} must be ids below 10^7 and first-last pairs; write 0-99,105"
        )
    pairs = [part.partition("-") for part in text.split(",")]
    firsts = np.array([first for first, _, _ in pairs], dtype=np.int64)
    lasts = np.array([last or first for first, _, last in pairs], dtype=np.int64)
    if (firsts > lasts).any() or (firsts[1:] <= lasts[:-1]).any():
        raise ValueError(f"ranges = {text[:60]!r} must ascend without overlap; write 0-99,105")
    return firsts, lasts
