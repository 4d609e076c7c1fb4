"""The base of all privacy events, and the bounds that their fields obey.

A field declares its bound where it is defined, such as ``sample_rate: float = rate()``; an event
that exists is valid.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Base of all events: checks every field against its bound. `kind` names a subclass in files.

    Raises:
        ValueError: a field is out of its bound; the message gives event, field, value, bound and
            remedy.
    """

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            try:
                object.__setattr__(self, one.name, one.metadata["check"](value))
            except ValueError as error:
                raise ValueError(f"{self.kind}: {one.name} = {value!r} {error}") from None


def rate() -> Any:
    """A field for a probability in (0, 1]."""
    return _bounded(lambda x: 0.0 < x <= 1.0, "must be in (0, 1]; it is a probability")


def share() -> Any:
    """A field for a number in [0, 1]."""
    return _bounded(lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]; give it as a fraction")


def positive() -> Any:
    """A field for a finite number above 0."""
    return _bounded(lambda x: x > 0.0, "must be above 0; without noise no epsilon is finite")


def whole() -> Any:
    """A field for a whole number of at least 1."""
    return _bounded(
        lambda x: x >= 1.0 and x == math.floor(x),
        "must be a whole number of at least 1; it is a count",
    )


def above_one() -> Any:
    """A field for a Renyi order above 1."""
    return _bounded(lambda x: x > 1.0, "must be above 1; Renyi divergence is used above 1 only")


def nested(value: object) -> Event:
    """The check of a field for another event, which holds none itself."""
    if not isinstance(value, Event):
        raise ValueError("must be an event; wrap the release that was made")
    if any(isinstance(getattr(value, one.name), Event) for one in fields(value)):
        raise ValueError("must not hold an event itself; wrap the release that was made")
    return value


def number() -> Any:
    """A field for a finite number."""
    return _bounded(lambda x: True, "")


def text(*allowed: str) -> Any:
    """A field for one of the `allowed` words; for any non-empty text when none are named."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not value.strip() or (allowed and value not in allowed):
            raise ValueError(
                f"must be {'one of ' + ', '.join(allowed) if allowed else 'a non-empty text'}; "
                "name it"
            )
        return value

    return field(metadata={"check": check})


def _bounded(allows: Callable[[float], bool], bound: str) -> Any:
    def check(value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= sys.float_info.max
        ):
            raise ValueError("must be a finite number; give it as int or float")
        if not allows(value):
            raise ValueError(bound)
        return float(value)

    return field(metadata={"check": check})
