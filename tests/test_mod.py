"""A mod makes the replies of any ClientApp private: what leaves, what it costs, what is refused;
and its page."""

import asyncio
import importlib
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from client.mod import ClientDpMod
from client.own_ledger import OwnLedger
from mechanisms.accounting import accountant
from mechanisms.accounting.events import Gaussian, SampledGaussian
from mechanisms.accounting.ledger import Ledger
from mechanisms.contributions import clipped
from mechanisms.entropy import SystemEntropy
from mechanisms.grid import PART, slack
from mechanisms.local_update import UpdatePlan
from tests.folders import paid
from tests.gaussian import SPOILERS, alarms
from tests.test_flower import LocalGrid, identity, place
from tests.test_readme import ROOT, blocks

__all__ = ["identity"]
GUIDE = ROOT / "docs" / "howto" / "mod.md"
START = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "seen": np.array(7),
    "bias": np.zeros(2, dtype=np.float64),
}
"""The model that is sent: five floats beside a count."""


def message(arrays: dict = START, kind: str = "train", name: str = "1") -> Message:
    record = ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})
    asked = Message(RecordDict({"arrays": record, "config": ConfigRecord({"lr": 0.1})}), 1, kind)
    asked.metadata.__dict__["_message_id"] = name  # as Flower's grids do
    return asked


def context(client: int = 0, clients: int = 2, **node: object) -> Context:
    node = node or {"partition-id": client, "num-partitions": clients}
    return Context(1, 1, node, RecordDict(), {})


def app_of(mod: ClientDpMod, trained) -> ClientApp:
    """An app whose reply to any message is what ``trained`` makes of the received arrays."""
    app = ClientApp(mods=[mod])

    def handler(asked: Message, context: Context) -> Message:
        given = {k: a.numpy() for k, a in asked.content["arrays"].items()}
        found = trained(given)
        if not isinstance(found, dict):
            return found
        record = ArrayRecord({k: Array(np.asarray(a)) for k, a in found.items()})
        said = MetricRecord({"num-examples": 123, "loss": 0.25})
        content = {"arrays": record, "metrics": said, "config": ConfigRecord({"me": "secret"})}
        return Message(RecordDict(content), reply_to=asked)

    for register in (app.train, app.evaluate, app.query):
        register()(handler)
    return app


def moved(reply: Message, start: dict = START) -> np.ndarray:
    """By how much the floats of a reply differ from those that were sent."""
    found = {k: a.numpy() for k, a in reply.content["arrays"].items()}
    return np.concatenate([(found[k] - a).ravel() for k, a in start.items() if a.dtype.kind == "f"])


def raises(fault: BaseException) -> None:
    raise fault


class Unshown(Exception):
    """Whose texts fail as well."""

    def __repr__(self) -> str:
        raise KeyError("record 5 is of Ada")

    __str__ = __repr__


def loose(folder: Path, **given: object) -> ClientDpMod:
    """Whose noise is a fiftieth of the clip norm."""
    mod = ClientDpMod(folder, rounds=99, **given)
    mod.plan = replace(mod.plan, noise_multiplier=0.01)
    return mod


