"""Tables as columns of text or numbers: CSV by the standard library, Parquet by pyarrow.

Rows are counted as an editor shows a CSV file: the first row of values is row 2. A missing value is
refused: to leave out its record, or to fill it in, is for whoever knows why it is missing.
"""

import csv
from collections.abc import Container
from pathlib import Path

import numpy as np

FIRST_ROW = 2
"""Number of the first row of values; row 1 has the columns' names."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
"""Texts that mean a missing value, in lower case."""

Columns = dict[str, np.ndarray]
"""By name, in the order of the table: texts, or numbers of any numeric type, each ``[N]``."""


def read(path: Path, unused: Container[str] = ()) -> Columns:
    """The columns of a ``.csv``, ``.tsv`` or ``.parquet`` file; ``unused`` ones may hold anything.

    Raises:
        ValueError: it is no such table, it has no rows, or a value is missing.
    """
    parquet = path.suffix.lower() == ".parquet"
    columns = _parquet(path, unused) if parquet else _csv(path, unused)
    if not columns or not len(next(iter(columns.values()))):
        raise ValueError(f"{path} has no rows of values: give a table with a row for each record")
    return columns


def _csv(path: Path, unused: Container[str]) -> Columns:
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            names, *rows = [*csv.reader(file, delimiter=separator, strict=True)] or [[]]
    except ValueError as error:  # bytes that are no text
        raise ValueError(f"{path} is no table ({error}): give a CSV file in UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file ({error}): write it anew") from error
    if not names:
        raise ValueError(f"{path} is no table, as its first row is empty: name its columns there")
    if len(names) == 1:
        marks = "tabs" if separator == "\t" else "commas"
        raise ValueError(
            f"{path} has no column beside {names[0]}: add one, or separate columns by {marks}"
        )
    names = [name.strip() for name in names]
    twice = {name for name in names if names.count(name) > 1 or not name}
    if twice:
        raise ValueError(
            f"{path}: the columns {', '.join(map(repr, names))} need a name each: rename "
            f"{min(twice)!r}"
        )
    while rows and not rows[-1]:
        rows.pop()
    for number, row in enumerate(rows, FIRST_ROW):
        if len(row) != len(names):
            raise ValueError(
                f"{path}, row {number}: {len(row)} values for {len(names)} columns: give one for "
                "each, with commas inside a value in quotes"
            )
    columns = {
        name: np.array([row[place].strip() for row in rows], dtype=str)
        for place, name in enumerate(names)
    }
    for name, texts in columns.items():
        for number, text in enumerate(texts.tolist(), FIRST_ROW):
            if text.lower() in MISSING and name not in unused:
                raise ValueError(_missing(path, name, number, repr(text)))
    return columns


def _parquet(path: Path, unused: Container[str]) -> Columns:
    try:
        from pyarrow import ArrowException, types
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise ValueError(
            f"{path}: Parquet needs pyarrow ({error}): pip install pyarrow, "
            "or write the table as CSV"
        ) from error
    try:
        table = read_table(path)
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no Parquet file ({reason}): write it anew") from error
    columns: Columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in unused:
            columns[name] = np.empty(len(column), dtype=str)
            continue
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        text = types.is_string(column.type) or types.is_large_string(column.type)
        kinds = (types.is_integer, types.is_floating, types.is_boolean)
        if not text and not any(kind(column.type) for kind in kinds):
            raise ValueError(
                f"{path}: column {name!r} holds {column.type}: give numbers or texts, or leave it "
                "out"
            )
        values = column.to_pylist()
        for number, value in enumerate(values, FIRST_ROW):
            if value is None or value != value or (text and value.strip().lower() in MISSING):
                raise ValueError(_missing(path, name, number, repr(value)))
        columns[name] = np.array(values)
    return columns


def _missing(path: Path, column: str, row: int, shown: str) -> str:
    return (
        f"{path}, row {row}, column {column!r}: {shown} is a missing value: fill it in, leave the "
        'row out, or state the column as "unused" by --columns'
    )
