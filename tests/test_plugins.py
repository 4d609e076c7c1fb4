"""Mechanisms, strategies and partitions of the user's own: they run everywhere as ours do, are
charged by events that a ledger knows, and what cannot work is refused in one line before anything
is written."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sim
from mechanisms import dpsgd, own, plugins
from mechanisms.accounting import ledger
from mechanisms.accounting.events import Gaussian, SampledGaussian
from mechanisms.accounting.known import check_known
from mechanisms.accounting.ledger import Ledger
from sim import account
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config import caveats
from sim.config.configuration import load
from sim.engines.start import train
from sim.job import manifest
from sim.models.own import trying
from sim.phases.build import build
from sim.run import command
from strategies import trial
from strategies.fedavg import fedavg
from strategies.settings import Aggregation
from tests.folders import model

MODULE = """
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from mechanisms import dpagd, dpis, dpsgd, none
from mechanisms.accounting.allotment import covered
from mechanisms.accounting.event import Event, positive
from mechanisms.accounting.events import Gaussian, PaperClaim, SampledGaussian
from mechanisms.mechanism import Mechanism
from mechanisms.settings import Dpagd, Dpis, Settings
from strategies.fedavg import fedavg
from strategies.settings import Aggregation
from strategies.strategy import Strategy

CALLS = []


class Half(Settings):
    factor: float = Field(0.5, gt=0, le=1)


@dataclass(frozen=True)
class HalfPlan(dpsgd.DpsgdPlan):
    factor: float = 1.0


def halved(terms, noise):
    return HalfPlan(**vars(dpsgd.DpsgdPlan.of(terms, noise)), factor=terms.own.factor)


def step(cohort, state):
    total, _ = dpsgd.clipped_sum(cohort, state, dpsgd.draw(cohort))
    noisy = dpsgd.noised(cohort, state, total) / dpsgd.expected_size(cohort)[:, None]
    return state.descend(cohort, noisy * cohort.plan("factor")[:, None])


HALF = Mechanism(halved, step, start=dpsgd.start, settings=Half)
PLAIN = dpsgd.MECHANISM
BARE = none.MECHANISM
NUMBER = 3


class Cheap(Gaussian):
    pass


class Claim(PaperClaim):
    pass


@dataclass(frozen=True)
class Unheard(Event):
    kind: ClassVar[str] = "unheard"
    noise_multiplier: float = positive()


def charging(kind):
    @dataclass(frozen=True)
    class Charging(dpsgd.DpsgdPlan):
        def round_charges(self, nth):
            return {kind(self.noise_multiplier): self.steps} if kind else {}

    return replace(PLAIN, plan=lambda terms, noise: Charging(**vars(PLAIN.plan(terms, noise))))


@dataclass(frozen=True)
class Once(dpsgd.DpsgdPlan):
    def round_charges(self, nth):
        return super().round_charges(nth) if nth == 1 else {}


@dataclass(frozen=True)
class Twice(dpsgd.DpsgdPlan):
    def round_charges(self, nth):
        return super().round_charges(nth) if nth <= 2 else {}


class Unhashed(dpsgd.DpsgdPlan):
    __hash__ = None


def moved(state, after):
    return replace(after, params=state.params.copy_(after.params))


def counted(cohort, state):
    after = PLAIN.step(cohort, state)
    state.taken.add_(1)
    return after


def relabelled(cohort, state):
    cohort.data.y.zero_()
    return PLAIN.step(cohort, state)


def started(cohort, params):
    return PLAIN.start(cohort, params.mul_(0.5))


