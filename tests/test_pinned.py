"""Small runs of everything give what is written down of them (`tests.pinned`)."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pinned.files import FILES, PAID, TRAINED, alike, differences, is_number, read
from tests.pinned.outcomes import outcome
from tests.pinned.table import RUNS


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_what_is_written_down(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a change is meant: ``python -m tests.pinned --write``, and why in the commit message."""
    monkeypatch.chdir(tmp_path)
    assert list(differences(read(name), outcome(name, tmp_path))) == []


def test_nothing_is_written_down_that_is_not_run() -> None:
    assert {path.stem for path in FILES.glob("*.json")} == RUNS.keys()


def test_every_difference_is_seen() -> None:
    """Each number, text and entry of a file, changed alone. Kills a comparison that skips a part,
    and one that takes a small number beside a large one for rounding."""
    written = read("dpis")
    assert list(differences(written, copy.deepcopy(written))) == []
    for change in changes(written):
        found = copy.deepcopy(written)
        change(found)
        assert len(list(differences(written, found))) == 1


def test_printed_numbers_may_be_rounded_otherwise_and_no_more() -> None:
    """One in the last digit of a rounded number. Kills a tolerance for counts, and for words."""
    same = [("loss 1.2345", "loss 1.2346"), ("1e-05 of 9.99", "1e-05 of 10.00"), ("a 3", "a 3")]
    other = [("loss 1.2345", "loss 1.2347"), ("of 3", "of 4"), ("loss 0.5", "gain 0.5")]
    assert all(alike(one, two) for one, two in same)
    assert not any(
        alike(one, two) for one, two in [*other, ("median 7", "median"), ("-1.5", "1.5")]
    )


def changes(value: Any, path: tuple = ()) -> Iterator[Callable[[Any], object]]:
    """Functions that each change one leaf, or take one entry away."""
    if isinstance(value, dict | list) and value:
        keys = value if isinstance(value, dict) else range(len(value))
        yield lambda whole: at(whole, path).pop(next(reversed(list(keys))))
        for key in keys:
            yield from changes(value[key], (*path, key))
    elif path and not (isinstance(value, float) and "run/tensors" in path):
        tolerance = max(PAID, TRAINED)
        other = value * (1 + 2 * tolerance) + (value == 0) if is_number(value) else "changed"
        yield lambda whole: at(whole, path[:-1]).__setitem__(path[-1], other)


def at(whole: Any, path: tuple) -> Any:
    for key in path:
        whole = whole[key]
    return whole
