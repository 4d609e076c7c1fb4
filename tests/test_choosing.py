"""The best of a random number of runs: what it costs, which runs are drawn, and which one wins."""

import json
import math
import stat
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.accounting import accountant
from mechanisms.accounting.choosing import MAX_MEAN, epsilon_of_best
from mechanisms.accounting.events import SampledGaussian
from sim import account, bench
from sim.benching import tries
from sim.benching.runs import plan, play
from sim.benching.tries import Tries
from sim.commands import flags
from sim.commands.guard import main_guard
from sim.config.recipe import read
from sim.phases.prices import of_best, outlook_of, prices
from tests.test_bench_command import finished

pytestmark = pytest.mark.usefixtures("no_report")
DELTA = 1e-5
Floats = np.ndarray
masses = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


def delta_of(one: Floats, other: Floats, epsilon: float) -> float:
    """The larger hockey stick of two laws on the same outcomes."""
    x = math.exp(epsilon)
    return float(max(np.maximum(a - x * b, 0.0).sum() for a, b in ((one, other), (other, one))))


def inverse(one: Floats, other: Floats, delta: float) -> float:
    """The least epsilon of two laws at a delta, from above."""
    low, high = 0.0, float(np.abs(np.log(one / other)).max())
    if delta_of(one, other, 0.0) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(one, other, middle) <= delta else (middle, high)
    return high


def best_of(law: Floats, mean: float) -> Floats:
    """The law of the best of K draws, the last outcome being the best, from K's generating
    function."""
    below = np.concatenate([[0.0], np.cumsum(law)])
    return np.diff(below / (mean - (mean - 1.0) * below))


@given(masses, st.data(), st.floats(1.0, 60.0), st.floats(1e-6, 0.3))
def test_the_best_of_any_runs_costs_no_more_than_is_charged(one, data, mean, delta):
    """By exact laws on a few outcomes, whose order is that of their scores."""
    other = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(one), max_size=len(one)))
    p, q = (np.array(masses) / sum(masses) for masses in (one, other))
    charged = epsilon_of_best(lambda d: inverse(p, q, d), delta, mean)
    assert delta_of(best_of(p, mean), best_of(q, mean), charged) <= delta * (1 + 1e-9) + 1e-12


def test_the_law_of_the_best_is_that_of_drawing():
    """The test's own closed form, against runs that are drawn. False alarm: 5 sigma."""
    law, mean, rng, n = np.array([0.5, 0.3, 0.2]), 4.0, np.random.default_rng(1), 40_000
    counts = rng.geometric(1 / mean, n)
    found = np.bincount([rng.choice(3, k, p=law).max() for k in counts], minlength=3) / n
    assert np.abs(found - best_of(law, mean)).max() < 5 * 0.5 / math.sqrt(n)


def test_three_times_the_epsilon_is_reached_and_charged():
    """Liu and Talwar 2019: an outcome that is rare and better than all others, another that is
    nearly as rare and the worst of those that are ever released. Kills a single rho."""
    epsilon, mean = 0.5, 900.0
    x, rare, few = math.exp(epsilon), 3e-6, 1.6e-2
    p = np.array([1 - rare * x - few / x, rare * x, few / x])
    q = np.array([1 - rare - few, rare, few])
    found, other = best_of(p, mean)[1], best_of(q, mean)[1]
    attained = math.log(found / other)
    charged = epsilon_of_best(lambda d: epsilon, 1e-9, mean)
    assert charged == pytest.approx(3 * epsilon, rel=1e-9)
    assert attained > 2.7 * epsilon


def test_a_rare_outcome_that_wins_has_the_mean_number_of_chances():
    """One that no run has without the record. Kills the delta of one run."""
    rare, mean = 1e-4, 20.0
    p, q = np.array([1 - rare, rare]), np.array([1.0, 0.0])

    def alone(delta: float) -> float:
        return 0.0 if delta >= rare else math.inf

    found = best_of(p, mean)[1]
    assert 0.99 * mean * rare < found <= mean * rare and best_of(q, mean)[1] == 0.0
    assert epsilon_of_best(alone, 0.999 * mean * rare, mean) == math.inf
    assert epsilon_of_best(alone, 1.001 * mean * rare, mean) < 0.01


