"""Tables of the reference that are made from the code when the site is built."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from server.records import Evaluation, Record, RoundRecord, Summary
from sim.__main__ import COMMANDS
from sim.config.fields import SETTINGS, TABLES, Setting
from sim.config.presets import PRESETS, preset


def settings() -> str:
    """Every setting: a section for each table of the configuration file."""
    parts = []
    for table, model in TABLES.items():
        rows = [row(setting) for setting in SETTINGS.values() if setting.table == table]
        head = ("setting", "flag", "type", "default", "what it is")
        parts += [f"## `[{table}]`", f"{(model.__doc__ or '').splitlines()[0]}.", grid(head, rows)]
    return "\n\n".join(parts)


def row(setting: Setting) -> tuple[str, ...]:
    """Name, flag, type, default and description of one setting."""
    text = str(setting.info.description)
    return code(setting.name), code(setting.flag), setting.expected, code(shown(setting)), text


def shown(setting: Setting) -> str:
    """The default, as a file or a flag has it."""
    value = setting.info.default
    return setting.unset or "''" if value is None else written(value)


def data_sets() -> str:
    """The defaults that each data set changes, in the four ways to train on it."""
    ways = [
        ("many clients", False, "pixels"),
        ("many clients, scattering features", False, "scattering"),
        ("one client", True, "pixels"),
        ("one client, scattering features", True, "scattering"),
    ]
    parts = []
    for title, central, features in ways:
        names = [
            name
            for name in PRESETS
            if features == "pixels" or name in ("mnist", "fmnist", "cifar10")
        ]
        rows = [(code(name), changes(preset(name, central, features))) for name in names]
        parts += [f"### {title[0].upper()}{title[1:]}", grid(("data set", "defaults"), rows)]
    return "\n\n".join(parts)


def changes(values: Any) -> str:
    """Settings and their values in one line."""
    return ", ".join(
        code(f"{name} = {written(value)}") for name, value in values.items() if value is not None
    )


def commands() -> str:
    """The commands by name."""
    rows = [
        (code(f"dpfed {name}"), code(f"python -m sim.{name}"), text)
        for name, text in COMMANDS.items()
    ]
    return grid(("installed", "from a checkout", "what it does"), rows)


def records() -> str:
    """The fields of ``rounds.jsonl``, ``summary.json`` and ``evaluation.json``."""
    kinds = {"rounds.jsonl": RoundRecord, "summary.json": Summary, "evaluation.json": Evaluation}
    parts = []
    for file, kind in kinds.items():
        rows = [(code(name), text) for name, text in attributes(kind).items()]
        parts += [f"### {code(file)}", grid(("field", "what it is"), rows)]
    return "\n\n".join(parts)


def attributes(kind: type[Record]) -> dict[str, str]:
    """What a record's docstring says of each field, in its order."""
    _, _, listed = inspect.getdoc(kind).partition("\nAttributes:\n")
    entries = re.split(r"^ {4}(\w+): ", listed, flags=re.MULTILINE)[1:]
    texts = (" ".join(text.split()) for text in entries[1::2])
    return dict(zip(entries[::2], texts, strict=True))


def written(value: Any) -> str:
    """A value as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def code(text: str) -> str:
    """As code."""
    return f"`{text}`"


def grid(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    cells = [list(head), *map(list, rows)]
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


GENERATED = {
    "<!-- table: settings -->": settings,
    "<!-- table: data sets -->": data_sets,
    "<!-- table: commands -->": commands,
    "<!-- table: records -->": records,
}
"""The line of a page that a table replaces -> what makes the table."""
