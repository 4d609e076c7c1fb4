"""Attacks on membership: right half of the time where there is nothing to find, nearly always where
all is told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS
from sim.attacking import membership, partial, shadow
from sim.attacking.lira import Roc, confidences, halves, likelihood_ratios, roc
from sim.attacking.membership import Tally, balanced, judge, posterior_features, split
from sim.attacking.partial import partial_attack
from sim.attacking.shadow import shadow_attack
from sim.auditing import trainings
from sim.auditing.trainings import Trained, train
from sim.commands.flags import parse
from sim.job.job import Job
from sim.phases.build import build

KEY = seed_key(0)
FLAGS = "--rounds=2 --steps=3 --batch-size=none --sample-rate=0.5 --lr=1 --delta=1e-4"


def job(tmp_path, *flags: str, records: int = 240, features: int = 60, noise: bool = False) -> Job:
    """Records of a linear problem, or of labels that nothing but memory can tell."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, records)
    x = rng.normal(size=(records, features)) + (0.0 if noise else 2.0) * y[:, None]
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x[:5], y_test=y[:5])
    flags = ("--dataset", str(tmp_path / "data.npz"), "--epsilon", "4", *FLAGS.split(), *flags)
    return build(parse(flags, "", "", central=True).config)


def with_mechanism(job: Job, mechanism: str, target: float) -> Job:
    """The same job under another mechanism and budget."""
    privacy = job.config.privacy.model_copy(update={"mechanism": mechanism, "epsilon": target})
    return replace(job, config=job.config.model_copy(update={"privacy": privacy}))


def remembering(tmp_path) -> Job:
    """A linear model that learns records of 200 random features by heart."""
    one = job(tmp_path, "--rounds=60", "--lr=0.2", features=200, noise=True)
    return with_mechanism(one, "none", 4.0)


def accuracy(tally: Tally) -> float:
    return tally.right / tally.guesses


def test_the_split_is_two_to_one_to_two_to_one():
    parts = split(603, generator(KEY, "split"))
    sizes = [
        len(part) for part in (parts.target_in, parts.target_out, parts.shadow_in, parts.shadow_out)
    ]
    assert sizes == [200, 100, 200, 100]
    everything = np.concatenate(
        [parts.target_in, parts.target_out, parts.shadow_in, parts.shadow_out]
    )
    assert len(set(everything.tolist())) == 600 and everything.max() < 603
    assert [
        len(part) for part in balanced(parts.target_in, parts.target_out, np.random.default_rng(0))
    ] == [100, 100]
    with pytest.raises(ValueError, match="records = 5"):
        split(5, generator(KEY, "split"))


def test_of_unequal_sides_as_many_are_taken_and_drawn_from_the_larger_one():
    few, many = np.arange(5), np.arange(5, 205)
    for place, sides in ((1, (few, many)), (0, (many, few))):
        one, other = (balanced(*sides, np.random.default_rng(seed)) for seed in (0, 1))
        assert [len(set(part)) for part in (*one, *other)] == [5] * 4
        assert set(one[place]) < set(many) and set(one[place]) != set(other[place])


def test_features_are_sorted_probabilities_and_whether_the_answer_is_right():
    found = posterior_features(
        torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3]]), torch.tensor([1, 2])
    )
    np.testing.assert_allclose(found, [[0.7, 0.2, 0.1, 1.0], [0.5, 0.3, 0.2, 0.0]], rtol=1e-6)
    many = torch.from_numpy(
        np.random.default_rng(0).permutation(30.0 * np.arange(24)).reshape(2, 12)
    )
    found = posterior_features(many, many.argmax(dim=1))  # of many classes, the ten largest
    assert found.tolist() == [[*sorted(row.tolist())[:1:-1], 1.0] for row in many]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_trainings_are_those_of_each_alone_and_meet_the_budget(tmp_path, mechanism):
    one = with_mechanism(job(tmp_path, "--rounds=1", "--noise-multiplier=3"), mechanism, 50.0)
    owned = [np.arange(40), np.arange(40, 120)]
    both = train(one, owned, KEY)
    assert both.params.shape == (2, 122) and not torch.equal(both.params[0], both.params[1])
    torch.testing.assert_close(
        train(one, owned[:1], KEY).params, both.params[:1], rtol=1e-3, atol=1e-3
    )
    assert 0 < both.epsilon <= 50.0 if mechanism != "none" else both.epsilon == np.inf
    said = both.probabilities(np.arange(7))
    assert said.shape == (2, 7, 2) and torch.allclose(
        said.sum(dim=2), torch.ones(2, 7, dtype=torch.float64)
    )