def test_what_is_charged_lies_between_one_run_and_renyi_s_bound():
    """Papernot and Steinke 2022, Theorem 2, for the same number of runs (eta = 1)."""
    charges, orders = {SampledGaussian(0.01, 1.4161): 1_000}, np.array(accountant.ORDERS)
    one = accountant.epsilon(charges, DELTA).epsilon
    curve, before = accountant.rdp(charges, orders, "certified"), one
    for mean in (2.0, 10.0, 100.0):
        added = 2 * ((1 - 1 / orders) * curve + math.log(mean) / orders).min()
        renyi = accountant.convert(curve + added + math.log(mean) / (orders - 1), orders, DELTA)
        found = epsilon_of_best(lambda d: accountant.epsilon(charges, d).epsilon, DELTA, mean)
        assert before < found < 0.8 * renyi.epsilon
        before = found


def test_one_run_costs_what_it_costs_and_no_proof_is_none():
    assert epsilon_of_best(lambda d: -math.log(d), DELTA, 1.0) == pytest.approx(-math.log(DELTA))
    assert epsilon_of_best(lambda d: math.inf, DELTA, 3.0) == math.inf
    for mean in (0.5, math.nan, math.inf, 2 * MAX_MEAN):
        with pytest.raises(ValueError, match=r"tries = .* must be between 1 and 1000"):
            epsilon_of_best(lambda d: 1.0, DELTA, mean)


# --- sim.bench


RECIPE = """
title = "Rates"
[settings]
dataset = "digits"
clients = {clients}
partition = "{partition}"
rounds = 1
steps = 2
sample_rate = 0.1
[[columns]]
name = "1"
settings = {{ epsilon = 1.0 }}
[[columns]]
name = "3"
settings = {{ epsilon = 3.0{delta} }}
[[rows]]
name = "slow"
settings = {{ lr = 0.1 }}
[[rows]]
name = "fast"
settings = {{ lr = 1.0 }}
"""


def recipe(folder, clients=1, partition="iid", delta=""):
    many = 'clients = "many"\n' if clients > 1 else ""
    text = RECIPE.format(clients=clients, partition=partition, delta=delta)
    if clients == 1:
        text = text.replace('clients = 1\npartition = "iid"\n', "")
    (folder / "rates.toml").write_text(many + text)
    return folder / "rates.toml"


def cells(folder, **parts):
    return plan(read(recipe(folder, **parts)), folder / "out", "certified", [0], {})


def tuned(folder, *words: str) -> int:
    try:
        return main_guard(bench.command, [*words, f"--out={folder / 'out'}", "--processes=1"])
    except SystemExit as end:
        return int(end.code)


def test_runs_are_drawn_once_and_kept(tmp_path):
    file, few = tmp_path / "drawn.json", Tries(6.0, cells(tmp_path))
    drawn = few.drawn(file, tmp_path / "out")
    assert drawn == few.drawn(file, tmp_path / "out")
    assert {(row, column) for row, column, _ in drawn} <= {
        (r, c) for r in ("slow", "fast") for c in "13"
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for other in (Tries(7.0, few.cells), Tries(6.0, few.cells[:3])):
        with pytest.raises(ValueError, match="--tries 6 from other or the same cells"):
            other.drawn(file, tmp_path / "out")
    whole = file.read_text()
    for text in ("[]", "{}", "[" * 5000, whole.replace('"runs": [[', '"runs": [[[], '), "no"):
        file.write_text(text)
        with pytest.raises(
            ValueError, match=r"drawn.json is damaged \(.*\): restore it from a copy"
        ):
            few.drawn(file, tmp_path / "out")
    file.unlink()  # they were drawn anew: a second look at the records, which nobody counted
    (tmp_path / "out" / "a-run").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"drawn.json is missing, but .* restore it from a copy"):
        few.drawn(file, tmp_path / "out")
    assert not file.exists()


def test_the_number_of_runs_is_geometric_and_cells_are_equally_likely(tmp_path):
    """False alarm: 5 sigma. Kills a coin before the first run, and a first or last cell that is
    never drawn."""
    few, n, mean = cells(tmp_path), 4_000, 3.0
    drawn = [Tries(mean, few)._draw([["a"], ["b"], ["c"]]) for _ in range(n)]
    counts = np.bincount([len(one) for one in drawn])[1:4] / n
    law = np.array([1 / 3, 2 / 9, 4 / 27])
    assert np.abs(counts - law).max() < 5 * np.sqrt(law.max() / n)
    names, found = np.unique([name for one in drawn for name, _ in one], return_counts=True)
    assert list(names) == ["a", "b", "c"]
    assert np.abs(found / found.sum() - 1 / 3).max() < 5 * math.sqrt(0.25 / n)


