"""The command line of ``python -m sim.account``: a run's settings and the command's own flags."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanisms.accounting.choosing import check_mean
from mechanisms.settings import MECHANISM_NAMES
from sim.commands import flags
from sim.commands.flags import Request
from sim.commands.parser import OwnFlags
from sim.config.fields import OWN_NAME, Config
from sim.config.names import FORMER, did_you_mean

DESCRIPTION = (
    "The most that a planned run can cost, phase by phase, or what a run has cost. A first word "
    "asks for one client's single round: a mechanism (dpsgd, dpsur, dpis, dphero, screening, "
    "dpagd, or one of your own), or fedfed for its shared records."
)
OWN: OwnFlags = {
    "--ledger": (
        "RUN_DIR",
        "recompute every client's epsilon from a run's files; --delta may differ from the run's",
    ),
    "--verify": (
        "RUN_DIR",
        "prove a run's certified epsilons by a second path, in ball arithmetic; exit code 1 if not",
    ),
    "--check": (
        "RUN_DIR",
        "say file by file what of a run directory is whole, missing, older, newer or damaged; exit "
        "code 1 unless all is whole",
    ),
    "--node": ("POLICY_FILE", "say which share of its own budget a Flower node's runs have used"),
    "--group": (
        "K",
        "with --ledger: also the epsilon of a person who has K records with one client",
    ),
    "--records": (
        "N[,N...]",
        "records per client: one number for all, or one for each; without it the data set is "
        "loaded and split",
    ),
    "--tries": (
        "MEAN",
        "also the epsilon of the best of a random number of such runs, MEAN on average, if nobody "
        "sees the others",
    ),
    "--orders": ("A[,A...]", "also print the Renyi curve at these orders, such as 2,4,8.5"),
    "--trials": (
        "INT",
        "one client, every trial charged: its trials; --steps counts accepted ones",
    ),
    "--norm-sum": ("NUMBER", "one client, dpis: the price at this sum K of clipped gradient norms"),
    "--eigenvalues": (
        "E[,E...]",
        "one client, dphero: the price at a layer's eigenvalues of W W^T",
    ),
    "--json": (None, "print one JSON object"),
}
MAX_RECORDS = 10**12
"""Records per client: those of all clients together are a number of 64 bits."""
MAX_ORDER = 1e6
"""A curve at an integer order is a sum of as many terms."""
ALONE = ("--clients=1", "--rounds=1")
SHARED = "fedfed"
FIRST_WORDS = {
    **{name: (*ALONE, f"--mechanism={name}") for name in MECHANISM_NAMES if name != "none"},
    SHARED: (*ALONE, "--strategy=fedfed", "--shared-source=distilled"),
}
"""First word -> the flags that it implies; given flags override them. A mechanism of the user's
own implies the same as ours."""


@dataclass(frozen=True)
class Question:
    """A parsed command line of ``sim.account``.

    Attributes:
        config: the run's configuration.
        delta: the given delta, or None.
        ledger: the directory of a run whose ledger is priced, or None.
        verify: the directory of a run whose printed epsilons are verified, or None.
        check: the directory of a run whose files are checked, or None.
        node: the policy file of a Flower node whose budget is looked at, or None.
        group: records of one person, or None.
        word: the first word, or None.
        records: records per client, one number for all or one for each; None: from the data set.
        tries: the mean number of runs of which the best is released, or None.
        orders: orders at which to print the Renyi curve.
        trials: planned trials of one client.
        norm_sum: DPIS's K.
        eigenvalues: eigenvalues of W W^T of a layer, for DP-Hero.
        json: whether to print JSON.
    """

    config: Config
    delta: float | None
    ledger: Path | None
    verify: Path | None
    check: Path | None
    node: str | None
    group: int | None
    word: str | None
    records: tuple[int, ...] | None
    tries: float | None
    orders: tuple[float, ...] | None
    trials: int | None
    norm_sum: float | None
    eigenvalues: tuple[float, ...] | None
    json: bool

    @property
    def found(self) -> tuple[int | None, float | None, tuple[float, ...] | None]:
        """Trials, norm sum and eigenvalues: quantities that are only known during a run."""
        return self.trials, self.norm_sum, self.eigenvalues


def parse(argv: Sequence[str], program: str) -> Question:
    """Parse a command line.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    word = argv[0] if argv and not argv[0].startswith("-") else None
    if word is not None and word not in FIRST_WORDS and ":" not in word:
        if os.path.isdir(word):
            raise ValueError(f"{word} is a folder: ask by --ledger, --verify or --check {word}")
        hint = did_you_mean(word, FIRST_WORDS)
        known = ", ".join([*FIRST_WORDS, OWN_NAME])
        raise ValueError(f"unknown first word {word!r}{hint} (known: {known})")
    words = [*_flags_of(word), *_spelled_now(word, argv[1:])] if word else argv
    request = flags.parse(words, program, DESCRIPTION, own=OWN)
    own, config = request.own, request.config
    if word and "epsilon" not in request.given:
        privacy = config.privacy.model_copy(update={"epsilon": None})
        config = config.model_copy(update={"privacy": privacy})
    question = Question(
        config=config,
        delta=config.privacy.delta if "delta" in request.given else None,
        ledger=_read(own, "ledger", Path),
        verify=_read(own, "verify", Path),
        check=_read(own, "check", Path),
        node=own.get("node"),
        group=_read(own, "group", int),
        word=word,
        records=_read(own, "records", _integers),
        tries=_read(own, "tries", float),
        orders=_read(own, "orders", _orders),
        trials=_read(own, "trials", int),
        norm_sum=_read(own, "norm_sum", float),
        eigenvalues=_read(own, "eigenvalues", _numbers),
        json="json" in own,
    )
    if question.tries is not None:
        check_mean(question.tries)
        if question.found != (None, None, None):
            raise ValueError(
                f"--tries {question.tries:g} needs a price that is known before a run: drop "
                "--trials, --norm-sum or --eigenvalues"
            )
    if word:
        _check_one_client(question, request)
    else:
        _check_run(question, request)
    return question


