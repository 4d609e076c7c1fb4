"""The strategies beside plain FedAvg: their formulas, their limits, and what every one of them must
leave as it is."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from mechanisms.accounting import ledger
from mechanisms.cohort import LocalState
from mechanisms.dpsgd import DpsgdPlan, draw
from mechanisms.guide import Surroundings
from mechanisms.mechanism import local_round
from mechanisms.none import NonPrivatePlan
from mechanisms.optimizers import adam, sgd
from mechanisms.registry import MECHANISMS
from mechanisms.updates import NORMALISED, UPDATE, pace
from strategies import fedavg, trial
from strategies.distillation import Distiller, objective
from strategies.fedfed import union
from strategies.registry import STRATEGIES, strategy_of
from strategies.settings import Aggregation, FedFed, StrategyName
from tests.small import OWNED, cohort, model, start
from tests.test_loop import World, outcome


@pytest.mark.parametrize("kind", [str, np.longdouble])
def test_a_state_that_no_checkpoint_can_hold_is_refused_before_a_run(kind):
    plain = fedavg.fedavg(Aggregation())
    other = replace(plain, init=lambda params: {"velocity": np.zeros(1, kind)})
    other = replace(other, aggregate=lambda state, params, mean: (state, params))
    with pytest.raises(ValueError, match="a dictionary of NumPy arrays of numbers"):
        trial.check("mine", other, 3)
    trial.check("plain", plain, 3)


UPDATES = np.random.default_rng(0).normal(size=(6, 4))
"""Rounds, parameters."""

SHAPED = {"server_momentum": 0.7, "server_beta2": 0.9, "server_tau": 0.01, "server_lr": 0.3}
LOCAL = {"steps": 3, "noise_multiplier": 2.0, "epsilon": None, "rounds": 3}
OTHERS = sorted(STRATEGIES.keys() - {"fedavg"})
"""Those that release nothing beside the clients' uploads, as FedAvg."""
SEARCHING = {name for name, mechanism in MECHANISMS.items() if mechanism.searches}


def path(name: str, updates: np.ndarray = UPDATES, **settings: float) -> np.ndarray:
    """The models after each round of ``updates``, from zero."""
    strategy, params, models = (
        STRATEGIES[name](Aggregation(**settings)),
        np.zeros(4, np.float32),
        [],
    )
    state = strategy.init(params)
    for update in updates:
        state, params = strategy.aggregate(state, params, update)
        models.append(params)
    return np.array(models)


def decayed(factor: float, terms: np.ndarray) -> np.ndarray:
    """``sum over s <= t of factor^(t - s) terms_s``, by round t."""
    ages = np.subtract.outer(np.arange(len(terms)), np.arange(len(terms)))
    return np.where(ages >= 0, factor ** np.maximum(ages, 0.0), 0.0) @ terms


def world(folder, **given) -> World:
    return World(folder, LOCAL | given)


# The server's side


def test_every_name_has_a_strategy():
    """FedFed is made from settings of its own."""
    assert {*STRATEGIES, "fedfed"} == set(get_args(StrategyName))


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("fedadagrad", 0.01**2 + (UPDATES**2).cumsum(axis=0)),
        ("fedadam", 0.01**2 * 0.9 ** np.arange(1.0, 7.0)[:, None] + 0.1 * decayed(0.9, UPDATES**2)),
    ],
)
def test_an_adaptive_path_is_that_of_the_sums_in_closed_form(name, second):
    steps = 0.3 * (0.3 * decayed(0.7, UPDATES)) / (np.sqrt(second) + 0.01)
    np.testing.assert_allclose(path(name, **SHAPED), steps.cumsum(axis=0), rtol=1e-5)


def test_yogi_moves_towards_the_newest_square_and_rests_there():
    strategy = STRATEGIES["fedyogi"](Aggregation(**SHAPED))
    state = {"first": np.zeros(4), "second": np.array([0.0, 1.0, 4.0, 9.0])}
    after, _ = strategy.aggregate(state, np.zeros(4, np.float32), np.array([2.0, 2.0, 2.0, 2.0]))
    np.testing.assert_allclose(
        after["second"] - state["second"], 0.1 * 4 * np.array([1, 1, 0, -1]), rtol=1e-12
    )


