"""The data sets of the runs of `tests.pinned`."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (3, 5, 8, 12, 17, 23)
"""Records of the clients that the data name."""
WORDS = 9
"""Size of the vocabulary; 0 is padding."""


def make(folder: Path) -> None:
    """Write the data sets that the runs name."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    labels, test_labels = (owner + rng.integers(0, 2, owner.size)) % 3, np.arange(30) % 3

    def save(name: str, x: Any, y: Any, x_test: Any, y_test: Any, **own: Any) -> None:
        parts = {"x": x, "y": y, "x_test": x_test, "y_test": y_test, "client": owner}
        np.savez(folder / f"{name}.npz", **parts, **own)

    for name, shape in (("records", (5,)), ("images", (1, 16, 16)), ("photos", (3, 8, 8))):
        centres = rng.normal(size=(3, *shape))
        x, x_test = (
            (centres[y] + rng.normal(size=(y.size, *shape))).astype(np.float32)
            for y in (labels, test_labels)
        )
        save(name, x, labels, x_test, test_labels)
    with np.load(folder / "records.npz") as known:
        np.savez(folder / "plain.npz", **{key: known[key] for key in known if key != "client"})
    x, x_test = (rng.normal(size=(n, 5)).astype(np.float32) for n in (owner.size, 30))
    several, several_test = ((a[:, :3] > 0.3) * np.float32(1) for a in (x, x_test))
    save("several", x, several, x_test, several_test)
    save("numbers", x, x[:, :1] - x[:, 1:2], x_test, x_test[:, :1] - x_test[:, 1:2])
    words, words_test = (rng.integers(0, WORDS, (n, 6)) for n in (owner.size, 30))
    save("words", words, labels, words_test, test_labels, words=WORDS)
    _table(folder, owner)


def _table(folder: Path, owner: np.ndarray) -> None:
    """A table with a column of clients, and what is known of its columns."""
    rng = np.random.default_rng(6)
    with open(folder / "patients.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["hospital", "age", "ward", "outcome"])
        for number in owner:
            age, ward = int(rng.integers(20, 90)), str(rng.choice(["a", "b", "c"]))
            ill = age / 50 + (ward == "b") + rng.normal(0, 0.4) > 1.4
            rows.writerow([f"h{number}", age, ward, "ill" if ill else "well"])
    known = 'age = [0, 100]\nward = ["a", "b", "c"]\noutcome = ["well", "ill"]\n'
    (folder / "patients.toml").write_text(known)
