"""Columns of a table as arrays: numbers as they are, categories one-hot or as codes.

A column is numeric if all its values are numbers, categorical if none is; a mixture is refused.
Types, categories and classes are then read off the records, which no budget pays for. A file of
known columns states all of them beforehand instead:

    age = [0, 100]               # clipped to these bounds, and scaled to [-1, 1]
    colour = ["blue", "red"]     # the categories; any other value is refused
    label = ["no", "yes"]        # the classes, in the order of their numbers
    comment = "unused"           # no feature, whatever it holds
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.config.names import did_you_mean
from sim.config.settings import Data, expanded
from sim.sources import tables
from sim.sources.tables import FIRST_ROW

MAX_CATEGORIES = 1_000
"""Most categories of a column: with more it is a name or a number, not a category."""

MAX_BOUND = 1e300
"""Largest bound of a column: the distance between two is a finite number."""

MAX_WHOLE = 2.0**53
"""Numbers from here on are no longer exact, so they count no classes."""

UNUSED = "unused"
"""What a file of known columns says of a column that is no feature."""

Known = Mapping[str, list[Any]]
"""By column: two numbers, the bounds; or texts, the categories; or ``UNUSED``."""


def arrays(path: Path, data: Data) -> dict[str, np.ndarray]:
    """``x`` float64 ``[N, F]``, ``y`` ``[N]`` and, with ``client_column``, ``client`` ``[N]``.

    Text labels become the numbers of their sorted classes.

    Raises:
        ValueError: the table or the file of known columns cannot be used; the message names row and
            column.
    """
    known = _stated(expanded(data.columns)) if data.columns else {}
    unused = {name for name, value in known.items() if value == UNUSED} - {data.client_column}
    columns = tables.read(path, unused)
    _check_known(known, columns, data)
    columns = {name: values for name, values in columns.items() if name not in unused}
    if data.columns and (lacking := columns.keys() - known.keys() - {data.client_column}):
        raise ValueError(
            f"{data.columns} lacks the column {min(lacking)!r} of {path}: state all, so that "
            "nothing is read off the table"
        )
    named = {"label_column": data.label_column, "client_column": data.client_column}
    for setting, name in named.items():
        if name is not None and name not in columns:
            flag = f"--{setting.replace('_', '-')}"
            raise ValueError(
                f"{setting} = {name!r} is no column of {path}{did_you_mean(name, columns)} "
                f"(columns: {', '.join(columns)}): give {flag}"
            )
    stated = known.get(data.label_column, [0])
    found = {"y": _labels(columns, data.label_column, known, path)}
    if data.client_column is not None:
        texts = columns[data.client_column]
        found["client"] = _as_integers(texts) if texts.dtype.kind == "U" else texts
    if isinstance(stated[0], str):
        found["classes"] = np.array(len(stated))
    features = [name for name in columns if name not in named.values()]
    if not features:
        raise ValueError(f"{path} has no column beside {', '.join(columns)}: add features")
    parts = [_features(columns[name], name, known.get(name), data, path) for name in features]
    return found | {"x": np.concatenate(parts, axis=1)}


def encoded(path: Path, trained: Path, data: Data) -> np.ndarray:
    """The features of another table's rows as those of ``trained`` were made, float64 ``[N, F]``.
    Columns may stand in another order, and labels and clients may be absent.

    Raises:
        ValueError: a table or the file of known columns cannot be used, or the other table lacks a
            column or has values of another kind.
    """
    known = _stated(expanded(data.columns)) if data.columns else {}
    unused = {name for name, value in known.items() if value == UNUSED}
    unused |= {data.label_column, data.client_column or data.label_column}
    own, other = tables.read(trained, unused), tables.read(path, unused)
    _check_known(known, own, data)
    parts = []
    for name in [name for name in own if name not in unused]:
        if name not in other:
            raise ValueError(f"{path} lacks the column {name!r} of {trained}: add it")
        stated = known.get(name)
        if stated is None and _as_numbers(own[name], f"{trained}, column {name!r}") is None:
            stated = np.unique(own[name].astype(str)).tolist()
        elif stated is None and _as_numbers(other[name], f"{path}, column {name!r}") is None:
            raise ValueError(f"{path}, column {name!r} holds texts for numbers: correct it")
        parts.append(_features(other[name], name, stated, data, path))
    return np.concatenate(parts, axis=1)


def _features(
    values: np.ndarray, name: str, known: list[Any] | None, data: Data, path: Path
) -> np.ndarray:
    """A feature's columns, float64 ``[N, 1]`` or ``[N, categories]``."""
    place = f"{path}, column {name!r}"
    texts = known is not None and isinstance(known[0], str)
    numbers = None if texts else _as_numbers(values, place)
    if known is not None and not texts:
        return _scaled(numbers, known, place)[:, None]
    if numbers is not None:
        return numbers[:, None]
    codes, count = _codes(values, known, place)
    if data.categories == "codes":
        return codes[:, None].astype(np.float64)
    return np.eye(count)[codes]