def _flags_of(word: str) -> tuple[str, ...]:
    return FIRST_WORDS.get(word, (*ALONE, f"--mechanism={word}"))


def _spelled_now(word: str, argv: Sequence[str]) -> list[str]:
    """The arguments with former names of DPSUR's flags replaced; ``dpsur`` still accepts those."""
    if word != "dpsur":
        return list(argv)
    former = {
        f"--{name.replace('_', '-')}": f"--{now.replace('_', '-')}" for name, now in FORMER.items()
    }
    parts = (each.partition("=") for each in argv)
    return [former.get(flag, flag) + sign + value for flag, sign, value in parts]


def _read(own: Any, name: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(own[name]) if name in own else None
    except ValueError:
        flag = f"--{name.replace('_', '-')}"
        raise ValueError(f"{flag} {own[name]} must be {_FORMS[name]}") from None


_FORMS = {
    "records": f"integers from 1 to {MAX_RECORDS:g} with commas between, such as 600 or 600,300",
    "orders": f"numbers above 1 and at most {MAX_ORDER:g} with commas between, such as 2,4,8.5",
    "tries": "a number",
    "trials": "an integer",
    "group": "an integer",
    "norm_sum": "a number",
    "eigenvalues": "numbers with commas between, such as 3,2,1",
}


def _integers(text: str) -> tuple[int, ...]:
    found = _numbers(text)
    if not all(1.0 <= number <= MAX_RECORDS and number.is_integer() for number in found):
        raise ValueError
    return tuple(map(int, found))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _orders(text: str) -> tuple[float, ...]:
    found = _numbers(text)
    if not all(1.0 < order <= MAX_ORDER for order in found):
        raise ValueError
    return found


def _check_run(question: Question, request: Request) -> None:
    """Refuse flags that only apply to one client, or that a ledger makes pointless."""
    if question.found != (None, None, None):
        raise ValueError(
            "--trials, --norm-sum and --eigenvalues are for one client: name a mechanism first"
        )
    if question.group is not None and question.ledger is None:
        raise ValueError(f"--group {question.group} is about what a run has paid: add --ledger")
    asked = request.given | (request.own.keys() - {"json"})
    for name, (does, kept) in _OF_A_RUN.items():
        if name in asked and (others := sorted(asked - kept - {name})):
            raise ValueError(f"--{name} {does}: drop {', '.join(others)}")


_OF_A_RUN = {
    "verify": ("proves what a run has printed", set[str]()),
    "ledger": ("prices what a run has paid", {"delta", "group"}),
    "check": ("looks at a run's files", set[str]()),
    "node": ("looks at a node's ledgers of all runs", set[str]()),
}
"""Flags about runs that have been -> what they do, and the flags that may stand beside them."""


def _check_one_client(question: Question, request: Request) -> None:
    """Require the flags for which one client's round has no default."""
    given, privacy = request.given, request.config.privacy
    for flag in (*_OF_A_RUN, "group"):
        if getattr(question, flag) is not None:
            raise ValueError(f"--{flag} and {question.word} are two questions: drop one")
    noise = "share_noise" if question.word == SHARED else "noise_multiplier"
    if len(given & {noise, "epsilon", "budgets"}) != 1 or "budgets" in given:
        flag = f"--{noise.replace('_', '-')}"
        raise ValueError(
            f"give one of {flag} (to price it) and --epsilon (to calibrate it), and not both"
        )
    if question.word == SHARED:
        if question.found != (None, None, None):
            raise ValueError(
                f"--trials, --norm-sum and --eigenvalues are for a mechanism, not for {SHARED}: "
                "leave them out"
            )
        return
    if not given & {"sample_rate", "batch_size"}:
        raise ValueError("--sample-rate is missing: give it, or --batch-size and --records")
    sized = privacy.batch_size is not None or privacy.sampling != "poisson"
    sized |= question.word == "dpis" or ":" in str(question.word)
    if question.records is None and sized:
        raise ValueError("--records is missing: give the client's number of records")
    if question.found.count(None) < 2:
        raise ValueError(
            "--trials, --norm-sum and --eigenvalues are found by different mechanisms: give one"
        )
    if question.trials is None and _charges_trials(request.config):
        raise ValueError(
            "--trials is missing: each trial is charged here and --steps counts accepted ones; "
            "give the trials that one client plans in the whole run"
        )


def _charges_trials(config: Config) -> bool:
    tests = {
        "dpsur": config.dpsur.dpsur_accounting != "selective",
        "screening": config.screening.screening_data == "public",
    }
    return tests.get(config.privacy.mechanism, False)
