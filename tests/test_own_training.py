"""DPSGD as a call: what it releases, what it costs, what it refuses."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client.own_training import RecordDp
from mechanisms.accounting import accountant
from mechanisms.gradients.record_gradients import cross_entropy
from tests.folders import paid
from tests.gaussian import SPOILERS, alarms
from tests.small import X, Y, model, plain_gradients, start

HERE = {"partition-id": 1, "num-partitions": 3}


def dp_of(home: Path, **given: object) -> RecordDp:
    home.mkdir(exist_ok=True)
    return RecordDp(**{"folder": home, "rounds": 3, "batch_size": 20, "steps": 2} | given)


class Looking(nn.Module):
    """Fails at the first record that is not made up, with what the ledger says at that moment."""

    def __init__(self, folder: Path):
        super().__init__()
        self.weight, self.folder = nn.Parameter(torch.zeros(6, 3)), folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x.unsqueeze(-2) == X).all(-1).any()):
            raise RuntimeError(f"charged so far: {sorted(paid(self.folder))}")
        return x @ self.weight


def test_the_charge_is_on_disk_before_a_record_is_looked_at(tmp_path):
    with pytest.raises(RuntimeError, match=r"charged so far: \[1\]"):
        dp_of(tmp_path).fit(Looking(tmp_path), X, Y, HERE)
    assert paid(tmp_path)[1].total() == 2


def test_a_round_is_a_step_along_clipped_gradients(tmp_path):
    """With next to no noise. Kills another rate, bound or sign, and an update in other units."""
    dp = dp_of(tmp_path, epsilon=1e7, batch_size=None, steps=1, lr=0.7, clip_norm=0.4)
    module, before = model(), start(model())
    dp.fit(module, X.numpy(), Y.numpy())
    gradients = torch.stack(plain_gradients(model(), before, X, Y))
    norms = gradients.norm(dim=1, keepdim=True)
    assert 5 < (norms > 0.4).sum() < 60 and dp.plan(60).noise_multiplier <= 0.011
    expected = before - 0.7 * (gradients * (0.4 / norms).clamp(max=1.0)).sum(0) / 60
    torch.testing.assert_close(start(module), expected, rtol=0.0, atol=0.7 * 0.4 * 0.011 * 6 / 60)


def test_the_noise_is_gaussian_with_the_scale_that_is_charged(tmp_path):
    """From records whose gradient is 0. False alarm: 1e-6."""
    module = nn.Linear(500, 20, bias=False)
    before = module.weight.detach().clone()
    dp = dp_of(tmp_path, batch_size=None, steps=1, lr=10.0, clip_norm=0.4)
    dp.fit(module, torch.zeros(30, 500), Y[:30])
    ((event, count),) = paid(tmp_path)[0].items()
    noise = (module.weight.detach() - before).numpy().ravel() * 30 / 10.0
    std = event.noise_multiplier * 0.4
    assert count == 1 and event.sample_rate == 1.0 and alarms(noise, std) == set()
    assert all(alarms(spoil(noise, std), std) for spoil in SPOILERS.values())


def test_two_calls_draw_noise_of_their_own(tmp_path):
    """In new folders, from the same model and records. Kills a seed."""
    models = [model(), model()]
    for number, module in enumerate(models):
        dp_of(tmp_path / str(number)).fit(module, X, Y, HERE)
    assert (start(models[0]) != start(models[1])).any()


class Mixing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


MISTAKES = {
    "mixes records": (Mixing(6, 3), None, "gives a record another output"),
    "takes other records": (nn.Linear(5, 3), None, "fails on made-up records, x .6. and y"),
    "has no classes": (
        nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
        None,
        "fails on made-up records",
    ),
    "one loss for all": (model(), nn.CrossEntropyLoss(), "fails on made-up records"),
    "a loss of others": (
        model(),
        lambda output, y: nn.functional.cross_entropy(output, y).expand(len(y)),
        "loss",
    ),
}


@pytest.mark.parametrize(("module", "loss", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_module_or_loss_costs_nothing(tmp_path, module, loss, said):
    """It is found on made-up records. Kills a budget that is used up by coding."""
    dp = dp_of(tmp_path, **({} if loss is None else {"loss": loss}))
    for _ in range(4):
        with pytest.raises(ValueError, match=said):
            dp.fit(module, X, Y, HERE)
    assert paid(tmp_path) == {}
    for _ in range(3):
        dp_of(tmp_path).fit(model(), X, Y, HERE)


def test_a_round_is_computed_by_one_thread_and_the_programs_number_is_restored(tmp_path):
    """Kills sums over records in an order that several threads choose."""
    seen = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return cross_entropy(outputs, targets)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        dp_of(tmp_path, loss=loss).fit(model(), X, Y)
        assert set(seen) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_all_rounds_cost_the_certified_epsilon_and_no_more_are_to_be_had(tmp_path, delta):
    """Also after a restart. Kills a budget for a round instead of all, one at another delta, and an
    object's memory."""
    for _ in range(3):
        dp_of(tmp_path, epsilon=3.0, delta=delta).fit(model(), X, Y, HERE)
    dp = dp_of(tmp_path, epsilon=3.0, delta=delta)
    assert accountant.epsilon(paid(tmp_path)[1], delta).epsilon == dp.certified(60)
    assert 0.99 * 3.0 < dp.certified(60) <= 3.0
    module = model()
    with pytest.raises(ValueError, match="client 1 has used up its budget, all 3 rounds"):
        dp.fit(module, X, Y, HERE)
    assert (start(module) == start(model())).all() and paid(tmp_path)[1].total() == 6


