"""How the terminal and the report word numbers and notices."""

import functools
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from mechanisms.settings import Privacy
from server.guarantees import UNITS
from server.records import Epsilon, Evaluation, finite

UNFINISHED = (
    "The run is not finished. If you stop it because of what it has shown, the budget is the "
    "guarantee, not what is spent so far: that holds for an end fixed beforehand."
)
AT_ONE_ORDER = (
    "The run is not finished: its certified epsilons are at Renyi orders that were fixed before "
    "it began, and hold whatever made it end. They cover every charged round, finished or not."
)
UNDER_WAY = "It includes a round in progress."
METRICS = {
    "clock": "Virtual time at which each round ended [scale of a training's normal duration].",
    "staleness": "How many models old those of the clients were that answered: mean over a round.",
}
"""What metrics of the rounds are that are not the mechanism's."""
MAX_TEXT = 300
"""Characters of a setting's value that a report shows; all of it is in ``config.toml``."""
RELEASED = (
    "Noise and batches came from the operating system's entropy, and no seed of them was kept."
)
_COLUMNS = (
    "The certified epsilon is proved. The published one is what the mechanism's paper claims, for "
    "comparison only."
)
_THREAT_MODEL = (
    "What is protected is one training record of one client.",
    "Adjacency is zero-out: the record is replaced by a null record that adds to no sum and to no "
    "count. How many records a client holds is public.",
    "The server, like everybody else, is taken to see every upload of every client: local steps "
    "between uploads are charged too, and picking clients at random lowers no epsilon.",
    "Clients hold disjoint records, so the guarantee is each client's own, and that of the whole "
    "system is the largest of them, never their sum.",
    _COLUMNS,
)
_SUMS = (
    "What is protected is {unit}.",
    "Adjacency is zero-out: it is replaced by a null {kind}, which adds to no sum and to no count.",
    "{trusted}",
    "The model of each round is taken to be seen by everybody.",
    _COLUMNS,
)
_TRUSTED = {
    "server": "The server is trusted: it sees what each client sends, adds noise to the sum over "
    "all clients, and every client pays for every round.",
    "aggregate": "Secure aggregation is trusted: the server sees the sum of what clients send, "
    "to which each of them has added a share of the noise, and who has answered.",
}
_ONE_CLIENT = (
    "What is protected is one training record.",
    "Adjacency is zero-out: the record is replaced by a null record that adds to no sum and to no "
    "count. How many records there are is public.",
    "Every model on the way is taken to be seen, with what the mechanism says that it releases.",
    _COLUMNS,
)


def epsilon(value: Epsilon, digits: int = 4, infinite: str = "infinite (not private)") -> str:
    """An epsilon rounded up, so that the shown value is a guarantee, or ``infinite`` for none.

    The default text is plain ASCII, because not every terminal has more.
    """
    if value is None or finite(value) is None:
        return infinite
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)):.{digits}g}"


AGAINST = ("Protected from", "Which sees", "Unit", "Certified epsilon")
"""The head of a table of guarantees."""


def guarantees(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A table's rows; who is trusted has no epsilon."""
    names = ("adversary", "sees", "unit")
    return [(*(row[n] for n in names), epsilon(row["epsilon"], infinite="none")) for row in rows]


def guaranteed(privacy: Privacy, alone: bool) -> list[str]:
    """What a guarantee says, a sentence or two a line; ``alone``: one client has all records."""
    trusted, kind = _TRUSTED.get(privacy.trust), privacy.unit
    if alone or trusted is None:
        return [*(_ONE_CLIENT if alone else _THREAT_MODEL)]
    return [line.format(unit=UNITS[kind], kind=kind, trusted=trusted) for line in _SUMS]


def protections(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The same as lines (name, value); without privacy, one."""
    if all(row["epsilon"] is None for row in rows):
        return [("protected", "nothing")] if rows else []
    lines = [("protected", rows[0]["unit"])]
    for row in rows:
        spent, sees = row["epsilon"], row["sees"]
        trusted = f"not at all: trusted with {sees}"
        text = f"epsilon {epsilon(spent)}, seeing {sees}" if spent is not None else trusted
        lines.append((f"from {row['adversary']}", text))
    return lines


_proved = functools.partial(epsilon, infinite="not proved")

BUDGETS = ("Group", "Budget", "Clients", "Largest certified epsilon")
"""The head of a table of personal budgets."""


def budgets(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A table's rows, one for each group (`server.guarantees.by_group`)."""
    return [
        (one["group"], f"{one['budget']:g}", str(one["clients"]), _proved(one["largest"]))
        for one in rows
    ]


def lower_bound(value: float, digits: int = 4) -> str:
    """A lower bound on epsilon rounded down, so that the shown value is a bound."""
    return f"{float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(value)):.{digits}g}"


def figure(value: float | None, digits: int = 4) -> str:
    """A measured number, or ``unknown``."""
    return "unknown" if finite(value) is None else f"{value:.{digits}f}"


def scores(found: Evaluation) -> list[tuple[str, str]]:
    """A model's further scores as (name, value); those of clients say whether they are
    protected."""
    rows = [("perplexity", figure(found.perplexity))]
    if found.accuracy_by_class:
        rows = [
            ("macro F1", figure(found.f1)),
            ("AUROC", figure(found.auroc)),
            ("calibration error", figure(found.calibration_error)),
        ]
    if found.unprotected:
        rows += [
            ("unprotected: mean of clients", figure(found.client_mean)),
            ("standard deviation", figure(found.client_deviation)),
            ("worst tenth", figure(found.client_worst_tenth)),
            ("worst client", figure(found.client_worst)),
        ]
    elif found.score_noise is not None:
        rows += [
            (f"released: mean of clients, {found.clients_on} records", figure(found.client_mean)),
            ("standard deviation of its noise", figure(found.client_mean_noise)),
            ("standard deviation", figure(found.client_deviation)),
        ]
    return rows


def shortened(text: str) -> str:
    """A text, or the beginning of a long one, as of the budgets of many clients."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


def span(values: Sequence[float]) -> str:
    """``1.2``, or ``1.2 to 3.4`` where the values differ."""
    return " to ".join(dict.fromkeys(f"{end:.4g}" for end in (min(values), max(values))))


def clock(seconds: float) -> str:
    """``0:12``, ``3:20`` or ``2:05:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, over = divmod(minutes, 60)
    return f"{hours}:{over:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def duration(seconds: float) -> str:
    """``1.5 s``, ``12 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
