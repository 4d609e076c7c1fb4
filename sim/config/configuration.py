"""The configuration of a run: default < data set < preset < file < flag; loading and saving."""

import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w
from pydantic import ValidationError

from mechanisms import durable
from sim.config import paper_presets
from sim.config.fields import SETTINGS, TABLES, Config, fault
from sim.config.names import FORMER, did_you_mean
from sim.config.presets import FIXED, preset
from sim.config.recipe import Values
from sim.config.settings import EXECUTION_ONLY
from sim.config.use import USES, refusal, unused, used_by_table

RIVALS = (
    *(("steps", "epochs"), ("sample_rate", "batch_size"), ("epsilon", "budgets")),
    ("dropout", "dropout_trace"),
)
"""Pairs that exclude each other: a layer that sets one unsets the other in the layers below."""

IMPLIED = {
    "dirichlet": ("partition", ("dirichlet", "quantity")),
    "shards_per_client": ("partition", ("shards",)),
    "client_column": ("partition", ("given",)),
}
"""Setting -> the setting that uses it, and the values that do; the first value is implied."""

_HEADER = '# The settings of a run that are in use. "none" and "" mean: not set.\n\n'


def load(
    path: Path | None,
    overrides: Mapping[str, Any],
    central: bool = False,
    paper: str | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    lenient: Container[str] = (),
) -> Config:
    """The configuration from a TOML file (or none) and explicitly given settings by name.

    Args:
        path: path of the file.
        overrides: the given settings; they override the file's.
        central: whether one client holds all records, which has defaults of its own.
        paper: name of a paper's preset; it overrides the data set's.
        defaults: replacements for the packages' own defaults.
        lenient: settings that are dropped rather than refused if they are not in use, and that a
            file may give by former names, as when reading a run directory.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    file, flags = _read(path, lenient) if path else {}, dict(overrides)
    _refuse_contradictions(flags)
    named = paper_presets.settings(paper, file | flags, central) if paper is not None else {}
    usual = {name: SETTINGS[name].info.default for name in ("dataset", "features")}
    chosen = usual | named | file | flags
    values: Values = dict(defaults)
    for layer in (preset(chosen["dataset"], central, chosen["features"]), named, file, flags):
        _put(values, layer)
    if central:
        _refuse_other_than(FIXED, file | flags)
        values |= FIXED
    config = _validated(values)
    idle = set(unused(config))
    for name in USES:
        if name in idle and name not in lenient:
            _check_use(name, config, file, flags)
    return _validated({name: value for name, value in values.items() if name not in idle})


def check_in_use(config: Config) -> None:
    """Refuse a configuration with a setting that is given but not in use; `load` returns none.

    Raises:
        ValueError: in one line, with the name, the value and a remedy.
    """
    for name in unused(config):
        if config.value(name) != SETTINGS[name].info.default:
            raise ValueError(refusal(name, config))


def _validated(values: Values) -> Config:
    tables: dict[str, Values] = {table: {} for table in TABLES}
    for name, value in values.items():
        tables[SETTINGS[name].table][name] = value
    try:
        return Config.model_validate(
            {table: TABLES[table](**entries) for table, entries in tables.items()}
        )
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def save(config: Config, path: Path) -> None:
    """Write every setting in use, so that the file outlives later changes of defaults."""
    tables = {
        table: {
            name: SETTINGS[name].unset if config.value(name) is None else config.value(name)
            for name in names
        }
        for table, names in used_by_table(config).items()
    }
    durable.write(path, (_HEADER + tomli_w.dumps(tables)).encode(), private=True)


def differences(a: Config, b: Config) -> list[str]:
    """The names of the settings in which two configurations differ."""
    return [name for name in SETTINGS if a.value(name) != b.value(name)]


def _put(values: Values, layer: Mapping[str, Any]) -> None:
    """Update ``values`` by ``layer``, including what its settings imply and unset."""
    for name, (other, wanted) in IMPLIED.items():
        below = values.get(other, SETTINGS[other].info.default)
        if name in layer and other not in layer and below not in wanted:
            values[other] = wanted[0]
    for pair in RIVALS:
        for name, other in (pair, pair[::-1]):
            if layer.get(name) is not None and other not in layer:
                values[other] = None if SETTINGS[other].optional else SETTINGS[other].info.default
    values.update(layer)


def _refuse_contradictions(flags: Values) -> None:
    if flags.keys() >= {"sample_rate", "batch_size"} and flags["batch_size"] is not None:
        given = f"--sample-rate {flags['sample_rate']} and --batch-size {flags['batch_size']}"
        raise ValueError(f"{given} contradict each other: drop one of the two")
    implied = {name: (other, wanted) for name, (other, wanted) in IMPLIED.items() if name in flags}
    for name, (other, wanted) in implied.items():
        if other in flags and flags[other] not in wanted:
            raise ValueError(
                f"{SETTINGS[name].flag} {flags[name]} has no effect with {SETTINGS[other].flag} "
                f"{flags[other]}; it belongs to {' and '.join(wanted)}: drop one of the two"
            )
    if len(implied) > 1 and "partition" not in flags:
        both = " and ".join(SETTINGS[name].flag for name in implied)
        raise ValueError(f"{both} contradict each other: drop one of the two")


def _check_use(name: str, config: Config, file: Values, flags: Values) -> None:
    """Refuse a setting that is given but not in use.

    A file may contain one at a default, as those of earlier versions do, or one that does not
    affect the result.
    """
    if name in flags:
        raise ValueError(refusal(name, config))
    if name in file and name not in EXECUTION_ONLY:
        data = config.data
        rows = [FIXED, *(preset(data.dataset, central, data.features) for central in (False, True))]
        usual = [row[name] for row in rows if name in row]
        if file[name] not in (SETTINGS[name].info.default, *usual):
            raise ValueError(refusal(name, config))


def _refuse_other_than(fixed: Mapping[str, Any], given: Values) -> None:
    for name in fixed:
        if name in given and given[name] != fixed[name]:
            raise ValueError(
                f"{name} is {given[name]}, but one client that holds all records has no choice "
                f"there (it is {fixed[name]}): drop it, from a --config file too, or train many "
                "clients by python -m sim.run"
            )


def _read(path: Path, lenient: Container[str]) -> Values:
    """The settings of a file by name; unset ones are None."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"the configuration file {path} cannot be read ({error.strerror}): check --config"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}; correct it") from None
    values: Values = {}
    for table, entries in tables.items():
        _check_table(path, table, entries)
        for given, value in entries.items():
            setting = SETTINGS[_name_now(path, table, given, value, lenient)]
            values[setting.name] = setting.read(value)
    return values


