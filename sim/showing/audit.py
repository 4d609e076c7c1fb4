"""The result of an audit, as a record and as a section of the report."""

from dataclasses import dataclass
from pathlib import Path

from mechanisms import durable
from server import manifest, sealed_json
from server.records import Epsilon, Record
from sim.showing import page, wording

FILE = "audit.json"


@dataclass(frozen=True)
class Audit(Record):
    """The result of an audit.

    Attributes:
        view: ``white-box`` (every upload, crafted gradients) or ``black-box`` (the final model,
            wrong labels).
        confidence: confidence of the lower bound.
        delta: delta of both bounds.
        canaries, guesses, right: the numbers of canaries, of guessed coins, and of right guesses.
        epsilon_lower: the lower bound, from the canaries of all clients.
        epsilon_certified, epsilon_published: the clients' largest, from the ledger; None if
            infinite.
        clients: for each client with canaries: (number, canaries, lower bound from these alone,
            certified epsilon).
        run_dir: the run directory.
        run: the digest of its manifest; None where an earlier version wrote none.
    """

    view: str
    confidence: float
    delta: float
    canaries: int
    guesses: int
    right: int
    epsilon_lower: float
    epsilon_certified: Epsilon
    epsilon_published: Epsilon
    clients: tuple[tuple[int, int, float, Epsilon], ...]
    run_dir: str
    run: str | None = None


_MEANING = (
    "Canaries stood among the records of this run, or among its clients if whole ones are "
    "protected, each in or out by a fair coin, and an attacker guessed the coins. A lower bound "
    "above the certified epsilon would refute the guarantee. One far below it proves nothing: the "
    "attacker may be weak, and a few hundred canaries cannot show a large epsilon."
)


def read(run_dir: Path) -> Audit | None:
    """The result in a run directory; None if the run was not audited.

    Raises:
        ValueError: the file is damaged, or of another run.
    """
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        found = Audit.from_json(sealed_json.loads(durable.read(path)))
    except (ValueError, TypeError) as fault:
        raise ValueError(f"{path} is damaged ({fault}): audit again") from None
    manifest.check_run(run_dir, path, found.run)
    return found


def section(run_dir: Path) -> str:
    """The report's section about the audit; empty if the run was not audited.

    Raises:
        ValueError: the file is damaged.
    """
    if (found := read(run_dir)) is None:
        return ""
    guesses = f"{found.right} of {found.guesses} guesses right, {found.canaries} canaries"
    everybody = ("all", found.canaries, found.epsilon_lower, found.epsilon_certified)
    rows = [
        (str(who), str(coins), wording.lower_bound(lower), wording.epsilon(certified))
        for who, coins, lower, certified in (everybody, *found.clients)
    ]
    lower = f"Lower bound, confidence {found.confidence:g}"
    table = page.table(("Client", "Canaries", lower, "Certified epsilon"), rows)
    note = "A client's own bound is from its own canaries." if found.clients else ""
    attacker = page.paragraph(f"{found.view}: {guesses}. {note}")
    return page.section("Audit", page.paragraph(_MEANING), attacker, table)
