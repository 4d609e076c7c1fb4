"""The report in a real browser: nothing runs over the page's sides, and all text can be read, on a
phone and on a desk, by day and by night.

Skipped where there is no Chromium; ``CHROMIUM`` names one that is not on the path.
"""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from sim.showing.report import write_report
from tests import unequal

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: none is on the path")

LOOK = """<script>
document.querySelectorAll("details").forEach(one => one.open = true);
const says = one => [...one.childNodes].some(part => part.nodeType == 3 && part.data.trim());
const texts = [...document.querySelectorAll("body *:not(script, title)")].filter(says);
const shades = text => text.match(/[0-9.]+/g).slice(0, 3).reduce((sum, one) => sum + +one, 0);
const size = one => parseFloat(getComputedStyle(one).fontSize) *
  (one.ownerSVGElement ? one.ownerSVGElement.getScreenCTM().a : 1);
const body = getComputedStyle(document.body);
document.title = JSON.stringify({
  window: innerWidth, width: document.documentElement.scrollWidth,
  smallest: Math.min(...texts.map(size)), texts: texts.length,
  ink: shades(body.color), ground: shades(body.backgroundColor),
  plots: document.querySelectorAll("figure svg").length,
  values: document.querySelectorAll("figure svg .values title").length,
});
</script></body>"""
"""Writes what it sees into the page's title."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unequal.run_directory(tmp_path_factory.mktemp("browser") / "run")
    path = write_report(folder)
    path.write_text(path.read_text().replace("</body>", LOOK))
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_is_readable(report: Path, width: int, dark: bool) -> None:
    words = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--window-size={width},900", f"--user-data-dir={report.parent / 'profile'}"),
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        *("--dump-dom", report.as_uri()),
    ]
    page = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    seen = json.loads(unescape(re.findall(r"<title>(\{.*?\})</title>", page)[0]))
    assert seen["window"] == width >= seen["width"]
    assert seen["smallest"] >= 12 and seen["texts"] > 100
    assert (seen["ink"] > seen["ground"]) is dark
    assert seen["plots"] >= 5 and seen["values"] > 10
