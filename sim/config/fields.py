"""All settings by name: table, type, choices and bounds, read from the packages' models."""

import math
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from client.settings import Local
from mechanisms.settings import Dpagd, DpHero, Dpis, Dpsur, Privacy, Screening, Settings
from server.settings import Rounds
from sim.config.names import FORMER, did_you_mean
from sim.config.settings import Data, Execution
from strategies.settings import Aggregation, FedFed

if TYPE_CHECKING:  # it loads NumPy, and --help has no use for that
    import numpy as np

    from mechanisms.personal import Group


class Config(Settings):
    """A run's whole configuration; each field is a table of the file and a group in the help."""

    data: Data
    privacy: Privacy
    dpsur: Dpsur
    dpis: Dpis
    dphero: DpHero
    screening: Screening
    dpagd: Dpagd
    local: Local
    strategy: Aggregation
    fedfed: FedFed
    rounds: Rounds
    run: Execution

    def value(self, name: str) -> Any:
        """The value of the setting ``name``, from the table that holds it.

        Raises:
            ValueError: there is no such setting.
        """
        return getattr(getattr(self, find_setting(name).table), name)

    @property
    def own(self) -> dict[str, str]:
        """The settings that name objects of the user's own, other than the data set, with the
        names."""
        return {name: text for name in NAMING if ":" in (text := self.value(name) or "")}

    @property
    def private(self) -> bool:
        """Whether the run has a guarantee at all."""
        return self.privacy.mechanism != "none"

    @property
    def targets(self) -> "np.ndarray":
        """Float64 ``[clients]``: epsilon that no round may exceed, of each client; infinite without
        a budget or privacy."""
        from mechanisms import personal

        privacy = self.privacy if self.private else self.privacy.of_budget(math.inf)
        return personal.of_clients(privacy, self.data.clients)

    @property
    def target(self) -> float:
        """The smallest of them, to which the phases before training keep."""
        return float(self.targets.min())

    @property
    def groups(self) -> "tuple[Group, ...]":
        """The groups of clients with personal budgets, if there are any."""
        from mechanisms import personal

        budgets = self.privacy.budgets
        return () if budgets is None else personal.groups(budgets, self.data.clients)


TABLES: dict[str, type[Settings]] = {
    name: cast(type[Settings], field.annotation) for name, field in Config.model_fields.items()
}

OWN_NAME = "package.module:NAME"
"""How an object of the user's own is named."""
NAMING = ("mechanism", "strategy", "partition", "features", "model", "loss", "metric")
"""Settings that may name one."""
_NOUNS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Setting:
    """One setting: its name, its table, and what its package says about it."""

    name: str
    table: str
    info: FieldInfo

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @cached_property
    def _alternatives(self) -> tuple[Any, ...]:
        union = get_origin(self.info.annotation) in (Union, types.UnionType)
        return get_args(self.info.annotation) if union else (self.info.annotation,)

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return types.NoneType in self._alternatives

    @property
    def unset(self) -> str:
        """How files and flags write None: an empty string for text, else ``none``."""
        return "" if self.kind is str else "none"

    @property
    def kind(self) -> type:
        """``int``, ``float``, ``str`` or ``bool``."""
        if self.choices:
            return str
        return next(kind for kind in self._alternatives if kind is not types.NoneType)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may take; empty if it is not an enumeration."""
        return next((get_args(a) for a in self._alternatives if get_origin(a) is Literal), ())

    @property
    def open(self) -> bool:
        """Whether it may also name an object of the user's own."""
        return any(get_origin(one) is Annotated for one in self._alternatives)

    @property
    def expected(self) -> str:
        """What a value must be, with its bounds."""
        noun = f"one of {', '.join(self.choices)}"
        noun += f", or {OWN_NAME}" if self.open else ""
        if not self.choices:
            noun = _NOUNS[self.kind] + self._interval()
        return noun + (f", or {self.unset or 'empty'}" if self.optional else "")

    def _interval(self) -> str:
        kinds = ("ge", "gt", "le", "lt")
        bounds = {k: getattr(m, k) for m in self.info.metadata for k in kinds if hasattr(m, k)}
        left = f"[{bounds['ge']}" if "ge" in bounds else f"({bounds.get('gt')}"
        right = f"{bounds['le']}]" if "le" in bounds else f"{bounds.get('lt')})"
        if self.kind is int and {"ge", "le"} == set(bounds):
            return f" of at least {bounds['ge']} and at most {bounds['le']}"
        if {"le", "lt"} & set(bounds):
            return f" in {left}, {right}"
        if "ge" in bounds:
            return f" of at least {bounds['ge']}"
        return f" above {bounds['gt']}" if "gt" in bounds else ""

    def read(self, given: Any) -> Any:
        """A given value; None for the text that means "not set"."""
        unset = self.optional and isinstance(given, str) and given == self.unset
        return None if unset else given

    def from_text(self, text: str) -> Any:
        """The value of a flag's text; invalid text is returned as is, for validation to refuse."""
        try:
            return None if self.read(text) is None else self.kind(text)
        except ValueError:
            return text


SETTINGS: dict[str, Setting] = {
    name: Setting(name, table, info)
    for table, model in TABLES.items()
    for name, info in model.model_fields.items()
}
"""Every setting by its name; names are unique over all tables."""


def find_setting(name: str, others: Iterable[str] = ()) -> Setting:
    """The setting of this name; an error may suggest ``others``, too.

    Raises:
        ValueError: there is none.
    """
    if name in FORMER:
        raise ValueError(f"unknown setting {name}: it is called {FORMER[name]} now")
    if name not in SETTINGS:
        raise ValueError(f"unknown setting {name}{did_you_mean(name, [*SETTINGS, *others])}")
    return SETTINGS[name]


def fault(error: ValidationError) -> str:
    """The first error of a validation in one line: name, value, bound, remedy."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    setting = next(SETTINGS[part] for part in map(str, first["loc"]) if part in SETTINGS)
    hint = did_you_mean(str(first["input"]), setting.choices)
    return (
        f"{setting.name} is {first['input']!r}; it must be {setting.expected}{hint or ':'} set "
        f"{setting.flag} or {setting.name} in [{setting.table}]"
    )
