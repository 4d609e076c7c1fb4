"""The deployment of docs/howto/deployment.md, by its own commands: TLS, nodes that authenticate
themselves, each with a policy of its own, and no folder in common."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.own_budget import OwnBudget
from mechanisms.accounting import ledger
from sim.engines import policy
from tests.processes import wait_for
from tests.test_flower import MISSING, ROOT, Flower, free_ports, listens, settings
from tests.test_readme import blocks, commands

__all__ = ["settings"]
TOOLS = [name for name in ("openssl", "ssh-keygen") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING + TOOLS), reason=f"not installed: {', '.join(MISSING + TOOLS)}"
)
PAGE = ROOT / "docs" / "howto" / "deployment.md"
STARTED = ("flower-superlink", "flower-supernode")


def perform(flower: Flower, words: list[str]) -> str:
    """One command of the page: servers are started, others run to their end."""
    environment = dict(words.pop(0).split("=", 1) for _ in words[:1] if "=" in words[0])
    if words[0] in STARTED:
        flower.start(*words, **environment)
        return ""
    return flower.call(*words)


@pytest.fixture
def lab(tmp_path) -> Iterator[Flower]:
    """What the page says, at other ports, in this folder."""
    flower, ports = Flower(tmp_path), free_ports(4)
    text = dict(zip(("8000", "8001", "8002"), map(str, ports), strict=False))
    text["/lab/"] = f"{tmp_path}/"
    try:
        for language, block in blocks(PAGE):
            for old, new in text.items():
                block = block.replace(old, new)
            if language == "toml":
                name = re.match(r"# (\S+)\n", block)
                (tmp_path / name[1]).write_text(block)
            for words in commands(block) if language == "bash" else ():
                said = perform(flower, words)
                assert "register" not in words or "registered successfully" in said, said
                if len(flower.started) == 1:  # the SuperLink
                    wait_for(lambda: listens(ports[0]), flower.started[0])
        yield flower
    finally:
        flower.end()


@pytest.mark.slow  # a minute: nodes start a process for each message
def test_registered_nodes_train_behind_tls_within_their_own_budgets(lab, settings):
    """A third node, whose key nobody has registered, and one that does not encrypt, are sent away.
    A second run, of another name and seed, finds the nodes' budgets spent."""
    strangers = stranger(lab), stranger(lab, insecure=True)
    for log, process in strangers:
        wait_for(lambda process=process: process.poll() is not None)
        assert process.returncode and "Failed to initialize the connection" in log.read_text()
    assert "Failed to activate SuperNode" in strangers[0][0].read_text()
    asked = settings | {"release": True, "partition": "iid", "out": str(lab.home / "server")}
    log = lab.run("lab", **asked, name="first")
    assert (lab.home / "server" / "first" / "summary.json").is_file(), log
    folders = [list((lab.home / f"own-{group}").glob("first-*")) for group in range(2)]
    assert [len(one) for one in folders] == [1, 1]
    paid = [ledger.read(one / "ledger") for (one,) in folders]
    assert not set(paid[0]) & set(paid[1]) and len(paid[0] | paid[1]) == 20
    assert paid[0] | paid[1] == ledger.read(lab.home / "server" / "first" / "ledger")
    used = [OwnBudget(lab.home / f"own-{n}", 5.0, 1e-5).used() for n in range(2)]
    assert all(0.5 < one <= 1.0 for one in used)
    log = lab.run("lab", **asked, name="second", seed=7)
    assert re.search(r"epsilon of this node would be .* own policy allows 5 over all runs", log)
    assert not (lab.home / "server" / "second" / "summary.json").exists()
    assert [OwnBudget(lab.home / f"own-{n}", 5.0, 1e-5).used() for n in range(2)] == used


def stranger(lab: Flower, insecure: bool = False) -> tuple[Path, object]:
    """A node that nobody has registered, and its log."""
    command = ["flower-supernode", "--superlink", address(lab), "--host", "127.0.0.1"]
    command += ["--port", str(free_ports(1)[0]), "--max-retries", "0"]
    command += ["--node-config", "partition-id=0 num-partitions=2"]
    if insecure:
        command += ["--insecure"]
    else:
        lab.call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "stranger")
        command += ["--root-certificates", "ca.pem", "--auth-supernode-private-key", "stranger"]
    log = lab.home / f"{command[0]}-{len(lab.started)}.log"
    lab.start(*command, **{policy.POLICY: str(lab.home / "node-0.toml")})
    return log, lab.started[-1]


def address(lab: Flower) -> str:
    return re.search(r'address = "(.*)"', (lab.home / "config.toml").read_text())[1]