@pytest.mark.parametrize("together", [1, 2, 8])
def test_every_training_is_gradient_descent_on_its_own_records(tmp_path, monkeypatch, together):
    """Without privacy, on batches that are everything a client has: as plain autograd, chunk by
    chunk or at once."""
    monkeypatch.setattr(trainings, "AT_A_TIME", together)
    flags = (
        "--sample-rate=1",
        "--lr-schedule=linear",
        "--momentum=0.5",
        "--rounds=2",
        "--steps=3",
        "--lr=0.2",
    )
    one = with_mechanism(job(tmp_path, *flags, features=5), "none", 4.0)
    owned = [np.arange(40), np.arange(40, 120), np.arange(100, 130)]
    x, y = (torch.from_numpy(array) for array in (one.dataset.x, one.dataset.y))
    for records, found in zip(owned, train(one, owned, KEY).params, strict=True):
        row, velocity = one.gradients.layout.initial(one.model), 0.0
        for step in range(6):
            weight, bias = row[:10].view(2, 5).requires_grad_(), row[10:].requires_grad_()
            loss = torch.nn.functional.cross_entropy(x[records] @ weight.T + bias, y[records])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [weight, bias])])
            velocity = gradient + 0.5 * velocity
            row = (row - 0.2 * (1 - step / 6) * velocity).detach()
        torch.testing.assert_close(found, row, rtol=1e-4, atol=1e-5)


def test_private_trainings_draw_by_their_number_and_cost_what_their_plans_say(
    tmp_path, monkeypatch
):
    """How many are computed together changes nothing, and no two of them have the same batches and
    noise."""
    one = with_mechanism(job(tmp_path, "--noise-multiplier=3", features=5), "dpsgd", 50.0)
    assert (one.config.privacy.mechanism, one.config.privacy.epsilon) == ("dpsgd", 50.0)
    owned = [np.arange(40)] * 4
    at_once = train(one, owned, KEY)
    monkeypatch.setattr(trainings, "AT_A_TIME", 2)
    torch.testing.assert_close(train(one, owned, KEY).params, at_once.params)
    assert len(torch.unique(at_once.params, dim=0)) == 4
    assert at_once.epsilon == epsilon({SampledGaussian(0.5, 3.0): 6}, 1e-4).epsilon
    said, x = at_once.probabilities(np.arange(3, 9)), torch.from_numpy(one.dataset.x[3:9])
    for row, found in zip(at_once.params, said, strict=True):
        scores = (x @ row[:10].view(2, 5).T + row[10:]).double()
        torch.testing.assert_close(
            found, scores.exp() / scores.exp().sum(dim=1, keepdim=True), rtol=1e-5, atol=1e-6
        )


def test_every_training_has_the_plan_and_the_learning_rates_of_its_own_size(tmp_path, monkeypatch):
    """Each alone is what they are together, though steps and rates of sampling differ."""
    one = with_mechanism(job(tmp_path, "--noise-multiplier=3", features=5), "dpsgd", 50.0)
    privacy = one.config.privacy.model_copy(update={"batch_size": 20, "sample_rate": 1.0})
    local = one.config.local.model_copy(
        update={"steps": None, "epochs": 2.0, "lr_schedule": "linear"}
    )
    one = replace(one, config=one.config.model_copy(update={"privacy": privacy, "local": local}))
    owned = [np.arange(40), np.arange(100, 220), np.arange(30, 90)]
    at_once, alone = train(one, owned, KEY), [train(one, [own], KEY) for own in owned]
    for name in ("epsilon", "epsilon_published"):
        each = [getattr(single, name) for single in alone]
        assert getattr(at_once, name) == max(each) > each[1] > 0
    for together in (1, 2):
        monkeypatch.setattr(trainings, "AT_A_TIME", together)
        torch.testing.assert_close(
            train(one, owned, KEY).params, at_once.params, rtol=1e-4, atol=1e-5
        )


