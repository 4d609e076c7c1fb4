"""The audit of a run from beginning to end: what is written is what the attacker found, of each
client its own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from mechanisms.randomness import seed_key
from server import closing
from sim.auditing import session
from sim.auditing.one_run import LENGTH, MAX_CANARIES, Guesses, guess, plant
from sim.commands.flags import request
from sim.config import configuration as config
from sim.engines.start import train
from sim.phases.build import build
from sim.phases.statistics import FILE
from tests.test_job import UNLIKE

COUNT, CONFIDENCE, CPU = 80, 0.8, torch.device("cpu")
GIVEN = UNLIKE | {
    "clients": 3,
    "rounds": 4,
    "mechanism": "none",
    "standardize": "private",
    "delta": 0.004,
    "lr": 2.0,
}


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Drawing takes longest; the report has tests of its own."""
    for place in ("sim.engines.session", "sim.auditing.session"):
        monkeypatch.setattr(f"{place}.write_report", lambda folder: folder)


def settings(folder: Path, **given: object) -> config.Config:
    """160 records of 40 features with labels that nothing but memory can tell."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(3.0, 2.0, size=(160, 40)).astype(np.float32), np.arange(160) % 3
    np.savez(folder / "records.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    own = {"dataset": str(folder / "records.npz"), "out": str(folder), "name": "a"}
    return config.load(None, GIVEN | own | given, lenient=config.SETTINGS)


def test_the_black_box_attacker_compares_losses_of_the_records_as_they_were_trained_on(tmp_path):
    """All by hand: coins of the run's seed, wrong labels, standardized records, the first model and
    the last."""
    session.audit(settings(tmp_path), COUNT, black_box=True, confidence=CONFIDENCE, quiet=True)
    written = json.loads((tmp_path / "a" / "audit.json").read_text())
    job = build(settings(tmp_path))
    owned = [job.partition.of(client) for client in range(3)]
    canaries = plant(job.dataset.y, 3, owned, 123, COUNT, seed_key(11), 0.0, CPU)
    found = load((tmp_path / "a" / FILE).read_bytes())
    x = (job.dataset.x[canaries.records] - found["mean"]) / found["scale"]
    layout = job.gradients.layout
    tensors = load((tmp_path / "a" / "model.safetensors").read_bytes())
    losses = []
    for named in (
        layout.unflatten(layout.initial(job.model)),
        {k: torch.from_numpy(v) for k, v in tensors.items()},
    ):
        matrix, shift = sorted(named.values(), key=lambda tensor: -tensor.dim())
        scores = x @ matrix.numpy().T + shift.numpy()
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        losses.append(-logs[np.arange(COUNT), canaries.labels])
    fall = (losses[0] - losses[1]).astype(np.float64)
    best = guess(fall, canaries.included, 0.004, CONFIDENCE)
    assert 0 < best.right <= best.guesses and best.epsilon > 0
    names = ("canaries", "guesses", "right", "epsilon_lower", "delta", "confidence", "view")
    expected = [
        COUNT,
        best.guesses,
        best.right,
        pytest.approx(best.epsilon),
        0.004,
        CONFIDENCE,
        "black-box",
    ]
    assert [written[name] for name in names] == expected
    assert [row[:2] for row in written["clients"]] == [
        [k, len(canaries.places(own))] for k, own in enumerate(owned)
    ]
    for client, _, lower, _ in written["clients"]:
        mine = canaries.places(owned[client])
        assert lower == pytest.approx(
            guess(fall[mine], canaries.included[mine], 0.004, CONFIDENCE).epsilon
        )


def test_canaries_are_as_many_and_as_long_as_there_is_room_for(tmp_path):
    """Half of the records, or of the parameters for each client; ten clip norms each, but for wrong
    labels."""
    job = build(settings(tmp_path, mechanism="dpsgd", clip_norm=0.5))
    white, black = (session._plant(job, None, box) for box in (False, True))
    assert len(white.records) == len(black.records) == 80 < MAX_CANARIES
    assert white.planted.size == LENGTH * 0.5 == 5.0 and black.planted.size == 0.0
    expected = plant(
        job.dataset.y, 3, [job.partition.of(k) for k in range(3)], 123, 80, seed_key(11), 5.0, CPU
    )
    assert np.array_equal(white.included, expected.included) and np.array_equal(
        white.records, expected.records
    )
    one = build(settings(tmp_path, clients=1, min_records=7, mechanism="dpsgd"))
    assert len(session._plant(one, None, False).records) == 123 // 2
    assert len(session._plant(one, 7, False).records) == 7


def test_the_largest_client_has_room_for_its_canaries(tmp_path):
    """Of unequal clients one can hold nearly all records."""
    job = build(settings(tmp_path, mechanism="dpsgd"))
    records = np.concatenate([job.partition.of(client) for client in range(3)])
    parts = replace(job.partition, indices=records, offsets=np.array([0, 158, 159, 160]))
    found = session._plant(replace(job, partition=parts), None, False)
    assert len(found.records) == 123 // 2 * 160 // 158


def test_the_largest_epsilon_is_shown_and_beside_each_client_its_own(tmp_path):
    session.audit(settings(tmp_path, rounds=1, mechanism="dpsgd"), 6, True, CONFIDENCE, quiet=True)
    read = closing.read(tmp_path / "a")
    unequal = {"epsilon_certified": (1.0, 3.0, 2.0), "epsilon_published": (0.5, 0.75, 2.5)}
    summary = replace(read, **unequal)
    clients = {0: Guesses(4, 2, 1, 0.1), 2: Guesses(5, 4, 3, 0.2)}
    found = session._result(summary, Guesses(9, 6, 5, 0.3), clients, "white-box", 0.9)
    assert (found.epsilon_certified, found.epsilon_published, found.epsilon_lower) == (
        3.0,
        2.5,
        0.3,
    )
    assert (found.canaries, found.guesses, found.right) == (9, 6, 5)
    assert found.clients == ((0, 4, 0.1, 1.0), (2, 5, 0.2, 2.0))


@pytest.mark.parametrize("ends", [True, False])
def test_an_audited_run_is_marked_before_it_trains_and_never_resumed(tmp_path, monkeypatch, ends):
    """Its canaries are in no file: resumed as if there had been none, it would draw the same noise
    for other records. Kills a mark that is missing, also where training has been broken off."""

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    given = settings(tmp_path, rounds=1, mechanism="dpsgd")
    if ends:
        session.audit(given, 6, True, CONFIDENCE, quiet=True)
    else:
        monkeypatch.setattr(session.session, "run", broken)
        with pytest.raises(KeyboardInterrupt):
            session.audit(given, 6, True, CONFIDENCE, quiet=True)
    with pytest.raises(ValueError, match="is of an audit, which would go on without its canaries"):
        train(request({}, resume=str(tmp_path / "a")))


def test_an_audit_is_as_quiet_as_the_run_or_the_caller_asks(tmp_path, capsys):
    """Kills one of the two that is read and not used."""
    for number, (own, asked) in enumerate(((True, False), (False, True), (False, False))):
        given = settings(
            tmp_path, rounds=1, mechanism="dpsgd", quiet=own, name=f"q{number}", clients=2
        )
        session.audit(given, 6, True, CONFIDENCE, quiet=asked)
        assert (capsys.readouterr().out == "") is (own or asked)