CHEAP, UNHEARD, FREE = charging(Cheap), charging(Unheard), charging(None)
FALSE_PLAN = replace(PLAIN, plan=lambda terms, noise: None)
FAILING_PLAN = replace(PLAIN, plan=lambda terms, noise: terms.own["beta"])
FALSE_SETTINGS = replace(PLAIN, settings=dict)
UNHASHED = replace(PLAIN, plan=lambda terms, noise: Unhashed(**vars(PLAIN.plan(terms, noise))))
UNCALIBRATED = replace(PLAIN, calibrate=lambda plan_of, terms: [])
DEAR = replace(PLAIN, calibrate=lambda plan_of, terms: [plan_of(one, 0.1) for one in terms])
BAD_START = replace(PLAIN, start=lambda cohort, params: params)
BAD_STEP = replace(PLAIN, step=lambda cohort, state: state.remembered)
BAD_SHAPE = replace(PLAIN, step=lambda cohort, state: replace(state, params=state.params[:, 1:]))
IN_PLACE = replace(PLAIN, step=lambda cohort, state: moved(state, PLAIN.step(cohort, state)))
COUNTING = replace(PLAIN, step=counted)
FAILING_ACTIVE = replace(PLAIN, active=lambda cohort, state: state.pace < 1)
BAD_ACTIVE = replace(PLAIN, active=lambda cohort, state: state.taken[:1] < 1)
MORE_STEPS = replace(PLAIN, active=lambda cohort, state: state.taken < 3)
ENDLESS = replace(
    PLAIN, step=lambda cohort, state: state, active=lambda cohort, state: state.taken < 1
)
HALVING = replace(PLAIN, start=started)
RELABELLING = replace(PLAIN, step=relabelled)
BAD_METRIC = replace(PLAIN, metrics=lambda cohort, state: {"size": state.params.mean()})
LASTING = replace(PLAIN, lasting=("pace",))
BAD_REALIZED = replace(PLAIN, realized=lambda cohort, state: [])
CLAIMED = charging(lambda noise: PaperClaim(0.5, noise))
ONCE, TWICE = (
    replace(PLAIN, plan=lambda terms, noise, kind=kind: kind(**vars(PLAIN.plan(terms, noise))))
    for kind in (Once, Twice)
)
LARGE = replace(
    PLAIN,
    sized=True,
    plan=lambda terms, noise: (PLAIN if terms.size < 300 else FREE).plan(terms, noise),
)
OTHERS = replace(PLAIN, calibrate=lambda plan_of, terms: [FREE.plan(one, 1.0) for one in terms])


def spends(mechanism, event, order=None, settings=None):
    def realized(cohort, state):
        orders = [one.order for one in cohort.accounts] or [2.0] * len(cohort.plans)
        return [covered({event: 1}, order or own) for own in orders]

    return replace(mechanism, realized=realized, settings=settings)


TOO_MUCH = spends(dpis.MECHANISM, Gaussian(0.05), settings=Dpis)
OTHER_ORDER = spends(dpis.MECHANISM, Gaussian(1e3), 77.0, Dpis)
OTHER_KIND = spends(dpagd.MECHANISM, SampledGaussian(0.5, 1e3), settings=Dpagd)
UNALLOTTED = spends(PLAIN, Gaussian(1e3))
LITTLE = spends(dpis.MECHANISM, Gaussian(1e3), settings=Dpis)
LATE = replace(PLAIN, realized=lambda cohort, state: [{Claim(1.0, 1.0): 1}] * len(cohort.plans))


def slow(weights, rate=0.5):
    def aggregate(state, params, update):
        CALLS.append(len(params))
        seen = {"rounds": state["rounds"] + 1}
        return seen, (params + rate * update).astype(np.float32)

    return Strategy(weights, lambda params: {"rounds": np.zeros(1)}, aggregate)


def adding(weights, in_place):
    def aggregate(state, params, update):
        moved = params if in_place else params.copy()
        moved += update.astype(np.float32)
        return state, moved

    return Strategy(weights, lambda params: {}, aggregate)


def decaying(weights, in_place):
    def guide(around):
        (around.start if in_place else around.start.clone()).zero_()

        def guided(params, gradient):
            return gradient + (params if in_place else params.clone()).mul_(0.5)

        return guided

    return replace(slow(weights), guide=guide)


def searching(weights):
    return replace(fedavg(Aggregation()), guide=lambda around: lambda params, gradient: gradient)


def no_strategy():
    return NUMBER


def infinite(weights):
    return replace(slow(weights), aggregate=lambda state, params, update: (state, params + np.inf))


def fractional():
    return slow(lambda sizes: sizes / 3)


def weighting(one):
    return slow(lambda sizes: np.full(len(sizes), one))


def tabled():
    return slow(lambda sizes: np.array([1, 2])[sizes])


def late(weights, what):
    def aggregate(state, params, update):
        if state["rounds"] == 2 and what == "raises":
            raise KeyError("late")
        return {"rounds": state["rounds"] + 1}, params.astype(
            np.float64 if state["rounds"] == 2 else np.float32
        )

    return replace(slow(weights), aggregate=aggregate)


