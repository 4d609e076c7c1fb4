"""CSV files that a setting may name in place of its text; each row is about one client."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Row = dict[str, str | None]
"""A row by its columns; None where it ends too early."""
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)


def is_file(text: str) -> bool:
    """Whether a setting's text names a file."""
    return text.lower().endswith(".csv")


@contextmanager
def reading(
    setting: str, path: Path, columns: Sequence[str], instead: str
) -> Iterator[Iterable[Row]]:
    """The rows of a setting's file, without lines that begin with ``#``; whatever is wrong with
    them is told in one line that names the setting and the file.

    Args:
        setting: name of the setting.
        path: the file.
        columns: those that it must have.
        instead: what may be given in place of a file.

    Raises:
        ValueError: the file cannot be read or lacks a column, or the caller refuses a row.
    """
    named = f"the columns {', '.join(columns[:-1])} and {columns[-1]}"
    try:
        with path.expanduser().open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader((line for line in file if line[0] != "#"), strict=True)
            if not {*columns} <= {*(rows.fieldnames or ())}:
                raise ValueError(f"its first row lacks {named}")
            yield rows
    except OSError as fault:
        raise ValueError(
            f"{setting} = {path} cannot be read ({fault.strerror}): give a CSV file with {named}, "
            f"or {instead}"
        ) from None
    except (ValueError, RuntimeError, csv.Error) as fault:  # nobody has such a home folder
        raise ValueError(f"{setting} = {path}: {fault}: correct the file") from None


def number(text: str | None) -> int:
    """The whole number below 10^7 that a cell has; -1 if it has none."""
    return int(text) if text and _NUMBER.fullmatch(text) else -1


def by_numbers(rows: list[Row], names: Sequence[str]) -> list[Row]:
    """The rows with the clients' numbers in place of ``names``, if the column ``client`` has these.

    Raises:
        ValueError: some are names, and one is neither a name nor a number.
    """
    of = {name: str(client) for client, name in enumerate(names)}
    unknown = [row["client"] for row in rows if row["client"] not in of]
    if not unknown:
        return [row | {"client": of[row["client"] or ""]} for row in rows]
    for name in unknown:
        if names and number(name) < 0:
            raise ValueError(
                f"client {(name or '')[:60]!r} is none of the data set's, such as {names[0][:60]!r}"
            )
    return rows


def client_of(row: Row, clients: int) -> int:
    """The number in the column ``client``.

    Raises:
        ValueError: it is no number below ``clients``.
    """
    if None in row:
        raise ValueError("a row has more cells than the first one")
    found = number(row["client"])
    if not 0 <= found < clients:
        raise ValueError(f"client {(row['client'] or '')[:60]!r} is no number below {clients}")
    return found
