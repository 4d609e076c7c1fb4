"""The report of a run while it goes on, for a browser on this machine."""

import errno
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sim.showing import page
from sim.showing.report import live_report

HOST = "127.0.0.1"
PORT = 8765
"""The default port."""
REFRESH_S = 5
"""Seconds after which the page of an unfinished run loads itself anew."""
_TAKEN = {errno.EADDRINUSE: "in use", errno.EACCES: "reserved"}


class Live(ThreadingHTTPServer):
    """Serves one page, at ``/``, on the loopback interface: the report, drawn for each request.

    Nothing else of the run directory can be asked for, and nothing is written. Whoever calls this
    machine by another name gets nothing: a site elsewhere that has its own name point here could
    read the report otherwise.
    """

    daemon_threads = True

    def __init__(self, run_dir: Path, port: int):
        """Draw the page once, so that what is wrong shows at once, and begin to listen.

        Raises:
            ValueError: it is no run directory, or damaged; or the port is taken or none.
        """
        self.run_dir, self._one_at_a_time = run_dir, threading.Lock()
        self.report()
        if not 0 <= port < 2**16:
            raise ValueError(f"--serve is {port}: give a port from 0 (any free one) to 65535")
        try:
            super().__init__((HOST, port), _Request)
        except OSError as fault:
            if fault.errno not in _TAKEN:
                raise
            raise ValueError(
                f"--serve is {port}, a port that is {_TAKEN[fault.errno]}: give another, or 0 for "
                "any free one"
            ) from None

    def report(self) -> str:
        """The page.

        Raises:
            ValueError: the directory is damaged.
        """
        with self._one_at_a_time:  # the drawing library knows no threads
            return live_report(self.run_dir, REFRESH_S)

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked may have gone before the answer came."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Request(BaseHTTPRequestHandler):
    server: Live
    timeout = 30
    """Seconds after which a connection is closed on which nothing is asked."""

    def do_GET(self) -> None:
        names = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in names:
            self.send_error(421)
        elif self.path != "/":
            self.send_error(404)
        else:
            self._answer()

    def _answer(self) -> None:
        try:
            status, text = 200, self.server.report()
        except (OSError, ValueError) as fault:  # as between two writes of the run
            reason = page.section("The report cannot be drawn", page.paragraph(str(fault)))
            name = self.server.run_dir.resolve().name
            status, text = 503, page.page(name, "It is tried again.", [reason], REFRESH_S)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        loads = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        self.send_header("Content-Security-Policy", loads)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def serve(run_dir: Path, port: int) -> None:
    """Print where the report is, and serve it until the process is interrupted.

    Raises:
        ValueError: as `Live`.
    """
    with Live(run_dir, port) as server:
        print(f"http://{HOST}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()
