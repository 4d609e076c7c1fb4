"""Personal budgets: who has which, plans and ledgers of each client's own, and what is shown."""

import json
import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from client.sums import SCALE
from mechanisms import contributions, personal
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from mechanisms.mechanism import local_round
from mechanisms.plan import planned
from mechanisms.registry import plan_table
from mechanisms.sampling import COIN
from mechanisms.settings import Dpis, Privacy
from server import loop, orders
from server.guarantees import by_group
from sim import account, run
from sim.auditing import trainings
from sim.commands.guard import main_guard
from sim.comparing.comparison import write_comparison
from sim.config import caveats, configuration
from sim.engines import policy
from sim.library.api import price
from sim.library.result import Result
from sim.phases.build import build
from sim.showing import run as shown
from sim.showing import wording
from tests import small, unequal
from tests import test_curator as curated
from tests.gaussian import SPOILERS, alarms
from tests.refusing import refusal

CLIENTS = curated.CLIENTS
TEXT = "conservative=1@0-3,6,moderate=2@4-5,7-8,liberal=8@9-11"
EPSILONS = [1.0] * 4 + [2.0] * 2 + [1.0] + [2.0] * 2 + [8.0] * 3
BUDGETS = {"epsilon": None, "budgets": TEXT}
SUMS = {
    "aggregate, record": {"trust": "aggregate"},
    "aggregate, client": {"trust": "aggregate", "unit": "client", "steps": 3, "fraction": 0.8},
    "server, record": {"trust": "server"},
    "server, client": {"trust": "server", "unit": "client", "steps": 3, "fraction": 0.6},
}
KINDS = {"local": {"steps": 2}, "dpis": {"mechanism": "dpis", "steps": 2}, **SUMS}
DELTA = 1e-5


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@dataclass
class World(curated.World):
    """A run with personal budgets."""

    settings = curated.SETTINGS | BUDGETS

    def spent(self) -> list[float]:
        return [epsilon(self.paid[client], DELTA).epsilon for client in range(CLIENTS)]


@dataclass
class Unequal(World):
    """Of clients with different rates, too."""

    settings = curated.UNEQUAL | BUDGETS


# Who has which budget


def test_groups_by_numbers_name_each_client_once():
    found = personal.groups(TEXT, CLIENTS)
    assert [(g.name, g.epsilon, g.clients.tolist()) for g in found] == [
        ("conservative", 1.0, [0, 1, 2, 3, 6]),
        ("moderate", 2.0, [4, 5, 7, 8]),
        ("liberal", 8.0, [9, 10, 11]),
    ]
    own = Privacy(epsilon=None, budgets=TEXT)
    assert personal.of_clients(own, CLIENTS).tolist() == EPSILONS
    assert personal.of_clients(Privacy(epsilon=3.0), 2).tolist() == [3.0, 3.0]
    nothing = Privacy(epsilon=None, noise_multiplier=1.0)
    assert personal.of_clients(nothing, 2).tolist() == [math.inf] * 2


@pytest.mark.parametrize("text", ["a=1:0.25,b=2:0.35,c=0.5:0.4", "b=2:0.35,c=0.5:0.4,a=1:0.25"])
def test_shares_are_drawn_whatever_their_order(text):
    """Rounded to whole clients, at random, and written as numbers. Kills groups of neighbours, and
    draws that depend on the order of the text."""
    found = personal.resolved(text, 60, rng())
    assert found == personal.resolved("c=0.5:0.4,a=1:0.25,b=2:0.35", 60, rng())
    groups = personal.groups(found, 60)
    assert [(g.name, g.epsilon, len(g.clients)) for g in groups] == [
        ("c", 0.5, 24),
        ("a", 1.0, 15),
        ("b", 2.0, 21),
    ]
    assert (np.diff(groups[0].clients) > 1).any()
    assert found != personal.resolved(text, 60, rng(1))
    assert personal.resolved(found, 60, rng(2)) == found


