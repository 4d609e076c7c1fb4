"""What is done once, or once a round, takes as many calls for many clients as for few."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.purse import Purse
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.plan import PlanTable, kinds_of
from server import sealed_json
from server.budgets import Budgets
from server.orders import Course
from sim.config import configuration
from sim.data.arrays import parts
from sim.phases import training
from sim.phases.phase import Outlook
from tests.small import CPU, SEED, request
from tests.unequal import summary

PLANS = (DpsgdPlan(1.0, 5.0, 1.0, 2), DpsgdPlan(0.1, 1.0, 1.0, 5))
FEW, MANY = 60, 3000


def calls(work: Callable[[int, Path], object], clients: int, folder: Path) -> int:
    """Function calls of Python and of C in the work for so many clients."""
    count = 0

    def see(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        work(clients, folder)
    finally:
        sys.setprofile(None)
    return count


def table(clients: int) -> PlanTable:
    return PlanTable(PLANS, 2 * np.arange(clients) // clients)


def plan(clients: int, folder: Path) -> None:
    given = {"clients": clients, "batch_size": 5, "epochs": 2.0, "noise_multiplier": 9.0}
    sizes = 20 + np.arange(clients) % 3
    config = configuration.load(None, given, lenient=given)
    assert len(training.plan(Outlook(config, (4,), sizes, False), {}).plans) == 3


def keep_budgets(clients: int, folder: Path) -> None:
    course = Course(table(clients), 5)
    now = Budgets(course.plans, course, 30.0, 1e-5, {}, np.zeros(clients, np.int64))
    assert now.eligible().all()
    now.charge(np.arange(clients))
    assert now.events().sum() == 3.5 * clients
    assert len(np.unique(now.epsilons("certified"))) == len(np.unique(now.so_far())) == 2


def pay(clients: int, folder: Path) -> None:
    with Ledger(folder / "ledger" / f"{clients}.jsonl") as ledger:
        with Purse(ledger, table(clients), SEED).open(request(1, range(clients)), CPU):
            pass
        assert ledger.path.stat().st_size < 1000


@pytest.mark.parametrize("work", [plan, keep_budgets, pay])
def test_what_is_done_once_a_round_takes_as_many_calls_for_many_clients(tmp_path, work):
    """Kills a step of Python's own for each client."""
    work(FEW, tmp_path / "warm")  # fills caches
    few, many = (calls(work, clients, tmp_path) for clients in (FEW, MANY))
    assert abs(many - few) < 50


def test_a_round_charges_each_of_many_clients_with_its_own_plan_and_count(tmp_path):
    """Of unlike plans and counts in any order. Kills members of one kind charged as another."""
    rng, decay = np.random.default_rng(0), replace(PLANS[0], noise_decay=0.5)
    clients = np.sort(rng.choice(200, 90, replace=False))
    plans = PlanTable((*PLANS, decay), rng.integers(0, 3, 200))
    asked = replace(request(1, clients), nth=rng.integers(1, 4, 90))
    with (
        Ledger(tmp_path / "ledger" / "0.jsonl") as ledger,
        Purse(ledger, plans, SEED).open(asked, CPU),
    ):
        pass
    assert read(tmp_path / "ledger") == {
        client: plans.of(client).round_charges(nth)
        for client, nth in zip(clients.tolist(), asked.nth.tolist(), strict=True)
    }


def test_columns_of_one_kind_are_equal_and_kinds_ascend():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, 50), rng.integers(2, 4, 50), rng.integers(0, 1_000_000, 50) // 400_000
    columns = np.stack(rows, axis=1)
    kinds, place = kinds_of(*rows)
    assert kinds[place].tolist() == columns.tolist()
    assert kinds.tolist() == np.unique(columns, axis=0).tolist()


def test_a_summary_is_a_line_for_each_field_however_many_clients():
    few, many = (summary(events=tuple(range(n))).to_json() for n in (5, 5000))
    written = sealed_json.dumps(few), sealed_json.dumps(many)
    assert {len(one.splitlines()) for one in written} == {len(few) + 3}
    assert sealed_json.loads(written[1]) == many


def test_records_that_are_float32_already_are_not_copied():
    x, y = np.zeros((4, 3), np.float32), np.arange(4)
    found = parts({"x": x, "y": y, "x_test": x, "y_test": y}, "here")
    assert found.classes == 4 and all(
        np.shares_memory(one, given) for one, given in zip(found[:4], (x, y, x, y), strict=True)
    )