def test_a_run_s_seed_says_nothing_of_its_position(tmp_path):
    """Seeds are uniform, whatever came before. The released model tells its seed, and Theorem 27 is
    of runs alike, of which nobody learns how many there were. False alarm: 5 sigma. Kills seeds
    that count, and those that a sweep has in common with others."""
    few = cells(tmp_path)
    drawn = [Tries(4.0, few)._draw([["a"]]) for _ in range(500)]
    for runs in (
        [one[0] for one in drawn],
        [one[3] for one in drawn if len(one) > 3],
    ):
        seeds = np.array([seed for _, seed in runs])
        assert len(set(seeds)) == len(seeds) and seeds.min() >= 0
        highs = seeds[:, None] >> np.array([0, 20, 40, 62]) & 1
        assert np.abs(highs.mean(axis=0) - 0.5).max() < 5 * 0.5 / math.sqrt(len(seeds))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"clients": 4, "partition": "dirichlet"}, "with partition = dirichlet clients' sizes"),
        ({"clients": 4, "partition": "shards"}, "with partition = shards clients' sizes"),
        ({"delta": ", delta = 1e-6"}, r"delta is \[1e-06, 1e-05\]"),
        ({"delta": ", validation_records = 9"}, r"validation_records is \[0, 9\]"),
        ({"delta": ", dataset = 'synthetic'"}, r"dataset is \['digits', 'synthetic'\]"),
    ],
)
def test_what_has_no_price_is_refused(tmp_path, parts, said):
    with pytest.raises(ValueError, match=said):
        Tries(2.0, cells(tmp_path, **parts))
    assert Tries(2.0, cells(tmp_path, clients=4)).mean == 2.0


def test_the_best_of_runs_at_a_paper_s_claim_has_no_price(tmp_path, capsys):
    """By a recipe that states this budget, as by the flag: how many steps such a run pays for
    depends on what it has accepted."""
    path = recipe(tmp_path)
    path.write_text('budget = "published"\n' + path.read_text())
    assert tuned(tmp_path, str(path), "--tries=2") == 2
    assert "slow, 1: the recipe's budget is published" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_dearest_cell_and_client_are_priced():
    """Kills the first cell's price, the last one's, and a single client's."""
    sizes, words = (300, 40, 90), ["--clients=3", "--steps=2", "--batch-size=20", "--epsilon=9"]
    config = flags.parse([*words, "--noise-multiplier=1"], "", "").config
    found = prices(outlook_of(config, sizes))
    each = [
        epsilon_of_best(lambda d, p=p: accountant.epsilon(p.whole, d).epsilon, DELTA, 10.0)
        for p in found
    ]
    assert len(set(each)) == len(sizes) and of_best([found], DELTA, 10.0) == max(each)
    cheaper = [price for price, cost in zip(found, each, strict=True) if cost < max(each)]
    assert of_best([cheaper], DELTA, 10.0) < max(each)
    assert of_best([found, cheaper], DELTA, 10.0) == of_best([cheaper, found], DELTA, 10.0)
    assert of_best([found, cheaper], DELTA, 10.0) == max(each)


def test_the_best_run_is_named_and_of_equals_the_first(tmp_path):
    """Kills the last of equals, the lowest accuracy, and the place of a run without a result."""
    path = finished(tmp_path)
    folder = tmp_path / "out" / "small-certified"
    runs = plan(read(path), folder, "certified", [4, 7], {"data_dir": "there"})
    of = {(run.cell.row, run.cell.column, run.seed): run for run in runs}
    drawn = [of["A", "1", 4], of["A", "3", 7], of["B", "3", 4], of["B", "1", 7]]
    few = Tries(2.0, runs)
    assert few.verdict(drawn).startswith("The best run is A, 3, seed 7, with 75.00 %: ")
    assert few.verdict(drawn[::-1]).startswith("The best run is B, 3, seed 4, with 75.00 %: ")
    (of["B", "1", 7].folder / "summary.json").unlink()
    with pytest.raises(ValueError, match="a run has no accuracy"):
        few.verdict(drawn)


def test_cells_that_were_not_drawn_are_priced_too(tmp_path, monkeypatch):
    """Whatever was drawn, the price is the same."""
    summary = SimpleNamespace(accuracy=0.5)
    monkeypatch.setattr(tries, "result", lambda run: SimpleNamespace(summary=summary))
    few = Tries(2.0, cells(tmp_path))
    drawn = [few.cells, *([run] for run in few.cells)]
    assert len({few.verdict(runs).partition("has certified")[2] for runs in drawn}) == 1