@settings(max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 500))
def test_each_group_has_its_share_to_within_a_client(parts, clients):
    """And each client is in one group."""
    shares = [part / sum(parts) for part in parts]
    text = ",".join(f"g{k}={k + 1}:{share!r}" for k, share in enumerate(shares))
    try:
        groups = personal.groups(personal.resolved(text, clients, rng()), clients)
    except ValueError as fault:
        assert "none of" in str(fault) and min(shares) * clients < 1
        return
    for group, share in zip(groups, shares, strict=True):
        assert abs(len(group.clients) - share * clients) < 1.001
    numbers = np.concatenate([group.clients for group in groups])
    assert sorted(numbers.tolist()) == list(range(clients))


def test_a_file_gives_each_client_its_own(tmp_path):
    """In any order, with columns besides; clients of equal budgets are a group."""
    rows = [f"x,{client},{1 + client % 3 / 4}" for client in (4, 0, 3, 1, 2)]
    path = tmp_path / "budgets.CSV"
    path.write_text("\ufeff" + "\n".join(["other,client,epsilon", *rows, ""]), encoding="utf-8")
    found = personal.resolved(str(path), 5, rng())
    assert found == "1.0=1.0@0,3,1.25=1.25@1,4,1.5=1.5@2"
    assert personal.groups(found, 5)[1].clients.tolist() == [1, 4]


def test_a_file_may_have_the_names_of_the_data_set_s_clients(tmp_path):
    """Hospital 10 is not client 10, and in a list of texts it comes before hospital 9."""
    path, names = tmp_path / "budgets.csv", ("10", "7", "9", "east")
    path.write_text("client,epsilon\neast,3\n10,1\n9,2\n7,1\n")
    found = personal.resolved(str(path), 4, rng(), names)
    assert found == "1.0=1.0@0-1,2.0=2.0@2,3.0=3.0@3"
    path.write_text("client,epsilon\neast,3\n10,1\n9,2\nwest,1\n")
    with pytest.raises(ValueError, match="client 'west' is none of the data set's, such as '10'"):
        personal.resolved(str(path), 4, rng(), names)
    path.write_text("client,epsilon\n3,3\n0,1\n1,2\n2,1\n")
    assert personal.resolved(str(path), 4, rng(), names) == personal.resolved(str(path), 4, rng())


def test_a_run_gives_each_named_client_its_budget(tmp_path):
    owner = np.repeat(["h9", "h10", "h2"], 40)
    np.savez(tmp_path / "d.npz", x=np.eye(120), y=np.arange(120) % 2, client=owner)
    (tmp_path / "b.csv").write_text("client,epsilon\nh9,4\nh2,2\nh10,1\n")
    files = {"dataset": str(tmp_path / "d.npz"), "budgets": str(tmp_path / "b.csv")}
    job = build(configuration.load(None, {**files, "partition": "given"}))
    assert personal.of_clients(job.config.privacy, 3).tolist() == [1, 2, 4]  # h10, h2, h9


