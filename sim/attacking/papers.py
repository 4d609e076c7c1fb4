"""The results of attacks in DPSUR's Tables 3 and 4, to show beside ours."""

from sim.config import papers

PAPER = "dpsur-pvldb-2024"
TABLES = {"fmnist": "table-3", "cifar10": "table-4"}
ATTACKS = {"shadow": "Black-Box Shadow", "partial": "White-Box Partial"}
ROWS = {"dpsur": "DPSUR", "dpsgd": "DPSGD", "none": "non-private"}


def accuracy(dataset: str, attack: str, mechanism: str, budget: float | None) -> float | None:
    """The paper's attack accuracy in [0, 1], or None if it reports none for this case."""
    if dataset not in TABLES or attack not in ATTACKS or mechanism not in ROWS:
        return None
    place = f"{PAPER}/{TABLES[dataset]}/{ATTACKS[attack]}/{ROWS[mechanism]}"
    column = "" if budget is None else f"{budget:g}"
    found = papers.claims([place], column)
    return found[0].value if found else None
