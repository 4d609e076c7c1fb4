"""The tables of accuracies in README and on the page of results are the leaderboard's figures."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINEAR = {
    "DPSGD": "DPSGD-HF linear",
    "DPSUR": "DPSUR linear",
    "DPIS": "DPIS linear",
    "DPSGD, digits upright, features whitened (`--preset linear-mnist`)": (
        "DPSGD linear on upright digits"
    ),
}
AT_3 = (
    *("scattering, DPSGD-HF linear", "scattering, DPSUR linear", "scattering, DPIS linear"),
    *("scattering, DPSGD-HF", "scattering, DPSUR", "scattering, DPIS"),
    *("pixels, DPSGD-TS", "pixels, noise screening"),
)
"""The rows of the table at epsilon 3."""
DATA = {"MNIST": "mnist", "Fashion-MNIST": "fmnist", "IMDb": "imdb", "CIFAR-10": "cifar10"}
Table = list[list[str]]


def tables(page: str) -> list[Table]:
    """The tables of a page, as rows of cells."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in row[1:-1].split("|")] for row in one.splitlines()]
        for one in found
    ]


@pytest.fixture(scope="module")
def board() -> dict[str, dict[tuple[str, str], float]]:
    """Accuracy of runs of one client by data set, and by (column, "kind of recipe, row")."""
    (rows,) = (t for t in tables("docs/leaderboard.md") if t[0][0] == "certified epsilon")
    found: dict[str, dict[tuple[str, str], float]] = {name: {} for name in DATA.values()}
    for _, data, clients, name, accuracy, *_, recipe in rows[2:]:
        if clients == "1" and data in found:
            recipe, _, column = recipe.partition(", ")
            kind = recipe.removeprefix(f"{data}-")
            found[data][column, f"{kind}, {name}"] = float(accuracy.split()[0])
    return found


def by_row(table: Table) -> list[tuple[str, dict[str, str]]]:
    """Each row's name, and its cells by their column's; of two columns of one name the last."""
    return [(row[0], dict(zip(table[0][1:], row[1:], strict=True))) for row in table[2:]]


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/accuracy.md"])
def test_linear_models_have_the_leaderboards_accuracy(board, page):
    (table,) = (t for t in tables(page) if t[0][0] == "certified epsilon")
    for name, cells in by_row(table):
        for epsilon, shown in cells.items():
            place = epsilon, f"scattering, {LINEAR[name]}"
            assert not shown or float(shown) == board["mnist"][place], place


def test_the_mechanisms_at_3_have_the_leaderboards_accuracy(board):
    (table,) = (t for t in tables("docs/explanation/accuracy.md") if t[0][2] == "papers")
    for name, row in zip(AT_3, table[2:], strict=True):
        for data, shown in zip(("mnist", "fmnist"), row[1::2], strict=True):
            assert not shown or float(shown) == board[data]["3", name], (data, name)


def test_the_best_cells_are_the_leaderboards(board):
    (table,) = (t for t in tables("docs/explanation/accuracy.md") if t[0][0] == "epsilon")
    ours = {name.removesuffix(": ours"): row for name, row in by_row(table) if "ours" in name}
    assert ours.keys() == DATA.keys()
    for name, row in ours.items():
        for epsilon, shown in row.items():
            own = [a for (column, _), a in board[DATA[name]].items() if column == epsilon]
            assert float(shown) == max(own), (name, epsilon)