FILES = {
    "twice.csv": "client,epsilon\n0,1\n1,2\n1,2\n",
    "far.csv": "client,epsilon\n0,1\n1,2\n2,2\n3,1\n",
    "signed.csv": "client,epsilon\n0,1\n-1,2\n2,2\n",
    "word.csv": "client,epsilon\n0,1\n1,much\n2,2\n",
    "short.csv": "client,epsilon\n0,1\n1\n2,2\n",
    "few.csv": "client,epsilon\n0,1\n2,2\n",
    "quoted.csv": 'client,epsilon\n0,1\n1,"1"2\n2,2\n',
    "head.csv": "id,epsilon\n0,1\n1,2\n2,2\n",
    "empty.csv": "",
    "bytes.csv": b"client,epsilon\n\xff\xfe\n",
}
FAULTS = {
    "much": ["'much'", "NAME=EPSILON:SHARE", ".csv"],
    "a=1": ["'a=1'", "NAME=EPSILON@CLIENTS"],
    "a=1:0.5,": ["a:0.5,;", "add up to 1"],
    ",a=1:1": ["''"],
    "=1:1": ["'=1:1'"],
    "a b=1:1": ["'a b=1:1'"],
    "a=1:0.5,a=2:0.5": ["group a twice"],
    "a=1:0.5,b=2@0-2": ["in one way"],
    "a=0:1": ["group a", "'0'", "above 0"],
    "a=-1:1": ["'-1'", "above 0"],
    "a=inf:1": ["'inf'"],
    "a=nan:1": ["'nan'"],
    "a=x:1": ["'x'"],
    "a=:1": ["''"],
    "a=1:0.5,b=2:0.4": ["a:0.5, b:0.4", "add up to 1"],
    "a=1:1.5,b=2:-0.5": ["above 0 and add up to 1"],
    "a=1:half,b=2:0.5": ["a:half"],
    "a=1:0.999,b=2:0.001": ["b a share of 0.001", "none of 3 clients"],
    "a=1@0-1": ["lacks the clients 2 of 3"],
    "a=1@0-1,b=2@1-2": ["the clients 1 in two groups"],
    "a=1@0-3": ["'0-3'", "below 3"],
    "a=1@2-0": ["'2-0'", "ascending"],
    "a=1@0,0,1,2": ["ascending"],
    "a=1@x": ["'x'", "ascending"],
    "a=1@": ["''", "ascending"],
    "nowhere.csv": ["nowhere.csv", "No such file", "client and epsilon"],
    "twice.csv": ["client 1 has two rows"],
    "far.csv": ["client '3' is no number below 3"],
    "signed.csv": ["client '-1'"],
    "word.csv": ["epsilon of client 1 is 'much'"],
    "short.csv": ["epsilon of client 1 is ''"],
    "few.csv": ["lacks the clients 1 of 3"],
    "quoted.csv": ["quoted.csv: ',' expected after"],
    "head.csv": ["head.csv", "columns client and epsilon"],
    "empty.csv": ["columns client and epsilon"],
    "bytes.csv": ["bytes.csv", "utf-8"],
}


ARGV = ["--engine=inline", "--quiet", "--clients=3"]


@pytest.mark.parametrize("text", FAULTS)
def test_bad_budgets_are_one_line_and_leave_nothing(tmp_path, capsys, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        own = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(own)
    said = refusal(capsys, run.command, [*ARGV, f"--budgets={text}", "--out=runs"])
    assert [part for part in FAULTS[text] if part not in said] == [] and "budgets" in said
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("text", ["a=1@0-1", "a=1@0-1,b=2@1-2"])
def test_budgets_that_a_configuration_holds_are_of_each_client_too(text):
    """As one that was edited, or is a Flower server's: a client without a budget had any."""
    with pytest.raises(ValueError, match=r"budgets (lacks|has) the clients"):
        personal.of_clients(Privacy(epsilon=None, budgets=text), 3)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--epsilon=3", ["epsilon is 3", "budgets is 'a=1:1'", "drop one"]),
        ("--trust=server --noise-multiplier=2", ["noise_multiplier is 2", "--trust server"]),
        ("--trust=aggregate --noise-multiplier=2", ["--trust aggregate", "leave"]),
        ("--trust=server --unit=client --noise-bands=2", ["noise_bands is 2", "coins"]),
        ("--mechanism=none", ["budgets is a=1:1", "--mechanism"]),
    ],
)
def test_what_budgets_do_not_go_with(tmp_path, capsys, line, parts):
    words = [*ARGV, "--budgets=a=1:1", f"--out={tmp_path}", *line.split()]
    said = refusal(capsys, run.command, words)
    assert [part for part in parts if part not in said] == []


def test_the_later_of_epsilon_and_budgets_counts(tmp_path):
    """As everywhere, flags override files; both in one place contradict each other."""
    path = tmp_path / "c.toml"
    path.write_text('[privacy]\nbudgets = "a=1:1"\n')
    assert configuration.load(path, {}).privacy.epsilon is None
    over = configuration.load(path, {"epsilon": 4.0}).privacy
    assert (over.epsilon, over.budgets) == (4.0, None)
    path.write_text("[privacy]\nepsilon = 4.0\n")
    over = configuration.load(path, {"budgets": "a=1:1"}).privacy
    assert (over.epsilon, over.budgets) == (None, "a=1:1")


# Plans


SUMMING = {
    "server": contributions.of_unit("record", 1.0)[0],
    "aggregate": contributions.of_unit("record", 1.0, 2.0**-60)[0],
    "client": contributions.of_unit("client", 0.5)[0],
}


