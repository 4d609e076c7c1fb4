"""The command line: a flag for every setting, from the packages' own slices. Imports no torch,
numpy, flwr or ray."""

import argparse
import sys
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from sim.config.configuration import Config, differences, load
from sim.config.fields import SETTINGS, TABLES, Setting
from sim.config.names import FORMER, did_you_mean
from sim.config.presets import FIXED, PRESETS, preset
from sim.config.settings import EXECUTION_ONLY
from sim.config.topics import hint, settings_of
from sim.config.use import in_use

_METAVARS = {int: "INT", float: "NUMBER", str: "TEXT"}
_FILES = {
    "--config": (
        "FILE.toml",
        "settings from a file, as a run directory's config.toml has them; flags go before it",
    ),
    "--preset": (
        "NAME",
        "a paper's settings, from its recipe, such as dpsur-pvldb-mnist "
        "(docs/howto/reproduce.md); file and flags go over",
    ),
    "--resume": ("RUN_DIR", "go on with a run that was interrupted, with its saved configuration"),
}


OwnFlags = Mapping[str, tuple[str | None, str]]
"""Flags of one command alone: to each the word for its value, or None for a switch, and its
help."""
NO_FLAGS: OwnFlags = {}


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        config: the resolved configuration.
        resume: the run directory to go on with, or None for a new run.
        given: names of the settings that were given as flags.
        own: the command's own flags that were given, by name: their texts, or True.
    """

    config: Config
    resume: Path | None
    given: frozenset[str]
    own: Mapping[str, Any] = field(default_factory=dict)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.prog} --help lists the flags")


def parse(
    argv: Sequence[str],
    prog: str,
    description: str,
    central: bool = False,
    own: OwnFlags = NO_FLAGS,
    lenient: Container[str] = (),
) -> Request:
    """The request of a command line: ``--flag value`` and ``--flag=value``, the last of a repeated
    flag counts.

    Args:
        argv: the words after the program's name.
        prog: the program's name.
        description: what it does, for its help.
        central: one client holds all records; settings that this decides have no flag.
        own: flags that the command has beside the settings.
        lenient: settings that are dropped, not refused, where they are not in use.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
        SystemExit: with status 0, where help was asked for and is printed.
    """
    topic = _help_topic(argv)
    if topic is not None:
        print(help_text(prog, description, central, own, topic), end="")
        raise SystemExit(0)
    parser = build_parser(prog, description, central, own)
    known, unknown = parser.parse_known_args(_joined(argv, own))
    if unknown:
        raise ValueError(_describe_unknown(unknown, own))
    texts = vars(known)
    asked = {name: texts.pop(name) for name in list(texts) if f"--{name.replace('_', '-')}" in own}
    config_file, run_dir, paper = (texts.pop(name, None) for name in ("config", "resume", "preset"))
    given = {
        name: SETTINGS[name].from_text(t) if isinstance(t, str) else t for name, t in texts.items()
    }
    return replace(request(given, config_file, paper, run_dir, central, lenient=lenient), own=asked)


def request(
    given: Mapping[str, Any],
    config: str | None = None,
    paper: str | None = None,
    resume: str | None = None,
    central: bool = False,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    lenient: Container[str] = (),
) -> Request:
    """The request of settings by name.

    Args:
        given: settings, which go before everything else.
        config: path of a file of settings.
        paper: a preset of a paper.
        resume: the run directory to go on with.
        central: one client holds all records.
        defaults: settings that stand in for the project's own defaults, below file and preset.
        lenient: settings of a new run that are dropped, not refused, where they are not in use.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    if resume is None:
        loaded = load(Path(config) if config else None, given, central, paper, defaults, lenient)
        return Request(loaded, None, frozenset(given))
    for flag, value in (("--config", config), ("--preset", paper)):
        if value is not None:
            raise ValueError(
                f"{flag} {value} and --resume {resume}: a resumed run keeps its configuration; "
                "drop one"
            )
    return Request(
        _resumed(Path(resume), {**defaults, **given}, central), Path(resume), frozenset(given)
    )


def words(config: Config, names: Container[str]) -> list[str]:
    """The words of a command line that give some of a configuration's settings, as far as they are
    in use."""
    line = []
    for setting in (
        s for s in SETTINGS.values() if s.name in names and in_use(s.name, config.value)
    ):
        value = config.value(setting.name)
        if isinstance(value, bool):
            line.append(setting.flag if value else setting.flag.replace("--", "--no-", 1))
        else:
            line.append(f"{setting.flag}={setting.unset if value is None else value}")
    return line


def help_text(
    prog: str, description: str, central: bool = False, own: OwnFlags = NO_FLAGS, topic: str = ""
) -> str:
    """What ``--help`` and ``--help TOPIC`` print.

    Raises:
        ValueError: there is no such topic.
    """
    shown = settings_of(topic)
    if central and shown <= FIXED.keys():
        raise ValueError(f"--help {topic}: one client has no choice there; ask python -m sim.run")
    whole = topic in ("", "all")
    return build_parser(
        prog, description, central, own if whole else NO_FLAGS, shown, files=whole
    ).format_help()


