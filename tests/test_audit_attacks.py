"""Attacks on membership: right half of the time where there is nothing to find, nearly always where all is told."""

import numpy as np
import pytest
import torch

from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS
from sim import job as jobs
from sim.auditing.lira import confidences, halves, likelihood_ratios, roc
from sim.auditing.membership import balanced, posterior_features, split
from sim.auditing.partial import partial_accuracy
from sim.auditing.shadow import shadow_accuracy
from sim.auditing.trainings import Trained, train, with_mechanism
from sim.cli import parse

KEY = seed_key(0)
FLAGS = "--rounds=2 --steps=3 --batch-size=none --sample-rate=0.5 --lr=1 --delta=1e-4"


def job(tmp_path, *flags: str, records: int = 240, features: int = 60, noise: bool = False) -> jobs.Job:
    """Records of a linear problem, or of labels that nothing but memory can tell."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, records)
    x = rng.normal(size=(records, features)) + (0.0 if noise else 2.0) * y[:, None]
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x[:5], y_test=y[:5])
    flags = ("--dataset", str(tmp_path / "data.npz"), "--epsilon", "4", *FLAGS.split(), *flags)
    return jobs.build(parse(flags, "", "", central=True).config)


def remembering(tmp_path, rounds: int = 60) -> jobs.Job:
    """A linear model that learns records of 200 random features by heart."""
    one = job(tmp_path, f"--rounds={rounds}", "--lr=0.2", features=200, noise=True)
    return with_mechanism(one, "none", 4.0)


def test_the_split_is_two_to_one_to_two_to_one():
    parts = split(603, generator(KEY, "split"))
    sizes = [len(part) for part in (parts.target_in, parts.target_out, parts.shadow_in, parts.shadow_out)]
    assert sizes == [200, 100, 200, 100]
    everything = np.concatenate([parts.target_in, parts.target_out, parts.shadow_in, parts.shadow_out])
    assert len(set(everything.tolist())) == 600 and everything.max() < 603
    assert [len(part) for part in balanced(parts.target_in, parts.target_out, np.random.default_rng(0))] == [100, 100]
    with pytest.raises(ValueError, match="records = 5"):
        split(5, generator(KEY, "split"))


def test_features_are_sorted_probabilities_and_whether_the_answer_is_right():
    found = posterior_features(torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3]]), torch.tensor([1, 2]))
    np.testing.assert_allclose(found, [[0.7, 0.2, 0.1, 1.0], [0.5, 0.3, 0.2, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_trainings_are_those_of_each_alone_and_meet_the_budget(tmp_path, mechanism):
    one = with_mechanism(job(tmp_path, "--rounds=1", "--noise-multiplier=3"), mechanism, 50.0)
    owned = [np.arange(40), np.arange(40, 120)]
    both = train(one, owned, KEY)
    assert both.params.shape == (2, 122) and not torch.equal(both.params[0], both.params[1])
    torch.testing.assert_close(train(one, owned[:1], KEY).params, both.params[:1], rtol=1e-3, atol=1e-3)
    assert 0 < both.epsilon <= 50.0 if mechanism != "none" else both.epsilon == np.inf
    said = both.probabilities(np.arange(7))
    assert said.shape == (2, 7, 2) and torch.allclose(said.sum(dim=2), torch.ones(2, 7, dtype=torch.float64))


def test_memory_is_found_by_all_attacks(tmp_path):
    """A model that has learnt random labels by heart knows its members."""
    one = remembering(tmp_path)
    records = len(one.dataset.y)
    parts = split(records, generator(KEY, "split"))
    target, shadow = train(one, [parts.target_in], KEY), train(one, [parts.shadow_in], seed_key(1))
    assert shadow_accuracy(target, shadow, parts, KEY) > 0.7
    assert partial_accuracy(target, parts, KEY) > 0.7
    inside = halves(records, 10, KEY)
    shadows = train(one, [np.flatnonzero(row) for row in inside], KEY)
    curve = roc(likelihood_ratios(confidences(shadows, np.arange(records)), inside), inside)
    assert curve.area > 0.8 and curve.at(0.01) > 0.05


def test_nothing_is_found_in_a_model_that_never_saw_its_members(tmp_path):
    """False alarm below 1e-5 for each: 80 guesses by coins, and an area of 2400 pairs."""
    one = remembering(tmp_path)
    parts = split(len(one.dataset.y), generator(KEY, "split"))
    stranger = train(one, [parts.shadow_in], seed_key(1))
    assert abs(shadow_accuracy(stranger, stranger, parts, KEY) - 0.5) < 0.25
    assert abs(partial_accuracy(stranger, parts, KEY) - 0.5) < 0.36
    inside, rng = halves(240, 10, KEY), np.random.default_rng(0)
    assert abs(roc(likelihood_ratios(rng.normal(size=inside.shape), inside), inside).area - 0.5) < 0.06


def test_likelihood_ratios_are_those_of_gaussians_fitted_to_the_other_models():
    rng = np.random.default_rng(0)
    inside = halves(50, 40, KEY)
    scores = likelihood_ratios(rng.normal(size=inside.shape) + 3.0 * inside, inside)
    shown = roc(scores, inside)
    assert shown.area == pytest.approx(0.983, abs=0.01)  # that of two unit Gaussians three apart
    assert shown.at(0.0) >= 0 and shown.at(1.0) == 1.0 and np.all(np.diff(shown.true) >= 0)
    unknown = inside.copy()
    unknown[:, 0], unknown[0, 0] = False, True
    assert (likelihood_ratios(rng.normal(size=inside.shape), unknown)[:, 0] == 0).all()
    with pytest.raises(ValueError, match="models = 7"):
        likelihood_ratios(np.zeros((7, 3)), inside[:7, :3])


def test_confidence_is_the_scaled_probability_of_the_label(tmp_path):
    one = job(tmp_path)
    start = one.gradients.layout.initial(one.model)
    trained = Trained(one, torch.stack([start, 1e6 * start]), np.inf)
    found, said = confidences(trained, np.arange(6)), trained.probabilities(np.arange(6))
    right = said[0, np.arange(6), one.dataset.y[:6]].numpy()
    np.testing.assert_allclose(found[0], np.log(right / (1 - right)), rtol=1e-9)
    assert np.isfinite(found).all()
