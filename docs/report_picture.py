"""Draws the plots of a run's report in two columns, for the README.

python -m sim.run --clients 100 --dirichlet 0.5 --name picture
python docs/report_picture.py runs/picture --out docs/report.svg
"""

import argparse
import re
from pathlib import Path

from sim.drawing.colors import COLORS

PICTURE = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*?)</svg>', re.DOTALL)
VALUES = re.compile(r'<g class="values".*?</g>\n?', re.DOTALL)
MARGIN = 12


def compose(report: str) -> str:
    """One SVG of all plots in the text of a report, in their order, in the colours of a light
    screen."""
    pieces, top, right = [], 0.0, 0.0
    found = [(float(w), float(h), drawn) for w, h, drawn in PICTURE.findall(report)]
    for row in (found[place : place + 2] for place in range(0, len(found), 2)):
        left = 0.0
        for width, height, drawn in row:
            place = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
            inner = re.sub(r"var\(--(\w+)\)", lambda name: COLORS[name[1]][0], drawn)
            box = f'viewBox="0 0 {width:g} {height:g}"'
            pieces.append(f"<svg {place} {box}>{VALUES.sub('', inner)}</svg>")
            left += width + MARGIN
        top, right = top + max(height for _, height, _ in row) + MARGIN, max(right, left - MARGIN)
    outer = f'viewBox="0 0 {right:g} {top - MARGIN:g}"'
    back = '<rect width="100%" height="100%" fill="white"/>'
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"{head} {outer}>\n{back}\n" + "\n".join(pieces) + "\n</svg>\n"


def main() -> None:
    """Read the report of a run directory and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    drawing = compose((given.run_dir / "report.html").read_text(encoding="utf-8"))
    given.out.write_text("\n".join(map(str.rstrip, drawing.splitlines())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