def forgetful(weights):

    def aggregate(state, params, update):
        return {}, (params + state["rate"] * update).astype(np.float32)

    return Strategy(weights, lambda params: {"rate": np.ones(1)}, aggregate)


def leaving(weights):
    raise SystemExit(0)


def needy(weights, other):
    return slow(weights)


def by_label(y, clients, shift=0):
    return (y + shift) % clients


def by_chance(rng, x, clients):
    return rng.integers(0, clients, len(x))


def by_itself(y, clients):
    return np.random.randint(0, clients, len(y))


def spoiling(y, clients, rng):
    rng.shuffle(y)
    return y % clients


def too_few(y, clients):
    return np.zeros(len(y), int)


def too_many(y, clients):
    return np.arange(len(y))


def fractions(y, clients):
    return y / 2


def members(x, clients):
    return [range(client, len(x), clients) for client in range(clients)]


def rows(x, clients):
    return x
"""
SMALL = "--clients 5 --rounds 2 --steps 2 --sample-rate 0.5 --engine inline --quiet --groups 2"
HALF = ["--mechanism", "mine:HALF", "--mechanism-settings", "factor = 0.25"]
SLOW = ["--strategy", "mine:slow", "--strategy-settings", "rate = 0.25"]
BY_LABEL = ["--partition", "mine:by_label", "--partition-settings", "shift = 1"]


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's module, in the folder where the command starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)")
    yield path
    sys.modules.pop("mine", None)


def run(name: str, *flags: str) -> Path:
    return train(parse([*SMALL.split(), "--name", name, *flags], "run", ""))


@pytest.mark.usefixtures("no_report")
def test_all_three_run_with_their_settings_and_are_priced_shown_and_verified(capsys):
    """Kills settings that are lost on the way, and a price of another mechanism."""
    folder = run("all", *HALF, *SLOW, *BY_LABEL, "--epsilon", "4")
    config = load(folder / "config.toml", {})
    assert config.own == {
        "mechanism": "mine:HALF",
        "strategy": "mine:slow",
        "partition": "mine:by_label",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert caveats.OWN_MECHANISM in summary["caveats"]
    assert caveats.OWN_PARTITION in summary["caveats"]
    assert caveats.OWN_STRATEGY in summary["caveats"]
    paid = ledger.read(folder / "ledger")
    (noise,) = {e.noise_multiplier for charges in paid.values() for e in charges}
    assert sorted(paid) == list(range(5))
    assert all(charges == {SampledGaussian(0.5, noise): 4} for charges in paid.values())
    capsys.readouterr()
    assert main_guard(account.command, ["--config", str(folder / "config.toml"), "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert (priced["noise_multiplier"], priced["factor"]) == (noise, 0.25)
    assert priced["epsilon_certified"] == max(summary["epsilon_certified"]) <= 4
    words = f"mine:HALF --sample-rate 0.5 --steps 4 --noise-multiplier {noise} --records 9 --json"
    assert main_guard(account.command, words.split()) == 0
    assert json.loads(capsys.readouterr().out)["epsilon_certified"] == priced["epsilon_certified"]
    assert main_guard(account.command, ["--verify", str(folder)]) == 0


@pytest.mark.usefixtures("no_report")
def test_a_setting_changes_what_it_says_and_nothing_else():
    """Half the gradient at twice the rate is the whole one, and a strategy with rate 1 is FedAvg
    without momentum. Kills settings that are not given to the user's code."""
    whole = run("whole", "--server-momentum", "0")
    half = run("half", "--mechanism", "mine:HALF", "--lr", "2", "--server-momentum", "0")
    quarter = run("quarter", *HALF, "--lr", "4", "--server-momentum", "0")
    plain = run("plain", "--strategy", "mine:slow", "--strategy-settings", "rate = 1")
    assert model(whole) == model(half) == model(quarter) == model(plain)
    assert model(run("slow", *SLOW)) != model(whole) != model(run("lazy", *HALF))