def test_memory_is_found_by_all_attacks(tmp_path):
    """A model that has learnt random labels by heart knows its members."""
    one = remembering(tmp_path)
    records = len(one.dataset.y)
    parts = split(records, generator(KEY, "split"))
    target, shadow = train(one, [parts.target_in], KEY), train(one, [parts.shadow_in], seed_key(1))
    assert accuracy(shadow_attack(target, shadow, parts, KEY)) > 0.7
    assert accuracy(partial_attack(target, parts, KEY)) > 0.7
    inside = halves(records, 10, KEY)
    shadows = train(one, [np.flatnonzero(row) for row in inside], KEY)
    curve = roc(likelihood_ratios(confidences(shadows, np.arange(records)), inside), inside)
    assert curve.area > 0.8 and curve.at(0.01) > 0.05


def test_nothing_is_found_in_a_model_that_never_saw_its_members(tmp_path):
    """False alarm below 1e-5 for each: 80 guesses by coins, and an area of 2400 pairs."""
    one = remembering(tmp_path)
    parts = split(len(one.dataset.y), generator(KEY, "split"))
    stranger = train(one, [parts.shadow_in], seed_key(1))
    assert abs(accuracy(shadow_attack(stranger, stranger, parts, KEY)) - 0.5) < 0.25
    assert abs(accuracy(partial_attack(stranger, parts, KEY)) - 0.5) < 0.36
    inside, rng = halves(240, 10, KEY), np.random.default_rng(0)
    assert (
        abs(roc(likelihood_ratios(rng.normal(size=inside.shape), inside), inside).area - 0.5) < 0.06
    )


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
    assert (likelihood_ratios(np.full(inside.shape, 3.0), inside) == 0).all()
    with pytest.raises(ValueError, match="models = 7"):
        likelihood_ratios(np.zeros((7, 3)), inside[:7, :3])


def test_confidence_is_the_scaled_probability_of_the_label(tmp_path):
    one = job(tmp_path)
    start = one.gradients.layout.initial(one.model)
    trained = Trained(one, torch.stack([start, 1e6 * start]), np.inf)
    records = np.array([9, 4, 31, 2, 0, 17])
    found, said = confidences(trained, records), trained.probabilities(records)
    assert one.dataset.y[records].tolist() != one.dataset.y[:6].tolist()
    right = said[0, np.arange(6), one.dataset.y[records]].numpy()
    np.testing.assert_allclose(found[0], np.log(right / (1 - right)), rtol=1e-9)
    assert np.isfinite(found).all()


def test_scores_are_log_ratios_of_gaussians_with_one_pooled_variance():
    """Number by number: a record's two means leave the target out; squares are added up over
    records and models."""
    rng = np.random.default_rng(1)
    seen, had = rng.normal(size=(9, 4)), rng.random((9, 4)) < 0.5
    had[:, 3] = np.arange(9) < 1  # all but one are without it: nothing can be said
    found = likelihood_ratios(seen, had)
    assert not found[:, 3].any()
    for target in range(9):
        others = [model for model in range(9) if model != target]
        known = [n for n in range(4) if 2 <= sum(had[m, n] for m in others) <= 6]
        assert known
        logs = {}
        for member in (True, False):
            parts = {n: [seen[m, n] for m in others if had[m, n] == member] for n in known}
            squares = sum(((np.array(part) - np.mean(part)) ** 2).sum() for part in parts.values())
            spread = np.sqrt(squares / sum(len(part) - 1 for part in parts.values()))
            logs[member] = [
                stats.norm.logpdf(seen[target, n], np.mean(parts[n]), spread) for n in known
            ]
        np.testing.assert_allclose(
            found[target, known], np.subtract(logs[True], logs[False]), rtol=1e-9
        )


def test_models_are_trained_on_fair_coins_of_the_key():
    """100,000 coins stray by 0.0016 from a half; 5.5 deviations: false alarm below 1e-7."""
    inside = halves(1_000, 100, KEY)
    assert abs(inside.mean() - 0.5) < 0.0087 and np.array_equal(inside, halves(1_000, 100, KEY))
    assert not np.array_equal(inside, halves(1_000, 100, seed_key(1)))


