"""A plot of one column, drawn without pyplot and without a display, in the colours of the pages."""

import io
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sim.drawing.colors import COLORS

BLUE, ORANGE, GREY, RED, INK, RULE = (
    COLORS[name][0] for name in ("blue", "orange", "grey", "red", "ink", "rule")
)

WIDTH = 320
"""Width of a plot in points, which are pixels where a page shows it at its own size: a phone's
column."""

STYLE: Any = {
    "font.size": 12,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "figure.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
}


class Plot(Figure):
    """A figure of one column, which tells its values where a pointer rests.

    Attributes:
        told: (axes, from x, to x, text) of each part that tells something.
    """

    def __init__(self, height: float, width: float = WIDTH):
        """Sizes are in points."""
        super().__init__(figsize=(width / 72, height / 72), layout="constrained")
        self.told: list[tuple[Axes, float, float, str]] = []


def svg(figure: Figure) -> bytes:
    """A figure as SVG, equal for equal figures; its text remains text."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        # `savefig` would draw it twice, the first time for a layout that drawing makes anyway
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    told = _told(figure) if isinstance(figure, Plot) else ""
    return buffer.getvalue().replace(b"</svg>", told.encode() + b"</svg>")


def _told(figure: Plot) -> str:
    """A strip over each part of the axes that tells values, as high as they are."""
    width, height = 72 * figure.get_size_inches()
    strips = []
    for axes, *ends, text in figure.told:
        low, high = axes.get_xlim()
        to_figure = axes.transData + figure.transFigure.inverted()
        left, right = (width * to_figure.transform((min(max(x, low), high), 0))[0] for x in ends)
        box = axes.get_position()
        top, tall = height * (1 - box.y1), height * box.height
        place = f'x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{tall:.2f}"'
        strips.append(f"<rect {place}><title>{escape(text)}</title></rect>\n")
    return f'<g class="values" fill-opacity="0">\n{"".join(strips)}</g>\n' if strips else ""
