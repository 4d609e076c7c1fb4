"""LEAF's JSON layout (Caldas et al., arXiv:1812.01097), such as that of FEMNIST.

    femnist/train/*.json, femnist/test/*.json

A file holds ``users``, and ``user_data`` with ``x`` and ``y`` of each. Every user is a client; all
test records are one test part. 784 numbers are an image of 28x28 pixels.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 28


def files(root: Path, part: str) -> list[Path]:
    """The files of the part ``train`` or ``test``, in the order of their names."""
    return sorted((root / part).glob("*.json"))


def read(root: Path) -> dict[str, np.ndarray]:
    """``x`` float32, ``y`` int64 and ``client`` texts; ``x_test`` and ``y_test`` if there are any.

    Raises:
        ValueError: a file is not of this layout.
    """
    x, y, client = _part(files(root, "train"))
    found = {"x": x, "y": y, "client": client}
    if paths := files(root, "test"):
        found["x_test"], found["y_test"], _ = _part(paths)
    return found


def _part(paths: list[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    records: list[Any] = []
    labels: list[Any] = []
    clients: list[str] = []
    known: set[str] = set()
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            for user in content["users"]:
                if str(user) in known:
                    raise ValueError(f"user {user} is there twice, so each record counts twice")
                known.add(str(user))
                own = content["user_data"][user]
                if len(own["x"]) != len(own["y"]):
                    raise ValueError(f"{len(own['x'])} records and {len(own['y'])} labels")
                records += own["x"]
                labels += own["y"]
                clients += [str(user)] * len(own["y"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is not of LEAF's layout ({type(error).__name__}: {error}): write it by "
                "LEAF's preprocess.sh"
            ) from error
    try:
        x, numbers = np.array(records, dtype=np.float32), np.array(labels, dtype=np.float64)
        y = numbers.astype(np.int64)
        if (odd := numbers[y != numbers]).size:
            raise ValueError(f"{odd[0]:g} is none")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{paths[0].parent}: records are no numbers of one shape, or labels no integers "
            f"({error}): give such data by --dataset package.module:function"
        ) from error
    if x.ndim == 2 and x.shape[1] == SIDE**2:
        x = x.reshape(-1, SIDE, SIDE)
    return x, y, np.array(clients)
