"""The round loop: pick clients, ask their groups, sum uploads, apply the strategy, save the result.

It knows neither Flower nor Ray; an exchange carries its requests. A crash at any moment loses no
charge (a node writes them before it trains, a trusted server before it asks) and no finished round
(a checkpoint follows each).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from client import metrics, sums
from client.messages import TrainRequest, Upload
from mechanisms.accounting.ledger import release_name
from mechanisms.randomness import fresh_key, generator, seed_key
from server import clip_norm
from server.budgets import Budgets
from server.buffer import Buffer, Flight
from server.checkpoints import Checkpoint
from server.curator import Curator
from server.federation import Exchange, Federation, asked
from server.records import RoundRecord
from server.store import Store

Observer = Callable[[RoundRecord], None]
CLOCK = "clock"
"""The metric for the virtual time at which a round ended."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands after its last finished round.

    Attributes:
        now: the model and the strategy's state.
        records: of all finished rounds.
        budgets: what the clients have spent; updated as the run goes on.
        flight: who is at work, likewise; nobody where the server waits for all.
    """

    now: Checkpoint
    records: tuple[RoundRecord, ...]
    budgets: Budgets
    flight: Flight


def restore(federation: Federation, store: Store) -> Standing:
    """The state of the run in this directory: its newest complete checkpoint, or the initial state.

    The ledger's files say what the clients have spent. In a seeded run an unfinished round will be
    replayed as the same release, which is charged once; it is counted when it is replayed.

    Raises:
        ValueError: a ledger file is damaged or missing, or older than a checkpoint; or a file that
            belongs to the checkpoint is not as it was, or tells of later rounds than there can be.
    """
    now = store.newest()
    if now is None:
        taken = np.zeros(federation.clients, dtype=np.int64)
        state = federation.strategy.init(federation.initial)
        now = Checkpoint(federation.before, federation.initial, state, taken)
    spent = store.paid(up_to_round=None if federation.seed is None else now.round)
    terms = federation.course, federation.target, federation.delta
    budgets = Budgets(federation.plans, *terms, spent, now.taken, federation.column)
    first = now.round - federation.before
    store.check_ahead(now.round, first)
    flight = Flight(federation.clients, now.flight)
    return Standing(now, tuple(store.records(first)), budgets, flight)


def run(
    federation: Federation,
    exchange: Exchange,
    store: Store,
    standing: Standing,
    observers: Sequence[Observer],
) -> Standing:
    """Run the remaining rounds; ends early when every client has retired.

    Raises:
        ValueError: training diverged in a client.
    """
    while standing.now.round < federation.rounds:
        began = time.perf_counter()
        uploads = _train(federation, exchange, store, standing)
        if uploads is None:
            break
        federation.collect(uploads)
        trained = time.perf_counter() - began
        now = _advance(federation, standing, uploads)
        record = _record(federation, standing, now, uploads, began, trained)
        store.append(record)
        store.save(now)
        standing = replace(standing, now=now, records=(*standing.records, record))
        for observe in observers:
            observe(record)
    return standing


def _eligible(federation: Federation, budgets: Budgets, number: int) -> np.ndarray:
    """Bool ``[clients]``: who may take part in round ``number``.

    A trusted server's noise is for all, so nobody may if one who has to pay cannot; and nobody may
    if too few are left for a sum that is opened.
    """
    able = budgets.eligible()
    if federation.curator is not None:
        return able & able[federation.curator.paying(number)].all()
    if federation.aggregator is not None:
        return able & federation.aggregator.enough(int(able.sum()))
    return able


def _train(
    federation: Federation, exchange: Exchange, store: Store, standing: Standing
) -> list[Upload] | None:
    """One round's uploads, by group; None when no client is left."""
    now, budgets = standing.now, standing.budgets
    if federation.curator is not None:
        return _train_trusting(federation, federation.curator, exchange, standing)
    number = now.round + 1
    finished = store.uploads.finished(number, now.params) if federation.seed is None else []
    eligible = _eligible(federation, budgets, number)
    for upload in finished:
        eligible[federation.group_of == upload.group] = False
        budgets.count(upload.clients)
    answered = sum(len(upload.clients) for upload in finished)
    wanted = asked(federation.fraction, federation.clients) - answered
    clients = (
        _pick(federation, number, eligible, wanted)
        if federation.buffer is None
        else _due(federation, federation.buffer, standing, eligible)
    )
    uploads = _asked(federation, exchange, standing, clients)
    budgets.charge(clients)
    standing.flight.land(clients)
    for upload in uploads:
        for payers, charges in upload.realized:
            budgets.add(payers, charges)
    return sorted(uploads + finished, key=lambda upload: upload.group) or None