@settings(max_examples=6)
@given(
    st.lists(st.floats(0.2, 12.0), min_size=2, max_size=4),
    st.sampled_from(["dpsgd", "dpis", *SUMMING]),
    st.integers(2, 5),
    st.sampled_from([DELTA, 1e-7]),
)
@example([1.0, 4.0], "client", 3, 1e-7)
def test_each_plan_spends_its_clients_own_budget(epsilons, kind, rounds, delta):
    """At most, and nearly all of it; at different sizes where each adds its own noise. Kills plans
    for another's budget, for the smallest of all, for the largest, and at another delta."""
    sizes = np.full(6, 20) if kind in SUMMING else np.array([20, 50, 20, 31, 50, 20])
    own = [epsilons[client % len(epsilons)] for client in range(6)]
    text = ",".join(f"g{client}={value!r}@{client}" for client, value in enumerate(own))
    privacy = Privacy(
        mechanism="dpsgd" if kind in SUMMING else kind,
        epsilon=None,
        budgets=text,
        delta=delta,
        batch_size=10,
    )
    terms = privacy, Dpis() if kind == "dpis" else None, 1, rounds, sizes
    table = plan_table(*terms, mechanism=SUMMING.get(kind))
    for client, budget in enumerate(own):
        spent = epsilon(planned(table.of(client), rounds), delta).epsilon
        assert 0.998 * budget < spent <= budget


@pytest.mark.parametrize("kind", KINDS)
def test_every_client_spends_its_own_budget(tmp_path, kind):
    """All of it in all planned rounds, by its ledger. Kills a run that ends with the smallest
    budget, or goes on to the largest."""
    given = KINDS[kind] | ({"fraction": 1.0} if "aggregate" in kind else {})
    world = World(tmp_path, given)
    standing = world.run()
    assert standing.now.round == curated.ROUNDS and len(standing.records) == curated.ROUNDS
    for one, budget in zip(world.spent(), EPSILONS, strict=True):
        assert 0.999 * budget < one <= budget
    assert standing.budgets.epsilons("certified").tolist() == world.spent()
    assert not standing.budgets.eligible().any()


@pytest.mark.parametrize("kind", SUMS)
def test_sums_have_one_noise_and_rates_of_each(tmp_path, kind):
    """The largest budget has the configured rate, at the noise that it would have alone; the others
    enter more rarely, and the divisor knows. Kills noise for the smallest budget, a rate that is
    charged but not drawn, and a mean over those that are not there."""
    own = Unequal if "record" in kind else World
    world = own(tmp_path / "all", SUMS[kind])
    alone = own(tmp_path / "one", SUMS[kind] | {"epsilon": 8.0, "budgets": None})
    table, usual = world.job.plans, alone.job.plans
    plans = [table.of(client) for client in range(CLIENTS)]
    liberal = {client: plans[client] for client in range(9, CLIENTS)}
    assert len({plan.noise_multiplier for plan in plans}) == 1
    if "client" in kind:
        assert all(plan == usual.of(client) for client, plan in liberal.items())
        rate = SUMS[kind]["fraction"] if "server" in kind else 1.0
        for plan in plans:
            assert rate * plan.own_rate <= plan.unit_rate <= rate * plan.own_rate * (1 + 1e-12)
            assert plan.sample_rate == 0.5
        assert [plan.own_rate == 1.0 for plan in plans] == [e == 8.0 for e in EPSILONS]
        expected = np.array([plan.own_rate for plan in plans])
    else:
        assert all(plan.unit_rate == plan.sample_rate for plan in plans)
        sizes = world.job.partition.sizes
        for client, plan in enumerate(plans):
            assert plan.own_rate == 1.0 and plan.sample_rate <= min(1.0, 3 / sizes[client])
        expected = sizes * [plan.sample_rate for plan in plans]
    federation = world.federation
    if federation.curator:
        assert federation.curator.expected == pytest.approx(
            expected.sum() * (0.6 if "client" in kind else 1.0)
        )
    else:
        assert federation.aggregator.expected == pytest.approx(expected)