def test_a_partition_of_one_s_own_is_the_one_that_it_returns():
    config = parse([*SMALL.split(), *BY_LABEL], "run", "").config
    job = build(config)
    for client in range(5):
        first = (client - 1) % 5
        assert set(job.dataset.y[job.partition.of(client)]) == {first, first + 5}
    drawn = [
        build(parse([*SMALL.split(), "--partition=mine:by_chance", *more], "", "").config).partition
        for more in ([], [], ["--seed", "1"])
    ]
    assert np.array_equal(drawn[0].indices, drawn[1].indices)
    assert not np.array_equal(drawn[0].indices, drawn[2].indices)


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_ray_s_workers_import_them_and_give_the_same_bits(monkeypatch):
    """Slow, as `test_dpfed_finds_the_users_model_and_nothing_hides_a_package` has Ray's workers
    import a model, and `test_deployment` a Flower node all of these."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    inline = run("inline", *HALF, *SLOW, *BY_LABEL)
    ray = run("ray", *HALF, *SLOW, *BY_LABEL, "--engine", "ray", "--workers", "1")
    assert model(ray) == model(inline)
    assert ledger.read(ray / "ledger") == ledger.read(inline / "ledger")


@pytest.mark.usefixtures("no_report")
def test_from_python_settings_are_a_dictionary(tmp_path):
    flags = run("flags", *HALF, *SLOW)
    given = {"clients": 5, "rounds": 2, "steps": 2, "sample_rate": 0.5, "groups": 2}
    result = sim.train(
        mechanism="mine:HALF",
        mechanism_settings={"factor": 0.25},
        strategy="mine:slow",
        strategy_settings={"rate": 0.25},
        out=tmp_path / "python",
        **given,
    )
    assert model(tmp_path / "python" / result.summary.run_dir) == model(flags)
    for engine in ("ray", "auto"):
        with pytest.raises(ValueError, match=r"^strategy = __main__:f was defined in a notebook"):
            sim.train(strategy="__main__:f", engine=engine)


@pytest.mark.parametrize(
    "setting", ["mechanism", "strategy", "partition", "features", "model", "loss", "metric"]
)
def test_whatever_code_of_ones_own_a_run_names_it_is_held_to(setting):
    """`manifest.check` compares the code of each setting of ``own``."""
    found = parse([f"--{setting}=own.code:PART"], "sim.run", "").config
    assert found.own == {setting: "own.code:PART"}


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("changed", [HALF, SLOW, BY_LABEL], ids=lambda flags: flags[0])
def test_a_run_is_not_resumed_with_other_code(mine, changed):
    """Kills a digest of the object's name, or of one line of the module."""
    folder = run("one", *changed)
    config = load(folder / "config.toml", {})
    manifest.check(folder, build(config))
    mine.write_text(MODULE.replace("NUMBER = 3", "NUMBER = 4"))
    sys.modules.pop("mine")
    name = changed[0].removeprefix("--")
    with pytest.raises(ValueError, match=rf"^{name} code = \w+ is not what .* began with"):
        manifest.check(folder, build(config))


