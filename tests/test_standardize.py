"""Channels standardized by statistics that clients release: what is computed, and what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from mechanisms.accounting import ledger
from mechanisms.accounting.events import Gaussian, Unprotected
from mechanisms.plan import merge, planned
from sim.config import configuration as config
from sim.data.holdout import Held
from sim.engines import session
from sim.engines.inline import inline_exchange
from sim.job import rundir
from sim.job.job import Job
from sim.phases.build import build
from sim.phases.course import before_training
from sim.phases.phase import Outlook
from sim.phases.statistics import FILE, channel_moments, plan, standardized, statistics
from tests.phases import cost_before_training

pytestmark = pytest.mark.usefixtures("no_report")
RNG = np.random.default_rng(2)
X = (
    RNG.normal(size=(300, 3, 4, 4)) * [[[[0.5]], [[2.0]], [[1.0]]]] + [[[[1.0]], [[-0.2]], [[0.1]]]]
).astype(np.float32)
SETTINGS = {
    "clients": 6,
    "partition": "iid",
    "rounds": 2,
    "engine": "inline",
    "quiet": True,
    "standardize": "private",
}


def job(folder, **given) -> Job:
    folder.mkdir(exist_ok=True)
    np.savez(
        folder / "records.npz", x=X, y=np.arange(300) % 3, x_test=X[:30], y_test=np.arange(30) % 3
    )
    return build(config.load(None, SETTINGS | {"dataset": str(folder / "records.npz")} | given))


def test_statistics_are_as_they_were_or_nobody_is_scaled_by_them(tmp_path):
    """A worker reads them, too."""
    here, _ = run(tmp_path)
    path = next(tmp_path.rglob(FILE))
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    with pytest.raises(ValueError, match=rf"{FILE} is damaged"):
        standardized(here, path.parent)


def run(folder, **given) -> tuple[Job, dict[str, np.ndarray]]:
    built = job(folder, **given)
    rundir.create(folder / "run", built)
    session.run(built, folder / "run", session.Engine(inline_exchange(built, folder / "run")))
    return built, load((folder / "run" / FILE).read_bytes())


def test_moments_are_of_each_record_and_channel():
    found = channel_moments(torch.from_numpy(X)).numpy()
    assert found.shape == (300, 6)
    assert np.allclose(found[:, :3], X.mean(axis=(2, 3)), atol=1e-6)
    assert np.allclose(found[:, 3:], (X**2).mean(axis=(2, 3)), atol=1e-5)
    flat = channel_moments(torch.from_numpy(X[:, :, 0, 0])).numpy()
    assert np.allclose(flat, np.concatenate([X[:, :, 0, 0], X[:, :, 0, 0] ** 2], axis=1), atol=1e-5)


def test_without_noise_every_channel_ends_at_mean_0_and_variance_1(tmp_path):
    built, found = run(tmp_path, mechanism="none")
    assert np.allclose(found["mean"], X.mean(axis=(0, 2, 3)), atol=1e-4)
    assert np.allclose(found["scale"], X.std(axis=(0, 2, 3)), atol=1e-3)
    held = Held(X[5:9], np.arange(4), built.partition)
    more = replace(built, holdout=(X[:5], np.arange(5)), held=held)
    scaled = standardized(more, tmp_path / "run")
    data, public, back = scaled.dataset, scaled.holdout, scaled.held
    assert np.allclose(data.x.mean(axis=(0, 2, 3)), 0, atol=1e-3) and np.allclose(
        data.x.std(axis=(0, 2, 3)), 1, atol=1e-3
    )
    assert public is not None and back is not None
    of = ((built.dataset.x_test, data.x_test), (X[:5], public[0]), (X[5:9], back.x))
    for records, scaled in of:
        by_hand = (records - found["mean"][:, None, None]) / found["scale"][:, None, None]
        assert np.allclose(scaled, by_hand, atol=1e-5)


def test_a_process_has_one_scaled_copy_of_its_records(tmp_path):
    """They may be gigabytes, and both the server and its nodes use them."""
    built, _ = run(tmp_path)
    first, again = (standardized(built, tmp_path / "run").dataset for _ in range(2))
    assert first is again
    _, other = run(tmp_path / "other", mechanism="none")
    assert np.allclose(
        standardized(built, tmp_path / "other" / "run").dataset.x * other["scale"][:, None, None],
        X - other["mean"][:, None, None],
        atol=1e-5,
    )
    assert np.array_equal(standardized(built, tmp_path / "run").dataset.x, first.x)


def test_no_channel_is_blown_up_by_the_noise_in_its_variance():
    """CIFAR-10's scattering features: divided by the root of such a variance, linear models lost 6
    points of accuracy."""
    small = statistics(np.array([3.0, 0.0, 1.0, -5.0]), 2.0, 0.5)["scale"]
    assert np.allclose(small, [math.sqrt(0.25), math.sqrt(0.25)])
    known = statistics(np.array([0.0, 18.0]), 2.0, 0.5)["scale"]
    assert np.allclose(known, math.sqrt(9.25))
    assert np.allclose(statistics(np.array([1.0, 0.5]), 2.0, 0.0)["scale"], math.sqrt(1e-6))


def test_the_scale_knows_how_much_noise_is_in_the_clients_mean(tmp_path):
    """Six clients of 50 records: where noise drowns everything, its standard deviation is left."""
    _, found = run(tmp_path, standardize_noise=1e4, standardize_clip=0.5)
    assert np.allclose(found["scale"] ** 2, 1e4 * 0.5 / (50 * math.sqrt(6)))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"strategy": "fedfed"},
        {"strategy": "fedfed", "shared_source": "distilled", "share_budget": 0.5},
    ],
)
def test_statistics_are_one_charged_release_of_each_client_and_training_gets_the_rest(
    tmp_path, given
):
    """Kills statistics that nobody charges, and a calibration that does not know of them."""
    built, _ = run(tmp_path, **given)
    before = cost_before_training(built)
    assert before[Gaussian(8.0)] == 1
    spent = ledger.read(tmp_path / "run" / "ledger")
    assert len(spent) == 6
    for client, charges in spent.items():
        assert charges == merge(before, planned(built.plans.of(client), 2))
    noise = built.plans.plans[0].noise_multiplier
    plain = job(tmp_path / "plain", **given, standardize_noise=1e3).plans.plans[0].noise_multiplier
    assert noise > plain


def test_a_finished_release_is_not_made_again(tmp_path):
    built, found = run(tmp_path)
    again = before_training(
        built, tmp_path / "run", lambda requests: pytest.fail("somebody was asked again")
    )
    assert np.array_equal(load((tmp_path / "run" / FILE).read_bytes())["mean"], found["mean"])
    assert not np.array_equal(again.dataset.x, built.dataset.x)


def outlook(given: dict, **more) -> Outlook:
    return Outlook(
        config.load(None, given | more, lenient=config.SETTINGS), (3, 4, 4), np.array([5, 7]), False
    )


def test_the_plan_follows_the_settings():
    given = SETTINGS | {"dataset": "x.npz", "standardize_noise": 3.0, "standardize_clip": 0.5}
    private = plan(outlook(given), {}).plans[0]
    assert private.round_charges(1) == {Gaussian(3.0): 1} and private.clip_norm == 0.5
    unprotected = plan(outlook(given, mechanism="none"), {}).plans[0]
    assert unprotected.round_charges(1) == {Unprotected(1.0): 1} and math.isinf(
        unprotected.clip_norm
    )
    assert plan(outlook({"dataset": "x.npz"}), {}) is None
