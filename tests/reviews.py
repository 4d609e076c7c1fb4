"""A small `imdb.npz` in Keras' layout: reviews of one or several words, favourable ones with words
of their own."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np

WORDS = {"the": 1, "good": 2, "fine": 3, "bad": 4, "poor": 5, "rare": 90_000}
"""Ranks, as in Keras' `imdb_word_index.json`."""


def lists(reviews: list[list[int]]) -> np.ndarray:
    """Ragged lists as an array of objects."""
    array = np.empty(len(reviews), dtype=object)
    array[:] = reviews
    return array


def write(folder: Path, records: int = 60, **arrays: np.ndarray) -> Path:
    """Random reviews of 1 to 120 words, half of them favourable; ``arrays`` stand in for some of
    the file's."""
    rng, found = np.random.default_rng(0), {}
    for part, count in (("train", records), ("test", 20)):
        labels = np.arange(count) % 2
        own = [(2, 3) if label else (4, 5) for label in labels]
        found[f"x_{part}"] = lists(
            [rng.choice([1, *pair, 90_000], rng.integers(1, 121)).tolist() for pair in own]
        )
        found[f"y_{part}"] = labels
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "imdb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (found | arrays).items():
            archive.writestr(f"{name}.npy", stored(array))
    (folder / "imdb_word_index.json").write_text(json.dumps(WORDS))
    return folder


def stored(array: np.ndarray) -> bytes:
    """As NumPy wrote it when Keras made its file: objects by protocol 3 of pickle."""
    file = io.BytesIO()
    if array.dtype == object:
        header = {"descr": "|O", "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, header)
        pickle.dump(array, file, protocol=3)
    else:
        np.lib.format.write_array(file, array, version=(1, 0))
    return file.getvalue()