def test_a_rate_of_hits_is_the_best_within_the_false_alarms_that_are_allowed():
    curve = Roc(np.array([0.0, 0.0, 0.5, 1.0]), np.array([0.0, 0.4, 0.7, 1.0]), 0.5)
    assert [curve.at(rate) for rate in (0.0, 0.4, 0.5, 0.9, 1.0)] == [0.4, 0.4, 0.7, 0.7, 1.0]


def test_the_partial_attacker_sees_each_records_own_answers_loss_and_gradient(tmp_path):
    one = job(tmp_path, features=5)
    trained = Trained(one, one.gradients.layout.initial(one.model)[None], np.inf)
    records = np.array([7, 2, 30])
    found = partial._features(trained, records)
    for row, record in zip(found, records, strict=True):
        x, label = torch.from_numpy(one.dataset.x[[record]]), int(one.dataset.y[record])
        loss = torch.nn.functional.cross_entropy(one.model(x), torch.tensor([label]))
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(one.model.parameters()))]
        )
        said, answer = one.model(x).softmax(dim=1)[0].detach().numpy(), np.eye(2)[label]
        expected = [*sorted(said)[::-1], said.argmax() == label, *answer, *(said - answer)]
        np.testing.assert_allclose(
            row, [*expected, float(loss.detach()), float(gradient.norm())], rtol=1e-4, atol=1e-6
        )


def rows(features: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in features}


def test_an_attack_guesses_by_its_seed_alone(monkeypatch):
    """About 400 records without a trace. Kills a forest that is another one each time."""
    monkeypatch.setattr(membership, "TREES", 20)
    rng = np.random.default_rng(0)
    known, asked = (tuple(rng.normal(size=(2, n, 3))) for n in (20, 200))
    first, again, other = (judge(known, asked, seed) for seed in (7, 7, 8))
    assert first == again != other and first.guesses == 400


def test_attacks_learn_from_what_the_attacker_holds_and_are_judged_by_other_records(
    tmp_path, monkeypatch
):
    """Members and others of each part, as many of one as of the other; nothing that was learnt from
    is asked."""
    one = job(tmp_path, features=5)
    parts, start = split(240, generator(KEY, "split")), one.gradients.layout.initial(one.model)
    target, other = Trained(one, start[None], np.inf), Trained(one, 2 * start[None] + 0.1, np.inf)
    seen = []
    for module in (partial, shadow):
        monkeypatch.setattr(
            module, "judge", lambda known, asked, seed: seen.append((*known, *asked))
        )
    partial_attack(target, parts, KEY)
    shadow_attack(target, other, parts, KEY)

    def answers(trained: Trained, records: np.ndarray) -> set[bytes]:
        labels = torch.from_numpy(one.dataset.y[records])
        return rows(posterior_features(trained.probabilities(records)[0], labels))

    inside, outside = (
        rows(partial._features(target, records)) for records in (parts.target_in, parts.target_out)
    )
    known_in, known_out, asked_in, asked_out = map(rows, seen[0])
    assert (
        known_in | asked_in <= inside
        and known_out | asked_out == outside
        and not (known_in & asked_in)
    )
    assert [len(one) for one in (known_in, known_out, asked_in, asked_out)] == [20] * 4
    learnt_in, learnt_out, told_in, told_out = map(rows, seen[1])
    assert learnt_in <= answers(other, parts.shadow_in) and learnt_out == answers(
        other, parts.shadow_out
    )
    assert told_in <= answers(target, parts.target_in) and told_out == answers(
        target, parts.target_out
    )
    assert [len(one) for one in (learnt_in, learnt_out, told_in, told_out)] == [40] * 4


def test_a_test_on_public_records_has_them_in_the_trainings_that_are_attacked(tmp_path):
    """Kills trainings without the public records, which noise screening looks at."""
    flags = "--mechanism=screening --screening-data=public --noise-multiplier=20"
    one = job(tmp_path, *flags.split(), "--public-records=40")
    trained = train(one, [np.arange(100), np.arange(50, 150)], KEY)
    assert trained.params.isfinite().all() and 0.0 < trained.epsilon <= 4.0
