"""Ray nodes on this machine: processes of ``ray start``, with ports and folders of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from tests.processes import wait_for

ROOT = Path(__file__).resolve().parents[1]
STORE = 80_000_000
"""Bytes of a node's object store; Ray wants at least 75 MiB."""
RAY = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
"""The command ``ray``, by the interpreter of the tests."""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@dataclass(frozen=True)
class Node:
    """A node: all its processes, which are a session of their own, and the cluster's address."""

    process: subprocess.Popen
    address: str

    def kill(self) -> None:
        """As a machine that loses its power. Idempotent."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


@contextmanager
def node(cpus: int, head: Node | None = None, search: Path = ROOT) -> Iterator[Node]:
    """A node with so many CPU cores: the first one of a cluster, or one that joins it.

    Its own folder is not that of the tests: it finds modules by ``search`` alone. Paths of Ray's
    sockets are bounded, so the folder is not pytest's.
    """
    folder = Path(mkdtemp(prefix="ray"))
    if head is None:
        address = f"127.0.0.1:{free_port()}"
        own = ["--head", f"--port={address.rpartition(':')[2]}", f"--temp-dir={folder}"]
        own += [f"--ray-client-server-port={free_port()}", "--include-dashboard=false"]
    else:
        address = head.address
        own = [f"--address={address}"]
    ports = ["--min-worker-port=0", "--max-worker-port=0"]
    ports += [f"--dashboard-agent-listen-port={free_port()}"]
    size = [f"--num-cpus={cpus}", f"--object-store-memory={STORE}"]
    words = [sys.executable, "-c", RAY, "start", "--block", "--disable-usage-stats"]
    said = folder / "said"
    with said.open("w") as log:
        process = subprocess.Popen(
            [*words, *own, *ports, *size],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(search)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    started = Node(process, address)
    try:
        wait_for(lambda: "Ray runtime started" in said.read_text(), process)
        assert process.poll() is None, said.read_text()
        yield started
    finally:
        started.kill()
        shutil.rmtree(folder, ignore_errors=True)
