"""Parses a command line into a request: a flag for every setting of every package.

Imports no torch, numpy, flwr or ray.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from server import manifest
from sim.commands.parser import FILES, NO_FLAGS, OwnFlags, build_parser, help_text, help_topic
from sim.config.configuration import Config, differences, load
from sim.config.fields import SETTINGS
from sim.config.names import FORMER, did_you_mean
from sim.config.settings import EXECUTION_ONLY
from sim.config.use import in_use


@dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        config: the resolved configuration.
        resume: the run directory to resume, or None for a new run.
        given: names of the settings that were given as flags.
        own: the command's own flags that were given, by name: their texts, or True.
    """

    config: Config
    resume: Path | None
    given: frozenset[str]
    own: Mapping[str, Any] = field(default_factory=dict)


def parse(
    argv: Sequence[str],
    prog: str,
    description: str,
    central: bool = False,
    own: OwnFlags = NO_FLAGS,
    lenient: Container[str] = (),
    anew: str = "",
) -> Request:
    """Parse ``--flag value`` and ``--flag=value``; the last of a repeated flag counts.

    Args:
        argv: the words after the program's name.
        prog: the program's name.
        description: what it does, for its help.
        central: whether one client holds all records; settings that this fixes have no flag.
        own: the command's flags beside the settings.
        lenient: settings that are dropped rather than refused if they are not in use.
        anew: why the command resumes no run, if it does not.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
        SystemExit: with status 0, after printing help.
    """
    topic = help_topic(argv)
    if topic is not None:
        print(help_text(prog, description, central, own, topic, resumes=not anew), end="")
        raise SystemExit(0)
    parser = build_parser(prog, description, central, own)
    known, unknown = parser.parse_known_args(_joined(argv, own))
    if unknown:
        raise ValueError(_describe_unknown(unknown, own))
    texts = vars(known)
    asked = {name: texts.pop(name) for name in list(texts) if f"--{name.replace('_', '-')}" in own}
    config_file, run_dir, paper = (texts.pop(name, None) for name in ("config", "resume", "preset"))
    if anew and run_dir is not None:
        raise ValueError(f"--resume {run_dir}: {anew}: leave --resume out")
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
    """The request made by settings given by name.

    Args:
        given: settings, which override everything else.
        config: path of a file of settings.
        paper: name of a paper's preset.
        resume: the run directory to resume.
        central: whether one client holds all records.
        defaults: replacements for the project's own defaults; preset and file override them.
        lenient: settings of a new run that are dropped rather than refused if not in use.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    if resume is None:
        if config == "":  # as of a variable that is not set
            raise ValueError("--config is '': give it a file, or leave --config out")
        loaded = load(Path(config) if config else None, given, central, paper, defaults, lenient)
        return Request(loaded, None, frozenset(given))
    for flag, value in (("--config", config), ("--preset", paper)):
        if value is not None:
            raise ValueError(
                f"{flag} {value} and --resume {resume}: a resumed run keeps its configuration; "
                "drop one"
            )
    resumed = _resumed(Path(resume), {**defaults, **given}, central)
    return Request(resumed, Path(resume), frozenset(given))


def words(config: Config, names: Container[str]) -> list[str]:
    """Command-line arguments for those of the named settings that are in use."""
    line = []
    for setting in SETTINGS.values():
        if setting.name not in names or not in_use(setting.name, config.value):
            continue
        value = config.value(setting.name)
        if isinstance(value, bool):
            line.append(setting.flag if value else setting.flag.replace("--", "--no-", 1))
        else:
            line.append(f"{setting.flag}={setting.unset if value is None else value}")
    return line


def _joined(argv: Sequence[str], own: OwnFlags) -> list[str]:
    """``--flag value`` as ``--flag=value``, so that a value may begin with a minus sign."""
    takes_value = {*FILES, *(s.flag for s in SETTINGS.values() if s.kind is not bool)}
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
        return f"unexpected argument {first!r}: a value follows its flag, and a switch has none"
    name = first.partition("=")[0]
    former = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if former in FORMER:
        return f"{name} is called {SETTINGS[FORMER[former]].flag} now: rename it"
    if name in {setting.flag for setting in SETTINGS.values()}:
        return (
            f"{name} has no effect with one client that holds all records: drop it, or use "
            "python -m sim.run"
        )
    flags = [*own, *FILES, *(setting.flag for setting in SETTINGS.values())]
    return f"unknown flag {name}{did_you_mean(name, flags)}"


def _resumed(run_dir: Path, given: Mapping[str, Any], central: bool) -> Config:
    """The saved configuration, updated by given settings that do not affect the result."""
    path = run_dir / "config.toml"
    if not path.is_file():
        raise ValueError(
            f"{run_dir} is no run directory, it has no config.toml: give --resume the directory of "
            "a run"
        )
    manifest.read(run_dir)
    saved = load(path, {}, central, lenient=SETTINGS)
    wanted = load(path, given, central, lenient=SETTINGS.keys() - given.keys())
    for name in sorted(differences(saved, wanted), key=lambda name: name not in given):
        if name not in EXECUTION_ONLY:
            was, other = (
                "not set" if c.value(name) is None else c.value(name) for c in (saved, wanted)
            )
            remedy = "or start a new run"
            if name == "rounds":
                remedy += " with more rounds, which ends when --epsilon is spent"
            raise ValueError(
                f"a resumed run keeps its configuration: {name} is {was} in {path}, {other} was "
                f"given: leave {SETTINGS[name].flag} out, {remedy}"
            )
    return wanted


def number(flag: str, text: str, kind: Callable[[str], Any]) -> Any:
    """The value of a command's own flag, by ``int`` or ``float``.

    Raises:
        ValueError: the text is not such a number.
    """
    noun = "an integer" if kind is int else "a number"
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{flag} is {text!r}; it must be {noun}: give {noun}") from None
