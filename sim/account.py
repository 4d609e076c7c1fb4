"""``python -m sim.account``: privacy figures of a mechanism's parameters, or of a finished run's ledger.

    python -m sim.account dpsgd --sample-rate 0.01 --noise-multiplier 1.1 --steps 1000 --delta 1e-5
    python -m sim.account dpsgd --sample-rate 0.01 --epsilon 3 --steps 1000
    python -m sim.account --ledger runs/example

Exit status 0, or 2 with one line on stderr for input that cannot be used. ``--json`` prints one JSON object; infinite
values are null in it. Modules that compute are imported after the arguments are in order, so that ``--help`` is quick.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from sim.config.names import suggest
from sim.pricing.mechanisms import MECHANISMS
from sim.pricing.row import Flag

COMMON = (
    Flag("noise_multiplier", float, "noise standard deviation over the L2 sensitivity", None),
    Flag("epsilon", float, "instead of a noise multiplier: print the smallest one that meets this budget [nats]", None),
    Flag("delta", float, "delta of the guarantee [probability]", 1e-5),
    Flag("orders", str, "also print the Renyi curve at these orders, such as 2,4,8.5", None),
)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations whose errors are one line with status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print the message on one line and leave with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The command's parser and the parser of each mechanism by name."""
    parser = Parser(
        prog="python -m sim.account", description="Epsilon of a mechanism's parameters or of a run's ledger."
    )
    parser.add_argument("--ledger", metavar="RUN_DIR", help="recompute every client's epsilon from a run's files")
    parser.add_argument(
        "--delta", type=float, dest="ledger_delta", help="with --ledger: use this delta [probability], not the run's"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    commands = parser.add_subparsers(dest="mechanism", metavar="MECHANISM", parser_class=Parser)
    parsers = {}
    for name, mechanism in MECHANISMS.items():
        parsers[name] = commands.add_parser(name, help=mechanism.help, description=mechanism.help)
        for flag in (*mechanism.flags, mechanism.count, *COMMON):
            parsers[name].add_argument(flag.option, default=flag.default, **_options(flag))
        parsers[name].add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object"
        )
    return parser, parsers


def _options(flag: Flag) -> dict[str, Any]:
    if flag.parse is bool:
        return {"action": "store_true", "help": flag.help}
    default = "" if flag.default is None else f" (default: {flag.default})"
    form = {"choices": flag.choices} if flag.choices else {"metavar": flag.metavar}
    return {"type": flag.parse, "help": flag.help + default, **form}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments, checked as far as names and types go; leaves with status 2 otherwise."""
    parser, parsers = build_parser()
    active = next((parsers[word] for word in arguments if word in parsers), parser)
    meant = [active, parser] if active is not parser else [parser, *parsers.values()]
    options = sorted({name for one in meant for name in one._option_string_actions})
    for word in arguments:
        name = word.split("=")[0]
        if name.startswith("--") and name not in options:
            active.error(f"unknown argument {name}; {suggest(name, options)}")
    known = parser.parse_args(arguments)
    if (known.mechanism is None) == (known.ledger is None):
        parser.error(f"name one mechanism ({', '.join(MECHANISMS)}) or --ledger RUN_DIR, and not both")
    if known.mechanism is not None:
        if known.ledger_delta is not None:
            parser.error(f"--delta = {known.ledger_delta} must follow the mechanism; write it after {known.mechanism}")
        _check_flags(active, known)
    return known


def _check_flags(parser: Parser, known: argparse.Namespace) -> None:
    row = MECHANISMS[known.mechanism]
    missing = [flag for flag in row.flags if flag.required and getattr(known, flag.name) is None]
    if missing:
        parser.error(f"{missing[0].option} is missing; give {missing[0].help}")
    if sum(getattr(known, name) is not None for name in (*row.noise, "epsilon")) != 1:
        ways = ", ".join(flag.option for flag in (*row.flags, *COMMON) if flag.name in row.noise)
        parser.error(f"give one of {ways} (to price it) and --epsilon (to calibrate it), and not both")
    if getattr(known, row.count.name) < 1:
        value = getattr(known, row.count.name)
        parser.error(f"{row.count.option} = {value} must be at least 1; plan one or more")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments`` (default: the process's own); the exit status."""
    known = parse(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            from sim.pricing import report as account_report

            result = account_report.ledger(known) if known.ledger is not None else account_report.mechanism(known)
        except (ValueError, OSError) as error:
            print(f"python -m sim.account: error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"python -m sim.account: warning: {message}", file=sys.stderr)
    if known.json:
        print(json.dumps(account_report.finite(result), allow_nan=False))
    else:
        account_report.show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