def build_parser(
    prog: str,
    description: str,
    central: bool = False,
    own: OwnFlags = NO_FLAGS,
    names: Container[str] = SETTINGS,
    files: bool = True,
) -> argparse.ArgumentParser:
    """The parser: a group of flags per table; only flags that are given appear in the result.

    Args:
        prog: the program's name.
        description: what it does.
        central: one client holds all records.
        own: flags that the command has beside the settings.
        names: the settings that have a flag.
        files: whether there are the flags of files.
    """
    parser = _Parser(
        prog=prog,
        description=description,
        epilog="'none' and '' are values where the help says what they mean. Order: default < "
        f"data set < preset < file < flag. {hint()}",
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
        usage="%(prog)s [--flag value | --flag=value ...]",
    )
    group = parser.add_argument_group("This command's own") if own else parser
    if files:
        parser.add_argument(
            "-h", "--help", metavar="TOPIC", nargs="?", help="the common flags, or those of a topic"
        )
    for flag, (metavar, text) in own.items():
        form: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        group.add_argument(flag, help=text, **form)
    group = parser.add_argument_group("Files")
    for flag, (metavar, text) in _FILES.items() if files else ():
        group.add_argument(flag, metavar=metavar, help=text)
    for table, model in TABLES.items():
        group = parser.add_argument_group(f"{model.__doc__} [{table}]")
        for setting in (s for s in SETTINGS.values() if s.table == table and s.name in names):
            if not (central and setting.name in FIXED):
                _add_flag(group, setting, central)
    return parser


def main_guard(command: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run ``command(argv)`` (default: the process's own arguments) and return the exit code.

    A ValueError is a user error: one line ``error: ...`` on stderr and code 2. ``python -X dev``
    shows a traceback.
    """
    warnings.formatwarning = _one_line_warning  # type: ignore[assignment]
    try:
        command(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        if sys.flags.dev_mode:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _one_line_warning(message: Warning | str, category: type[Warning], *_: object) -> str:
    kind = "warning" if category is UserWarning else category.__name__
    return f"{kind}: {' '.join(str(message).split())}\n"


def _help_topic(argv: Sequence[str]) -> str | None:
    """The word after ``--help``, empty where there is none; None where help is not asked for."""
    for place, word in enumerate(argv):
        flag, _, topic = word.partition("=")
        if flag in ("-h", "--help"):
            following = argv[place + 1] if place + 1 < len(argv) and not topic else "-"
            return topic if following.startswith("-") else following
    return None


def _add_flag(group: argparse._ArgumentGroup, setting: Setting, central: bool) -> None:
    text = f"{setting.info.description} (default: {_defaults(setting, central)})".replace("%", "%%")
    if setting.kind is bool:
        group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=text)
        return
    metavar = f"{{{','.join(setting.choices)}}}" if setting.choices else _METAVARS[setting.kind]
    group.add_argument(setting.flag, metavar=metavar, help=text)


def _defaults(setting: Setting, central: bool) -> str:
    """The default, and what some data sets have instead."""
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


def _joined(argv: Sequence[str], own: OwnFlags) -> list[str]:
    """``--flag value`` as ``--flag=value``, so that a value may begin with a minus sign."""
    takes_value = {*_FILES, *(s.flag for s in SETTINGS.values() if s.kind is not bool)}
    takes_value |= {flag for flag, (metavar, _) in own.items() if metavar}
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in takes_value and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _describe_unknown(unknown: Sequence[str], own: OwnFlags) -> str:
    first = unknown[0]
    if not first.startswith("-"):
        return f"unexpected argument {first!r}: every value follows its flag"
    name = first.partition("=")[0]
    former = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if former in FORMER:
        return f"{name} is called {SETTINGS[FORMER[former]].flag} now: rename it"
    if name in {setting.flag for setting in SETTINGS.values()}:
        return (
            f"{name} is of no use with one client that holds all records: drop it, or take "
            "python -m sim.run"
        )
    return (
        "unknown flag "
        f"{name}{did_you_mean(name, [*own, *_FILES, *(s.flag for s in SETTINGS.values())])}"
    )


def _resumed(run_dir: Path, given: Mapping[str, Any], central: bool) -> Config:
    """The saved configuration, with the given settings that change no number of the result."""
    path = run_dir / "config.toml"
    if not path.is_file():
        raise ValueError(
            f"{run_dir} is no run directory, it has no config.toml: give --resume the directory of "
            "a run"
        )
    others = SETTINGS.keys() - given.keys()
    saved, wanted = (
        load(path, {}, central, lenient=SETTINGS),
        load(path, given, central, lenient=others),
    )
    for name in sorted(differences(saved, wanted), key=lambda name: name not in given):
        if name not in EXECUTION_ONLY:
            was, other = (
                "not set" if c.value(name) is None else c.value(name) for c in (saved, wanted)
            )
            raise ValueError(
                f"a resumed run keeps its configuration: {name} is {was} in {path}, {other} was "
                f"given: leave {SETTINGS[name].flag} out, or start a new run"
            )
    return wanted