REFUSED = [
    ("--mechanism mine:ABSENT", "mechanism = 'mine:ABSENT': module 'mine' has no 'ABSENT': name a"),
    ("--mechanism absent:M", "mechanism = 'absent:M': module 'absent' cannot be imported"),
    ("--mechanism leaves:M", "'leaves' cannot be imported (SystemExit: 0): correct what the mod"),
    ("--mechanism mine:NUMBER", "mechanism = 'mine:NUMBER' is a int: name a mechanisms.mechanism"),
    ("--mechanism mine:BARE", "mechanism = 'mine:BARE' is not private, as only --mechanism none"),
    ("--mechanism mine:CHEAP", "is a Cheap, which no ledger knows: charge events of mechanisms/"),
    ("--mechanism mine:CHEAP --noise-multiplier 1", "is a Cheap, which no ledger knows"),
    ("--mechanism mine:UNHEARD", "is a Unheard, which no ledger knows: charge events of mechan"),
    ("--mechanism mine:FREE", "mechanism = 'mine:FREE' charges nothing for a round"),
    ("--mechanism mine:FREE --noise-multiplier 1", "charges nothing for a round"),
    ("--mechanism mine:CLAIMED --noise-multiplier 1", "nothing for a round, so that nothing would"),
    ("--mechanism mine:ONCE --rounds 3", "would be proved (round 2: {}): return in round_charges"),
    ("--mechanism mine:LARGE --noise-multiplier 1", "would be proved (round 1: {}): return in"),
    ("--mechanism mine:OTHERS", "mechanism = 'mine:OTHERS' charges nothing for a round"),
    ("--mechanism mine:TWICE --rounds 3 --fraction 0.5", "would be proved (round 3: {}): return"),
    (
        "--mechanism mine:FALSE_PLAN",
        "fails (TypeError: its plan is a NoneType, without steps or ch",
    ),
    ("--mechanism mine:FAILING_PLAN", "FAILING_PLAN' fails (TypeError: 'NoneType' object is not s"),
    ("--mechanism mine:UNHASHED", "UNHASHED' fails (TypeError: unhashable type: 'Unhashed'): corr"),
    ("--mechanism mine:FALSE_SETTINGS", "has settings = <class 'dict'>: name a subclass of mechan"),
    ("--mechanism mine:UNCALIBRATED", "fails (TypeError: it calibrates 0 plans for 1 terms): corr"),
    ("--mechanism mine:DEAR", "epsilon = 8 is too small for a single round, which costs "),
    ("--mechanism mine:PLAIN --trust server", "mechanism is mine:PLAIN, but with --trust server"),
    ("--mechanism mine:PLAIN --sampling fixed", "sampling is fixed, which mechanism = mine:PLAIN"),
    (
        "--mechanism minePLAIN",
        "it must be one of dpsgd, dpsur, dpis, dphero, screening, dpag",
    ),
    ("--mechanism-settings a=1", "mechanism_settings is a=1, which mechanism = dpsgd does not use"),
    ("--mechanism mine:PLAIN --mechanism-settings a=1", "a = 1 is refused (it has no settings of"),
    (
        "--mechanism mine:HALF --mechanism-settings factor=0",
        "HALF: factor = 0 is refused (Inp",
    ),
    ("--mechanism mine:HALF --mechanism-settings factr=1", "factr = 1 is refused (unknown; know"),
    ("--mechanism mine:HALF --mechanism-settings factor", "is no list of settings (Expected '=' "),
    ("--mechanism mine:HALF --mechanism-settings a=1}\nb={c=1", "a brace is closed that was not"),
    ("--strategy mine:NUMBER", "strategy = 'mine:NUMBER' is a int: name a function that returns"),
    ("--strategy mine:no_strategy", "strategy = 'mine:no_strategy' gives a int: name a function"),
    ("--strategy mine:infinite", "gives a model that is not finite for small updates: correct it"),
    (
        "--strategy mine:fractional",
        "its weights are of float64 and shape (5,) for 5 clients: return",
    ),
    (
        "--strategy mine:weighting --strategy-settings one=0",
        "its weights of 5 clients, with 230 to 366 records, add up to 0, which must be from 1 to ",
    ),
    (
        "--strategy mine:weighting --strategy-settings one=99999999",
        "add up to 499999995, which must",
    ),
    ("--strategy mine:tabled", "strategy = 'mine:tabled' fails (IndexError: index 366 is out of"),
    ("--strategy mine:leaving", "strategy = 'mine:leaving' fails (SystemExit: 0): correct it"),
    ("--strategy mine:needy", "it needs other, and is given no more than those of weights that"),
    ("--strategy mine:forgetful", "mine:forgetful' fails (KeyError: 'rate'): correct it"),
    ("--strategy mine:slow --strategy-settings b=1", "with strategy_settings = {'b': 1} fails (Ty"),
    ("--strategy mine:slow --server-lr 2", "server_lr is 2.0, which strategy = mine:slow does not"),
    ("--strategy mine:searching --mechanism dpagd", "but dpagd chooses the size of its steps by"),
    ("--strategy mine:searching --trust server --steps 1", "needs more of the clients than a bou"),
    ("--partition mine:NUMBER", "partition = 'mine:NUMBER' is a int: name a function from x, y"),
    ("--partition mine:by_itself", "gives other owners when it is called again: draw from rng al"),
    ("--partition mine:spoiling", "fails (ValueError: array is read-only)"),
    ("--partition mine:too_few", "leaves a client with 0 records, fewer than min_records = 2"),
    ("--partition mine:too_many", "gives owners from 0 to 1436, but clients count from 0 to 4"),
    ("--partition mine:fractions", "gives float64 of shape (1437,), not an integer for each of 14"),
    ("--partition mine:members", "gives rows of several lengths, not an integer for each record"),
    ("--partition mine:rows", "gives float32 of shape (1437, 1, 8, 8), not an integer for each"),
    ("--partition mine:by_label --dirichlet 1", "has no effect with --partition mine:by_label"),
]