def _labels(columns: tables.Columns, name: str, known: Known, path: Path) -> np.ndarray:
    """Labels ``[N]``: numbers as they are, or scaled if their bounds are known; texts as codes."""
    values, place = columns[name], f"{path}, column {name!r}"
    if name in known and isinstance(known[name][0], str):
        return _codes(values, known[name], place)[0]
    numbers = _as_numbers(values, place)
    if name in known:
        return _scaled(numbers, known[name], place)
    if numbers is None:
        return _codes(values, None, place)[0]
    whole = (numbers == np.round(numbers)) & (np.abs(numbers) < MAX_WHOLE)
    return numbers.astype(np.int64) if whole.all() else numbers


def _scaled(numbers: np.ndarray | None, known: list[Any], place: str) -> np.ndarray:
    """Numbers clipped to known bounds and scaled to [-1, 1]."""
    if numbers is None:
        raise ValueError(f"{place} holds texts, and bounds of it are given: give its categories")
    low, high = map(float, known)
    return 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1


def _as_numbers(values: np.ndarray, place: str) -> np.ndarray | None:
    """Float64 ``[N]``, or None if no value is a number.

    Raises:
        ValueError: some are and some are not, or one is not finite.
    """
    if values.dtype.kind != "U":
        numbers = values.astype(np.float64)
    else:
        read = [_number(text) for text in values.tolist()]
        if all(one is None for one in read):
            return None
        if None in read:
            row = read.index(None)
            raise ValueError(
                f"{place}, row {row + FIRST_ROW}: {str(values[row])!r} is no number, and other "
                "values are: correct it, or state the column's categories by --columns"
            )
        numbers = np.array(read, dtype=np.float64)
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"{place}, row {row + FIRST_ROW}: {values[row]} is not finite: correct it")
    return numbers


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _as_integers(texts: np.ndarray) -> np.ndarray:
    """Texts as integers if all of them are, so that client 10 follows client 9."""
    try:
        return texts.astype(np.int64)
    except (ValueError, OverflowError):
        return texts


def _codes(values: np.ndarray, known: list[Any] | None, place: str) -> tuple[np.ndarray, int]:
    """The place of each value among the known or the sorted categories, int64 ``[N]``; how many."""
    texts = values.astype(str)
    if known is None:
        names, codes = np.unique(texts, return_inverse=True)
        if len(names) > MAX_CATEGORIES:
            raise ValueError(
                f"{place} has {len(names)} different texts, more than {MAX_CATEGORIES}: they are "
                f'no categories; if it is no feature, state it as "{UNUSED}" by --columns'
            )
        return codes.astype(np.int64), len(names)
    numbers = {str(name): code for code, name in enumerate(known)}
    found = np.array([numbers.get(text, -1) for text in texts.tolist()], dtype=np.int64)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        raise ValueError(
            f"{place}, row {row + FIRST_ROW}: {str(texts[row])!r} is none of its known categories "
            f"({', '.join(numbers)}): correct it, or add it to them"
        )
    return found, len(numbers)


def _stated(path: Path) -> dict[str, Any]:
    """The file of known columns.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"columns = {path} cannot be read ({error}): give --columns a TOML file such as age = "
            "[0, 100]"
        ) from error


def _check_known(known: Mapping[str, Any], columns: tables.Columns, data: Data) -> None:
    """Refuse an unknown column, one with neither bounds nor categories, and unused labels."""
    path = data.columns
    for name, value in known.items():
        if name not in columns:
            hint = did_you_mean(name, columns)
            raise ValueError(f"{path}: {name} is no column of the table{hint}: rename it")
        if value == UNUSED and name != data.label_column:
            continue
        several = isinstance(value, list) and len(value) > 1
        bounds = several and len(value) == 2 and all(type(v) in (int, float) for v in value)
        texts = several and all(isinstance(v, str) for v in value) and len(set(value)) == len(value)
        if not texts and not (bounds and -MAX_BOUND <= value[0] < value[1] <= MAX_BOUND):
            raise ValueError(
                f"{path}: {name} = {value} must be two bounds, the smaller first and neither "
                f'beyond {MAX_BOUND:g}, or different categories: write [0, 100] or ["no", "yes"], '
                f'or "{UNUSED}" for a column that is no feature'
            )