def _name_now(path: Path, table: str, given: str, value: object, lenient: Container[str]) -> str:
    """The current name of a file's entry.

    A former name is accepted at its default, since earlier versions wrote all settings.
    """
    if given in FORMER:
        setting = SETTINGS[FORMER[given]]
        harmless = setting.name in lenient or value in (setting.info.default, setting.unset)
        if setting.table == table and harmless:
            return setting.name
    _check_name(path, table, given)
    return given


def _check_table(path: Path, table: str, entries: object) -> None:
    if table in TABLES and isinstance(entries, dict):
        return
    if table in SETTINGS and not isinstance(entries, dict):
        raise ValueError(
            f"{path}: {table} stands outside its table: put it under [{SETTINGS[table].table}]"
        )
    if table in TABLES:
        raise ValueError(f"{path}: {table} is {entries!r}, but must be a table: write [{table}]")
    hint = did_you_mean(table, TABLES if isinstance(entries, dict) else [*TABLES, *SETTINGS])
    raise ValueError(f"{path}: unknown table {table}{hint} (tables: {', '.join(TABLES)})")


def _check_name(path: Path, table: str, name: str) -> None:
    known = list(TABLES[table].model_fields)
    if name in known:
        return
    if name in FORMER:
        raise ValueError(f"{path}: {name} in [{table}] is called {FORMER[name]} now: rename it")
    if name in SETTINGS:
        own = SETTINGS[name].table
        raise ValueError(f"{path}: {name} belongs to the table [{own}], not to [{table}]: move it")
    hint = did_you_mean(name, known) or did_you_mean(name, SETTINGS)
    hint = hint or f" (known: {', '.join(known)})"
    raise ValueError(f"{path}: unknown setting {name} in [{table}]{hint}")