class TestWhatLeaves:
    def test_the_noise_is_gaussian_and_twice_what_one_clip_norm_would_take(self, tmp_path):
        """False alarm: 1e-6. Kills noise for one clip norm, and a charge of other noise."""
        mod = ClientDpMod(tmp_path, rounds=4, epsilon=6.0, clip_norm=0.3)
        start = {"w": np.zeros((100, 200))}
        reply = app_of(mod, lambda arrays: arrays)(message(start), context())
        ((event, _),) = paid(tmp_path)[0].items()
        sample, std = moved(reply, start), 2 * event.noise_multiplier * 0.3
        assert event == Gaussian(mod.plan.noise_multiplier) and alarms(sample, std) == set()
        assert all(alarms(spoil(sample, std), std) for spoil in SPOILERS.values())

    def test_an_update_is_clipped_over_all_arrays_together(self, tmp_path):
        """Kills a bound for each array, a reply without the received model, and floats by the types
        of what the app gives back."""
        app = app_of(
            loose(tmp_path, clip_norm=0.5),
            lambda a: {
                "bias": a["bias"] + 4e5,
                "weight": np.int64(a["weight"] + 1e5),
                "seen": a["seen"] + 9.5,
            },
        )
        reply = app(message(), context())
        update = np.array([*[1e5] * 6, *[4e5] * 2])
        expected = 0.5 * update / np.linalg.norm(update)
        np.testing.assert_allclose(moved(reply), expected, atol=0.01 * 7)
        assert reply.content["arrays"]["seen"].numpy() == 7
        kinds = {k: (a.numpy().dtype, a.numpy().shape) for k, a in reply.content["arrays"].items()}
        assert kinds == {k: (a.dtype, a.shape) for k, a in START.items()}

    def test_an_update_of_half_precision_is_clipped_as_any_other(self, tmp_path):
        """Its norm is above what its own type holds. Kills a norm of that type, which would be
        infinite or rounded down."""
        start = {"w": np.zeros(2, dtype=np.float16)}
        app = app_of(loose(tmp_path), lambda a: {"w": a["w"] + np.float16([6e4, 6e4])})
        found = moved(app(message(start), context()), start)
        np.testing.assert_allclose(found, [0.5**0.5] * 2, atol=0.02 * 7)

    def test_an_update_within_the_bound_is_not_scaled(self, tmp_path):
        app = app_of(loose(tmp_path), lambda a: a | {"bias": a["bias"] + 0.5})
        found = moved(app(message(), context()))
        np.testing.assert_allclose(found, [0, 0, 0, 0, 0, 0, 0.5, 0.5], atol=0.02 * 7)

    @pytest.mark.parametrize("size", [1, 7, 3000])
    @pytest.mark.parametrize("s", [0.3, 2.7, 300.0])
    def test_any_two_updates_are_as_near_as_is_charged(self, size, s):
        """With the same draws the difference is free of noise. Kills a sensitivity of one clip
        norm, and parts that are rounded away from each other without being paid for."""
        plan, rng = UpdatePlan(s, 0.7), np.random.default_rng(size)
        raised = plan.deviation * (1 + slack(size, 2 * s))
        largest = 0.0
        scales = [0.0, 1e-300, 1e-30, 0.7, 1.0, 1e30, 1e300, np.inf]
        for number in range(60):
            one, two = rng.normal(size=(2, size)) * rng.choice(scales, size=(2, 1))
            two = -one if number % 2 else two
            with np.errstate(all="ignore"):
                apart = [
                    plan.release(
                        torch.from_numpy(update), SystemEntropy(np.random.default_rng(5).bytes)
                    ).numpy()
                    for update in (one, two)
                ]
            largest = max(largest, float(np.linalg.norm(apart[0] - apart[1])))
        assert largest > 0.999 * 2 * 0.7 and largest * s <= raised * (1 + 1e-9)

    def test_whole_parts_of_an_update_are_within_the_grids_bound(self):
        rows = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 400)))
        rows = rows * torch.logspace(-20, 20, 50, dtype=torch.float64)[:, None]
        bound = torch.full((50,), 0.01, dtype=torch.float64)
        norms = clipped(rows, bound).double().norm(dim=1) / PART
        assert (norms <= 1 + 2.0**-22 * 20 + 2.0**-21).all() and norms.max() > 0.999

    @pytest.mark.parametrize(
        "broken",
        [
            lambda a: 1 / 0,
            lambda a: sys.exit("record 5 is of Ada"),
            lambda a: raises(asyncio.CancelledError("record 5 is of Ada")),
            lambda a: raises(BaseExceptionGroup("Ada", [asyncio.CancelledError()])),
            lambda a: raises(Unshown()),
            lambda a: None,
            lambda a: Message(Error(1, "record 5 is of Ada"), reply_to=message()),
            lambda a: Message(RecordDict(), reply_to=message()),
            lambda a: {},
            lambda a: a | {"more": a["bias"]},
            lambda a: a | {"bias": a["bias"][:1]},
            lambda a: a | {"weight": a["weight"].T + 5},
            lambda a: a | {"bias": a["bias"] * np.nan},
            lambda a: a | {"bias": a["bias"] + np.inf},
            lambda a: a | {"bias": np.array(["a", "b"])},
        ],
    )
    def test_a_failure_looks_like_any_other_reply(self, tmp_path, broken):
        """It could depend on records. Kills an error that is passed on, and its text."""
        good, bad = (
            app_of(loose(tmp_path), trained)(message(), context())
            for trained in (lambda a: a, broken)
        )
        assert not bad.has_error() and "Ada" not in repr(bad)
        shapes = [
            {k: (a.dtype, a.shape) for k, a in one.content["arrays"].items()} for one in (good, bad)
        ]
        assert shapes[0] == shapes[1] and bad.content["metrics"] == good.content["metrics"]
        assert np.abs(moved(bad)).max() < 0.02 * 7 and np.abs(moved(bad)).min() > 0
        assert paid(tmp_path)[0] == {Gaussian(0.01): 2}

    def test_whoever_ends_the_node_ends_it(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            app_of(loose(tmp_path), lambda a: raises(KeyboardInterrupt()))(message(), context())

    def test_a_default_device_of_the_app_is_not_that_of_the_noise(self, tmp_path):
        """Else a failure that may depend on records looks unlike any other reply."""

        def trained(arrays: dict) -> dict:
            torch.set_default_device("meta")
            return arrays

        try:
            reply = app_of(ClientDpMod(tmp_path, rounds=1), trained)(message(), context())
        finally:
            torch.set_default_device(None)
        assert not reply.has_error() and np.isfinite(moved(reply)).all()

    def test_what_an_app_says_beside_its_arrays_is_dropped(self, tmp_path):
        reply = app_of(loose(tmp_path), lambda a: a)(message(), context())
        assert list(reply.content) == ["arrays", "metrics"]
        assert dict(reply.content["metrics"]) == {"num-examples": 1}
        assert reply.metadata.reply_to_message_id == "1"

    @pytest.mark.parametrize(
        "written",
        [
            {"group_id": "record 5 is of Ada"},
            {"message_type": "train.ada"},
            {"ttl": 5.0},
            {"ttl": "Ada"},
            {"created_at": 5.0},
            {"dst_node_id": 5},
            {"src_task_id": 5, "dst_task_id": 5},
        ],
    )
    def test_what_an_app_writes_into_its_message_does_not_leave(self, tmp_path, written):
        """A reply takes its metadata from the message, which the app holds, too."""
        said = []
        for write in ({}, written):
            asked = message()

            def trained(arrays: dict, asked: Message = asked, write: dict = write) -> dict:
                for name, value in write.items():
                    setattr(asked.metadata, name, value)
                return arrays

            reply = app_of(loose(tmp_path), trained)(asked, context())
            assert not reply.has_error()
            times = {"_created_at": 0.0, "_ttl": round(reply.metadata.ttl, -2)}
            said.append(vars(reply.metadata) | times)
        assert said[0] == said[1]

    @pytest.mark.parametrize("public", ["num-examples", ["num-examples", "absent"]])
    def test_metrics_that_are_listed_as_public_are_replied(self, tmp_path, public):
        app = app_of(loose(tmp_path, public=public), lambda a: a)
        assert dict(app(message(), context()).content["metrics"]) == {"num-examples": 123}

    @pytest.mark.parametrize("kind", ["evaluate", "query"])
    def test_other_messages_are_refused_before_the_app_sees_them(self, tmp_path, kind):
        seen = []
        reply = app_of(loose(tmp_path), seen.append)(message(kind=kind), context())
        assert f"a {kind} message is refused" in reply.error.reason
        assert not seen and paid(tmp_path) == {}

    def test_each_category_of_training_is_answered(self, tmp_path):
        """Flower's apps have several functions that train, as `train` and `train.head`."""
        asked = message(kind="train.head")
        trained = lambda asked, _: Message(asked.content, reply_to=asked)  # noqa: E731
        reply = loose(tmp_path)(asked, context(), trained)
        assert np.abs(moved(reply)).max() < 0.2 and list(paid(tmp_path)) == [0]

    @pytest.mark.parametrize("arrays", [{}, {"seen": np.array(3)}])
    def test_a_message_without_floats_costs_nothing(self, tmp_path, arrays):
        reply = app_of(loose(tmp_path), lambda a: a)(message(arrays), context())
        assert "no array of floats" in reply.error.reason and paid(tmp_path) == {}

    def test_noise_too_large_for_the_grid_costs_nothing(self, tmp_path):
        """In units of the clip norm, however small that is. Kills noise in units of parameters."""
        mod = ClientDpMod(tmp_path, rounds=9, clip_norm=1e-3)
        mod.plan = replace(mod.plan, noise_multiplier=2.0**26)
        reply = app_of(mod, lambda arrays: arrays)(message(), context())
        assert "too large for a release" in reply.error.reason and paid(tmp_path) == {}

    def test_a_model_by_the_name_of_the_metrics_costs_nothing(self, tmp_path):
        """They took its place in a reply that had been paid for."""
        asked = message()
        asked.content["metrics"] = asked.content.pop("arrays")
        reply = app_of(loose(tmp_path), lambda arrays: arrays)(asked, context())
        assert "is named 'metrics', as the reply's metrics are" in reply.error.reason
        assert paid(tmp_path) == {}

    def test_a_message_with_two_models_costs_nothing(self, tmp_path):
        asked = message()
        asked.content["others"] = ArrayRecord({"w": Array(np.zeros(2))})
        reply = app_of(loose(tmp_path), lambda a: a)(asked, context())
        assert "2 array records" in reply.error.reason and paid(tmp_path) == {}


class TestWhatItCosts:
    def test_the_charge_is_on_disk_before_the_app_looks_at_records(self, tmp_path):
        seen = []
        app = app_of(ClientDpMod(tmp_path, rounds=3), lambda a: seen.append(paid(tmp_path)) or a)
        for client in (1, 0):
            app(message(), context(client))
        assert [sorted(one) for one in seen] == [[1], [0, 1]]

    def test_all_rounds_together_cost_the_certified_epsilon_and_no_more(self, tmp_path):
        mod = ClientDpMod(tmp_path, rounds=5, epsilon=3.0, delta=1e-6)
        app, seen = app_of(mod, lambda a: a), []
        for _ in range(5):
            assert not app(message(), context()).has_error()
        assert accountant.epsilon(paid(tmp_path)[0], 1e-6).epsilon == mod.epsilon
        assert 0.99 * 3.0 < mod.epsilon <= 3.0
        reply = app_of(mod, seen.append)(message(), context())
        assert "client 0 has used up its budget, all 5 rounds" in reply.error.reason
        assert not seen and paid(tmp_path)[0].total() == 5
        assert not app(message(), context(1)).has_error()  # who has a budget of its own

    def test_a_restart_forgets_no_round(self, tmp_path):
        replies = []
        for _ in range(3):
            app = app_of(ClientDpMod(tmp_path, rounds=2), lambda a: a)
            replies.append(app(message(), context()).has_error())
        assert replies == [False, False, True]

    def test_a_message_that_is_answered_twice_is_charged_twice_for_two_draws(self, tmp_path):
        app = app_of(ClientDpMod(tmp_path, rounds=9), lambda a: a)
        first, again = (moved(app(message(name="same"), context())) for _ in range(2))
        assert (first != again).all() and paid(tmp_path)[0].total() == 2

    def test_a_torn_line_was_never_answered(self, tmp_path):
        app = app_of(ClientDpMod(tmp_path, rounds=2), lambda a: a)
        app(message(), context())
        file = tmp_path / "ledger" / "client-000000.jsonl"
        file.write_bytes(file.read_bytes() + b'{"release": "rou')
        with pytest.warns(UserWarning, match="torn end"):
            assert not app(message(), context()).has_error()
        assert paid(tmp_path)[0].total() == 2 and app(message(), context()).has_error()

    def test_a_damaged_ledger_is_refused(self, tmp_path):
        app, seen = app_of(ClientDpMod(tmp_path, rounds=9), lambda a: a), []
        app(message(), context())
        app(message(), context())
        file = tmp_path / "ledger" / "client-000000.jsonl"
        file.write_bytes(file.read_bytes()[5:])
        reply = app_of(ClientDpMod(tmp_path, rounds=9), seen.append)(message(), context())
        assert "is damaged" in reply.error.reason and not seen

    @pytest.mark.parametrize("lost", [Path.unlink, lambda file: file.write_bytes(b"")])
    def test_a_lost_ledger_is_missed(self, tmp_path, lost):
        """The budget began anew."""
        app, seen = app_of(ClientDpMod(tmp_path, rounds=9), lambda a: a), []
        app(message(), context())
        lost(tmp_path / "ledger" / "client-000000.jsonl")
        reply = app_of(ClientDpMod(tmp_path, rounds=9), seen.append)(message(), context())
        assert "has 0 lines, but had 1 before" in reply.error.reason and not seen

    @pytest.mark.parametrize("lost", ["clients", "client-000000.place", "what it says"])
    def test_a_lost_file_beside_a_ledger_is_missed(self, tmp_path, lost):
        """Another division of the data was taken, or an emptied ledger began anew."""
        app, seen = app_of(ClientDpMod(tmp_path, rounds=9), lambda a: a), []
        app(message(), context())
        if lost == "what it says":
            (tmp_path / (lost := "client-000000.place")).write_text("{}")
        else:
            (tmp_path / lost).unlink()
        reply = app_of(ClientDpMod(tmp_path, rounds=9), seen.append)(message(), context())
        assert f"{tmp_path / lost} is missing" in reply.error.reason and not seen

    def test_how_data_are_divided_is_missed_by_whoever_has_not_paid_yet_too(self, tmp_path):
        own, plan = OwnLedger(tmp_path, 0, 2), ClientDpMod(tmp_path, rounds=9).plan
        own.pay(plan, 9)
        (tmp_path / "clients").unlink()
        with pytest.raises(ValueError, match="is missing, which says how the data are divided"):
            OwnLedger(tmp_path, 1, 3).pay(plan, 9)

    def test_a_ledger_that_is_put_back_during_a_round_is_missed(self, tmp_path):
        """Its place was taken from the file that lay there, and the round was free."""
        own, plan = OwnLedger(tmp_path), ClientDpMod(tmp_path, rounds=9).plan
        own.pay(plan, 9)
        before = own.path.read_bytes()
        with own.next_round(plan, 9) as (ledger, nth):
            ledger.charge("round-2", nth, [0], plan.round_charges(nth))
            own.path.write_bytes(before)
        with pytest.raises(ValueError, match=r"has 1 lines, but had 2 before"):
            own.pay(plan, 9)

    def test_where_a_ledger_ended_is_known_after_a_round_that_failed_too(self, tmp_path):
        """Whoever asked may be told of it."""
        own, plan = OwnLedger(tmp_path), ClientDpMod(tmp_path, rounds=9).plan
        own.pay(plan, 9)
        before = own.path.read_bytes()
        with pytest.raises(KeyError), own.next_round(plan, 9) as (ledger, nth):
            ledger.charge("round-2", nth, [0], plan.round_charges(nth))
            raise KeyError
        own.path.write_bytes(before)
        with pytest.raises(ValueError, match=r"has 1 lines, but had 2 before"):
            own.pay(plan, 9)

    @pytest.mark.parametrize("other", [{"epsilon": 4.0}, {"rounds": 8}, {"delta": 1e-6}])
    def test_a_ledger_is_of_one_plan(self, tmp_path, other):
        """Kills a budget that is raised because of what replies gave."""
        first = {"rounds": 9, "epsilon": 8.0}
        app_of(ClientDpMod(tmp_path, **first), lambda a: a)(message(), context())
        before, seen = paid(tmp_path), []
        reply = app_of(ClientDpMod(tmp_path, **first | other), seen.append)(message(), context())
        assert "is of another plan" in reply.error.reason
        assert not seen and paid(tmp_path) == before

    def test_data_that_are_divided_otherwise_have_another_folder(self, tmp_path):
        """Client 0 of 3 holds records of others than client 0 of 2."""
        app = app_of(ClientDpMod(tmp_path, rounds=9), lambda a: a)
        assert not app(message(), context(0, 2)).has_error()
        assert "are of 2: divide the data" in app(message(), context(0, 3)).error.reason
        assert "are of 2: divide the data" in app(message(), context(other=1)).error.reason
        assert paid(tmp_path)[0].total() == 1

    @pytest.mark.parametrize(
        ("node", "said"),
        [
            ({"partition-id": 2, "num-partitions": 2}, "client = 2 must be from 0 to 1"),
            ({"partition-id": -1, "num-partitions": 2}, "client = -1 must be from 0 to 1"),
            ({"partition-id": 1}, "two integers"),
            ({"partition-id": "1", "num-partitions": 2}, "two integers"),
        ],
    )
    def test_a_node_that_does_not_say_whose_data_it_has_is_refused(self, tmp_path, node, said):
        reply = app_of(loose(tmp_path), lambda a: a)(message(), context(**node))
        assert said in reply.error.reason and paid(tmp_path) == {}

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"rounds": 0}, "rounds = 0 must be"),
            ({"rounds": 2.0}, "rounds = 2.0 must be"),
            ({"rounds": True}, "rounds = True must be"),
            ({"epsilon": 0.0}, "epsilon = 0.0 is refused"),
            ({"epsilon": "8"}, "epsilon = '8' is refused"),
            ({"delta": 1.0}, "delta = 1.0 is refused"),
            ({"clip_norm": 0.0}, "clip_norm = 0.0 is refused"),
            ({"clip_norm": float("nan")}, "clip_norm = nan is refused"),
            ({"epsilon": 1e-9}, "budget too small"),
            ({"folder": "here"}, "folder = here is relative"),
            ({"public": 3}, "public is 3, it must be names"),
            ({"public": ["a", 3]}, "public is ['a', 3], it must be names"),
        ],
    )
    def test_bad_settings_are_one_line(self, tmp_path, given, said):
        with pytest.raises(ValueError, match=f"^{re.escape(said)}[^\n]+$"):
            ClientDpMod(**{"folder": tmp_path, "rounds": 2} | given)
        assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Two:
    """Two events a round, the second of which grows."""

    steps: int = 1

    def round_charges(self, nth: int) -> dict:
        return {Gaussian(4.0): 1, SampledGaussian(0.5, 2.0 + nth): nth}


