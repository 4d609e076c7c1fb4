"""Privacy events: immutable records of what was released.

An event says which mechanism ran and with which parameters; how often it ran is a count kept beside it (the ledger, the
accountant). Events are hashable, compare by value and survive JSON exactly. What one application costs is the business
of `mechanisms.curves`; a new kind of event is one frozen class here, listed in `KINDS`, and one curve there.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Base of all events; `kind` is the name under which a subclass is written to files."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True)
class SampledGaussian(Event):
    """One Poisson-sampled sum with Gaussian noise (Mironov, Talwar, Zhang 2019).

    Attributes:
        sample_rate: probability with which each record enters, in (0, 1].
        noise_multiplier: noise standard deviation over the sum's L2 sensitivity, positive.
    """

    kind: ClassVar[str] = "sampled_gaussian"
    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        require_rate(self, "sample_rate")
        require_positive(self, "noise_multiplier")


@dataclass(frozen=True)
class Unprotected(Event):
    """A step without noise: infinite in both columns.

    Attributes:
        sample_rate: probability with which each record enters, in (0, 1].
    """

    kind: ClassVar[str] = "unprotected"
    sample_rate: float

    def __post_init__(self) -> None:
        require_rate(self, "sample_rate")


KINDS: dict[str, type[Event]] = {cls.kind: cls for cls in (SampledGaussian, Unprotected)}


def require_rate(event: Event, name: str) -> None:
    """Make field `name` a float and refuse it outside (0, 1]."""
    value = _finite(event, name)
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{event.kind}: {name} = {value} must be in (0, 1]; it is a probability per record")
    object.__setattr__(event, name, value)


def require_positive(event: Event, name: str) -> None:
    """Make field `name` a float and refuse it unless it is above zero."""
    value = _finite(event, name)
    if value <= 0.0:
        raise ValueError(f"{event.kind}: {name} = {value} must be above 0; without noise no epsilon is finite")
    object.__setattr__(event, name, value)


def _finite(event: Event, name: str) -> float:
    raw = getattr(event, name)
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise ValueError(f"{event.kind}: {name} = {raw!r} must be a finite number; give it as int or float")
    return float(raw)


def to_dict(event: Event) -> dict[str, Any]:
    """A JSON-ready dictionary: the event's fields and its name under `kind`."""
    return {"kind": event.kind, **asdict(event)}


def from_dict(data: Mapping[str, Any]) -> Event:
    """The event that :func:`to_dict` wrote; the values are validated again.

    Raises:
        ValueError: unknown kind, missing or unknown field, or a value out of bounds.
    """
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"event kind = {kind!r} must be one of {', '.join(KINDS)}; was it written by a newer version?")
    expected = {field.name for field in fields(cls)}
    found = set(data) - {"kind"}
    if found != expected:
        raise ValueError(f"{kind}: fields {sorted(found)} must be {sorted(expected)}; the record is damaged")
    return cls(**{name: data[name] for name in expected})
