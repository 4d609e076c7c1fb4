"""From DPSUR's figure to ours at a proved epsilon: a bar for each habit of its authors' code.

    python -m benchmarks.waterfall --plot docs/waterfall.svg

The cells are those that the repository keeps, means over seeds: of ``recipes/dpsur-habits.toml`` at
the paper's own claim of 3, which ends in the algorithm as the paper states it, and of DPSUR at a
certified epsilon of 3. A run's best round stands for the best epoch that the authors' code reports;
it looks after each trial, a run here after each round of accepted steps. Prints Markdown.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib
from matplotlib.figure import Figure

from sim.config.papers import claims

CELLS = Path(__file__).parent / "results" / "cells"
DATA = {"MNIST": ("MNIST", "mnist"), "Fashion-MNIST": ("FMNIST", "fmnist")}
"""The recipe's row -> the data set in the paper's tables, and in the names of recipes."""
HABITS = ("loss on the same batch", "and momentum restored", "and the expected divisor")
BARS = ("the paper", "as coded, best round", "as coded, last model", *HABITS, "at a certified 3")


def kept(folder: str) -> dict[tuple[str, str], list[dict]]:
    """The results of a table by row and column, one for each seed."""
    found = defaultdict(list)
    for path in sorted((CELLS / folder).glob("*.json")):
        content = json.loads(path.read_text())
        found[content["row"], content["column"]].append(content)
    return found


def last(results: list[dict]) -> float:
    """The last model's mean accuracy, in per cent."""
    return 100 * mean(one["summary"]["accuracy"] for one in results)


def bars(row: str) -> list[float]:
    """The heights of `BARS`, accuracy in per cent."""
    habits, (data, stem) = kept("dpsur-habits-published"), DATA[row]
    (paper,) = claims([f"dpsur-pvldb-2024/table-2/{data}/DPSUR"], "3")
    coded = habits[row, "as coded"]
    best = 100 * mean(max(accuracy for _, accuracy, *_ in one["rounds"]) for one in coded)
    certified = last(kept(f"{stem}-scattering-certified")["DPSUR", "3"])
    return [paper.value, best, last(coded), *(last(habits[row, one]) for one in HABITS), certified]


def picture(found: dict[str, list[float]]) -> Figure:
    """A panel for each data set: each bar hangs between the height before and its own."""
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "waterfall"}):
        figure = Figure(figsize=(8, 2.4 * len(found)), layout="constrained")
        panels = figure.subplots(len(found), squeeze=False)[:, 0]
        for axes, (row, heights) in zip(panels, found.items(), strict=True):
            befores = [heights[0], *heights[:-1]]
            for at, (height, before) in enumerate(zip(heights, befores, strict=True)):
                whole = at in (0, len(heights) - 1)
                low, high = sorted((min(heights) - 0.3 if whole else before, height))
                colour = "#2b6cb0" if whole else "#c05621" if height < before else "#2f855a"
                axes.barh(at, high - low, left=low, color=colour)
                axes.text(high, at, f" {height:.2f}", va="center")
            axes.set(yticks=range(len(BARS)), yticklabels=BARS, title=row)
            axes.set(xlabel="accuracy, %", xlim=(min(heights) - 0.3, max(heights) + 0.25))
            axes.invert_yaxis()
        return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, help="an SVG file")
    given = parser.parse_args()
    ran = {row for row, _ in kept("dpsur-habits-published")}
    found = {row: bars(row) for row in DATA if row in ran}
    print(f"| accuracy, % | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
    for bar, heights in zip(BARS, zip(*found.values(), strict=True), strict=True):
        print(f"| {bar} | {' | '.join(f'{height:.2f}' for height in heights)} |")
    if given.plot:
        picture(found).savefig(given.plot, metadata={"Date": None})


if __name__ == "__main__":
    main()