@pytest.mark.parametrize("name", ["fedadagrad", "fedyogi"])
def test_with_updates_far_below_tau_fedopt_is_fedavg(name):
    plain = path("fedavg", server_momentum=0.7, server_lr=0.5 * 0.3)
    limit = path(name, server_momentum=0.7, server_lr=0.5 * 2e5, server_tau=1e5)
    np.testing.assert_allclose(limit, plain, rtol=1e-5)


def test_an_adaptive_step_does_not_depend_on_the_scale_of_the_updates():
    """With tau negligible and nothing remembered, FedAdam goes by the sign alone."""
    settings = {"server_momentum": 0.0, "server_beta2": 0.0, "server_lr": 0.25, "server_tau": 1e-12}
    for scale in (1.0, 1e3):
        np.testing.assert_allclose(
            path("fedadam", scale * UPDATES, **settings),
            0.25 * np.sign(UPDATES).cumsum(axis=0),
            atol=1e-6,
        )


@pytest.mark.parametrize(
    ("name", "rate"), [("fedavg", 1.0), ("fedadagrad", 0.3), ("fedadam", 0.05), ("fedyogi", 0.05)]
)
def test_a_rate_that_is_left_open_is_that_of_the_help(name, rate):
    assert path(name).tobytes() == path(name, server_lr=rate).tobytes()


def test_fednova_gives_the_mean_direction_the_mean_pace():
    uploads = np.column_stack([UPDATES, np.arange(6.0)])
    expected = path("fedavg", UPDATES * np.arange(6.0)[:, None], server_momentum=0.7)
    assert path("fednova", uploads, server_momentum=0.7).tobytes() == expected.tobytes()


def test_a_generator_is_trained_where_something_is_distilled():
    """A setting of prototypes says nothing where there are none."""
    trained = {
        (source, features)
        for source in ("prototypes", "distilled", "public", "none")
        for features in ("fixed", "distilled")
        if FedFed(shared_source=source, prototype_features=features).distills
    }
    assert trained == {
        ("prototypes", "distilled"),
        ("distilled", "fixed"),
        ("distilled", "distilled"),
    }


@pytest.mark.parametrize("name", ["fedavg", *OTHERS])
def test_a_strategy_changes_nothing_that_it_was_given(name):
    strategy, params = STRATEGIES[name](Aggregation()), np.zeros(4, np.float32)
    state, upload = strategy.init(params), np.ones(4 + strategy.sent.extra)
    before = {key: value.copy() for key, value in state.items()}
    after, moved = strategy.aggregate(state, params, upload)
    assert moved.dtype == np.float32 and moved.all() and not params.any() and upload.all()
    assert {key: value.tolist() for key, value in state.items()} == {
        k: v.tolist() for k, v in before.items()
    }
    assert {key: value.shape for key, value in after.items()} == {
        key: value.shape for key, value in state.items()
    }


def own(weights):
    return replace(fedavg.fedavg(Aggregation()), weights=weights)


@pytest.mark.parametrize(
    "name", ["fedavg", *OTHERS, f"{__name__}:own", "flwr.serverapp.strategy:FedAvg"]
)
def test_weights_are_uniform_or_public_counts(name):
    """Kills strategies of the user's own, and Flower's, that are given other weights than ours."""
    sizes = np.array([3, 1, 40])
    weights = [
        strategy_of(Aggregation(strategy=name, weighting=by), FedFed()).weights(sizes)
        for by in ("records", "uniform")
    ]
    assert [w.tolist() for w in weights] == [[3, 1, 40], [1, 1, 1]] and {
        w.dtype for w in weights
    } == {sizes.dtype}


# The clients' side


