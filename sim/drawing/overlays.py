"""A table of pictures: records in rows, and beside each one a heat map over it for every model."""

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from sim.drawing.plot import STYLE, Plot

CELL = 116
"""Width and height of a picture with its caption, in points."""
LETTERS = 16
"""Characters in a line of a column's title."""
HEAT: Any = {"cmap": "inferno", "alpha": 0.6, "vmin": 0.0, "vmax": 1.0}
"""How a map lies over its image: what counts most is brightest, and the image shines through."""


@matplotlib.rc_context(STYLE)
def overlays(
    images: np.ndarray,
    captions: Sequence[str],
    columns: Sequence[tuple[str, np.ndarray, Sequence[str]]],
    note: str,
) -> Plot:
    """Images, and the maps of each column over them.

    Args:
        images: float ``[N, C, H, W]``, C = 1 grey or 3 colours. Values in 0 .. 1 are shown as they
            are; others have their whole range scaled to that, the same for all images.
        captions: of the images, one for each.
        columns: title, maps ``[N, H, W]`` in 0 .. 1, and a caption for each map.
        note: what the reader must know, below all.
    """
    shown = _shown(images)
    titles = [_lines(title) for title, _, _ in columns]
    tallest = max(title.count("\n") for title in titles)
    wide = CELL * (1 + len(columns))
    below = textwrap.fill(note, wide // 6)
    high = CELL * len(shown) + 15 * (tallest + below.count("\n") + 3)
    figure = Plot(high, wide)
    grid = figure.subplots(len(shown), 1 + len(columns), squeeze=False)
    for row, image, caption in zip(grid, shown, captions, strict=True):
        _picture(row[0], image, caption)
    grid[0, 0].set_title("record")
    for number, (_, maps, told) in enumerate(columns):
        for row, image, heat, caption in zip(grid, shown, maps, told, strict=True):
            _picture(row[1 + number], image, caption)
            row[1 + number].imshow(heat, interpolation="nearest", **HEAT)
        grid[0, 1 + number].set_title(titles[number], parse_math=False)
    figure.supxlabel(below, fontsize=10, x=0.01, ha="left")
    return figure


def _shown(images: np.ndarray) -> np.ndarray:
    """The images as ``[N, H, W]`` or ``[N, H, W, 3]``, in 0 .. 1."""
    low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
    scaled = (images - low) / (high - low)
    return scaled[:, 0] if scaled.shape[1] == 1 else scaled.transpose(0, 2, 3, 1)


def _lines(title: str) -> str:
    """The title in lines that are no wider than a picture."""
    return "\n".join(
        line for part in title.split("\n") for line in textwrap.wrap(part, LETTERS) or [""]
    )


def _picture(axes: Axes, image: np.ndarray, caption: str) -> None:
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[], xlabel=caption)
    axes.grid(False)
    axes.spines[:].set_visible(False)