def test_updates_enter_sums_by_own_coins_of_the_charged_rate():
    """Each client by its own, and a client that does not enter has trained all the same and sends
    zeros: false alarm below 1e-6. Kills one coin for all, and a rate that is not the plan's."""
    mechanism, sent = contributions.of_unit("client", 1.0)
    rates, number = (0.15, 0.6, 1.0), 120
    plans = [replace(curated.plan_of(0.5), own_rate=rate) for rate in rates]
    cohort, start = small.cohort(plans), small.start(small.model())
    entered = np.zeros((number, 3), dtype=bool)
    for seed in range(number):
        drawn = replace(cohort, streams=small.streams(range(3), seed))
        end = local_round(mechanism, drawn, start)
        assert ((end.params != start).any(dim=1)).all()
        entered[seed] = (sent.rows(drawn, start, end) != 0).any(dim=1).numpy()
    for rate, times in zip(rates, entered.sum(axis=0).tolist(), strict=True):
        law = stats.binom(number, rate)
        assert law.sf(times - 1) > 3e-7 and law.cdf(times) > 3e-7
    both = int((entered[:, 0] & entered[:, 1]).sum())
    law = stats.binom(number, rates[0] * rates[1])
    assert law.sf(both - 1) > 3e-7 and law.cdf(both) > 3e-7


def test_own_coins_never_exceed_what_is_charged():
    """In exact arithmetic: the server's coin and the client's own, as they are drawn, together have
    at most the charged probability."""
    mechanism, _ = contributions.of_unit("client", 0.3)
    text = "a=0.5@0,b=0.7@1,c=1.1@2,d=3@3,e=5@4,f=5.5@5,g=6@6,h=6.5@7,i=7@8,j=8@9"
    privacy = Privacy(epsilon=None, budgets=text)
    table = plan_table(privacy, None, 1, 7, np.full(10, 9), mechanism=mechanism)
    for plan in table.plans:
        coin = Fraction(math.floor(plan.own_rate / COIN)) * Fraction(COIN)
        assert coin * Fraction(0.3) <= Fraction(plan.unit_rate)


