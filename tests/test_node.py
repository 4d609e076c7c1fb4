"""A node charges first, trains then, and keeps what must not be paid for twice."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client.client_state import ClientState
from client.messages import TrainRequest, Upload
from client.metrics import means
from client.node import GroupData, Node
from client.sums import SCALE
from client.uploads import Uploads
from mechanisms.accounting.events import Covered, PaperClaim, SampledGaussian, Unprotected
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.dpis_plan import DpisPlan
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.guide import alone
from mechanisms.mechanism import local_round
from mechanisms.optimizers import sgd
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS
from mechanisms.settings import Dpis
from tests.small import CPU, OWNED, SEED, X, Y, cohort, model, node, plan_table, request, start

A, B = DpsgdPlan(0.5, 1.0, 1.0, 3), DpsgdPlan(0.2, 2.0, 1.0, 5)
CHUNKS = [[0, 2], [1, 3]]
ONCE = {SampledGaussian(0.5, 1.0): 3}


def releases(folder: Path) -> list[str]:
    lines = (
        line for path in (folder / "ledger").iterdir() for line in path.read_text().splitlines()
    )
    return [json.loads(line)["release"] for line in lines]


class Breaking(nn.Module):
    """Fails at the first record, with what the ledger's files say at that moment."""

    def __init__(self, folder: Path):
        super().__init__()
        self.weight, self.folder = nn.Parameter(torch.zeros(6, 3)), folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"charged so far: {sorted(read(self.folder / 'ledger'))}")


def test_the_charge_is_on_disk_before_a_record_is_looked_at(tmp_path):
    """Kills charging after training, and charging chunk by chunk."""
    broken = Breaking(tmp_path)
    with pytest.raises(RuntimeError, match=r"charged so far: \[0, 1, 2\]"):
        node(tmp_path, module=broken).train(request(1, [0, 1, 2], start(broken)))
    assert read(tmp_path / "ledger") == dict.fromkeys((0, 1, 2), ONCE)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_default_type_moves_no_bit_of_an_upload(tmp_path, kind):
    """As a module of the user's may set it. Kills numbers of steps of the default type, by which
    rates are divided."""
    uploads = []
    for default in (torch.float32, kind):
        asked = request(1, [0, 1, 2])
        here = node(tmp_path / str(default), rate=lambda _, taken, steps: 1 - taken / steps)
        torch.set_default_dtype(default)
        try:
            uploads.append(here.train(asked).total)
        finally:
            torch.set_default_dtype(torch.float32)
    assert (uploads[0] == uploads[1]).all()


def test_every_asked_client_pays_for_its_own_plan(tmp_path):
    here = node(tmp_path, plans=plan_table(A, B, A, B))
    here.train(request(1, [0, 1, 2]))
    here.train(request(2, [1]))
    assert read(tmp_path / "ledger") == {0: ONCE, 1: {SampledGaussian(0.2, 2.0): 10}, 2: ONCE}


def test_every_round_is_charged_as_the_round_that_it_is(tmp_path):
    """A plan whose noise falls from round to round; client 1 joins late, so its second round is its
    first."""
    here = node(tmp_path, plans=plan_table(*[dataclasses.replace(A, noise_decay=0.5)] * 4))
    here.train(request(1, [0]))
    here.train(dataclasses.replace(request(2, [0, 1]), nth=np.array([2, 1])))
    first, second = (SampledGaussian(0.5, float(np.exp(-0.5 * before))) for before in (0, 1))
    assert read(tmp_path / "ledger") == {0: {first: 3, second: 3}, 1: {first: 3}}


@pytest.mark.parametrize("seed", [0, SEED])
def test_a_replayed_round_of_a_simulation_is_the_same_release_and_charged_once(tmp_path, seed):
    first = node(tmp_path, seed=seed).train(request(1, [0, 1]))
    again = node(tmp_path, seed=seed).train(request(1, [0, 1]))
    assert (first.total == again.total).all() and read(tmp_path / "ledger") == {0: ONCE, 1: ONCE}


def named(attempt: int, asked: TrainRequest) -> TrainRequest:
    """A request of a release, which has a name of its own."""
    return dataclasses.replace(asked, release=f"{asked.release}-{attempt}")


