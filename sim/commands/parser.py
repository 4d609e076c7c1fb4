"""The argument parser and its help: a flag for every setting, and a command's own.

Imports no torch, numpy, flwr or ray.
"""

import argparse
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, NoReturn

from sim.commands.topics import hint, settings_of
from sim.config.fields import OWN_NAME, SETTINGS, TABLES, Setting
from sim.config.presets import FIXED, PRESETS, preset

_METAVARS = {int: "INT", float: "NUMBER", str: "TEXT"}
FILES = {
    "--config": (
        "FILE.toml",
        "settings from a file such as a run directory's config.toml; flags override it",
    ),
    "--preset": (
        "NAME",
        "settings from a recipe: a paper's, such as dpsur-pvldb-mnist, or linear-mnist "
        "(docs/howto/reproduce.md); file and flags override it",
    ),
    "--resume": ("RUN_DIR", "resume an interrupted run with its saved configuration"),
}

OwnFlags = Mapping[str, tuple[str | None, str]]
"""A command's own flags: flag -> metavar (None for a switch), help."""
NO_FLAGS: OwnFlags = {}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors of one line."""

    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", "a switch, which takes no value:")
        raise ValueError(f"{message}; {self.prog} --help lists the flags")


def help_topic(argv: Sequence[str]) -> str | None:
    """The word after ``--help``, possibly empty; None if help was not requested."""
    for place, word in enumerate(argv):
        flag, _, topic = word.partition("=")
        if flag in ("-h", "--help"):
            following = argv[place + 1] if place + 1 < len(argv) and not topic else "-"
            return topic if following.startswith("-") else following
    return None


def help_text(
    prog: str,
    description: str,
    central: bool = False,
    own: OwnFlags = NO_FLAGS,
    topic: str = "",
    resumes: bool = True,
) -> str:
    """What ``--help`` and ``--help TOPIC`` print; without ``--resume`` if the command refuses it.

    Raises:
        ValueError: there is no such topic.
    """
    shown = settings_of(topic)
    if central and shown <= FIXED.keys():
        raise ValueError(f"--help {topic}: one client has no choice there; ask python -m sim.run")
    whole = topic in ("", "all")
    flags = own if whole else NO_FLAGS
    files = [flag for flag in FILES if whole and (resumes or flag != "--resume")]
    return build_parser(prog, description, central, flags, shown, files).format_help()


def build_parser(
    prog: str,
    description: str,
    central: bool = False,
    own: OwnFlags = NO_FLAGS,
    names: Container[str] = SETTINGS,
    files: Collection[str] = FILES,
) -> argparse.ArgumentParser:
    """The parser, with a group of flags per table; only given flags appear in the result.

    Args:
        prog: the program's name.
        description: what it does.
        central: whether one client holds all records.
        own: the command's flags beside the settings.
        names: the settings that have a flag.
        files: flags of `FILES`; ``--help`` is beside them.
    """
    parser = Parser(
        prog=prog,
        description=description,
        epilog="'none' and '' are values where the help says what they mean. Precedence: default < "
        f"data set < preset < file < flag. {hint()}",
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
        usage="%(prog)s [--flag value | --flag=value ...]",
    )
    group = parser.add_argument_group("This command's own flags") if own else parser
    if files:
        parser.add_argument(
            "-h", "--help", metavar="TOPIC", nargs="?", help="the common flags, or those of a topic"
        )
    for flag, (metavar, text) in own.items():
        form: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        group.add_argument(flag, help=text, **form)
    group = parser.add_argument_group("Files")
    for flag in files:
        metavar, text = FILES[flag]
        group.add_argument(flag, metavar=metavar, help=text)
    for table, model in TABLES.items():
        group = parser.add_argument_group(f"{model.__doc__} [{table}]")
        for setting in (s for s in SETTINGS.values() if s.table == table and s.name in names):
            if not (central and setting.name in FIXED):
                _add_flag(group, setting, central)
    return parser


def _add_flag(group: argparse._ArgumentGroup, setting: Setting, central: bool) -> None:
    text = f"{setting.info.description} (default: {_defaults(setting, central)})".replace("%", "%%")
    if setting.kind is bool:
        group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=text)
        return
    choices = (*setting.choices, *([OWN_NAME] if setting.open else []))
    metavar = f"{{{','.join(choices)}}}" if choices else _METAVARS[setting.kind]
    group.add_argument(setting.flag, metavar=metavar, help=text)


def _defaults(setting: Setting, central: bool) -> str:
    """The default, and other defaults by data set."""
    default = preset("", central).get(setting.name, setting.info.default)
    own = {dataset: preset(dataset, central).get(setting.name, default) for dataset in PRESETS}
    values = [_shown(setting, default)]
    values += [f"{dataset}: {_shown(setting, v)}" for dataset, v in own.items() if v != default]
    return "; ".join(values)


def _shown(setting: Setting, value: object) -> str:
    if value is None:
        return setting.unset or "''"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