@pytest.mark.parametrize(("flags", "said"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_what_cannot_work_is_refused_in_one_line_before_a_run(tmp_path, capsys, flags, said):
    words = [*SMALL.replace("--steps 2", "").split(), *flags.split(" "), "--out", "runs"]
    assert main_guard(command, words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.startswith("error: ")
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raises", r"^strategy = 'mine:late' fails \(KeyError: 'late'\): correct it"),
        (
            "widens",
            r"^strategy = 'mine:late': it gives a model of float64 and shape \(650,\) for one",
        ),
    ],
)
def test_a_strategy_that_fails_late_is_named(what, said):
    own = ["--strategy", "mine:late", "--strategy-settings", f"what = '{what}'"]
    with pytest.raises(ValueError, match=said):
        run(what, *own, "--rounds", "3")


@pytest.mark.usefixtures("no_report")
def test_clients_at_work_keep_their_model_whatever_a_strategy_writes_into():
    """They went on with a newer one than they began with, and a resumed run with others again."""
    own = ["--strategy", "mine:adding", "--rounds", "4", "--buffer", "2"]
    given = [f"in_place = {value}" for value in ("false", "true")]
    kept, written = (run(one[-4:], *own, "--strategy-settings", one) for one in given)
    assert model(kept) == model(written)


@pytest.mark.usefixtures("no_report")
def test_a_guide_may_write_into_the_parameters_that_it_is_given():
    """Those of a client alone were the server's model, from which its update is taken; and so is
    the round's start."""
    own = ["--strategy", "mine:decaying", "--chunk-clients", "1"]
    given = [f"in_place = {value}" for value in ("false", "true")]
    kept, written = (run(one[-4:], *own, "--strategy-settings", one) for one in given)
    assert model(kept) == model(written)


@pytest.mark.parametrize("more", [[], ["--release"]])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BAD_START", "fails (TypeError: it returns a Tensor, not a LocalState): correct it"),
        ("BAD_STEP", "fails (AttributeError: 'LocalState' object has no attribute 'remembered'): "),
        ("BAD_SHAPE", "fails (TypeError: it returns params of shape (1, 649), not (1, 650)): corr"),
        ("IN_PLACE", "fails (TypeError: it writes into its state or the records, and must return"),
        ("COUNTING", "fails (TypeError: it writes into its state or the records, and must return"),
        ("FAILING_ACTIVE", "fails (AttributeError: 'LocalState' object has no attribute 'pace'): "),
        ("HALVING", "fails (TypeError: it writes into its state or the records, and must return"),
        ("RELABELLING", "fails (TypeError: it writes into its state or the records, and must ret"),
        ("BAD_METRIC", "fails (TypeError: metric 'size' is (), not a tensor of shape (1,)): corr"),
        ("BAD_REALIZED", "fails (TypeError: it realized 0 charges for 1 clients): correct it"),
        ("LASTING", "has lasting = ('pace',), and its start remembers clip_norm: name in lasting"),
    ],
)
def test_a_mechanism_that_fails_in_its_first_step_costs_nothing(tmp_path, capsys, name, said, more):
    """It left a run directory that had paid for a round. Kills a trial of the plan alone."""
    own = ["--mechanism", f"mine:{name}", "--keep-state", *more, "--out", "runs"]
    assert main_guard(command, [*SMALL.split(), *own]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: mechanism = 'mine:{name}' {said}") and error.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("full", [MemoryError("8 GB"), torch.OutOfMemoryError("8 GB")])
def test_who_runs_out_of_memory_is_not_told_to_correct_code(full):
    """But what to do about that, with the exit code of a machine that fails."""

    def fails(*given):
        raise full

    plan = own.checked("mine", replace(dpsgd.MECHANISM, plan=fails)).plan
    with pytest.raises(type(full), match=r"^8 GB$"):
        plan(None, 1.0)
    with pytest.raises(type(full), match=r"^8 GB$"), trying("mine:Model"):
        raise full
    if isinstance(full, MemoryError):
        with pytest.raises(MemoryError, match=r"^8 GB$"):
            trial.check("mine", replace(fedavg(Aggregation()), aggregate=fails), 2)


def test_the_code_of_a_function_is_that_of_the_module_that_defines_it(mine):
    """Kills a digest of the module that has imported it, which stays as it is."""
    Path("importing.py").write_text("from mine import slow\n")
    assert plugins.source("importing:slow") == mine.read_text()


@pytest.mark.usefixtures("no_report")
def test_what_a_mechanism_would_keep_is_not_looked_for_where_nothing_is_kept():
    run("fleeting", "--mechanism", "mine:LASTING")


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BAD_ACTIVE", r"TypeError: active is \(1,\), not a tensor of shape \(5,\)"),
        (
            "MORE_STEPS",
            "TypeError: active goes on after 2 steps, and its plan has 2, for which it pays",
        ),
    ],
)
def test_a_mechanism_that_fails_in_a_round_is_named(name, said):
    with pytest.raises(ValueError, match=rf"^mechanism = 'mine:{name}' fails \({said}\): correct"):
        run(name, "--mechanism", f"mine:{name}", "--chunk-clients", "5", "--groups", "1")