class TestOwnLedger:
    def test_a_round_that_was_charged_in_part_is_not_used_again(self, tmp_path):
        """As a crash within a charge leaves it. Kills counting rounds by their whole charges."""
        own = OwnLedger(tmp_path)
        assert own.pay(Two(), 9) == 1
        with Ledger(own.path) as file:
            file.charge("round-2-a", 2, [0], {Gaussian(4.0): 1})
        assert own.pay(Two(), 9) == 3
        expected = {Gaussian(4.0): 3, SampledGaussian(0.5, 3.0): 1, SampledGaussian(0.5, 5.0): 3}
        assert paid(tmp_path) == {0: expected}

    def test_another_count_of_the_same_event_is_of_another_plan(self, tmp_path):
        own = OwnLedger(tmp_path)
        assert own.pay(Two(), 9) == 1
        with Ledger(own.path) as file:
            file.charge("round-2-a", 2, [0], {Gaussian(4.0): 2})
        with pytest.raises(ValueError, match="is of another plan"):
            own.pay(Two(), 9)

    def test_a_request_waits_for_the_one_before(self, tmp_path):
        """Which may train meanwhile."""
        own = OwnLedger(tmp_path, 3, 5)
        with ThreadPoolExecutor(1) as pool, own.next_round(Two(), 9):
            other = pool.submit(own.pay, Two(), 9)
            assert not wait([other], 0.2).done
        assert other.result() == 1

    def test_requests_at_once_have_rounds_of_their_own(self, tmp_path):
        """Kills a ledger that is read before the lock is held."""
        plan = UpdatePlan(2.0, 1.0)

        def ask(_: int) -> int:
            try:
                return OwnLedger(tmp_path, 3, 5).pay(plan, 20)
            except ValueError:
                return 0

        with ThreadPoolExecutor(8) as pool:
            found = Counter(pool.map(ask, range(24)))
        assert found == {0: 4} | dict.fromkeys(range(1, 21), 1)
        assert paid(tmp_path) == {3: {Gaussian(2.0): 20}}

    def test_others_begin_while_a_client_looks_how_data_are_divided(self, tmp_path, monkeypatch):
        """It took their ledgers for those of a folder whose file of clients is lost."""
        plan, exists = UpdatePlan(2.0, 1.0), Path.exists

        def meanwhile(path: Path) -> bool:
            found = exists(path)
            if path.name == "clients":
                monkeypatch.undo()
                OwnLedger(tmp_path, 1, 2).pay(plan, 9)
            return found

        monkeypatch.setattr(Path, "exists", meanwhile)
        assert OwnLedger(tmp_path, 0, 2).pay(plan, 9) == 1
        assert set(paid(tmp_path)) == {0, 1}

    def test_nobody_else_reads_it(self, tmp_path):
        own = OwnLedger(tmp_path)
        own.pay(UpdatePlan(2.0, 1.0), 1)
        files = [path for path in tmp_path.rglob("*") if path.suffix != ".lock"]
        assert own.path in files and len(files) == 4  # the ledger's folder, places, clients
        for private in files:
            assert private.stat().st_mode & 0o77 == 0, private

    def test_a_folder_that_is_gone_is_no_new_budget(self, tmp_path):
        """As when its disk is away."""
        with pytest.raises(ValueError, match="whole is not there: make it, unless it is on a disk"):
            OwnLedger(tmp_path / "whole").pay(UpdatePlan(2.0, 1.0), 1)
        assert not list(tmp_path.iterdir())


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page's modules by name, with a folder of their own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for _, text in blocks(GUIDE):
        if named := re.match(r"# (\w+)\.py\n", text):
            (tmp_path / f"{named[1]}.py").write_text(text.replace("/lab", str(tmp_path)))
    for name in ("whole", "record"):
        (tmp_path / name).mkdir()
    yield lambda name: importlib.import_module(name)
    for name in ("whole_client", "one_record"):
        sys.modules.pop(name, None)