def test_the_proximal_pull_is_added_to_the_noisy_gradient():
    """Draw for draw: after the noise, and unclipped however far the client has gone."""
    plan, begin = DpsgdPlan(1.0, 3.0, 1e-3, 2), start(model())
    guide = STRATEGIES["fedprox"](Aggregation(proximal_mu=50.0)).guide
    plain, led = cohort([plan] * 3), cohort([plan] * 3)
    led = replace(led, guide=guide(Surroundings(led.gradients, led.streams, begin, None)))
    mechanism = MECHANISMS["dpsgd"]
    once = [mechanism.step(c, mechanism.start(c, begin)) for c in (plain, led)]
    assert torch.equal(once[0].params, once[1].params)
    twice = [mechanism.step(c, state) for c, state in zip((plain, led), once, strict=True)]
    rate = plain.learning_rate(once[0].taken)[:, None]
    pull = rate * 50.0 * (once[0].params - begin)
    assert pull.abs().max() > plan.clip_norm
    torch.testing.assert_close(twice[0].params - twice[1].params, pull, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("optimizer", "momentum"), [(sgd(), 0.0), (sgd(0.6), 0.6)])
def test_pace_is_the_sum_of_the_optimizers_weights(optimizer, momentum):
    taken = torch.tensor([0.0, 1.0, 4.0, 3.0])
    surroundings = cohort([DpsgdPlan(1.0, 1.0, 1.0, 4)] * 4, optimizer=optimizer)
    rates = 0.5 / (1 + np.arange(4.0))
    expected = [float(decayed(momentum, np.ones(4))[: int(n)] @ rates[: int(n)]) for n in taken]
    np.testing.assert_allclose(pace(surroundings, taken), expected, rtol=1e-6)


def test_adams_pace_is_the_sum_of_its_rates():
    taken = torch.tensor([2.0, 5.0])
    surroundings = cohort([DpsgdPlan(1.0, 1.0, 1.0, 5)] * 2, optimizer=adam())
    np.testing.assert_allclose(pace(surroundings, taken), [0.75, 0.5 * 137 / 60], rtol=1e-5)


def test_a_normalised_upload_holds_the_update():
    steps = [1, 2, 5, 3]
    surroundings = cohort([NonPrivatePlan(1.0, n) for n in steps])
    begin = start(model())
    end = local_round(MECHANISMS["none"], surroundings, begin)
    rows = NORMALISED.rows(surroundings, begin, end)
    assert end.taken.tolist() == steps and rows.shape == (4, len(begin) + NORMALISED.extra)
    torch.testing.assert_close(rows[:, :-1] * rows[:, -1:], UPDATE.rows(surroundings, begin, end))
    assert rows[:, -1].tolist() == pytest.approx(
        [0.5 * sum(1 / k for k in range(1, n + 1)) for n in steps]
    )


def test_a_client_without_a_step_sends_zeros():
    surroundings, begin = cohort([NonPrivatePlan(1.0, 1)] * 2), start(model())
    idle = LocalState.start(surroundings, begin)
    assert not NORMALISED.rows(surroundings, begin, idle).any()


def test_fednova_weighs_clients_by_their_records_and_not_by_their_steps():
    """Equal clients but for the steps: the direction is the mean of the directions, whoever took
    more of them."""
    begin, clients = start(model()), [0, 1, 2, 3]
    surroundings = cohort([NonPrivatePlan(1.0, n) for n in (1, 9, 1, 1)], clients)
    surroundings = replace(surroundings, learning_rate=lambda taken: torch.full_like(taken, 1e-4))
    end = local_round(MECHANISMS["none"], surroundings, begin)
    sizes = np.array([len(own) for own in OWNED])
    upload = (sizes / sizes.sum()) @ NORMALISED.rows(surroundings, begin, end).double().numpy()
    strategy = STRATEGIES["fednova"](Aggregation(server_momentum=0.0))
    _, after = strategy.aggregate(strategy.init(begin.numpy()), begin.numpy(), upload)
    batch = draw(surroundings)
    rows = begin.expand(4, -1).clone()
    of_all_records, _ = surroundings.gradients.scaled_sum(
        rows, batch.x, batch.y, lambda norms: batch.mask.float()
    )
    direction, moved = -of_all_records.sum(dim=0).numpy(), after - begin.numpy()
    assert moved @ direction / np.linalg.norm(moved) / np.linalg.norm(direction) > 0.9999


# Whole runs