def test_a_recipe_is_tried_from_start_to_end(tmp_path, capsys, monkeypatch):
    """The command trains what was drawn, goes on without drawing again, and names the best run of
    its table; its epsilon is the one that `sim.account` gives for the dearest cell."""
    drawn = [["slow", "3", 70], ["slow", "3", 5], ["fast", "1", 2**63 - 1]]
    monkeypatch.setattr(Tries, "_draw", lambda *_: drawn)
    path = str(recipe(tmp_path))
    assert tuned(tmp_path, path, "--tries=3") == 0
    said = capsys.readouterr().out
    runs = sorted((tmp_path / "out" / "rates-certified").iterdir())
    assert [run.name for run in runs] == [
        "fast_1_seed-9223372036854775807",
        "slow_3_seed-5",
        "slow_3_seed-70",
    ]
    accuracy = {run: json.loads((run / "summary.json").read_text())["accuracy"] for run in runs}
    best = said[said.index("The best run is ") :].splitlines()
    assert accuracy[next(run for run in runs if str(run) in best[0])] == max(accuracy.values())
    assert f"{100 * max(accuracy.values()):.2f} %" in best[0]
    assert tuned(tmp_path, path, "--tries=3") == 0
    again = capsys.readouterr().out
    assert (
        again[again.index("The best run is ") :].splitlines() == best
        and "seed 5: done" not in again
    )
    words = ["--clients=1", "--dataset=digits", "--rounds=1", "--epsilon=3"]
    words += ["--steps=2", "--sample-rate=0.1"]
    assert main_guard(account.command, [*words, "--tries=3", "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    shown = float(best[1].split("certified epsilon ")[1].split()[0])
    assert priced["tries"] == 3 and priced["epsilon_best"] <= shown < priced["epsilon_best"] + 1e-3


def test_no_run_is_the_best_before_all_have_ended(tmp_path, capsys, monkeypatch):
    """Nor is anything trained in place of the one that failed."""
    monkeypatch.setattr(Tries, "_draw", lambda *_: [["slow", "3", 0], ["fast", "1", 9]])
    path = str(recipe(tmp_path))
    monkeypatch.setattr(
        "sim.benching.lanes.play", lambda run: "no memory" if run.seed else play(run)
    )
    assert tuned(tmp_path, path, "--tries=3") == 1
    assert "The best" not in capsys.readouterr().out


def test_what_comes_before_training_is_part_of_the_price():
    """Kills a price of the last phase alone."""
    words = ["--clients=3", "--steps=2", "--sample-rate=0.1", "--standardize=private"]
    found = prices(outlook_of(flags.parse(words, "", "").config, (100,)))
    training = accountant.epsilon(found[-1].charges, DELTA).epsilon
    assert len(found) == 2 and of_best([found], DELTA, 1.0) > 1.001 * training


@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_an_answer_has_the_price_at_the_given_delta(capsys, delta):
    words = ["dpsgd", "--sample-rate=0.01", "--noise-multiplier=1.1", "--steps=100", "--tries=10"]
    assert main_guard(account.command, [*words, f"--delta={delta}", "--json"]) == 0
    charges = {SampledGaussian(0.01, 1.1): 100}
    found = epsilon_of_best(lambda d: accountant.epsilon(charges, d).epsilon, delta, 10.0)
    assert json.loads(capsys.readouterr().out)["epsilon_best"] == found


@pytest.mark.parametrize(
    "words",
    [
        ["dpsur", "--sample-rate=0.1", "--noise-multiplier=1", "--trials=9", "--tries=3"],
        ["--ledger=there", "--tries=3"],
        ["--verify=there", "--tries=3"],
        ["--tries=0.5"],
        ["--tries=few"],
    ],
)
def test_what_is_not_known_beforehand_has_no_price_of_the_best(capsys, words):
    """Nor has a run that is over."""
    assert main_guard(account.command, words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "tries" in said


@pytest.mark.parametrize(
    "flag", ["--hours=1", "--until=09:30", "--seeds=1", "--cells=there", "--budget=published"]
)
def test_other_ways_to_choose_runs_do_not_go_with_it(tmp_path, capsys, flag):
    assert tuned(tmp_path, str(recipe(tmp_path)), "--tries=3", flag) == 2
    assert f"drop {flag.replace('=', ' ') if 'budget' in flag else flag.split('=')[0]}" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