def test_a_round_of_a_release_that_is_asked_again_is_drawn_and_charged_anew(tmp_path):
    """Kills a key that is kept."""
    here = node(tmp_path, seed=None)
    first, again = (here.train(named(attempt, request(1, [0, 1]))) for attempt in (1, 2))
    assert (first.total != again.total).all()
    assert read(tmp_path / "ledger") == {
        client: Counter({SampledGaussian(0.5, 1.0): 6}) for client in (0, 1)
    }
    assert releases(tmp_path) == ["round-1-1", "round-1-2"]


@pytest.mark.parametrize("clients", [[0, 1], [2]], ids=["the same", "another client"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_request_for_a_release_is_answered_once(tmp_path, clients, restarted):
    """A message that is delivered twice. Each answer has other noise, and the server counts one;
    and a name that has paid must not pay for what another request settles."""
    covered = Covered(SampledGaussian(0.5, 9.0), 4.0)
    adaptive = dataclasses.replace(
        MECHANISMS["dpsgd"], realized=lambda cohort, state: [{covered: 1}] * len(cohort.plans)
    )
    here = node(tmp_path, seed=None, mechanism=adaptive)
    here.train(request(1, [0, 1]))
    here.train(request(2, [0, 1]))
    before = read(tmp_path / "ledger")
    if restarted:
        here = node(tmp_path, seed=None, mechanism=adaptive)
    with pytest.raises(ValueError, match="round-1 was asked for before, and is paid for once"):
        here.train(request(1, clients))
    assert read(tmp_path / "ledger") == before


def test_an_upload_is_the_exact_weighted_sum_of_the_clients_updates(tmp_path):
    """Whatever asks for it: one node with both chunks, or two nodes with one each."""
    whole = node(tmp_path / "one").train(request(1, [0, 1, 2, 3]))
    parts = [
        node(tmp_path / "two", chunks=[c], group=g).train(request(1, c, group=g))
        for g, c in enumerate(CHUNKS)
    ]
    assert (whole.total == parts[0].total + parts[1].total).all()
    assert whole.weight == sum(part.weight for part in parts) == 60
    weighted = torch.zeros(len(whole.total), dtype=torch.float64)
    for chunk in CHUNKS:
        end = local_round(MECHANISMS["dpsgd"], cohort([A] * 2, chunk), start(model())).params
        weighted += (
            torch.tensor([len(OWNED[c]) for c in chunk]).double() @ (end - start(model())).double()
        )
    np.testing.assert_allclose(whole.total / SCALE, weighted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("amiss", "said"),
    [
        (
            {"params": np.zeros(5, np.float32)},
            r"float32 of shape \(5,\), and this node's .*\(53,\)",
        ),
        ({"params": np.zeros(54, np.float32)}, r"the server's model is float32 of shape \(54,\)"),
        ({"params": np.zeros((1, 53), np.float32)}, r"the server's model is float32 of shape"),
        ({"params": np.zeros(53)}, "the server's model is float64"),
        ({"behind": np.array([0, 1]), "earlier": {1: np.zeros(5, np.float32)}}, "the server's"),
        ({"clients": np.array([0, 1])}, "client 1 is not of this group, which has 2: give"),
        ({"clients": np.array([0, 9])}, "client 9 is not of this group"),
        ({"clients": np.array([-1, 2])}, "client -1 is not of this group"),
    ],
)
def test_a_request_for_other_clients_or_another_model_costs_nothing(tmp_path, amiss, said):
    """As of a server with another data set. It was paid for, and failed then."""
    asked = dataclasses.replace(request(1, [0, 2]), **amiss)
    with pytest.raises(ValueError, match=said):
        node(tmp_path, chunks=[[0], [2]], seed=None).train(asked)
    assert read(tmp_path / "ledger") == {}


@pytest.mark.parametrize("asked", [[], [3], [2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 5]])
def test_asked_clients_are_parted_by_their_chunks(asked):
    """Each in the place where it was asked, in the order of the chunks. Kills a chunk that is asked
    for nobody."""
    chunks = [np.array([1, 5]), np.array([0, 2, 3])]
    data = GroupData(X, Y, OWNED.__getitem__, chunks, np.ones(6, dtype=np.int64))
    parts = [np.array(asked)[part].tolist() for part in data.parts(np.array(asked, dtype=np.int64))]
    expected = [[c for c in asked if c in chunk] for chunk in chunks]
    assert parts == [part for part in expected if part]


def test_a_client_that_is_not_asked_neither_trains_nor_pays(tmp_path):
    upload = node(tmp_path).train(request(1, [2]))
    assert (
        upload.weight == 39
        and upload.clients.tolist() == [2]
        and set(read(tmp_path / "ledger")) == {2}
    )


def test_a_diverged_client_is_refused(tmp_path):
    with pytest.raises(ValueError, match="training diverged"):
        node(tmp_path).train(request(1, [0], torch.full_like(start(model()), torch.nan)))


def test_a_release_keeps_its_upload_until_the_next_one(tmp_path):
    here, uploads, params = (
        node(tmp_path, seed=None),
        Uploads(tmp_path / "uploads"),
        start(model()).numpy(),
    )
    first = here.train(request(1, [0, 3]))
    (found,) = uploads.finished(1, params)
    assert (found.total == first.total).all() and found.clients.tolist() == [0, 3]
    assert (found.round, found.group, found.weight, found.metrics) == (
        1,
        0,
        first.weight,
        first.metrics,
    )
    node(tmp_path, seed=None, group=1).train(request(1, [1], group=1))
    assert [upload.group for upload in uploads.finished(1, params)] == [0, 1]
    here.train(request(2, [0, 3]))
    assert [upload.group for upload in uploads.finished(1, params)] == [1]


def test_only_a_whole_upload_of_this_round_and_this_model_is_found(tmp_path):
    """Kills mixing an upload of another history of the run into this one."""
    node(tmp_path, seed=None).train(request(2, [0]))
    uploads, params = Uploads(tmp_path / "uploads"), start(model()).numpy()
    assert len(uploads.finished(2, params)) == 1
    assert uploads.finished(1, params) == [] and uploads.finished(2, params + 1) == []
    (path,) = (tmp_path / "uploads").iterdir()
    content = path.read_bytes()
    for cut in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        assert uploads.finished(2, params) == []


def test_a_simulation_keeps_no_uploads(tmp_path):
    node(tmp_path).train(request(1, [0]))
    assert (
        not (tmp_path / "uploads").exists()
        and Uploads(tmp_path / "uploads").finished(1, np.zeros(1)) == []
    )


@pytest.mark.parametrize("unpaid", [SampledGaussian(0.5, 1.0), Unprotected(1.0)], ids=str)
def test_what_a_round_has_released_beyond_its_charge_is_refused(tmp_path, unpaid):
    """A mechanism that settles what nothing has paid for gets no upload, and no line. Kills an
    unchecked settlement."""
    greedy = dataclasses.replace(
        MECHANISMS["dpsgd"], realized=lambda cohort, state: [{}, {unpaid: 1}]
    )
    with pytest.raises(ValueError, match="was not paid for when its round started"):
        node(tmp_path, mechanism=greedy).train(request(1, [0, 2]))
    assert read(tmp_path / "ledger") == dict.fromkeys((0, 2), ONCE)


@pytest.mark.parametrize("chunks", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[2], [0, 1, 3]]], ids=str)
def test_what_a_round_has_really_cost_is_written_down_and_told_to_the_server(tmp_path, chunks):
    """Client by client: a claim is told and charged, what an allotment has paid for is charged
    alone. Kills the settlement of one chunk for all."""
    claim, covered = PaperClaim(0.5, 1.0), Covered(SampledGaussian(0.5, 9.0), 4.0)
    by_size = {8: {claim: 2, covered: 1}, 12: {claim: 3}, 39: {}, 1: {claim: 2, covered: 1}}
    kept = dataclasses.replace(
        MECHANISMS["dpsgd"],
        realized=lambda cohort, state: [by_size[len(own)] for own in cohort.data.records],
    )
    upload = node(tmp_path, mechanism=kept, chunks=chunks).train(request(1, [0, 1, 2, 3]))
    told = {int(c): charges for clients, charges in upload.realized for c in clients}
    assert told == {0: {claim: 2}, 3: {claim: 2}, 1: {claim: 3}}
    paid = read(tmp_path / "ledger")
    assert paid == {
        0: ONCE | {claim: 2, covered: 1},
        1: ONCE | {claim: 3},
        2: ONCE,
        3: ONCE | {claim: 2, covered: 1},
    }


