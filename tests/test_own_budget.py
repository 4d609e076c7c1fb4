"""A node's own policy and budget: what it refuses whatever the server asks, and what it keeps."""

import dataclasses
import itertools
import json
import math
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, Message

from client.app import decode_request, encode_request
from client.messages import TrainRequest, Upload
from client.own_budget import LOCK, PLACES, Budgeted, OwnBudget
from mechanisms import durable
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import convert, epsilon, rdp
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.events import (
    Gaussian,
    PaperClaim,
    SampledGaussian,
    TrialCap,
    Unprotected,
)
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import PlanTable, merge
from server import manifest
from server.app import exchange_over, find_groups
from server.noting import noting
from sim import account
from sim.commands.guard import main_guard
from sim.config import configuration
from sim.engines import app, policy
from tests.test_flower import ROOT, LocalGrid, identity, place, serve, settings
from tests.test_readme import blocks, commands

__all__ = ["identity", "settings"]
pytestmark = pytest.mark.usefixtures("no_report")
HERE = np.array([0, 1])
APART = {"release": True, "partition": "iid"}
"""What a node with a policy asks of every run."""
GUIDE = ROOT / "docs" / "howto" / "deployment.md"


def paid(folder: Path, run: str, *charges: tuple[list[int], dict]) -> None:
    with Ledger(folder / run / "ledger" / "group-0000.jsonl") as own:
        for number, (clients, one) in enumerate(charges):
            own.charge(f"round-{number}", number, clients, one)


def by_hand(orders, rho: float, delta: float) -> float:
    """Epsilon of Gaussians whose divergence at order a is a * rho."""
    share = delta / 3
    return min(
        a * rho + math.log((a - 1) / a) - (math.log(share) + math.log(a)) / (a - 1) for a in orders
    )


