"""Optimizers on the client axis are PyTorch's, row by row."""

import functools

import pytest
import torch
from safetensors.numpy import load

from mechanisms.optimizers import OPTIMIZERS, SCHEDULES, Optimizer, adam, sgd
from mechanisms.registry import MECHANISMS
from sim.phases import training
from tests import phases

CASES = {
    "sgd": (sgd(), torch.optim.SGD),
    "sgd, momentum": (sgd(0.9), functools.partial(torch.optim.SGD, momentum=0.9)),
    "adam": (adam(), torch.optim.Adam),
    "adam, betas": (
        adam(0.5, 0.9, 1e-3),
        functools.partial(torch.optim.Adam, betas=(0.5, 0.9), eps=1e-3),
    ),
}
GRADIENTS = torch.randn(12, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
"""Steps, clients, parameters."""


def descend(optimizer: Optimizer, gradients: torch.Tensor) -> torch.Tensor:
    params = torch.zeros_like(gradients[0])
    state = optimizer.init(params)
    for gradient in gradients:
        direction, state = optimizer.update(gradient, state)
        params = params - 0.1 * direction
    return params


@pytest.mark.parametrize(("ours", "reference"), CASES.values(), ids=CASES)
def test_the_path_is_that_of_torch(ours, reference):
    """Kills a missing bias correction, a damped momentum, and epsilon inside the root."""
    params = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    theirs = reference([params], lr=0.1)
    for gradient in GRADIENTS:
        params.grad = gradient.clone()
        theirs.step()
    torch.testing.assert_close(descend(ours, GRADIENTS), params.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ours", [ours for ours, _ in CASES.values()], ids=CASES)
def test_rows_are_independent(ours):
    together = descend(ours, GRADIENTS)
    for row in range(3):
        torch.testing.assert_close(
            together[row], descend(ours, GRADIENTS[:, [row]])[0], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("ours", [ours for ours, _ in CASES.values()], ids=CASES)
def test_every_tensor_of_the_state_has_a_row_per_client(ours):
    """Kills a step counter shared by the cohort, which a rejected step could not restore."""
    state = ours.init(torch.zeros(3, 5))
    assert all(len(tensor) == 3 for tensor in state)
    _, after = ours.update(torch.ones(3, 5), state)
    assert [t.shape for t in after] == [t.shape for t in state]
    assert all(not tensor.any() for tensor in state), (
        "update must not write into the state it was given"
    )


def test_the_setting_momentum_means_adams_first_beta():
    for momentum, expected in ((0.0, adam()), (0.7, adam(0.7))):
        assert torch.equal(
            descend(OPTIMIZERS["adam"](momentum), GRADIENTS), descend(expected, GRADIENTS)
        )
    assert torch.equal(descend(OPTIMIZERS["sgd"](0.7), GRADIENTS), descend(sgd(0.7), GRADIENTS))


def test_schedules_start_at_one_and_never_rise():
    done = torch.linspace(0, 0.999, 50)
    for schedule in SCHEDULES.values():
        factors = schedule(done)
        assert factors[0] == 1 and (factors > 0).all() and (factors.diff() <= 0).all()


def test_schedules_half_way():
    half = torch.tensor([0.5])
    assert {name: float(schedule(half)) for name, schedule in SCHEDULES.items()} == pytest.approx(
        {"constant": 1, "linear": 0.5, "cosine": 0.5}
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_a_run_falls_over_all_its_steps(tmp_path, name):
    """From the first step of the first round to the last of the last. Kills a fraction that is a
    round ahead."""
    job = phases.job(tmp_path, lr=0.3, lr_schedule=name, rounds=4, steps=5)
    rate = training.node(job, 0, tmp_path)._training.learning_rate
    taken = torch.arange(5.0)
    for round_ in (1, 2, 4):
        expected = 0.3 * SCHEDULES[name](((round_ - 1) * 5 + taken) / 20)
        assert torch.allclose(rate(round_, taken, torch.full((5,), 5.0)), expected)


def test_what_clients_keep_is_the_optimizers_state_and_the_mechanisms_own(tmp_path):
    """Of a node as a run makes it."""
    given = {
        "keep_state": True,
        "momentum": 0.5,
        "clip_quantile": 0.5,
        "standardize": "none",
        "strategy": "fedavg",
    }
    job = phases.job(tmp_path, **given)
    training.node(job, 0, tmp_path).train(phases.ask(phases.PHASES["training"], job, 1, [0, 2]))
    kept = load((tmp_path / "clients" / "group-0000" / "round-000001.safetensors").read_bytes())
    assert kept.keys() == {"clients", "optimizer.0", *MECHANISMS["dpsgd"].lasting} and kept[
        "clip_norm"
    ].shape == (2,)