def test_what_a_release_has_really_cost_is_charged_each_time_that_it_is_asked(tmp_path):
    """Each attempt has released what it settles."""
    claim, covered = PaperClaim(0.5, 1.0), Covered(SampledGaussian(0.5, 9.0), 4.0)
    greedy = dataclasses.replace(
        MECHANISMS["dpsgd"], realized=lambda cohort, state: [{claim: 2, covered: 1}]
    )
    here = node(tmp_path, seed=None, mechanism=greedy)
    for attempt in range(3):
        (told,) = here.train(named(attempt, request(1, [2]))).realized
        assert told[0].tolist() == [2] and told[1] == {claim: 2}
    assert read(tmp_path / "ledger") == {2: {SampledGaussian(0.5, 1.0): 9, claim: 6, covered: 3}}


def test_the_metrics_of_a_round_are_those_of_all_its_chunks(tmp_path):
    """Kills the figures of one chunk for all."""
    sized = dataclasses.replace(
        MECHANISMS["dpsgd"],
        metrics=lambda cohort, state: {"n": torch.tensor([len(o) for o in cohort.data.records])},
    )
    upload = node(tmp_path, mechanism=sized, chunks=[[3], [0, 1], [2]]).train(
        request(1, [0, 1, 2, 3])
    )
    assert upload.metrics == {"n": (60.0, 4)}


