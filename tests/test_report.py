"""The report: one file, from the run directory alone, whatever state the run is in."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from server.records import RoundRecord, Summary, largest, middle
from sim.commands.guard import main_guard
from sim.comparing.comparison import write_comparison
from sim.config.configuration import load, save
from sim.library.result import Result
from sim.report import command
from sim.showing import page, plots, wording
from sim.showing.report import write_report
from tests import unequal
from tests.vouched import vouch

ROOT = Path(__file__).parent.parent


def make(folder, mechanism="dpsgd", clients=5, finished=True, **settings):
    """A handmade run directory of three finished rounds."""
    (folder / "ledger").mkdir(parents=True)
    save(
        load(
            None,
            {"clients": clients, "mechanism": mechanism, "rounds": 3, **settings},
            lenient=settings,
        ),
        folder / "config.toml",
    )
    counts = np.random.default_rng(0).integers(0, 9, (clients, 4))
    np.savez(folder / "partition.npz", sizes=counts.sum(axis=1), counts=counts)
    spent = [math.inf if mechanism == "none" else 2.5 * n for n in (1, 2, 3)]
    rounds = [
        RoundRecord(n, 0.2 * n, 2.0 / n, e, e, e, 1, clients, 0.5, 0.4)
        for n, e in enumerate(spent, 1)
    ]
    lines = [json.dumps(r.to_json()) for r in rounds]
    (folder / "rounds.jsonl").write_text(
        "\n".join(lines) + ("\n" if finished else '\n{"round": 4, "accu')
    )
    if finished:
        each, none = (spent[-1],) * clients, mechanism == "none"
        order, noise = (None, 0.0) if none else (5.5, 3.123)
        summary = Summary(
            0.6123,
            0.66,
            each,
            each,
            1e-5,
            order,
            (noise,) * clients,
            (3,) * clients,
            1,
            3,
            1.5,
            "x",
            False,
        )
        (folder / "summary.json").write_text(json.dumps(summary.to_json()))
    return vouch(folder)


def text_of(folder):
    """The page's words, without its pictures."""
    page = re.sub("<svg.*?</svg>", "", write_report(vouch(folder)).read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_a_finished_run(tmp_path):
    text = text_of(make(tmp_path / "first"))
    for part in (
        "first",
        "61.2%",
        "7.5",
        "Published epsilon",
        "5.5",
        "3.123",
        "at delta 1e-05",
        "target 8",
    ):
        assert part in text
    for part in (
        "zero-out",
        "every upload",
        "seeded simulation",
        "python -m sim.account --ledger",
        "min_records",
    ):
        assert part in text


def test_without_privacy_there_is_no_number(tmp_path):
    text = text_of(make(tmp_path / "open", mechanism="none"))
    assert "∞ (not private)" in text and "trained without privacy" in text
    assert "Published epsilon" not in text and "zero-out" not in text and "target" not in text


def test_an_unfinished_run_shows_its_last_whole_round(tmp_path):
    text = text_of(make(tmp_path / "half", finished=False))
    assert "60.0%" in text and "not finished" in text and "--resume" in text


def test_of_an_unfinished_run_the_budget_is_what_is_proved(tmp_path):
    """Not what the last finished round says: a round can have been paid for since, and outputs can
    have stopped it."""
    half, whole = (
        text_of(make(tmp_path / name, finished=name == "whole")) for name in ("half", "whole")
    )
    tile = re.compile(r"Certified epsilon\W+([\d.]+)")
    assert tile.search(half).group(1) == "8" != tile.search(whole).group(1)
    assert wording.UNFINISHED in half and wording.UNFINISHED not in whole
    free = text_of(make(tmp_path / "free", finished=False, epsilon=None, noise_multiplier=3.0))
    spent = wording.epsilon(Result(tmp_path / "free").epsilon)
    assert tile.search(free).group(1) == spent and "so far. It includes a round in" in free


def test_a_run_without_rounds(tmp_path):
    folder = make(tmp_path / "new", finished=False)
    (folder / "rounds.jsonl").unlink()
    assert "No round is finished yet" in text_of(folder)


def test_a_single_client(tmp_path):
    text = text_of(make(tmp_path / "central", clients=1))
    assert "largest of 1" not in text and "1 client" in text and "One client holds all" in text
    assert "at delta 1e-05; target 8" in text and "Budget" in text and "Retired clients" not in text


def test_a_release_says_so(tmp_path):
    text = text_of(make(tmp_path / "out", release=True))
    assert "entropy" in text and "seeded simulation" not in text


def test_a_release_shows_no_labels(tmp_path):
    """Also one of an earlier version, whose directory holds their numbers. Sizes of clients are
    public."""
    folder = make(tmp_path / "out", release=True)
    held = np.load(folder / "partition.npz")["counts"].sum(axis=1)
    text, page = text_of(folder), (folder / "report.html").read_text()
    assert (
        f"{held.sum()} records, {held.min()} to {held.max()} per client" in text
        and "does not show their labels" in text
    )
    assert "records by client and class" not in page and not (folder / "partition.svg").exists()
    np.savez(folder / "partition.npz", sizes=held)
    assert text_of(folder) == text
    assert (folder / "report.html").stat().st_mode & 0o044
    simulated = make(tmp_path / "in")
    assert (
        "records by client and class" in write_report(simulated).read_text()
        and (simulated / "partition.svg").exists()
    )
    for name in ("report.html", "partition.svg"):
        assert (simulated / name).stat().st_mode & 0o777 == 0o600


def test_a_large_delta_is_pointed_out(tmp_path):
    assert "is not below 1 /" in text_of(make(tmp_path / "large", delta=0.4))


def test_the_page_stands_alone_and_is_the_same_again(tmp_path):
    folder = make(tmp_path / "one")
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert not unequal.LOADS.search(first.decode())
    assert sorted(p.name for p in folder.iterdir() if p.suffix in (".svg", ".html", ".part")) == [
        "partition.svg",
        "report.html",
    ]


def test_text_stands_out_on_light_and_on_dark_screens():
    """As WCAG 2.1 asks for text (its 1.4.3): a contrast of at least 4.5."""

    def luminance(color: str) -> float:
        parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    style = page.page("", "", [])
    schemes = [
        dict(re.findall(r"--(\w+): (#\w{6});", block))
        for block in re.findall(r":root \{ [^{}]*\}", style)
    ]
    grounds = [luminance(scheme["ground"]) for scheme in schemes]
    assert len(grounds) == 2 and grounds[0] > 0.8 and grounds[1] < 0.05
    for scheme in schemes:
        for text, ground in itertools.product(("ink", "muted"), ("ground", "surface")):
            dark, light = sorted([luminance(scheme[text]), luminance(scheme[ground])])
            assert (light + 0.05) / (dark + 0.05) > 4.5, (text, ground)


@pytest.mark.parametrize("several", [False, True])
def test_a_page_may_be_drawn_twice_at_once(tmp_path, monkeypatch, several):
    """As when a run ends while somebody redraws its report: one of them failed, or the page was for
    a moment what the other had not finished."""
    folders, flush = [make(tmp_path / name) for name in ("a", "b")], os.fsync
    monkeypatch.setattr(plots, "svg", lambda figure: b'<svg viewBox="0 0 7 9"></svg>')

    def draw():
        return write_comparison(folders) if several else write_report(folders[0])

    def interrupted(handle):
        with monkeypatch.context() as there:
            there.setattr(os, "fsync", flush)
            draw()
        flush(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    path = draw()
    assert path.read_text().endswith("</html>\n") and not list(tmp_path.rglob("*.part"))


def test_names_are_escaped(tmp_path):
    folder = make(tmp_path / "sly", dataset="<script>alert(1)</script>.npz")
    assert "<script" not in write_report(folder).read_text()


def test_many_clients_are_drawn_in_bands():
    counts = np.random.default_rng(0).integers(0, 9, (450, 4))
    bands, label = plots._bands(counts)
    assert bands.shape == (plots.MAX_COLUMNS, 4) and "sorted" in label
    assert bands.max() <= counts.max() and set(np.diff(bands.argmax(axis=1))) <= {0, 1}
    assert plots._bands(counts[:200])[0].tolist() == counts[:200].tolist()


DEEP = '{"round": ' + "[" * 3000 + "]" * 3000 + "}\n"
DAMAGES = [(name, "{}\n[}") for name in ("config.toml", "partition.npz", "summary.json")]
DAMAGES += [("rounds.jsonl", text) for text in ("{}\n[}", DEEP, "{}\n")]


@pytest.mark.parametrize(("broken", "text"), DAMAGES, ids=[f"{n} {t[:12]}" for n, t in DAMAGES])
def test_a_damaged_directory_is_refused_in_one_line(tmp_path, capsys, broken, text):
    folder = make(tmp_path / "bad")
    (folder / broken).write_text(text)
    assert main_guard(command, [str(folder)]) == 2
    err = capsys.readouterr().err
    assert str(folder) in err and err.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_a_folder_that_is_no_run(tmp_path, capsys):
    assert main_guard(command, [str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err


def test_a_page_in_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    folders = [str(make(tmp_path / name)) for name in "ab"]
    for more in ([], ["--heat-maps=2"]):
        words = [*folders, f"--out={tmp_path / 'absent' / 'x.html'}", *more]
        assert main_guard(command, words) == 2
        assert "absent is no folder: create it" in capsys.readouterr().err


def test_the_command_redraws(tmp_path, capsys):
    folder = make(tmp_path / "again")
    moved = shutil.move(folder, tmp_path / "moved")
    assert main_guard(command, [str(moved)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "moved" / "report.html")


def test_redrawing_loads_no_torch(tmp_path):
    """Kills a part of the report that imports the simulator: torch would take longer than the
    page."""
    folder = make(tmp_path / "light", strategy="fedfed")
    lines = (
        "import sys; from sim.report import command; command(sys.argv[1:]); print('torch' in "
        "sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", lines, folder], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == [str(folder / "report.html"), "False"]


def test_records_go_to_json_and_back():
    record = RoundRecord(1, math.nan, 0.5, math.inf, 1.0, None, 0, 5, 0.1, 0.1)
    line = json.dumps(record.to_json(), allow_nan=False)
    back = RoundRecord.from_json(json.loads(line) | {"of a later version": 1})
    assert (back.accuracy, back.loss, back.epsilon_certified_max, back.round) == (
        None,
        0.5,
        None,
        1,
    )
    assert back.to_json() == record.to_json()
    for whole in (unequal.summary(), *unequal.ROUNDS):
        assert type(whole).from_json(json.loads(json.dumps(whole.to_json()))) == whole


@pytest.mark.parametrize(
    ("epsilons", "worst", "median"),
    [
        ((1.0, 3.0, 2.0), 3.0, 2.0),
        ((1.0, None, 2.0), None, 2.0),
        ((1.0, math.inf, math.nan), None, None),
        ((), None, None),
        ((0.0,), 0.0, 0.0),
    ],
)
def test_no_guarantee_counts_as_infinite(epsilons, worst, median):
    assert (largest(epsilons), middle(epsilons)) == (worst, median)


def test_many_clients_are_drawn_in_steps_that_understate_nobody():
    """Kills a picture that leaves out the client who has spent most, or draws a step at less than
    its clients spent."""
    spent = np.random.default_rng(0).random(2 * plots.MAX_STEPS + 7)
    for clients in (3, len(spent)):
        own = spent[:clients]
        drawn = (
            plots.epsilon_per_client(own.tolist(), own.tolist(), None).axes[0].patches[0].get_data()
        )
        at = drawn.values[np.searchsorted(drawn.edges, np.arange(1, clients + 1)) - 1]
        assert len(drawn.values) == min(clients, plots.MAX_STEPS) and drawn.values[-1] == own.max()
        assert (at >= np.sort(own)).all() and at == pytest.approx(np.sort(own), abs=0.01)