def test_the_noise_of_each_group_is_what_it_is_charged(tmp_path):
    """Records of zeros move no weight, so that an update is its client's noise: at deviation s C
    over the expected batch. False alarm below 1e-5. Negative controls: noise of other scales, and
    of another group."""
    x, y = np.zeros((120, 1000)), np.arange(120) % 3
    np.savez(tmp_path / "zeros.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    given = {"groups": CLIENTS, "rounds": 1, "steps": 1, "lr": 1.0, "momentum": 0.0}
    given |= {"dataset": str(tmp_path / "zeros.npz"), "sample_rate": 0.5, "model": "linear"}
    world = World(tmp_path / "run", given | {"clip_norm": 0.7})
    job = world.job
    uploads = world.exchange(world.folder, None)(curated.requests(world))
    noises = {job.plans.of(client).noise_multiplier for client in range(CLIENTS)}
    for upload in uploads:
        (client,) = upload.clients.tolist()
        plan = job.plans.of(client)
        update = torch.from_numpy(upload.total / (upload.weight * SCALE))
        (name,) = (one for one in job.gradients.layout.names if one.endswith("weight"))
        weights = job.gradients.layout.unflatten(update)[name].numpy().ravel()
        std = plan.noise_multiplier * 0.7 / (0.5 * 10)
        assert alarms(weights, std) == set()
        assert all(alarms(spoil(weights, std), std) for spoil in SPOILERS.values())
        assert world.paid[client] == {SampledGaussian(0.5, plan.noise_multiplier): 1}
        others = noises - {plan.noise_multiplier}
        assert len(others) == 2 and all(alarms(weights, other * 0.7 / 5) for other in others)


# Runs


def test_with_given_noise_each_retires_by_its_own_budget(tmp_path):
    """Kills a run that retires all by the smallest, nobody before the largest, or at another
    delta."""
    delta = 1e-7
    given = {"noise_multiplier": 6.0, "rounds": 60, "evaluate_every": 60, "delta": delta}
    world = World(tmp_path, given)
    standing = world.run()
    (plan,) = world.job.plans.plans
    rounds = {
        budget: next(
            n for n in range(60, 0, -1) if epsilon(planned(plan, n), delta).epsilon <= budget
        )
        for budget in (1.0, 2.0, 8.0)
    }
    assert standing.now.taken.tolist() == [rounds[budget] for budget in EPSILONS]
    assert 0 < rounds[1.0] < rounds[2.0] < rounds[8.0]
    left = [record.retired for record in standing.records]
    assert {0, 5, 9} <= set(left) and left == sorted(left)


def test_the_figures_of_a_running_run_are_bounded_by_each_ones_budget(tmp_path):
    """With one plan for all, the orders fixed in advance are those of the client's own budget, in
    the file and in memory. Kills the orders of another's."""
    world = World(tmp_path, {"noise_multiplier": 6.0, "rounds": 60, "evaluate_every": 60})
    federation = world.federation
    (plan,) = world.job.plans.plans
    federation.write_orders(tmp_path)
    found = orders.read(tmp_path)
    for client, budget in enumerate(EPSILONS):
        own = orders.orders_in_advance(plan, 60, budget, DELTA, "certified")
        assert found[client] == own
    assert len({found[0], found[4], found[9]}) == 3
    standing = world.run()
    so_far = standing.budgets.so_far()
    for client, budget in enumerate(EPSILONS):
        fixed = orders.running(world.paid[client], DELTA, found[client], budget)
        assert so_far[client] == fixed.epsilon <= budget
    config, paid = world.job.config, {client: world.paid[client] for client in range(9)}
    assert shown.so_far(tmp_path, config, paid) == pytest.approx(max(so_far[:9]))
    claims = config.privacy.model_copy(update={"budget": "published"})
    claimed = shown.so_far(tmp_path, config.model_copy(update={"privacy": claims}), paid)
    assert claimed > max(so_far[:9])  # no budget bounds a proved figure
    published = replace(federation, column="published")
    standing = loop.restore(published, world.store)
    assert (standing.budgets.so_far()[:9] > so_far[:9]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_order_groups_and_resumption_change_no_bit(tmp_path, kind):
    parts = ["liberal=8@9-11", "moderate=2@4-5,7-8", "conservative=1@0-3,6"]
    ends = [
        World(tmp_path / str(k), KINDS[kind] | {"budgets": ",".join(order), **groups}).run()
        for k, (order, groups) in enumerate(
            [
                (parts, {"groups": 1, "chunk_clients": 4}),
                (parts[::-1], {"groups": 2, "chunk_clients": 4}),
            ]
        )
    ]
    assert np.array_equal(ends[0].now.params, ends[1].now.params)
    whole, world = World(tmp_path / "a", KINDS[kind]), World(tmp_path / "b", KINDS[kind])
    first = whole.run()
    resumed = world.crashed(3, 1).run()
    assert np.array_equal(first.now.params, resumed.now.params)
    assert whole.paid == world.paid


@pytest.mark.parametrize("given", [{}, {"share_noise": 9.0}])
def test_phases_before_training_keep_to_the_smallest_budget(tmp_path, given):
    """All clients release alike there, and what is left of its own budget is for a client's
    training. Kills a release for the largest, which the others could not pay."""
    own = {"strategy": "fedfed", "share_budget": 0.3, "steps": 1} | given
    mixed = World(tmp_path / "a", own).job
    small_ = World(tmp_path / "b", own | {"budgets": None, "epsilon": 1.0}).job
    assert mixed.plans_of["share"].plans == small_.plans_of["share"].plans
    (prior,) = mixed.prior
    for client, budget in enumerate(EPSILONS):
        charges = dict(prior) | planned(mixed.plans.of(client), curated.ROUNDS)
        assert 0.999 * budget < epsilon(charges, DELTA).epsilon <= budget
    with pytest.raises(ValueError, match="budget too small"):
        World(tmp_path / "c", own | {"share_noise": 0.8}).job  # noqa: B018


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("records") / "records.npz"
    draws = rng(3)
    x, y = draws.normal(size=(90, 6)), draws.integers(0, 3, 90)
    np.savez(path, x=x, y=y, x_test=x[:20], y_test=y[:20])
    return path


def finished(records: Path, out: Path, *words: str) -> Path:
    argv = [f"--dataset={records}", "--clients=6", "--partition=iid", "--rounds=3", "--seed=5"]
    argv += [f"--out={out}", "--name=run", "--sample-rate=0.4", "--engine=inline", *words]
    assert main_guard(run.command, argv) == 0
    return out / "run"


SHARES = "--budgets=careful=0.7:0.5,bold=5:0.5"


def text_of(folder: Path) -> str:
    return configuration.load(folder / "config.toml", {}).privacy.budgets


def test_a_run_directory_is_complete_without_the_file(tmp_path, records, capsys):
    """It holds the clients' numbers, and goes on with the same budgets. The page, the terminal, the
    card, the comparison and the summary say whose figures are whose."""
    path = tmp_path / "own.csv"
    path.write_text("client,epsilon\n" + "".join(f"{k},{(0.7, 5)[k % 2]}\n" for k in range(6)))
    folder = finished(records, tmp_path / "runs", f"--budgets={path}")
    shown = capsys.readouterr().out
    path.unlink()
    assert text_of(folder) == "0.7=0.7@0,2,4,5.0=5.0@1,3,5"
    summary = json.loads((folder / "summary.json").read_text())
    certified = summary["epsilon_certified"]
    rows = [("0.7", 0.7, certified[0]), ("5.0", 5.0, certified[1])]
    assert summary["budgets"] == [
        {"group": name, "budget": budget, "clients": 3, "largest": spent}
        for name, budget, spent in rows
    ]
    assert all(0.999 * budget < spent <= budget for _, budget, spent in rows)
    cells = [[name, f"{budget:g}", "3", f"{budget:g}"] for name, budget, _ in rows]
    page = (folder / "report.html").read_text()
    assert unequal.rows(unequal.section(page, "Privacy spent"))[1:3] == cells
    value, note = unequal.tiles(page)["Certified epsilon"]
    assert value == "5" and "largest of 6 clients; largest budget 5" in note
    assert "group 0.7          budget 0.7 of 3 clients, largest spent 0.7" in shown
    assert "certified epsilon  5 (largest client's; median 2.85), delta 1e-05" in shown
    card = (folder / "model_card.md").read_text()
    assert "| group 5.0 | 3 clients, budget 5, largest 5 |" in card
    for text in (shown, page.replace("&#x27;", "'"), card):
        assert caveats.PERSONAL in text
    other = finished(records, tmp_path / "others", "--epsilon=5")
    pages = write_comparison([folder, other]).read_text().replace("&#x27;", "'")
    assert "<td>5 (largest client's)</td>" in pages and "<td>5</td>" in pages
    (folder / "summary.json").unlink()
    again = main_guard(run.command, [f"--resume={folder}"])
    assert again == 0 and json.loads((folder / "summary.json").read_text()) == summary


def test_an_unfinished_run_shows_budgets_as_what_is_proved(tmp_path):
    """Of a published budget nothing is."""
    text = "a=1.25@0-1,b=9.5@2-4"
    folder = unequal.run_directory(tmp_path / "a", finished=False, epsilon=None, budgets=text)
    result = Result(folder)
    page = result.report().read_text()
    rows = unequal.rows(unequal.section(page, "Privacy spent"))
    assert rows[1:] == [["a", "1.25", "2", "1.25"], ["b", "9.5", "3", "9.5"]]
    assert unequal.tiles(page)["Certified epsilon"][0] == "9.5"
    own = {"budgets": text, "epsilon": None, "budget": "published"}
    folder = unequal.run_directory(tmp_path / "b", finished=False, **own)
    rows = unequal.rows(unequal.section(Result(folder).report().read_text(), "Privacy spent"))
    assert [row[3] for row in rows[1:]] == ["not proved", "not proved"]


@pytest.mark.parametrize("trust", ["local", "server", "aggregate"])
def test_the_ledger_is_priced_by_each_ones_budget(tmp_path, records, capsys, no_report, trust):
    """Of a finished run, of one that goes on, and by the second path; and all files are whole."""
    folder = finished(records, tmp_path, SHARES, f"--trust={trust}", "--steps=1", "--quiet")
    groups = personal.groups(text_of(folder), 6)
    targets = {int(client): g.epsilon for g in groups for client in g.clients}
    for _ in range(2):
        capsys.readouterr()
        assert main_guard(account.command, [f"--ledger={folder}", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert caveats.PERSONAL in answer["caveats"]
        for row in answer["clients"]:
            assert row["budget"] == targets[row["client"]]
            assert 0.9 * row["budget"] < row["epsilon_certified"] <= row["budget"]
        assert Result(folder).epsilon == max(r["epsilon_certified"] for r in answer["clients"])
        assert main_guard(account.command, [f"--check={folder}"]) == 0
        if (folder / "summary.json").exists():
            assert main_guard(account.command, [f"--verify={folder}"]) == 0
            assert main_guard(account.command, [f"--ledger={folder}"]) == 0
            table = capsys.readouterr().out
            assert re.search(r"\b0\.7 +.", table) and "budget" in table
            (folder / "summary.json").unlink()


def test_a_price_is_that_of_each_group(records):
    found = price(
        dataset=str(records), clients=6, partition="iid", budgets="a=0.7:0.5,b=5:0.5", rounds=3
    )
    rows = found["phases"]
    assert [row["budget"] for row in rows] == [0.7, 5.0] and found["budget"] == 5.0
    for row in rows:
        assert 0.999 * row["budget"] < row["epsilon_certified"] <= row["budget"]
        assert row["rounds"] == 3
    given = {"dataset": str(records), "clients": 6, "budgets": "a=0.7@0-2,b=5@3-5", "rounds": 3}
    same = price(records=[15], noise_multiplier=7.0, **given)["phases"]
    assert [row["clients"] for row in same] == ["0-2", "3-5"] and same[0]["rounds"] < 3
    assert same[1]["rounds"] == 3
    of_owners = price(records=[15] * 4, partition="given", budgets="a=0.7@0-2,b=5@3", rounds=3)
    assert [row["clients"] for row in of_owners["phases"]] == ["0-2", "3"]


@pytest.mark.slow  # any run is the same on any engine: tests/test_run.py
def test_workers_and_engines_change_no_bit(tmp_path, records, no_report):
    """In this process and in two of Ray's."""
    line = (SHARES, "--groups=2", "--chunk-clients=2", "--quiet", "--steps=2")
    here = finished(records, tmp_path / "a", *line)
    there = finished(records, tmp_path / "b", *line, "--engine=ray", "--workers=2")
    assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
    assert text_of(here) == text_of(there)


def test_a_changed_budget_is_not_resumed(tmp_path, records, no_report):
    folder = finished(records, tmp_path, SHARES, "--quiet")
    (folder / "summary.json").unlink()
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("bold=5.0", "bold=9.0"))
    assert main_guard(run.command, [f"--resume={folder}"]) == 2


def test_what_attacks_and_single_rounds_refuse(tmp_path):
    with pytest.raises(ValueError, match="budgets are of many clients"):
        trainings.train(World(tmp_path, {}).job, [np.arange(9)], b"key")
    words = ["dpsgd", "--sample-rate=1", "--budgets=a=1@0"]
    assert main_guard(account.command, words) == 2
    assert main_guard(account.command, [*words, "--noise-multiplier=1"]) == 2


def test_a_node_reads_no_file_of_budgets_outside_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(policy.FOLDER, str(tmp_path / "node"))
    config = configuration.load(None, {"budgets": str(tmp_path / "secret.csv")})
    with pytest.raises(ValueError, match=r"budgets = .*secret\.csv is not below"):
        policy.check(config, tmp_path / "node" / "run")
    inside = configuration.load(None, {"budgets": str(tmp_path / "node" / "own.csv")})
    policy.check(inside, tmp_path / "node" / "run")
    policy.check(configuration.load(None, BUDGETS), tmp_path / "node" / "run")


def test_a_report_shows_the_beginning_of_the_budgets_of_many():
    text = "a=1@" + ",".join(map(str, range(0, 400, 2)))
    assert wording.shortened(text) == text[:300] + " ..." and len(text) > 300
    assert wording.shortened(text[:300]) == text[:300]


def test_a_group_without_a_proof_says_so():
    groups = personal.groups("a=1@0-1,b=2@2", 3)
    found = by_group(groups, [0.5, math.inf, 2.0])
    assert [row["largest"] for row in found] == [None, 2.0]
    assert [row["clients"] for row in found] == [2, 1]