def _train_trusting(
    federation: Federation, curator: Curator, exchange: Exchange, standing: Standing
) -> list[Upload] | None:
    """The uploads of those who enter the round, possibly none; None if not all can pay for it."""
    number, budgets = standing.now.round + 1, standing.budgets
    payers = curator.paying(number)
    if not _eligible(federation, budgets, number).any():
        return None
    curator.pay(number, int(budgets.taken[payers[0]]) + 1)
    uploads = _asked(federation, exchange, standing, curator.entering(number))
    budgets.charge(payers)
    return sorted(uploads, key=lambda upload: upload.group)


def _asked(
    federation: Federation, exchange: Exchange, standing: Standing, clients: np.ndarray
) -> list[Upload]:
    """The uploads of these clients' groups."""
    number, group_of = standing.now.round + 1, federation.group_of[clients]
    release = release_name(number, federation.seed)
    requests = [
        TrainRequest(
            number,
            int(g),
            release,
            members,
            standing.budgets.taken[members] + 1,
            clip_norm.told(standing.now.params, standing.now.state),
            federation.phase,
            *(standing.flight.models_of(members, number - 1) if federation.buffer else ()),
        )
        for g in np.unique(group_of)
        if (members := clients[group_of == g]).size
    ]
    return list(exchange(requests)) if requests else []


def _due(
    federation: Federation, buffer: Buffer, standing: Standing, eligible: np.ndarray
) -> np.ndarray:
    """The clients that answer next, ascending, after idle ones have begun."""
    now, flight = standing.now, standing.flight
    idle, wanted = eligible & ~flight.working, buffer.at_once - int(flight.working.sum())
    beginning = _pick(federation, now.round + 1, idle, wanted)
    flight.begin(beginning, buffer.durations(now.round + 1), now.round, now.params)
    return flight.next(buffer.size)


def _pick(federation: Federation, number: int, eligible: np.ndarray, wanted: int) -> np.ndarray:
    """The ``wanted`` clients of a round, or fewer, if fewer are eligible; ascending."""
    able = np.flatnonzero(eligible)
    wanted = min(len(able), wanted)
    if not wanted:
        return able[:0]
    key = fresh_key() if federation.seed is None else seed_key(federation.seed)
    return np.sort(generator(key, "pick", number).choice(able, wanted, replace=False))


def _advance(federation: Federation, standing: Standing, uploads: Sequence[Upload]) -> Checkpoint:
    """The state after the strategy's step along the weighted mean update, along what stands in its
    place, or along each; as before if nobody has answered, or too few.

    Raises:
        ValueError: the model is no longer finite.
    """
    number, taken = standing.now.round + 1, standing.budgets.taken
    state, params = standing.now.state, standing.now.params
    update: np.ndarray | None
    if federation.curator is not None:
        nth = int(taken[federation.curator.paying(number)[0]])
        size = len(clip_norm.told(params, state))
        update = federation.curator.release(number, nth, size, uploads, clip_norm.current(state))
    elif federation.aggregator is not None:
        update = federation.aggregator.mean(number, uploads, clip_norm.current(state))
    elif federation.strategy.each is not None:
        update, answered = None, [upload for upload in uploads if upload.weight]
        if answered:
            rows = np.stack([sums.mean([one.total], one.weight) for one in answered])
            counts = np.array([one.weight for one in answered])
            state, params = federation.strategy.each(state, params, rows, counts)
    else:
        weight = sum(u.weight for u in uploads)
        update = sums.mean([u.total for u in uploads], weight) if weight else None
    if update is not None:
        state, params = federation.strategy.aggregate(state, params, update)
    if not np.isfinite(params).all():
        raise ValueError(
            f"training diverged (the model of round {number} is not finite); lower --lr or "
            "--server-lr"
        )
    flight = standing.flight.tensors() if federation.buffer else {}
    return Checkpoint(number, params, state, taken.copy(), flight)


def _record(
    federation: Federation,
    before: Standing,
    now: Checkpoint,
    uploads: Sequence[Upload],
    began: float,
    trained: float,
) -> RoundRecord:
    budgets, bound = before.budgets, clip_norm.current(before.now.state)
    left = _eligible(federation, budgets, now.round + 1)
    over = now.round >= federation.rounds or not left.any()
    due = over or now.round % federation.evaluate_every == 0
    accuracy, loss = federation.evaluate(now.params) if due else (None, None)
    ends = over and federation.is_last
    certified = budgets.epsilons("certified") if ends else budgets.so_far()
    published = budgets.epsilons("published")
    return RoundRecord(
        round=now.round,
        accuracy=accuracy,
        loss=loss,
        epsilon_certified_max=float(certified.max()),
        epsilon_certified_median=float(np.median(certified)),
        epsilon_published_max=float(published.max()),
        retired=int((~left).sum()),
        participants=None if federation.curator else sum(len(u.clients) for u in uploads),
        seconds=time.perf_counter() - began if federation.timed else None,
        seconds_training=trained if federation.timed else None,
        metrics=metrics.means(u.metrics for u in uploads)
        | (federation.aggregator.metrics(uploads) if federation.aggregator else {})
        | ({} if bound is None else {"clip_norm": bound})
        | ({CLOCK: before.flight.clock} if federation.buffer else {}),
    )
