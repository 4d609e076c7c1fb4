"""The report's table of epsilons for several records of one person."""

from collections import Counter

from mechanisms.accounting import group
from server import paid
from server.records import largest
from sim.showing import page, wording
from sim.showing.run import Run

SIZES = (1, 2, 4, 8)
"""Records of one person."""


def table(run: Run) -> list[str]:
    """The parts of the page; none without a ledger and a proved epsilon.

    Raises:
        ValueError: a file of the ledger is damaged.
    """
    certified = run.summary.epsilon_certified if run.summary else ()
    if largest(certified) is None or not (run.folder / "ledger").is_dir():
        return []
    worst = max(range(len(certified)), key=lambda client: certified[client] or 0.0)
    spent, delta = paid.read(run.folder), run.config.privacy.delta
    found = [group.epsilon(spent.get(worst, Counter()), delta, size) for size in SIZES]
    whose = "" if run.alone else f" with client {worst}, whose certified epsilon is the largest"
    text = (
        f"Epsilon of a person who has several records{whose}, all of them replaced at once. "
        f"For other numbers: python -m sim.account --ledger {run.folder} --group K."
    )
    head = ("Records of one person", *map(str, SIZES))
    shown = (wording.epsilon(one.epsilon, infinite="not proved") for one in found)
    rows = [("certified epsilon", *shown), ("what proves it", *(one.method for one in found))]
    return [page.paragraph(text), page.table(head, rows)]