def rounds(app: ClientApp, nodes: int, count: int) -> torch.nn.Module:
    """A linear model after some rounds of Flower's FedAvg."""
    model = torch.nn.Linear(3, 3)
    torch.nn.init.zeros_(model.weight)
    grid = LocalGrid({7 + n: place(n, nodes) for n in range(nodes)}, app)
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    done = fedavg.start(grid, ArrayRecord(model.state_dict()), num_rounds=count)
    model.load_state_dict(done.arrays.to_torch_state_dict())
    return model


def accuracy(model: torch.nn.Module, own_records) -> float:
    x, y = own_records(context(99, 100))
    return float((model(x).argmax(1) == y).float().mean())


class TestPage:
    def test_an_app_with_the_mod_is_trained_by_flowers_strategy(self, page, tmp_path):
        here = page("whole_client")
        model = rounds(here.app, nodes=4, count=21)
        charged = {Gaussian(here.mod.plan.noise_multiplier): 20}  # and the last one is refused
        assert paid(tmp_path / "whole") == dict.fromkeys(range(4), charged)
        assert all(torch.isfinite(p).all() for p in model.parameters())
        assert f"s is {here.mod.plan.noise_multiplier:.2f} for 20" in GUIDE.read_text()

    def test_an_app_that_calls_dpsgd_learns(self, page, tmp_path, capsys):
        here = page("one_record")
        model = rounds(here.app, nodes=3, count=21)
        assert accuracy(model, here.own_records) > 0.8
        (event,) = here.dp.plan(200).round_charges(1)
        assert paid(tmp_path / "record") == {n: {event: 100} for n in range(3)}
        (read,) = [text for _, text in blocks(GUIDE) if text.startswith("from pathlib")]
        exec(compile(read.replace("/lab", str(tmp_path)), str(GUIDE), "exec"), {})
        assert capsys.readouterr().out.count(f"epsilon={here.dp.certified(200)}") == 3

    @pytest.mark.slow
    def test_flowers_simulation_runs_it(self, page, tmp_path):
        """In Ray's workers, by Flower's own engine."""
        (tmp_path / "simulate.py").write_text(SIMULATION)
        done = subprocess.run(
            [sys.executable, "simulate.py"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert {n: one.total() for n, one in paid(tmp_path / "whole").items()} == {0: 3, 1: 3}


SIMULATION = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from whole_client import app

server = ServerApp()


@server.main()
def main(grid, context):
    start = ArrayRecord(torch.nn.Linear(3, 3).state_dict())
    found = FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=3)
    assert len(found.train_metrics_clientapp) == 3


run_simulation(server, app, num_supernodes=2)
"""