@pytest.mark.usefixtures("no_report")
def test_a_round_that_never_ends_is_refused():
    """It hung. A mechanism that rejects may take many attempts at a step."""
    with pytest.raises(ValueError, match="goes on after 2001 attempts at 2 steps of a round: have"):
        run("endless", "--mechanism", "mine:ENDLESS")


@pytest.mark.usefixtures("no_report")
def test_an_unknown_event_that_comes_up_in_a_round_stops_it_with_the_round_paid():
    """A plan cannot be asked what its rounds will note. Kills a ledger that cannot be read back."""
    with pytest.raises(ValueError, match="a Claim, which no ledger knows"):
        run("late", "--mechanism", "mine:LATE")
    paid = ledger.read(Path("runs/late/ledger"))
    assert {type(event) for charges in paid.values() for event in charges} == {SampledGaussian}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TOO_MUCH", r"Gaussian\(noise_multiplier=0.05\): 1} would bring spending at order .* to"),
        ("OTHER_ORDER", r"^Covered\(.*, order=77.0\) is not what Allotment\(.*\) pays for"),
        (
            "OTHER_KIND --sample-rate 1",
            r"^Covered\(.* is not what GaussianAllotment\(.*\) pays for",
        ),
        ("UNALLOTTED", r"^Covered\(.* is not what a plan without an allotment pays for: put it"),
    ],
)
def test_releases_that_no_allotment_covers_are_refused_before_anything_is_paid(
    tmp_path, capsys, name, said
):
    """The summary said the allotments' epsilon, and the ledger that nothing was proved."""
    words = [
        *SMALL.split(),
        "--rounds",
        "1",
        "--out",
        "runs",
        "--mechanism",
        *f"mine:{name}".split(),
    ]
    assert main_guard(command, words) == 2
    assert re.search(said, capsys.readouterr().err.removeprefix("error: "))
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.usefixtures("no_report")
def test_releases_that_an_allotment_covers_are_taken():
    folder = run("little", "--mechanism", "mine:LITTLE", "--rounds", "1")
    assert json.loads((folder / "summary.json").read_text())["epsilon_certified"][0] <= 8


def test_a_ledger_takes_the_kinds_that_it_can_give_back_alone(tmp_path):
    class Likewise(Gaussian):
        pass

    for fault in (Likewise(1.0), "gaussian", None):
        with pytest.raises(ValueError, match="which no ledger knows"):
            check_known(fault)
    with Ledger(tmp_path / "one.jsonl") as one, pytest.raises(ValueError, match="no ledger knows"):
        one.charge("a", 1, [0], {Likewise(1.0): 1})
    assert ledger.read(tmp_path) == {}


def test_a_question_about_one_client_needs_its_records():
    """A plan may depend on them."""
    with pytest.raises(ValueError, match=r"^--records is missing"):
        account.command(["mine:HALF", "--sample-rate=0.5", "--noise-multiplier=1"])
    with pytest.raises(ValueError, match=r"^unknown first word 'mine' .*package.module:NAME"):
        account.command(["mine", "--sample-rate=0.5", "--noise-multiplier=1"])


def test_a_run_directory_is_no_first_word_but_a_flag_s_value(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder: ask by --ledger, --verify or --check "):
        account.command([str(tmp_path)])
