"""FedFed's parts by themselves: how shared records join a step, what is made of releases, and the
generator's loss."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from mechanisms.guide import Surroundings
from strategies.distillation import CODE_WEIGHT, Distiller, objective, sensitive
from strategies.fedfed import fedfed, prototypes, union
from strategies.settings import Aggregation, FedFed
from tests import small
from tests.test_fedfed import small_plans
from tests.test_loop import World

WEIGHT = 0.3


def joined(
    records: tuple, params: torch.Tensor, gradient: torch.Tensor, batch: int
) -> torch.Tensor:
    """What the guide makes of ``gradient [2, P]`` at ``params [2, P]``, for clients whose round
    began elsewhere."""
    world = small.cohort(small_plans("dpsgd"))
    around = Surroundings(world.gradients, world.streams, small.start(small.model()), records)
    guide = fedfed(Aggregation(), FedFed(shared_weight=WEIGHT, shared_batch=batch)).guide(around)
    return guide(params, gradient)


@pytest.mark.parametrize("batch", [4, 20, 64])
def test_the_shared_gradient_is_the_mean_over_the_drawn_records_at_each_clients_present_model(
    batch,
):
    """Of equal records, so that the mean is known whichever are drawn."""
    module, rng = small.model(), torch.Generator().manual_seed(1)
    params = small.start(module) + torch.randn(2, 53, generator=rng)
    gradient = torch.randn(2, 53, generator=rng)
    records = small.X[:1].expand(20, -1), small.Y[:1].expand(20)
    expected = [
        (1 - WEIGHT) * g + WEIGHT * small.plain_gradients(module, p, small.X[:1], small.Y[:1])[0]
        for p, g in zip(params, gradient, strict=True)
    ]
    torch.testing.assert_close(
        joined(records, params, gradient, batch), torch.stack(expected), rtol=1e-4, atol=1e-5
    )


def test_every_shared_record_is_drawn_as_often_as_any_other():
    """600 draws of 5 out of 60 by each of 2 clients: counts stray by 9.5 from 100; 60 of them by 6
    deviations with a probability below 1e-6. Kills a draw from the first records alone."""
    counts = torch.zeros(60)

    class Spy:
        def scaled_sum(self, params, x, y, factors):
            counts.index_add_(0, x.flatten().long(), torch.ones(x.numel()))
            return torch.zeros_like(params), None

    world = small.cohort(small_plans("dpsgd"))
    numbered = torch.arange(60.0)[:, None], torch.zeros(60, dtype=torch.int64)
    guide = fedfed(Aggregation(), FedFed(shared_batch=5)).guide(
        Surroundings(Spy(), world.streams, small.start(small.model()), numbered)
    )
    for _ in range(600):
        guide(torch.zeros(2, 53), torch.zeros(2, 53))
    assert counts.sum() == 6000 and (counts - 100).abs().max() < 57


def test_drawing_shared_records_moves_no_other_draw(tmp_path):
    """Without weight they change no bit: batches and noise come from streams of their own."""
    given = {"steps": 3, "public_records": 20, "rounds": 2}
    weightless = {
        "strategy": "fedfed",
        "shared_source": "public",
        "shared_weight": 0.0,
        "shared_batch": 5,
    }
    shared, plain = World(tmp_path / "shared", given | weightless), World(tmp_path / "plain", given)
    assert shared.run().now.params.tobytes() == plain.run().now.params.tobytes()
    weighty = World(tmp_path / "weighty", given | weightless | {"shared_weight": 0.1})
    assert weighty.run().now.params.tobytes() != plain.run().now.params.tobytes()


def test_prototypes_are_sums_over_the_records_that_a_client_has_of_a_class_on_average():
    sums = np.arange(1.0, 25.0)
    x, y = prototypes(sums, 40.0, (2, 3))
    assert x.shape == (4, 2, 3) and x.dtype == np.float32 and y.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(x.reshape(4, 6), sums.reshape(4, 6) / (40.0 / 4), rtol=1e-6)


def test_single_records_stand_in_the_order_of_clients_whoever_brings_them():
    clients = [[4, 0, 0], [7], [2, 2, 1]]
    groups, number = [], 0
    for own in clients:
        numbers = np.arange(number, number + len(own), dtype=np.float32)
        groups.append(
            {
                "x": np.repeat(numbers, 2),
                "y": numbers.astype(np.int64) + 10,
                "client": np.array(own),
            }
        )
        groups[-1]["x"] = groups[-1]["x"].reshape(-1, 2)
        number += len(own)
    for order in permutations(groups):
        x, y = union(order, (1, 2))
        assert x[:, 0, 0].tolist() == [1, 2, 6, 4, 5, 0, 3] and x.shape == (7, 1, 2)
        assert (y == x[:, 0, 1] + 10).all()


def test_the_generators_loss_is_the_stated_lagrangian():
    """CE(f(x_s), y) + penalty |x_s|^2 / D + beta |z|^2 / 2, part by part, from the layers
    themselves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module, x = Distiller((2, 3), 4, 5).double(), torch.randn(7, 2, 3, dtype=torch.float64)
    y, encoder, decoder = torch.arange(7) % 4, module.splitter.encoder, module.splitter.decoder
    code = encoder[3](torch.tanh(encoder[1](x.flatten(1))))
    part = x.flatten(1) - decoder[2](torch.tanh(decoder[0](code)))
    logits = module.classifier[2](torch.tanh(module.classifier[0](part)))
    assert code.shape == (7, 5) and logits.shape == (7, 4)
    features = sensitive(module.splitter)
    torch.testing.assert_close(features(x), part.detach())
    assert features(x[:0]).shape == (0, part.shape[1])
    cross_entropy = logits.logsumexp(dim=1) - logits[torch.arange(7), y]
    for penalty in (0.0, 2.5):
        expected = (
            cross_entropy
            + penalty * (part**2).sum(dim=1) / 6
            + CODE_WEIGHT * (code**2).sum(dim=1) / 2
        )
        torch.testing.assert_close(objective(penalty)(module(x), y), expected)
    assert math.isclose(CODE_WEIGHT, 0.01)


def test_the_last_bits_of_a_sensitive_part_do_not_depend_on_other_records():
    """A release adds up the parts of all of a client's records. Kills parts of a whole batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        features, x = sensitive(Distiller((28, 28), 10, 16).splitter), torch.rand(40, 28, 28)
    whole = features(x)
    for n in (1, 2, 5, 17, 39):
        assert torch.equal(features(x[-n:]), whole[-n:])