def test_a_round_that_is_asked_for_twice_is_drawn_and_charged_twice(tmp_path):
    one, two = model(), model()
    for module in (one, two):
        dp_of(tmp_path).fit(module, X, Y)
    assert (start(one) != start(two)).all() and paid(tmp_path)[0].total() == 4


@pytest.mark.parametrize("other", [{"batch_size": 30}, {"steps": 3}, {"epsilon": 9.0}])
def test_a_ledger_is_of_one_plan(tmp_path, other):
    dp_of(tmp_path).fit(model(), X, Y)
    with pytest.raises(ValueError, match="is of another plan"):
        dp_of(tmp_path, **other).fit(model(), X, Y)
    with pytest.raises(ValueError, match="is of another plan"):  # whose rate is another one
        dp_of(tmp_path).fit(model(), X[:50], Y[:50])
    assert paid(tmp_path)[0].total() == 2


def test_only_trained_parameters_change_and_the_process_stays_as_it_was(tmp_path):
    module = model()
    module[0].weight.requires_grad_(False)
    module.register_buffer("seen", torch.ones(3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        dp_of(tmp_path).fit(module, X, Y)
        assert torch.get_num_threads() == 2 and (torch.get_rng_state() == state).all()
    finally:
        torch.set_num_threads(threads)
    same = {name for name, one in module.state_dict().items() if (one == before[name]).all()}
    assert same == {"0.weight", "seen"}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_round_without_gradients_around_it_is_as_any_other(tmp_path, mode):
    """Kills a round that is paid for and fails."""
    module, before = nn.Linear(6, 3), torch.is_grad_enabled()
    weight = module.weight.detach().clone()
    with mode():
        dp_of(tmp_path).fit(module, X, Y)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled() == before and (module.weight != weight).any()


def test_threads_wait_for_each_other(tmp_path):
    """Modules are traced by patches of the whole process. Kills a thread that sees those of
    another."""
    homes = [tmp_path / str(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda home: dp_of(home).fit(model(), X, Y), homes))
    assert [paid(home)[0].total() for home in homes] == [2] * 6


def test_the_losss_gradient_is_followed(tmp_path):
    """Of a loss of one's own. With next to no noise."""
    module = nn.Linear(6, 1, bias=False)
    nn.init.zeros_(module.weight)
    dp = dp_of(
        tmp_path,
        epsilon=1e7,
        batch_size=None,
        steps=1,
        clip_norm=30.0,
        loss=lambda output, y: (output[:, 0] - y) ** 2,
    )
    dp.fit(module, X, Y.float())
    expected = 2 * (Y.float() @ X)[None] / 60
    torch.testing.assert_close(module.weight.detach(), expected, rtol=0.0, atol=0.011 * 30 * 6 / 60)
    assert expected.norm() > 0.3


def test_the_steps_of_a_round_gather_momentum(tmp_path):
    """Of a loss whose gradient is the same everywhere. With next to no noise."""
    module = nn.Linear(6, 1, bias=False)
    nn.init.zeros_(module.weight)
    own = {"batch_size": None, "steps": 3, "momentum": 0.9, "clip_norm": 8.0}
    dp_of(tmp_path, epsilon=1e7, loss=lambda output, y: output[:, 0] * y, **own).fit(
        module, X, Y.float()
    )
    expected = -(3 + 2 * 0.9 + 0.9**2) * (Y.float() @ X)[None] / 60
    torch.testing.assert_close(module.weight.detach(), expected, rtol=0.0, atol=0.03)
    assert expected.norm() > 0.5


def test_unsuitable_modules_and_records_are_refused_unpaid(tmp_path):
    mixing = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    for module, y, said in (
        (mixing, Y, "BatchNorm1d"),
        (model().double(), Y, "must be float32"),
        (model(), Y[:5], "x has 60 records and y 5 targets"),
    ):
        with pytest.raises(ValueError, match=said):
            dp_of(tmp_path).fit(module, X, y)
    with pytest.raises(ValueError, match="at least 1"):
        dp_of(tmp_path).fit(model(), X[:0], Y[:0])
    assert paid(tmp_path) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rounds": 0}, "rounds = 0 must be"),
        ({"epsilon": -1.0}, "epsilon = -1.0 is refused"),
        ({"epsilon": None}, "epsilon"),
        ({"batch_size": 0}, "batch_size = 0 is refused"),
        ({"clip_norm": float("inf")}, "clip_norm = inf is refused"),
        ({"steps": 0}, "steps = 0 is refused"),
        ({"lr": 0.0}, "lr = 0.0 is refused"),
        ({"momentum": 1.0}, "momentum = 1.0 is refused"),
        ({"optimizer": "lbfgs"}, "optimizer = 'lbfgs' is refused"),
        ({"folder": "here"}, "folder = here is relative"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, given, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}[^\n]+$"):
        dp_of(tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_word_numbers_stay_whole(tmp_path):
    """Kills records that all become floats."""
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))
    x = np.random.default_rng(0).integers(0, 9, (60, 2))
    dp_of(tmp_path).fit(module, x, Y)
    assert paid(tmp_path)[0].total() == 2
