"""The pieces of a self-contained HTML page. Every text is escaped here, once."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f7f8fa; color: #1f2937;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
  sans-serif; }
main { max-width: 920px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 24px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 10px; }
p { margin: 0 0 10px; max-width: 76ch; }
ul { margin: 0 0 10px; padding-left: 20px; max-width: 76ch; }
.subtitle { color: #64748b; margin-bottom: 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px;
  margin-bottom: 16px; }
.tile, section { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; }
.tile { padding: 12px 16px; }
.tile .name { color: #64748b; font-size: 13px; }
.tile .value { font-size: 25px; font-weight: 600; line-height: 1.3; }
.tile .note { color: #64748b; font-size: 12.5px; line-height: 1.4; }
.tile.main .value { color: #2b6cb0; }
.tile.long .value { font-size: 19px; line-height: 1.7; }
section { padding: 18px 20px; margin-bottom: 16px; }
figure { margin: 0 0 14px; }
figure:last-child { margin: 0; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: #64748b; font-size: 13px; margin-top: 6px; max-width: 90ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0;
  border-bottom: 1px solid #edf1f5; }
th { color: #64748b; font-weight: 500; }
td:nth-child(2) { font-variant-numeric: tabular-nums; }
tr.head th { padding-top: 14px; color: #1f2937; font-weight: 600; }
code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: #f1f5f9; border-radius: 6px; padding: 10px 14px; margin: 0; overflow-x: auto; }
.notice { border-left: 4px solid #dd7a1b; }
"""


def page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    """A complete page without external resources."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f'<p class="subtitle">{escape(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Headline values: (name, value, note)."""
    cells = []
    for number, (name, value, note) in enumerate(entries):
        kind = "tile" + (" main" if number < 2 else "") + (" long" if len(value) > 10 else "")
        cells.append(
            f'<div class="{kind}"><div class="name">{escape(name)}</div>'
            f'<div class="value">{escape(value)}</div>'
            f'<div class="note">{escape(note)}</div></div>'
        )
    return f'<div class="tiles">{"".join(cells)}</div>'


def section(title: str, *parts: str, notice: bool = False) -> str:
    """A titled box; a notice stands out."""
    kind = ' class="notice"' if notice else ""
    return f"<section{kind}><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def listing(lines: Iterable[str]) -> str:
    """A list of plain texts."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def commands(lines: Iterable[str]) -> str:
    """Lines to type in a terminal."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def picture(svg: bytes, alt: str, caption: str) -> str:
    """An embedded SVG with a caption."""
    data = base64.b64encode(svg).decode()
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a row of one cell is a heading over the rows below it."""
    lines = [f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"]
    for row in rows:
        if len(row) == 1:
            lines.append(f'<tr class="head"><th colspan="{len(head)}">{escape(row[0])}</th></tr>')
        else:
            lines.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'
