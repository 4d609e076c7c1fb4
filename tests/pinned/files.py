"""Outcomes as files, and how two outcomes differ."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "files"
PAID, TRAINED = 1e-7, 1e-4
"""Relative tolerances: of what is computed in float64 alone; and of what is trained in float32, of
a tensor relative to its norm."""
LEARNED = {"accuracy", "loss", "metrics", "tensors", "attack"}
"""Entries that training decides."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def read(name: str) -> dict[str, Any]:
    """The outcome that is written down."""
    return json.loads((FILES / f"{name}.json").read_text())


def write(name: str, found: dict[str, Any]) -> None:
    """Write an outcome down, a line for each entry of its parts."""
    FILES.mkdir(exist_ok=True)
    (FILES / f"{name}.json").write_text(text(found))


def text(found: dict[str, Any]) -> str:
    """An outcome as JSON with a line for each entry of its parts."""
    parts = []
    for key, value in found.items():
        named = isinstance(value, dict)
        entries = value.items() if named else enumerate(value)
        lines = [
            f"{json.dumps(k) + ': ' if named else ''}{json.dumps(_short(v), ensure_ascii=False)}"
            for k, v in entries
        ]
        opened, closed = "{}" if named else "[]"
        parts.append(f"{json.dumps(key)}: {opened}\n" + ",\n".join(lines) + f"\n{closed}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _short(value: Any) -> Any:
    """Numbers with more digits than are compared."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.10g}") if isinstance(value, float) and math.isfinite(value) else value


def differences(written: Any, found: Any, place: str = "", trained: bool = False) -> Iterator[str]:
    """What differs beyond the tolerances, a line each."""
    trained = trained or not LEARNED.isdisjoint(place.split("/"))
    if isinstance(written, dict) and isinstance(found, dict):
        for key in sorted(written.keys() | found.keys()):
            if key not in written or key not in found:
                yield f"{place}/{key}: only {'now' if key in found else 'written'}"
            else:
                yield from differences(written[key], found[key], f"{place}/{key}", trained)
    elif isinstance(written, list) and isinstance(found, list) and len(written) == len(found):
        scale = max((abs(one) for one in written if is_number(one)), default=0.0)
        for number, (one, other) in enumerate(zip(written, found, strict=True)):
            if trained and is_number(one) and is_number(other):
                if abs(one - other) > TRAINED * max(scale, 1e-9):
                    yield f"{place}/{number}: {one} -> {other}"
            else:
                yield from differences(one, other, f"{place}/{number}", trained)
    elif is_number(written) and is_number(found):
        if not math.isclose(written, found, rel_tol=TRAINED if trained else PAID, abs_tol=1e-12):
            yield f"{place}: {written} -> {found}"
    elif isinstance(written, str) and isinstance(found, str):
        if not alike(written, found):
            yield f"{place}: {written} -> {found}"
    elif written != found or type(written) is not type(found):
        yield f"{place}: {written} -> {found}"


def alike(written: str, found: str) -> bool:
    """Whether two lines have the same words, and numbers that differ by at most one in their last
    digit, which another machine may round otherwise."""
    if _NUMBER.sub("", written) != _NUMBER.sub("", found):
        return False
    numbers = zip(_NUMBER.findall(written), _NUMBER.findall(found), strict=True)
    return all(one == other or _rounded_apart(one, other) for one, other in numbers)


def _rounded_apart(one: str, other: str) -> bool:
    if not any(mark in one for mark in ".e") and not any(mark in other for mark in ".e"):
        return False  # whole numbers are counted, not rounded
    unit = max(map(_unit, (one, other)))
    return abs(float(one) - float(other)) <= 1.01 * unit


def _unit(number: str) -> float:
    """One in the last digit that is shown."""
    digits, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