def test_fedprox_without_pull_and_with_one_step_is_fedavg_bit_for_bit(tmp_path):
    plain = outcome(world(tmp_path / "a").run())
    assert outcome(world(tmp_path / "b", strategy="fedprox", proximal_mu=0.0).run()) == plain
    assert outcome(world(tmp_path / "c", strategy="fedprox", proximal_mu=5.0).run()) != plain
    once = outcome(world(tmp_path / "d", steps=1).run())
    assert (
        outcome(world(tmp_path / "e", steps=1, strategy="fedprox", proximal_mu=5.0).run()) == once
    )


@pytest.mark.parametrize("optimizer", [{"momentum": 0.5}, {"optimizer": "adam"}])
def test_fednova_with_equal_steps_is_fedavg_to_rounding(tmp_path, optimizer):
    both = [
        world(tmp_path / name, strategy=name, **optimizer).run() for name in ("fedavg", "fednova")
    ]
    a, b = (standing.now.params for standing in both)
    assert np.abs(a).max() > 0.1
    np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_no_strategy_changes_what_a_client_pays(tmp_path, name):
    for strategy in ("fedavg", name):
        world(tmp_path / strategy, strategy=strategy).run()
    assert ledger.read(tmp_path / name / "ledger") == ledger.read(tmp_path / "fedavg" / "ledger")


@pytest.mark.parametrize("name", OTHERS)
def test_grouping_and_a_crash_change_no_bit(tmp_path, name):
    """The strategy's state is in the checkpoints, and sums do not depend on who adds them up."""
    given = {"strategy": name, "mechanism": "dpsur", "chunk_clients": 3}
    straight = outcome(world(tmp_path / "a", **given).run())
    assert outcome(world(tmp_path / "b", groups=1, **given).run()) == straight
    assert outcome(world(tmp_path / "c", **given).crashed(3, 1).run()) == straight


@pytest.mark.parametrize("mechanism", sorted(set(MECHANISMS) - SEARCHING))
def test_the_guide_leads_every_mechanism(tmp_path, monkeypatch, mechanism):
    """A guide that answers 0 keeps every client where it is."""
    still = lambda around: lambda params, gradient: torch.zeros_like(gradient)  # noqa: E731
    monkeypatch.setitem(
        STRATEGIES, "fedavg", lambda settings: replace(fedavg.fedavg(settings), guide=still)
    )
    one = world(tmp_path, mechanism=mechanism)
    assert one.run().now.params.tobytes() == one.federation.initial.tobytes()


@pytest.mark.parametrize("name", ["fedprox", "fednova"])
def test_a_mechanism_that_searches_its_step_size_is_not_led(tmp_path, name):
    assert "dpagd" in SEARCHING
    with pytest.raises(ValueError, match=f"strategy is {name}, but dpagd .* use --strategy fedavg"):
        _ = world(tmp_path, strategy=name, mechanism="dpagd").job


def test_shared_records_stand_in_the_order_of_their_clients_whoever_hosts_them():
    """Groups that hold every other client. Kills records in the order of groups; a client's own
    keep theirs."""
    x = np.arange(12.0).reshape(6, 2)
    client, y = np.array([2, 0, 2, 1, 3, 1]), np.arange(6)
    groups = [{"x": x[a:b], "y": y[a:b], "client": client[a:b]} for a, b in ((0, 3), (3, 6))]
    for order in (groups, groups[::-1]):
        records, labels = union(order, (2, 1))
        assert labels.tolist() == [1, 3, 5, 0, 2, 4] and records.shape == (6, 2, 1)
        assert np.array_equal(records.reshape(6, 2), x[labels])


def test_the_generators_objective_is_the_lagrangian():
    """CE(f(x_s), y) + penalty |x_s|^2 / D + 0.01 |z|^2 / 2, record by record."""
    module = Distiller((2, 3), 4, 2)
    x, y = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 4
    code = module.splitter.encoder(x)
    rest = x.flatten(1) - module.splitter.decoder(code)
    expected = torch.nn.functional.cross_entropy(module.classifier(rest), y, reduction="none")
    expected = expected + 0.3 * (rest**2).sum(dim=1) / 6 + 0.01 * (code**2).sum(dim=1) / 2
    assert torch.allclose(objective(0.3)(module(x), y), expected, atol=1e-6)
