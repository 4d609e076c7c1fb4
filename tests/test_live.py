"""The report over HTTP while a run goes on: the page alone, for this machine alone, up to date."""

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from sim.commands.guard import main_guard
from sim.report import command
from sim.serving import live
from sim.showing import plots
from sim.showing.report import write_report
from tests import unequal
from tests.folders import contents
from tests.vouched import vouch

ROOT = Path(__file__).parent.parent
AGAIN = f'<meta http-equiv="refresh" content="{live.REFRESH_S}">\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """What is drawn has tests of its own."""
    monkeypatch.setattr(plots, "svg", lambda figure: b'<svg viewBox="0 0 7 9"></svg>')


@contextmanager
def serving(folder):
    with live.Live(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", **headers):
    """Status, headers and text of an answer."""
    asked = http.client.HTTPConnection("127.0.0.1", server.server_port)
    asked.request(method, path, headers=headers)
    answer = asked.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    asked.close()
    return found


def test_a_browser_that_goes_away_is_no_fault(tmp_path, capfd, monkeypatch):
    """While its page is drawn, as one that loads itself anew often does."""
    gone = threading.Event()
    gone.set()  # the server draws a page before it serves
    monkeypatch.setattr(live, "live_report", lambda *given: gone.wait(10) and "x" * 10**7)
    with serving(tmp_path) as server:
        gone.clear()
        asked = socket.create_connection(("127.0.0.1", server.server_port))
        asked.sendall(f"GET / HTTP/1.0\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asked.close()
        gone.set()
        assert ask(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_finished_run_has_the_page_of_its_file_and_nothing_is_written(tmp_path):
    folder = unequal.run_directory(tmp_path / "run")
    expected = write_report(folder).read_text()
    (folder / "report.html").unlink()
    before = contents(folder)
    with serving(folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, headers, text = ask(server)
        assert (status, text) == (200, expected) and "refresh" not in text
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert headers["Cache-Control"] == "no-store"
        assert ask(server, Host=f"localhost:{server.server_port}")[2] == expected
    assert contents(folder) == before


def test_a_run_that_goes_on_is_shown_as_it_is_until_it_is_finished(tmp_path):
    """Each answer is of what is on disk by then, and loads itself anew until there is a summary."""
    folder = unequal.run_directory(tmp_path / "run", finished=False)
    rounds = folder / "rounds.jsonl"
    lines = rounds.read_text().splitlines(keepends=True)
    with serving(folder) as server:
        for number in (1, 2, 3):
            rounds.write_text("".join(lines[:number]) + '{"round": 9, "accu')
            text = ask(server)[2]
            assert text.replace(AGAIN, "") == write_report(vouch(folder)).read_text()
            assert text.count(AGAIN) == 1 and f"{number} of 9 rounds" in text
        (folder / "summary.json").write_text(json.dumps(unequal.summary().to_json()))
        vouch(folder)
        assert "refresh" not in ask(server)[2]


@pytest.mark.parametrize("release", [True, False])
def test_of_a_release_nothing_more_is_served_than_its_report_says(tmp_path, release):
    folder = unequal.run_directory(tmp_path / "run", finished=False, release=release)
    with serving(folder) as server:
        text = ask(server)[2]
    assert ("records by client and class" in text) is not release
    assert text.replace(AGAIN, "") == write_report(folder).read_text()


def test_nothing_else_can_be_asked_for(tmp_path):
    """Neither files of the run, nor by another name of this machine, nor by another method."""
    folder = unequal.run_directory(tmp_path / "run")
    (folder / "inputs.key").write_text("secret")
    with serving(folder) as server:
        for path in ("/inputs.key", "/ledger/", "/..", "/../run/inputs.key", "/?", "/."):
            status, _, text = ask(server, path)
            assert status == 404 and "secret" not in text and "run" not in text
        port = server.server_port
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
            status, _, text = ask(server, Host=host)
            assert status == 421 and "digits" not in text
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            assert ask(server, method=method)[0] == 501


def test_a_directory_that_is_damaged_meanwhile_is_said_and_tried_again(tmp_path):
    folder = unequal.run_directory(tmp_path / "run")
    whole = (folder / "partition.npz").read_bytes()
    with serving(folder) as server:
        (folder / "partition.npz").write_bytes(b"")
        status, _, text = ask(server)
        assert status == 503 and AGAIN in text and "partition.npz" in text and "43.2%" not in text
        assert text.index("The report cannot be drawn") < text.index("partition.npz")
        (folder / "partition.npz").write_bytes(whole)
        assert ask(server)[0] == 200


def test_a_file_that_is_away_for_a_moment_is_said_and_tried_again(tmp_path, monkeypatch):
    """As between two writes of the run that draws it."""
    folder = unequal.run_directory(tmp_path / "run")
    with serving(folder) as server:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(live, "live_report", lambda *_: Path("rounds.gone").read_text())
            status, _, text = ask(server)
        assert status == 503 and AGAIN in text and "rounds.gone" in text
        assert ask(server)[0] == 200


def test_a_browser_that_asks_nothing_keeps_nobody_waiting(tmp_path):
    """Browsers open connections in advance."""
    folder = unequal.run_directory(tmp_path / "run")
    with serving(folder) as server:
        idle = http.client.HTTPConnection("127.0.0.1", server.server_port)
        idle.connect()
        assert ask(server)[0] == 200
        idle.close()


def test_pages_are_drawn_one_at_a_time(tmp_path, monkeypatch):
    """matplotlib's settings are the process's. Kills a server without its lock."""
    inside, most = [], []

    def drawn(figure):
        inside.append(figure)
        most.append(len(inside))
        threading.Event().wait(0.01)
        inside.pop()
        return b'<svg viewBox="0 0 7 9"></svg>'

    monkeypatch.setattr(plots, "svg", drawn)
    folder = unequal.run_directory(tmp_path / "run")
    with serving(folder) as server:
        several = [threading.Thread(target=ask, args=(server,)) for _ in range(4)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
    assert set(most) == {1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--serve", "{port}"], "--serve is {port}, a port that is in use: give another"),
        (["run", "--serve", "65536"], "--serve is 65536: give a port from 0"),
        (["run", "--serve", "x"], "argument --serve: invalid int value: 'x'; python -m sim.report"),
        ([], "the following arguments are required: RUN_DIR; python -m sim.report --help"),
        (["run", "--serve", "-1"], "--serve is -1: give a port from 0"),
        (["run", "run", "--serve"], "--serve is 8765, but it shows a single run"),
        (["run", "--serve", "--out", "page.html"], "--serve is 8765, but it shows a single run"),
        (["missing", "--serve", "0"], "missing is no run directory"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path, monkeypatch, capsys, words, said):
    folder = unequal.run_directory(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with serving(folder) as server:
        port = server.server_port
        assert main_guard(command, [word.format(port=port) for word in words]) == 2
    err = capsys.readouterr().err
    assert said.format(port=port) in err and err.count("\n") == 1


def test_the_command_says_where_and_ends_with_ctrl_c(tmp_path):
    folder = unequal.run_directory(tmp_path / "run", finished=False)
    words = [sys.executable, "-m", "sim.report", folder, "--serve", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background is deaf
    with subprocess.Popen(words, cwd=ROOT, preexec_fn=heard, **pipes) as process:
        try:
            port = int(
                re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ .*\n", process.stdout.readline())[1]
            )
            asked = http.client.HTTPConnection("127.0.0.1", port)
            asked.request("GET", "/")
            text = asked.getresponse().read().decode()
            process.send_signal(signal.SIGINT)
            said = process.communicate()[1]
        finally:
            process.kill()
    assert "3 of 9 rounds" in text and AGAIN in text
    assert (process.returncode, said) == (130, "interrupted\n")
