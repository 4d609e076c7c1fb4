"""``python -m sim.audit``: train with canaries, guess which of them were there, and say what
epsilon that refutes.

    python -m sim.audit --mechanism dpsur --clients 1
    python -m sim.audit --clients 10 --black-box --canaries 300 --confidence 0.99

It takes the flags of ``python -m sim.run`` and a few of its own. The run is a training like any
other, in this process, with its ledger and its report; the result stands in its ``audit.json``.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sim.config.flags import main_guard, parse

DESCRIPTION = (
    "An empirical lower bound on epsilon beside the proved upper one: canaries in or out by a "
    "coin, one training, guesses. All flags of python -m sim.run are taken too; --clients 1 is "
    "central training."
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are user errors."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as a ValueError."""
        raise ValueError(f"{message}; {self.prog} --help lists the flags")


def own_flags(program: str = "python -m sim.audit") -> Parser:
    """The parser of the flags that this command has beside those of a run."""
    parser = Parser(
        prog=program,
        description=DESCRIPTION,
        epilog="All other flags: python -m sim.run --help.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--canaries", metavar="INT", help="canaries, each in or out (default: at most 1000)"
    )
    parser.add_argument(
        "--confidence", metavar="NUMBER", default="0.95", help="of the bound (default: 0.95)"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--white-box",
        action="store_false",
        dest="black_box",
        help="crafted gradients, every upload seen (the default)",
    )
    kind.add_argument(
        "--black-box", action="store_true", help="wrong labels, only the final model seen"
    )
    parser.set_defaults(black_box=False)
    parser.add_argument("--json", action="store_true", help="print audit.json and nothing else")
    return parser


def command(argv: Sequence[str], program: str = "python -m sim.audit") -> None:
    """Audit one training as the arguments say; ``program`` is what the command is called.

    Raises:
        ValueError: a user error, in one line.
    """
    own, rest = own_flags(program).parse_known_args(argv)
    request = parse(rest, program, DESCRIPTION)
    if request.resume is not None:
        raise ValueError(
            f"--resume {request.resume}: an audit is one training from its beginning; start a new "
            "one"
        )
    count = None if own.canaries is None else number("--canaries", own.canaries, int, "an integer")
    confidence = number("--confidence", own.confidence, float, "a number")
    from sim.engines.environment import prepare

    prepare()
    from sim.auditing.session import audit, show

    result = audit(request.config, count, own.black_box, confidence, quiet=own.json)
    if own.json:
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        show(result)


def number(flag: str, text: str, kind: Callable[[str], Any], noun: str) -> Any:
    """A flag's value.

    Raises:
        ValueError: it is none.
    """
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{flag} is {text!r}, it must be {noun}: give one") from None


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
