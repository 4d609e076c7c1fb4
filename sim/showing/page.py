"""The pieces of a self-contained HTML page. Every text is escaped here, once."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from sim.drawing.colors import COLORS

_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')

_STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
  sans-serif; }
main { max-width: 920px; margin: 0 auto; padding: 32px 16px 64px; }
h1 { font-size: 24px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 10px; }
p { margin: 0 0 10px; max-width: 76ch; overflow-wrap: anywhere; }
ul { margin: 0 0 10px; padding-left: 20px; max-width: 76ch; overflow-wrap: anywhere; }
summary { cursor: pointer; }
summary h2 { display: inline-block; margin: 0; }
.subtitle { color: var(--muted); margin-bottom: 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px;
  margin-bottom: 16px; }
.tile, section { background: var(--surface); border: 1px solid var(--rule); border-radius: 8px; }
.tile { padding: 12px 16px; }
.tile .name { color: var(--muted); font-size: 13px; }
.tile .value { font-size: 25px; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.tile .note { color: var(--muted); font-size: 12.5px; line-height: 1.4; }
.tile.main .value { color: var(--blue); }
.tile.long .value { font-size: 19px; line-height: 1.7; }
section { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr));
  column-gap: 20px; padding: 18px 16px; margin-bottom: 16px; }
section > * { grid-column: 1 / -1; min-width: 0; }
section > figure { grid-column: auto; }
figure { margin: 0 0 14px; overflow-x: auto; }
figure svg { width: 100%; height: auto; display: block; }
figure svg text { font-family: inherit !important; }
figcaption { color: var(--muted); font-size: 13px; margin-top: 6px; max-width: 90ch; }
.values rect { fill: var(--ink); fill-opacity: 0; }
.values rect:hover { fill-opacity: 0.1; }
.scroll { overflow-x: auto; margin-bottom: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0;
  border-bottom: 1px solid var(--rule); }
th { color: var(--muted); font-weight: 500; }
td:nth-child(2) { font-variant-numeric: tabular-nums; }
tr.head th { padding-top: 14px; color: var(--ink); font-weight: 600; }
pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  background: var(--ground); border-radius: 6px; padding: 10px 14px; margin: 0; overflow-x: auto; }
.notice { border-left: 4px solid var(--orange); }
"""


def page(title: str, subtitle: str, parts: Iterable[str], refresh: int | None = None) -> str:
    """A complete page without external resources; ``refresh``: it loads itself anew after so many
    seconds."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n'
    light, dark = (
        " ".join(f"--{name}: {pair[place]};" for name, pair in COLORS.items()) for place in (0, 1)
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{_STYLE.replace('LIGHT', light).replace('DARK', dark)}</style>\n"
        f"</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
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


def section(title: str, *parts: str, notice: bool = False, folded: bool = False) -> str:
    """A titled box; a notice stands out, and a folded one shows its title until it is opened."""
    kind = ' class="notice"' if notice else ""
    head, body = f"<h2>{escape(title)}</h2>", "".join(parts)
    if folded:
        return f"<section{kind}><details><summary>{head}</summary>{body}</details></section>"
    return f"<section{kind}>{head}{body}</section>"


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
    """A plot as a part of the page, with a caption.

    Its colours become the page's. It is at least as wide as it was drawn, so that its text is never
    smaller: a window that is narrower scrolls it.
    """
    name, text = re.sub(r"\W+", "-", alt), svg.decode()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.find("<svg") :], flags=re.DOTALL)
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for color, (light, _) in COLORS.items():
        text = text.replace(light, f"var(--{color})")
    width, height = _SIZE.findall(text)[0]
    style = f"min-width: {float(width):g}px; max-width: {1.5 * float(width):g}px"
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alt)}"'
    drawn = re.sub(r"<svg [^>]*>", lambda _: f'{head} style="{style}">', text, count=1)
    return f"<figure>{drawn.strip()}<figcaption>{escape(caption)}</figcaption></figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a row of one cell is a heading over the rows below it."""
    lines = [f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"]
    for row in rows:
        if len(row) == 1:
            lines.append(f'<tr class="head"><th colspan="{len(head)}">{escape(row[0])}</th></tr>')
        else:
            lines.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'