def test_a_round_in_a_cohort_has_the_rates_of_its_round_and_the_steps_of_its_clients(tmp_path):
    """The learning rate is asked with the round's number and each client's own steps."""
    asked = []

    def rate(round_: int, taken: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        asked.append((round_, steps.tolist()))
        return 0.0 * taken

    here = node(tmp_path, plans=plan_table(A, B, A, B), rate=rate, chunks=[[0, 1]])
    here.train(request(4, [0, 1]))
    assert asked == [(4, [3.0, 5.0])] * 5


def test_every_client_of_a_chunk_is_in_its_own_round(tmp_path):
    """Two chunks whose clients take turns in the request: noise, as it falls, is that of the
    client's own count."""
    falling = plan_table(*[dataclasses.replace(A, noise_decay=0.7)] * 4)
    nth = np.array([1, 4, 2, 1])
    whole = node(tmp_path / "all", plans=falling).train(
        dataclasses.replace(request(1, [0, 1, 2, 3]), nth=nth)
    )
    alone = [
        node(tmp_path / str(c), plans=falling).train(
            dataclasses.replace(request(1, [c]), nth=nth[c : c + 1])
        )
        for c in range(4)
    ]
    np.testing.assert_allclose(
        whole.total / SCALE, sum(one.total for one in alone) / SCALE, atol=1e-3
    )


def test_a_strategy_is_told_of_the_model_the_shared_records_and_the_draws_of_its_clients(tmp_path):
    seen = []
    shared, params = (X[:3], Y[:3]), start(model()) + 1

    def guide(around):
        seen.append(around)
        return alone(around)

    here = node(tmp_path, guide=guide, shared=shared, chunks=[[1, 2]])
    here.train(request(2, [1, 2], params))
    (around,) = seen
    assert around.shared is shared and torch.equal(around.start, params)
    own = Streams(seed_key(SEED), 2, [1, 2], CPU)
    assert [s.random() for s in around.streams.of("shared")] == [
        s.random() for s in own.of("shared")
    ]


def test_a_replayed_round_starts_from_what_clients_kept_before_it(tmp_path):
    """Momentum that is kept: round 2 asked again, by another process, is round 2. Kills the state
    after it."""

    def kept() -> Node:
        state = ClientState(tmp_path / "kept", ("clip_norm",))
        return node(tmp_path, client_state=state, optimizer=sgd(0.9))

    first, second, third = (kept().train(request(n, [0, 1])).total for n in (1, 2, 3))
    for n, total in ((3, third), (2, second), (1, first)):
        assert (kept().train(request(n, [0, 1])).total == total).all()
    fresh = node(tmp_path / "fresh", optimizer=sgd(0.9)).train(request(2, [0, 1])).total
    assert (fresh != second).any()


def test_a_replayed_round_spends_from_the_account_as_it_was(tmp_path):
    """Noise that follows what earlier rounds have left: a round asked again, by another process, is
    the same and costs nothing. Kills a replay that sees its own payments, or later ones."""
    own = Dpis(dpis_first_phase=0.0)
    plans = [DpisPlan(0.25, 2.0, 1.0, 4, 3, 1e-5, len(mine), own) for mine in OWNED]

    def trained(number: int) -> np.ndarray:
        here = node(tmp_path, mechanism=MECHANISMS["dpis"], plans=plan_table(*plans))
        return here.train(request(number, [0, 1])).total

    totals = {number: trained(number) for number in (1, 2, 3)}
    paid = read(tmp_path / "ledger")
    for number in (3, 2, 1):
        assert (trained(number) == totals[number]).all()
    assert read(tmp_path / "ledger") == paid


def test_what_a_round_has_spent_before_it_fails_is_not_spent_again(tmp_path):
    """What is said of a client that has diverged is made of its noisy steps. Kills a failure that
    is not settled, after which an allotment pays for other steps once more."""
    covered = Covered(SampledGaussian(0.5, 9.0), 4.0)
    adaptive = dataclasses.replace(
        MECHANISMS["dpsgd"], realized=lambda cohort, state: [{covered: 1}] * len(cohort.plans)
    )
    here = node(tmp_path, None, mechanism=adaptive, rate=lambda *_: torch.full((1,), 1e12))
    for asked in (1, 2):
        with pytest.raises(ValueError, match=r"a coordinate of size .* training diverged"):
            here.train(named(asked, request(1, [3])))
        assert read(tmp_path / "ledger")[3][covered] == asked


def test_no_state_is_kept_of_releases_that_the_ledger_does_not_know(tmp_path, monkeypatch):
    """A crash before a round is settled: what clients keep must not go on from its noise, for the
    filter would let later rounds spend its payment again. Kills state that is kept first."""
    own = Dpis(dpis_first_phase=0.0)
    plans = [DpisPlan(0.25, 2.0, 1.0, 4, 3, 1e-5, len(mine), own) for mine in OWNED]
    dpis, charge = MECHANISMS["dpis"], Ledger.charge_all

    def failing(ledger, name, number, payments):
        if any(isinstance(event, Covered) for _, charges in payments for event in charges):
            raise OSError("no space left on device")
        charge(ledger, name, number, payments)

    def kept() -> Node:
        state, plan = ClientState(tmp_path / "kept", dpis.lasting), plan_table(*plans)
        return node(tmp_path, None, mechanism=dpis, plans=plan, client_state=state)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr(Ledger, "charge_all", failing)
        kept().train(named(1, request(1, [0, 1])))
    assert not (tmp_path / "kept").exists() and len(read(tmp_path / "ledger")) == 2
    kept().train(named(2, request(1, [0, 1])))
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_clients_whose_rounds_have_unlike_numbers_of_epochs_meet_though_they_keep_state(tmp_path):
    """Client 0 trains alone, then with client 1. Kills keeping what has a column for each epoch."""
    dpis = MECHANISMS["dpis"]
    rates = (0.25, 0.5, 0.25, 0.5)
    plans = [
        DpisPlan(q, 2.0, 1.0, 4, 2, 1e-5, len(own), Dpis())
        for q, own in zip(rates, OWNED, strict=True)
    ]
    client_state = ClientState(tmp_path / "kept", dpis.lasting)
    here = node(
        tmp_path,
        mechanism=dpis,
        plans=plan_table(*plans),
        chunks=[[0, 1]],
        client_state=client_state,
    )
    here.train(request(1, [0]))
    both = here.train(dataclasses.replace(request(2, [0, 1]), nth=np.array([2, 1])))
    assert both.clients.tolist() == [0, 1] and both.weight == len(OWNED[0]) + len(OWNED[1])


def test_a_finished_upload_is_found_as_it_was_kept(tmp_path):
    """With what its clients released one by one. Kills an upload that comes back without a part."""
    shared = {"x": np.ones((2, 3), np.float32), "y": np.array([1, 0]), "client": np.array([4, 4])}
    clients, params = np.array([4, 7]), np.zeros(2, np.float32)
    kept = Upload(0, 3, clients, np.array([5, -(2**40)]), 9, {"rate": (1.5, 2)}, shared=shared)
    Uploads(tmp_path).keep(kept, params)
    (found,) = Uploads(tmp_path).finished(0, params)
    assert (found.round, found.group, found.weight) == (0, 3, 9) and means([found.metrics]) == {
        "rate": 0.75
    }
    assert found.clients.tolist() == [4, 7] and found.total.tolist() == kept.total.tolist()
    assert found.shared.keys() == shared.keys()
    assert all(np.array_equal(found.shared[name], part) for name, part in shared.items())
