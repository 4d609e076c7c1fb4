"""A local round makes the host wait for no device.

On the device ``meta`` tensors have no values: whatever reads one raises an error, and so does an
operation on tensors of two devices. So what runs there would run on a GPU without waiting for it.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.optimizers import OPTIMIZERS
from mechanisms.placing import known, place
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.sampling import CohortData
from mechanisms.settings import Privacy
from tests import small
from tests.devices import META, Asynchronous

WORDS = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (60, 5)))
IMAGES = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2, 6, 6)).astype(np.float32))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))


def world(
    module: nn.Module,
    x: torch.Tensor,
    where: torch.device = META,
    optimizer: str = "sgd",
    **privacy: object,
):
    """Four clients of one to three steps on a device, and their model there."""
    settings = {"epsilon": None, "noise_multiplier": 1.0, "sample_rate": 0.5, **privacy}
    plans = [
        plan_table(Privacy(**settings), None, np.array([steps]), 1, np.array([8])).of(0)
        for steps in (1, 3, 2, 3)
    ]
    start = small.start(module).to(where)
    own = small.CPU if where == META else where  # the way to gradients is found with values
    gradients = RecordGradients(module.to(own))
    gradients.is_tapped(x[None, :2].to(own), small.Y[None, :2].to(own))
    cohort = dataclasses.replace(
        small.cohort(plans, module=module, optimizer=OPTIMIZERS[optimizer](0.9)),
        gradients=gradients,
        data=CohortData(x.to(where), small.Y.to(where), small.OWNED),
        streams=Streams(seed_key(3), 1, range(4), where),
    )
    return cohort, start


@pytest.mark.parametrize(
    ("make", "x", "settings"),
    [
        (small.model, small.X, {}),
        (small.model, small.X, {"sample_rate": 1.0, "clipping": "auto", "optimizer": "adam"}),
        (small.model, small.X, {"clip_quantile": 0.5, "noise_decay": 0.1}),
        (convolutions, IMAGES, {}),
        (words, WORDS, {}),
    ],
    ids=["mlp", "full batches", "moving bound", "convolutions", "words"],
)
def test_a_local_round_of_dpsgd_waits_for_nothing(make, x, settings):
    """Kills a value that is read, a copy that is waited for, and a constant on the host."""
    cohort, start = world(make(), x, META, **settings)
    with Asynchronous():
        end = local_round(MECHANISMS["dpsgd"], cohort, start)
    assert {end.params.device, end.taken.device, end.memory["clip_norm"].device} == {META}


def test_a_local_round_without_privacy_asks_whether_its_sums_are_finite():
    """Once in a step; DPSGD masks its records instead."""
    cohort, start = world(small.model(), small.X, META, mechanism="none")
    with pytest.raises(RuntimeError, match="meta"), Asynchronous():
        local_round(MECHANISMS["none"], cohort, start)


def test_what_waits_is_noticed():
    value = torch.ones(3, device=META)
    for waiting in (
        lambda: bool((value > 0).any()),
        lambda: value.tolist(),
        lambda: value.cpu(),
        lambda: value[value > 0],
        lambda: torch.tensor([1.0], device=META),
        lambda: value.new_tensor([1.0]),
        lambda: torch.ones(3).to(META),
        lambda: torch.ones(3).to(value),
        lambda: value + torch.ones(3),
    ):
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)), Asynchronous():
            waiting()


def test_a_tensor_stays_where_it_is_and_goes_where_it_is_wanted():
    here = torch.arange(3.0)
    assert place(here, small.CPU) is here
    with Asynchronous():
        there = place(here, META)
        assert there.device == META and place(there, META) is there


def test_a_copy_to_the_host_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(
        torch.Tensor, "to", lambda *_, non_blocking: waited.append(not non_blocking)
    )
    place(torch.ones(3, device=META), small.CPU)
    place(torch.ones(3), META)
    assert waited == [True, False]


def test_the_host_knows_values_of_its_own_only():
    yes, no = torch.ones(2, dtype=torch.bool), torch.tensor([True, False])
    assert known(yes) and not known(no) and known(yes[:0]) and not known(yes.to(META))
