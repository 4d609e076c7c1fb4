"""Draws the plots of a run's report one below the other, for the README.

python -m sim.run --clients 100 --dirichlet 0.5 --name picture
python docs/report_picture.py runs/picture --out docs/report.svg
"""

import argparse
import base64
import re
from pathlib import Path

PICTURE = re.compile(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"')
SIZE = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"', re.DOTALL)
MARGIN = 12


def compose(report: str) -> str:
    """One SVG of all plots in the text of a report, as they stand there."""
    pieces, top, right = [], 0.0, 0.0
    for data, _ in PICTURE.findall(report):
        drawing = base64.b64decode(data).decode()
        size = SIZE.search(drawing)
        if size is None:
            raise ValueError("a plot of the report has no viewBox: its size is unknown")
        width, height = map(float, size.groups())
        inner = drawing[drawing.index("<svg ") :].strip()
        inner = re.sub(r"<metadata>.*?</metadata>\n?", "", inner, flags=re.DOTALL)
        inner = re.sub(
            r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", inner, count=1, flags=re.DOTALL
        )
        place = f'<svg y="{top:g}" width="{width:g}" height="{height:g}" '
        pieces.append(inner.replace("<svg ", place, 1))
        top, right = top + height + MARGIN, max(right, width)
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