class TestBudget:
    def test_it_counts_every_run_by_the_client_that_paid_most_in_it(self, tmp_path):
        """Whatever its number: the server may have dealt the records anew."""
        budget = OwnBudget(tmp_path, 8.0, 1e-5)
        paid(tmp_path, "a", ([0, 1], {Gaussian(4.0): 1}), ([1], {Gaussian(4.0): 2}))
        paid(tmp_path, "b", ([7], {Gaussian(2.0): 1}))
        found = budget.after(tmp_path / "c", [])
        assert found == pytest.approx(by_hand(budget.orders, 3 / 32 + 1 / 8, 1e-5), rel=1e-9)

    def test_a_request_adds_to_what_its_clients_have_paid_in_this_run(self, tmp_path):
        budget = OwnBudget(tmp_path, 8.0, 1e-5)
        paid(tmp_path, "a", ([0], {Gaussian(4.0): 3}), ([1], {Gaussian(4.0): 1}))
        asked = [(np.array([1]), {Gaussian(4.0): 1})]
        for run, parts in (("a", 3), ("b", 3 + 1)):
            expected = by_hand(budget.orders, parts / 32, 1e-5)
            assert budget.after(tmp_path / run, asked) == pytest.approx(expected, rel=1e-9)
        more = [(np.array([0, 1]), {Gaussian(4.0): 1})]
        expected = by_hand(budget.orders, 4 / 32, 1e-5)
        assert budget.after(tmp_path / "a", more) == pytest.approx(expected, rel=1e-9)

    def test_it_bounds_whoever_was_which_client_in_which_run(self, tmp_path):
        """Of two kinds of charges each is the dearer one at some order. Kills the client that is
        the dearest at one order, taken for all."""
        budget = OwnBudget(tmp_path, 1.0, 1e-5)
        kinds = [{SampledGaussian(0.05, 1.5): 1}, {Gaussian(5.0): 1}]
        few, many = ([rdp(one, budget.orders, "certified")[n] for one in kinds] for n in (0, -1))
        assert (few[0] < few[1]) and (many[0] > many[1])
        for run in "ab":
            paid(tmp_path, run, *(([n], one) for n, one in enumerate(kinds)))
        for pair in itertools.product(kinds, repeat=2):
            total = rdp(merge(*pair), budget.orders, "certified")
            own = convert(total, budget.orders, 1e-5 / 3).epsilon
            assert budget.after(tmp_path / "a", []) >= own
        worst = 2 * np.max([rdp(one, budget.orders, "certified") for one in kinds], axis=0)
        expected = convert(worst, budget.orders, 1e-5 / 3).epsilon
        assert budget.after(tmp_path / "a", []) == pytest.approx(expected)

    @pytest.mark.parametrize("delta", [1e-5, 1e-8])
    @pytest.mark.parametrize("target", [0.5, 1.0, 4.0, 16.0])
    def test_its_orders_are_fixed_in_advance_and_cost_little(self, tmp_path, target, delta):
        """Of the best figure over all orders, for Gaussians that use up the budget."""
        budget = OwnBudget(tmp_path, target, delta)
        assert len(budget.orders) <= 3  # each has a third of delta
        count = next(n for n in range(1, 10**4) if by_hand(budget.orders, n / 2e3, delta) > target)
        assert epsilon({Gaussian(math.sqrt(1000.0)): count}, delta).epsilon > 0.8 * target

    def test_its_owner_reads_which_share_is_used(self, tmp_path, capsys):
        """In proportion to what was charged, and all of it when a further charge is refused."""
        page = [(kind, text.replace("/lab/", f"{tmp_path}/")) for kind, text in blocks(GUIDE)]
        (own,) = [text for _, text in page if text.startswith("# node-0.toml")]
        (tmp_path / "node-0.toml").write_text(own)
        asked = [words for kind, text in page if kind == "bash" for words in commands(text)]
        (asked,) = [words[3:] for words in asked if words[:3] == ["python", "-m", "sim.account"]]
        (home := tmp_path / "own-0").mkdir()
        budget = OwnBudget(home, 5.0, 1e-5)
        number = max(n for n in range(1, 99) if by_hand(budget.orders, n / 32, 1e-5) <= 5.0)
        shares = []
        for run in range(3):
            assert main_guard(account.command, [*asked, "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            shares.append(told.pop("used"))
            known = {"folder": str(home), "epsilon_budget": 5.0, "delta": 1e-5}
            assert told == known | {"runs": run}
            paid(home, str(run), ([0], {Gaussian(4.0): number}))
        assert shares == pytest.approx([0.0, shares[1], 2 * shares[1]], abs=1e-12)
        assert number / (number + 1) < shares[1] <= 1.0
        account.command(asked)
        percent = float(re.search(r"^used +(\S+) %$", capsys.readouterr().out, re.M)[1])
        assert 0 <= percent - 300 * shares[1] < 0.1
        (tmp_path / "node-0.toml").write_text(own.replace("5.0", "1e-4"))
        account.command(asked)
        assert "used               all of it: it is too small" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("said", "run_of"),
        [
            ("4.55", lambda noise: {Gaussian(noise): 2}),
            ("5.76", lambda noise: {SampledGaussian(0.01, noise): 1000}),
        ],
    )
    def test_what_the_pages_say_of_its_price(self, tmp_path, said, run_of):
        charges = run_of(smallest(run_of, 4.0, 1e-5, "certified", False))
        found = OwnBudget(tmp_path, 5.0, 1e-5).after(tmp_path / "a", [(HERE, charges)])
        assert f"{found:.2f}" == said
        for page in ("howto/deployment.md", "decisions/0060-a-nodes-own-budget.md"):
            assert f" {said} " in (ROOT / "docs" / page).read_text().replace("\n", " ")

    def test_what_may_fail_or_is_unproved_has_no_room(self, tmp_path):
        budget = OwnBudget(tmp_path, 100.0, 1e-5)
        for run, event in (("a", TrialCap(0.5, 60)), ("b", Unprotected(1.0))):
            assert budget.after(tmp_path / run, [(HERE, {event: 1})]) == math.inf
        assert budget.after(tmp_path / "a", [(HERE, {PaperClaim(0.5, 2.0): 9})]) < 100.0


@dataclasses.dataclass(frozen=True)
class Rounds:
    """A plan of full-batch Gaussian rounds."""

    steps: int = 1

    def round_charges(self, nth: int) -> dict:
        return {Gaussian(4.0): nth}


def request(clients: list[int], nth: int = 1, number: int = 1) -> TrainRequest:
    who = np.array(clients)
    params = np.zeros(1, np.float32)
    return TrainRequest(number, 0, f"round-{number}", who, np.full(len(who), nth), params)


def test_nothing_is_done_that_the_budget_does_not_pay_for(tmp_path):
    """Of a request's clients, the one that would pay most decides. No other request is looked at
    before the charge is on the disk."""
    done = []

    class Doing:
        def train(self, asked):
            with pytest.raises(BlockingIOError), durable.locked(tmp_path / LOCK, wait=False):
                pass
            done.append(asked)
            paid(tmp_path, "a", ([0], {Gaussian(1e3): 1}))
            return asked

    plans = PlanTable((Rounds(),), np.zeros(3, np.int64))
    budget = OwnBudget(tmp_path, 2.0, 1e-5)
    node = Budgeted(budget, tmp_path / "a", plans, Doing)
    budget.begin()
    paid(tmp_path, "other", ([0], {Gaussian(4.0): 1}))
    allowed = max(n for n in range(1, 99) if by_hand(budget.orders, (n + 1) / 32, 1e-5) <= 2.0)
    first = request([0, 2], nth=allowed)
    assert node.train(first) is first and done == [first]
    before = sorted(tmp_path.rglob("*.jsonl"))
    for refused in (request([2], allowed + 1), request([0, 1, 2], allowed + 1)):
        with pytest.raises(
            ValueError, match=r"^epsilon of this node would be 2\.\d+ at delta"
        ) as told:
            node.train(refused)
        assert "\n" not in str(told.value) and "allows 2 over all runs" in str(told.value)
    assert done == [first] and sorted(tmp_path.rglob("*.jsonl")) == before


@pytest.mark.parametrize(
    ("clients", "nth"),
    [
        ([2, 2], [1, 2]),
        ([2, 0], [1, 1]),
        ([0, 2], [1]),
        ([[0, 2]], [[1, 1]]),
        ([0.0, 2.0], [1, 1]),
        ([0, 2], [1.0, 2.0]),
    ],
    ids=["twice", "descending", "one count", "in a row", "float clients", "float counts"],
)
def test_a_client_is_named_once_in_a_request(clients, nth):
    """A client that is named twice, each time with another count, would train twice with noise of
    its own, and pay once: its charges have the same name."""
    asked = request([0, 2])
    assert decode_request(encode_request(asked, {})).clients.tolist() == [0, 2]
    object.__setattr__(asked, "clients", np.array(clients))  # a server may send what it likes
    object.__setattr__(asked, "nth", np.array(nth))
    with pytest.raises(ValueError, match="each once and with its count of rounds"):
        decode_request(encode_request(asked, {}))


def test_nobody_else_enters_a_nodes_folder(tmp_path):
    """The first to make it are requests."""
    plans, folder = PlanTable((Rounds(),), np.zeros(3, np.int64)), tmp_path / "new"
    host = SimpleNamespace(train=lambda asked: paid(folder, "a", ([0], {Gaussian(4.0): 1})))
    Budgeted(OwnBudget(folder, 2.0, 1e-5), folder / "a", plans, lambda: host).train(request([0]))
    for private in (folder, folder / "a" / "ledger", folder / PLACES):
        assert private.stat().st_mode & 0o77 == 0, private


LOST = {
    "a run": lambda folder: shutil.rmtree(folder / "a"),
    "a ledger": lambda folder: (folder / "a" / "ledger" / "group-0000.jsonl").unlink(),
    "a line": lambda folder: (folder / "a" / "ledger" / "group-0000.jsonl").write_bytes(b""),
}


@pytest.mark.parametrize("lost", LOST)
def test_a_lost_ledger_is_missed(tmp_path, lost):
    """What it had paid for was free; other runs go on with it when it is back."""

    class Paying:
        def train(self, asked):
            paid(tmp_path, "a", ([0], {Gaussian(4.0): 1}))

    plans, budget = PlanTable((Rounds(),), np.zeros(3, np.int64)), OwnBudget(tmp_path, 2.0, 1e-5)
    Budgeted(budget, tmp_path / "a", plans, Paying).train(request([0]))
    spent, copy = (
        budget.used(),
        shutil.copytree(tmp_path / "a", tmp_path.with_name(tmp_path.name + "-copy")),
    )
    LOST[lost](tmp_path)
    done: list[TrainRequest] = []

    def train(asked: TrainRequest) -> None:
        done.append(asked)
        paid(tmp_path, "b", ([1], {Gaussian(4.0): 1}))

    other = Budgeted(budget, tmp_path / "b", plans, lambda: SimpleNamespace(train=train))
    with pytest.raises(ValueError, match=r"a/ledger/group-0000\.jsonl .* restore the file"):
        other.train(request([1]))
    assert not done
    shutil.copytree(copy, tmp_path / "a", dirs_exist_ok=True)
    assert budget.used() == spent
    other.train(request([1]))
    assert len(done) == 1


@pytest.mark.parametrize("file", [b"[]", b'{"a/ledger/b.jsonl": ["x", "y"]}', b"\xff"])
def test_places_that_are_damaged_are_named(tmp_path, file):
    (tmp_path / PLACES).write_bytes(file)
    with pytest.raises(ValueError, match=r"places\.json is damaged .* restore it"):
        OwnBudget(tmp_path, 2.0, 1e-5).used()


def test_a_ledger_that_is_put_back_while_a_node_answers_is_missed(tmp_path):
    """Its place was taken from the file that lay there, and what was charged was free."""
    budget, run, rounds = OwnBudget(tmp_path, 2.0, 1e-5), tmp_path / "a", 0
    path, charge = run / "ledger" / "group-0000.jsonl", ([0], {Gaussian(9.0): 1})

    def train(asked: TrainRequest) -> None:
        before = path.read_bytes() if path.exists() else b""
        paid(tmp_path, "a", *[charge] * rounds)
        path.write_bytes(before)

    plans = PlanTable((Rounds(),), np.zeros(3, np.int64))
    node = Budgeted(budget, run, plans, lambda: SimpleNamespace(train=train))
    for rounds in (1, 2):
        with pytest.raises(ValueError, match=r"a/ledger was put back while .* restore it"):
            node.train(request([0]))
        paid(tmp_path, "a", *[charge] * rounds)
        budget.remember(run)


def test_a_ledger_of_another_run_that_is_put_back_meanwhile_is_missed(tmp_path):
    """The answer in one run had remembered all ledgers as they were."""
    budget, plans = OwnBudget(tmp_path, 2.0, 1e-5), PlanTable((Rounds(),), np.zeros(3, np.int64))
    other = tmp_path / "a" / "ledger" / "group-0000.jsonl"

    def node(run: str) -> Budgeted:
        def train(asked: TrainRequest) -> None:
            paid(tmp_path, run, ([0], {Gaussian(9.0): 1}))
            other.write_bytes(other.read_bytes() if run == "a" else b"")

        return Budgeted(budget, tmp_path / run, plans, lambda: SimpleNamespace(train=train))

    node("a").train(request([0]))
    node("b").train(request([0]))
    with pytest.raises(ValueError, match=r"a/ledger/group-0000\.jsonl has 0 lines, but had 1"):
        budget.used()
    (tmp_path / PLACES).unlink()
    with pytest.raises(ValueError, match=r"places\.json is missing, .* restore it"):
        node("b").train(request([0]))


def test_an_older_file_of_places_is_brought_up_to_date(tmp_path):
    """By the next answer, in whichever run: what another ledger lost later was free."""
    budget, plans = OwnBudget(tmp_path, 2.0, 1e-5), PlanTable((Rounds(),), np.zeros(3, np.int64))
    charge = ([0], {Gaussian(9.0): 1})

    def node(run: str, *charges: tuple) -> Budgeted:
        host = SimpleNamespace(train=lambda asked: paid(tmp_path, run, *charges))
        return Budgeted(budget, tmp_path / run, plans, lambda: host)

    node("a", charge).train(request([0]))
    older = (tmp_path / PLACES).read_bytes()
    node("a", charge, charge).train(request([0], number=2))
    (tmp_path / PLACES).write_bytes(older)
    with pytest.raises(ValueError, match="b/ledger was put back while it was in use"):
        node("b").train(request([0]))
    (tmp_path / "a" / "ledger" / "group-0000.jsonl").unlink()
    paid(tmp_path, "a", charge)
    with pytest.raises(ValueError, match=r"a/ledger/.*jsonl has 1 lines, but had 2"):
        budget.used()


def test_where_a_ledger_ended_is_known_after_a_failure_too(tmp_path):
    """The server is told of it. One that charged nothing is told as it is."""
    plans, budget = PlanTable((Rounds(),), np.zeros(3, np.int64)), OwnBudget(tmp_path, 2.0, 1e-5)

    def diverge(asked: TrainRequest) -> None:
        paid(tmp_path, "a", *[([0], {Gaussian(9.0): 1})] * asked.round)
        raise ValueError(f"diverged in round {asked.round}")

    node = Budgeted(budget, tmp_path / "a", plans, lambda: SimpleNamespace(train=diverge))
    for number in (1, 1, 2):
        with pytest.raises(ValueError, match=f"^diverged in round {number}"):
            node.train(dataclasses.replace(request([0], number=number), release=f"anew {number}"))
    paid(tmp_path / "before", "a", ([0], {Gaussian(9.0): 1}))
    shutil.copytree(tmp_path / "before" / "a", tmp_path / "a", dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"group-0000\.jsonl has 1 lines, but had 2 before"):
        budget.used()


@pytest.mark.parametrize("weight", [0, 1])
def test_the_server_notes_before_it_asks_and_adds_what_was_paid_beyond(tmp_path, weight):
    """Also of a group in which nobody answered in the end."""
    plans = PlanTable((Rounds(),), np.zeros(4, np.int64))
    claim = PaperClaim(0.5, 2.0)

    def exchange(requests):
        assert ledger.read(tmp_path) == {0: {Gaussian(4.0): 2}, 1: {Gaussian(4.0): 2}}
        for one in requests:
            beyond = [(one.clients[:1], {claim: 3})]
            yield Upload(one.round, one.group, one.clients, HERE, weight, realized=beyond)

    other = dataclasses.replace(request([2, 3]), group=1)
    path = tmp_path / "group-0000.jsonl"
    list(noting(exchange, {0: path}, plans)([request([0, 1], nth=2), other]))
    assert ledger.read(tmp_path) == {
        0: Counter({Gaussian(4.0): 2, claim: 3}),
        1: Counter({Gaussian(4.0): 2}),
    }


OWN = "own-0", "own-1"


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes, each of which has a policy file and a folder of its own."""
    for variable in (policy.FOLDER, policy.MODULES):
        monkeypatch.delenv(variable, raising=False)
    for n, budget in enumerate((5.0, 9.0)):
        (tmp_path / OWN[n]).mkdir()
        text = f'folder = "{tmp_path / OWN[n]}"\nepsilon = {budget}\ndelta = 1e-5\n'
        (tmp_path / f"node-{n}.toml").write_text(text)

    def answer(message: Message, context: Context) -> Message:
        group = context.node_config["partition-id"]
        with pytest.MonkeyPatch.context() as there:
            there.setenv(policy.POLICY, str(tmp_path / f"node-{group}.toml"))
            return app.client(message, context)

    return LocalGrid({4: place(0), 8: place(1)}, answer)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*.jsonl") if p.is_file()}


def test_a_node_with_a_policy_but_no_client_idles(tmp_path, nodes, settings):
    """The server looked for its ledger."""
    asked = settings | APART | {"out": str(tmp_path / "server"), "clients": 1, "rounds": 1}
    serve(nodes, **asked, name="few")
    assert (tmp_path / "server" / "few" / "summary.json").is_file()
    assert not list((tmp_path / "own-1").iterdir())


def test_nodes_share_no_folder_and_count_over_all_runs(tmp_path, nodes, settings):
    """The server learns what was paid from what it asked for. A run of another name, seed and
    number of clients begins with what is left, and an interrupted one goes on as it was."""
    asked = settings | APART | {"out": str(tmp_path / "server")}
    serve(nodes, **asked, name="one")
    first = [ledger.read(*(tmp_path / f"own-{n}").glob("one-*/ledger")) for n in range(2)]
    assert not set(first[0]) & set(first[1]) and len(first[0] | first[1]) == 20
    assert ledger.read(tmp_path / "server" / "one" / "ledger") == first[0] | first[1]
    assert not list((tmp_path / "server" / "one").glob("uploads"))
    before = files(tmp_path / "own-0")
    again = asked | {"name": "two", "seed": 3, "clients": 10}
    refused = r"group 0 failed: .*epsilon of this node would be .* policy allows 5 over all runs"
    with pytest.raises(RuntimeError, match=refused):
        serve(nodes, **again)
    assert files(tmp_path / "own-0") == before
    (tmp_path / "node-0.toml").write_text(
        (tmp_path / "node-0.toml").read_text().replace("5.0", "9.0")
    )
    serve(nodes, resume=str(tmp_path / "server" / "two"))
    assert (tmp_path / "server" / "two" / "summary.json").exists()
    assert len(list((tmp_path / "own-1").glob("two-*"))) == 1


@pytest.mark.parametrize(
    ("mechanism", "own", "bounded"),
    [
        ("dpsgd", {"sample_rate": 0.5}, True),
        ("dpsur", {}, True),
        ("dphero", {"sample_rate": 0.5}, True),
        ("dpagd", {}, True),
        ("dpsur", {"dpsur_accounting": "selective"}, False),
        ("screening", {}, False),
        ("dpagd", {"sample_rate": 0.5}, False),
        ("dpis", {"sample_rate": 0.5}, False),
    ],
)
def test_mechanisms_that_have_a_bound_at_the_orders_of_a_node(
    tmp_path, nodes, settings, mechanism, own, bounded
):
    """As the page says; others are refused before they train."""
    asked = settings | own | {"mechanism": mechanism, "epsilon": 2.0, "clients": 2, "rounds": 1}
    asked |= APART | {"out": str(tmp_path / "server"), "name": "one"}
    if bounded:
        serve(nodes, **asked)
        return
    with pytest.raises(RuntimeError, match=r"would be inf at .*: use a mechanism whose steps"):
        serve(nodes, **asked)
    assert not list(tmp_path.glob("own-*/*/ledger"))


def test_a_run_has_one_folder_for_each_meaning_of_its_clients(tmp_path, settings):
    """What differs only in how it is computed is the same run, as it is when it is resumed."""
    own = policy.Policy(folder=str(tmp_path), epsilon=1.0, delta=1e-5)

    def folder(run: str = "/x/run", manifest: str = "one", **given: object) -> Path:
        config = configuration.load(None, settings | given)
        return policy.folder_of(own, SimpleNamespace(config=config), Path(run), manifest)

    folders = [
        folder(),
        folder(seed=1),
        folder(clients=10),
        folder(dirichlet=0.1),
        folder("/y/run"),
        folder("/x/other"),
        folder(manifest="other"),
        folder("/x/.."),
    ]
    assert len(set(folders)) == len(folders)
    assert all(path.parent == tmp_path and path.name != ".." for path in folders)
    assert folder(quiet=True, groups=2, chunk_clients=5) == folders[0]


def test_a_run_that_takes_the_name_of_another_begins_afresh(tmp_path, nodes, settings):
    """Its clients went on from what they had kept in the other one, whose charges the server that
    has this one does not know. A resumed run, and one from a copy, is the same."""
    server = tmp_path / "server"
    asked = settings | APART | {"out": str(server), "name": "one", "rounds": 1, "epsilon": 2.0}
    serve(nodes, **asked, keep_state=True)
    serve(nodes, resume=str(server / "one"))
    assert len(list((tmp_path / "own-0").glob("one-*"))) == 1
    shutil.rmtree(server)
    serve(nodes, **asked, keep_state=True)
    assert len(list((tmp_path / "own-0").glob("one-*/clients"))) == 2


def test_a_run_s_folder_is_for_the_records_that_it_began_with(
    tmp_path, nodes, settings, monkeypatch
):
    """In another order a client's number means other records: if a run takes the name of one
    that is gone, a record may pay twice by two numbers, of which the node counts one."""
    monkeypatch.setattr(manifest, "run_of", lambda folder: "the same, says the server")
    data = dict(np.load(settings["dataset"]))
    own, server = tmp_path / "own.npz", tmp_path / "server"
    asked = settings | APART | {"dataset": str(own), "out": str(server), "name": "one"}
    asked |= {"rounds": 1, "epsilon": 2.0}

    def run_anew(records: dict[str, np.ndarray]) -> None:
        shutil.rmtree(server, ignore_errors=True)
        np.savez(own, **records)
        app._known.clear()  # a node's process answers one message
        serve(nodes, **asked)

    run_anew(data)
    before = files(tmp_path / "own-0")
    with pytest.raises(RuntimeError, match=r"failed: .*records = .* is not what .* began with"):
        run_anew({name: array[::-1] for name, array in data.items()})
    assert files(tmp_path / "own-0") == before
    run_anew(data)
    assert files(tmp_path / "own-0") != before


def test_a_release_is_asked_for_once_whichever_group_is_to_answer(tmp_path, nodes, settings):
    """A server that divided the same clients otherwise had each group's draw, and a name that two
    ledgers hold is counted once: a record released twice for one charge."""
    given = settings | APART | {"clients": 2, "epsilon": 2.0, "rounds": 1}
    budget, path = OwnBudget(tmp_path / "own-0", 5.0, 1e-5), {"run_dir": "/x/run", "run": ""}
    divided = [configuration.load(None, given | {"groups": n}) for n in (1, 2)]
    jobs = [app._job(config.model_dump_json()) for config in divided]
    (client,) = jobs[1].groups[1][0]
    size, used = jobs[0].gradients.layout.size, []

    def ask(groups: int, name: str) -> None:
        first = request([int(client)])
        params = np.zeros(size, np.float32)
        asked = dataclasses.replace(first, group=groups - 1, release=name, params=params)
        run = path | {"settings": divided[groups - 1].model_dump_json()}
        list(exchange_over(nodes, [4, 4], run)([asked]))
        used.append(budget.used())

    ask(1, "one")
    for groups in (1, 2):
        with pytest.raises(RuntimeError, match="one was asked for before, and is paid for once"):
            ask(groups, "one")
    ask(2, "two")
    assert used == pytest.approx([used[0], 2 * used[0]])


UNPROTECTED = [
    ({"mechanism": "none"}, "mechanism is none"),
    ({"trust": "server"}, "trust is server"),
    ({"release": False}, "release is false"),
    ({"public_records": 9}, "public_records is 9"),
    ({"partition": "dirichlet"}, "partition is dirichlet"),
    ({"partition": "shards"}, "partition is shards"),
    ({"standardize": "private"}, "phases before training are statistics"),
]


@pytest.mark.parametrize(("asked", "said"), UNPROTECTED, ids=[said for _, said in UNPROTECTED])
def test_what_the_server_could_read_is_refused(tmp_path, nodes, settings, asked, said):
    """At the server, before anything is written, and at the node, whatever the server does."""
    given = settings | APART | asked
    if said.startswith("mechanism"):  # which has no use for a budget
        given.pop("epsilon")
    with pytest.raises(ValueError, match=f"^{said}"):
        serve(nodes, **given, out=str(tmp_path / "server"), name="one")
    refused_by_node(nodes, given, said)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"server", *OWN}
    assert not list((tmp_path / "server").iterdir()) and not list(tmp_path.glob("own-*/*"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mechanism": "mechanisms.none:MECHANISM"}, "group 0 cannot be built"),
        ({"mechanism": "lab.dp:M"}, "in its policy file lab.dp, or give another --mechanism"),
        ({"strategy": "lab.s:one"}, "it imports flwr.serverapp.strategy): have its owner add"),
        ({"model": "lab.nets:Net"}, "in its policy file lab.nets, or give another --model"),
        ({"data_dir": "/data"}, "data_dir = /data is not below"),
    ],
)
def test_what_the_policy_file_does_not_name_is_refused(tmp_path, nodes, settings, asked, said):
    refused_by_node(nodes, settings | APART | asked, said)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {*OWN}
    assert not list(tmp_path.glob("own-*/*"))


def test_why_a_data_set_cannot_be_loaded_is_told_in_the_nodes_own_log(tmp_path, nodes):
    """The server chooses which files are read, and would be told what they say."""
    table = tmp_path / "patients.csv"
    table.write_text("age,label\n70,ill\n60,well\n", encoding="utf-8")
    (tmp_path / "columns.toml").write_text("age = 'Miller'\n", encoding="utf-8")
    given = {"dataset": str(table), "columns": str(tmp_path / "columns.toml")}
    config = configuration.load(None, given | APART).model_dump_json()
    with pytest.raises(ValueError, match="Miller"):
        app._job(config)
    request_of = {"settings": config, "run_dir": "/x/run"}
    with pytest.raises(RuntimeError, match="group 0 cannot be built on its Flower node") as told:
        list(exchange_over(nodes, [4, 8], request_of)([request([0])]))
    assert "Miller" not in str(told.value)


def test_a_server_counts_no_values_of_a_column(tmp_path, nodes, settings):
    """Clients' sizes would be those of its values, and outputs as many as there are. What counts
    nothing that the records hold is asked as it was."""
    table = tmp_path / "patients.csv"
    table.write_text("age,ill,ward\n" + "70,yes,A\n60,no,B\n" * 20, encoding="utf-8")
    given = settings | APART | {"dataset": str(table), "clients": 1, "label_column": "ill"}
    by_ward = {"partition": "given", "client_column": "ward"}
    refused_by_node(nodes, given | by_ward, "client_column is 'ward'")
    refused_by_node(nodes, given, "columns is not set")
    stated = tmp_path / "columns.toml"
    stated.write_text('age = [0, 100]\nill = ["no", "yes"]\nward = ["A", "B"]', encoding="utf-8")
    out = {"columns": str(stated), "out": str(tmp_path / "server"), "name": "one"}
    serve(nodes, **given | out | {"clients": 2, "rounds": 1, "epsilon": 2.0})
    assert (tmp_path / "server" / "one" / "summary.json").exists()


def refused_by_node(nodes: LocalGrid, given: dict, said: str) -> None:
    """A server that checks nothing is told so in one line."""
    run = {"settings": configuration.load(None, given).model_dump_json(), "run_dir": "/x/run"}
    with pytest.raises(RuntimeError, match=rf"^group 0 failed: .*{re.escape(said)}") as told:
        list(exchange_over(nodes, [4, 8], run)([request([0])]))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('folder = "/"\nepsilon = 1.0\ndelta = 1e-5\nmodule = ["lab"]', "unknown key module"),
        ('folder = "/"\ndelta = 1e-5', "epsilon is missing"),
        ('folder = "/"\nepsilon = 0\ndelta = 1e-5', "epsilon is 0 "),
        ('folder = "/"\nepsilon = inf\ndelta = 1e-5', "epsilon is inf "),
        ('folder = "/"\nepsilon = 1.0\ndelta = 1', "delta is 1 "),
        ('folder = "."\nepsilon = 1.0\ndelta = 1e-5', "folder is '.' .*absolute path"),
        ('folder = ""\nepsilon = 1.0\ndelta = 1e-5', "folder is '' "),
        ('folder = "/none"\nepsilon = 1.0\ndelta = 1e-5', r"folder is '/none' \(.*not there: "),
        ('folder = "/"\nepsilon = 1.0\ndelta = 1e-5\nmodules = "lab"', "modules is 'lab' "),
        ("folder", "is not a TOML file"),
        ("folder = " + "[" * 3000, "is not a TOML file"),
        ('folder = "~nosuch/x"\nepsilon = 1.0\ndelta = 1e-5', "folder is '~nosuch/x' "),
        (None, "cannot be read"),
    ],
)
def test_a_faulty_policy_file_stops_a_run_before_it_begins(tmp_path, nodes, text, said):
    """Kills a node that goes on as if it had none, where a key is misspelled."""
    path = tmp_path / "node-1.toml"
    path.write_text(text) if text is not None else path.unlink()
    with pytest.raises(
        RuntimeError, match=rf"^Flower node 8 failed: .*node-1.toml.*{said}"
    ) as told:
        find_groups(nodes, patience=0.0)
    assert "\n" not in str(told.value)


def test_features_of_a_node_s_records_stay_in_its_own_folder(tmp_path, nodes, monkeypatch):
    """Kills the user's cache, which others may read and the node's owner did not name."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("DP_FED_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv(policy.POLICY, str(tmp_path / "node-0.toml"))
    monkeypatch.setattr(app, "_known", {})
    given = {"features": "scattering", "clients": 2}
    text = configuration.load(None, given | APART).model_dump_json()
    where = {"run_dir": "/x/run", "run": "", "group": 0, "phase": "train"}
    app._node_of({"settings": text} | where, None)
    (kept,) = (tmp_path / "own-0" / "features").glob("*.npz")
    assert kept.stat().st_mode & 0o777 == 0o600 and not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("variable", [policy.FOLDER, policy.MODULES])
def test_a_policy_file_stands_alone(monkeypatch, nodes, variable):
    monkeypatch.setenv(variable, "lab")
    with pytest.raises(RuntimeError, match=f"{variable} and DP_FED_NODE_POLICY are both set"):
        find_groups(nodes, patience=0.0)
