"""Folders of images: a folder for each class, and around them, if wanted, one for each client.

    images/cat/1.png                     class, record
    images/hospital-3/cat/1.png          client, class, record
    images/train/..., images/test/...    either of them, in two parts

Classes are numbered in the order of their sorted names. Hidden files are ignored.
"""

import warnings
from pathlib import Path

import numpy as np

from mechanisms.durable import check_file

PARTS = {"train": ("x", "y", "client"), "test": ("x_test", "y_test", "")}
"""Folder of a part -> its arrays."""


def read(root: Path) -> dict[str, np.ndarray]:
    """Pixels ``x`` uint8 ``[N, C, H, W]``, classes ``y`` int64 ``[N]``, and ``client`` texts.

    Raises:
        ValueError: folders of another depth, classes that only the test part has, a file that is no
            image or a huge one, or images that differ in size or in colours.
    """
    parts = {"train": root}
    if {path.name for path in _inside(root)} == set(PARTS):
        parts = {name: root / name for name in PARTS}
    paths = {name: _images(folder) for name, folder in parts.items()}
    classes = sorted({path.parent.name for path in paths["train"]})
    found: dict[str, np.ndarray] = {}
    for name, images in paths.items():
        unknown = {path.parent.name for path in images} - set(classes)
        if unknown:
            raise ValueError(
                f"{parts[name]}: no image of the training part is in a folder {min(unknown)!r}: "
                "correct the folders of classes"
            )
        x, y, client = PARTS[name]
        found[x] = _pixels(images)
        found[y] = np.array([classes.index(path.parent.name) for path in images], dtype=np.int64)
        above = [path.relative_to(parts[name]).parts[:-2] for path in images]
        if client and above[0]:
            found[client] = np.array([names[0] for names in above])
    return found


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    """All images of a part, in a fixed order."""
    above = [path for path in _inside(folder) if path.is_dir()]
    below = [path for one in above for path in _inside(one)]
    deeper = [path for one in below if one.is_dir() for path in _inside(one)]
    images = deeper or below
    odd = [path for path in (below if deeper else images) if path.is_dir() != bool(deeper)]
    odd += [path for path in deeper if path.is_dir()]
    if odd or not images:
        where = odd[0] if odd else folder
        raise ValueError(
            f"{where}: a folder of images is CLASS/IMAGE or CLIENT/CLASS/IMAGE throughout, in "
            "train/ and test/ or without them: move it"
        )
    return images


def _pixels(paths: list[Path]) -> np.ndarray:
    """Pixels uint8 ``[N, C, H, W]``: one channel if all images are grey, else three."""
    from PIL import Image

    first: tuple[int, int] | None = None
    pixels = []
    for path in paths:
        check_file(path, ": correct or remove it")
        try:
            bomb = warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning)
            with bomb, Image.open(path) as image:
                if image.mode[0] in "IF":  # converting would cut them off
                    raise ValueError("its pixels have more than 8 bits")
                grey = image.mode in ("1", "L")
                read = np.asarray(image.convert("L" if grey else "RGB"))
        except Exception as error:  # decoders raise whatever a damaged file leads them to
            raise ValueError(f"{path} is no image ({error}): correct or remove it") from error
        first = first or read.shape[:2]
        if read.shape[:2] != first:
            raise ValueError(
                f"{path} has {read.shape[1]}x{read.shape[0]} pixels, {paths[0]} {first[1]}x"
                f"{first[0]}: bring all images to one size"
            )
        pixels.append(read)
    if any(one.ndim == 3 for one in pixels):
        pixels = [one if one.ndim == 3 else np.repeat(one[..., None], 3, axis=2) for one in pixels]
        return np.stack(pixels).transpose(0, 3, 1, 2)
    return np.stack(pixels)[:, None]
