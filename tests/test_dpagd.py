"""DPAGD: what measurements and searches release has the planned noise, and a client does what its
search says."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from mechanisms import dpagd
from mechanisms.accounting.allotment import Account
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpagd_plan import DpagdPlan
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.optimizers import sgd
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import CohortData
from mechanisms.settings import Dpagd
from tests.gaussian import SPOILERS, alarms
from tests.small import OWNED, X, Y, cohort, model, plain_gradients, start, streams

DPAGD, DPSGD = MECHANISMS["dpagd"], MECHANISMS["dpsgd"]


def plan(rate=1.0, noise=2.0, steps=4, rounds=3, **own) -> DpagdPlan:
    chosen = {"agd_candidates": 3, "agd_raises": 3, "agd_window": 2, **own}
    return DpagdPlan(rate, noise, 0.8, steps, rounds, 1e-5, "flat", Dpagd(**chosen))


def world(
    plans: list[DpagdPlan], lr: float = 0.5, seed: int = 3, clients: list[int] | None = None
) -> Cohort:
    """Some clients (the first ones, by default), with momentum, in their first round."""
    accounts = [Account(p.allotment.order, p.allotment.rdp) for p in plans]
    here = dataclasses.replace(
        cohort(plans, clients, seed=seed, optimizer=sgd(0.5)), accounts=accounts
    )
    return dataclasses.replace(here, learning_rate=lambda taken: torch.full_like(taken, lr))


def first(here: Cohort) -> LocalState:
    return DPAGD.start(here, start(model()))


def test_a_cohort_is_its_clients_one_by_one():
    """Clients that go different ways: other rates and noise, and one that cannot pay for a single
    step."""
    terms = ((0.5, 2.0), (0.9, 3.0), (1.0, 2.0), (1.0, 1.0))
    plans = [plan(rate=rate, noise=noise, agd_candidates=1) for rate, noise in terms]
    here = world(plans, seed=1)
    here.accounts[3:] = [dataclasses.replace(here.accounts[3], spent=here.accounts[3].allotted)]
    together = local_round(DPAGD, here, start(model()))
    assert len({str(row) for row in together.memory["counts"].tolist()}) == 4
    assert (
        torch.equal(together.params[3], start(model())) and not together.memory["counts"][3].any()
    )
    for k in range(4):
        alone = dataclasses.replace(
            here,
            data=CohortData(X, Y, [OWNED[k]]),
            plans=[plans[k]],
            accounts=[here.accounts[k]],
            streams=streams([k], seed=1),
            nth=[1],
        )
        single = local_round(DPAGD, alone, start(model()))
        torch.testing.assert_close(single.params[0], together.params[k], rtol=1e-5, atol=1e-5)
        for name in ("counts", *DPAGD.lasting):
            torch.testing.assert_close(single.memory[name][0], together.memory[name][k])


@pytest.mark.filterwarnings("ignore:epsilon")
def test_a_step_of_size_one_is_that_of_dpsgd():
    """The special part off: one candidate, the learning rate itself, and a search that is nearly
    sure of it."""
    quiet = plan(noise=1e-6, agd_search_share=1 - 1e-8, agd_candidates=1, agd_stretch=0.0)
    here = world([quiet] * 4, lr=0.1)
    book = DpsgdPlan(1.0, quiet.gradient_multiplier(0), quiet.clip_norm, 4)
    plain = dataclasses.replace(here, plans=[book] * 4, streams=streams(range(4)))
    assert book.noise_multiplier == pytest.approx(0.01)
    got, expected = (
        local_round(m, w, start(model())).params for m, w in ((DPAGD, here), (DPSGD, plain))
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert (got - start(model())).norm(dim=1).min() > 0.05


def test_a_default_type_moves_no_bit():
    """As a module of the user's may set it. Kills a largest step size that is rounded to eight
    digits."""
    one, params = plan(agd_largest=0.3), start(model())
    worlds = [world([one] * 4), world([one] * 4)]
    expected = local_round(DPAGD, worlds[0], params)
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = local_round(DPAGD, worlds[1], params)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got.params, expected.params)
    assert torch.equal(got.memory["alpha_max"], expected.memory["alpha_max"])


def errors(one: DpagdPlan, raises: int, seeds: range) -> np.ndarray:
    """The noise on the averaged gradient after some raises of its budget, over C, of all
    clients."""
    sums = []
    for own in OWNED:
        gradients = torch.stack(plain_gradients(model(), start(model()), X[own], Y[own]))
        sums.append(
            (gradients * (one.clip_norm / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(
                dim=0
            )
        )
    found = []
    for seed in seeds:
        here = world([one] * 4, seed=seed)
        state = dpagd._measure(here, first(here))
        for _ in range(raises):
            state = dpagd._measure(here, dpagd._raise(here, state))
        found.append(
            (state.memory["gradient"] - torch.stack(sums)).double().numpy() / one.clip_norm
        )
    return np.stack(found)


@pytest.mark.parametrize("raises", [0, 1, 3])
def test_the_averaged_gradient_is_unbiased_and_has_the_variance_of_its_budget(raises):
    """GradAvg is the mean by inverse variances: kills equal weights. False alarm: 1e-6 each."""
    one = plan(agd_growth=0.1)
    noise, std = errors(one, raises, range(100, 108)).ravel(), one.gradient_multiplier(raises)
    assert std == pytest.approx(2.0 / 0.9**0.5 / 1.1 ** (raises / 2))
    assert not alarms(noise, std)
    for name, spoil in SPOILERS.items():
        assert alarms(spoil(noise, std), std), name


def test_a_search_has_the_noise_of_its_whole_vector():
    """sqrt(m) c s_v on each coordinate, new for every one. False alarm: 1e-6."""
    many = plan(agd_candidates=60, agd_change_clip=0.2)
    still = dataclasses.replace(many, noise_multiplier=1e-9)
    found = []
    for seed in range(200, 206):
        here = world([many] * 4, seed=seed)
        silent = dataclasses.replace(world([many] * 4, seed=seed), plans=[still] * 4)
        move = torch.ones(4, len(start(model())))
        found.append(
            dpagd.noisy_changes(here, first(here), move)
            - dpagd.noisy_changes(silent, first(silent), move)
        )
    noise, std = torch.cat(found).numpy().ravel(), 60**0.5 * 0.2 * 2.0 / 0.1**0.5
    assert not alarms(noise, std)
    for name, spoil in SPOILERS.items():
        assert alarms(spoil(noise, std), std), name


@pytest.mark.parametrize(
    "own", [{"agd_change_clip": 0.2}, {"agd_change_clip": None, "agd_loss_clip": 1.5}]
)
def test_a_record_moves_a_search_by_at_most_its_sensitivity(own):
    """Every record of three clients left out in turn; along wild moves the bound is nearly reached,
    never passed."""
    one = plan(**own)
    still = dataclasses.replace(one, noise_multiplier=1e-12)
    bound = dpagd.change_clip(still) * 3**0.5
    assert dpagd.change_clip(still) == (own["agd_change_clip"] or 1.5)
    lists = [(k, i) for k in (0, 1, 3) for i in range(len(OWNED[k]))]
    whole = world([one] * len(lists), clients=[k for k, _ in lists])
    whole = dataclasses.replace(whole, plans=[still] * len(lists))
    without = dataclasses.replace(
        whole, data=CohortData(X, Y, [np.delete(OWNED[k], i) for k, i in lists])
    )
    largest = []
    for scale in (0.1, 30.0):
        move = scale * torch.randn(
            len(lists), len(start(model())), generator=torch.Generator().manual_seed(0)
        )
        a, b = (dpagd.noisy_changes(w, first(w), move) for w in (whole, without))
        largest.append((a - b).norm(dim=1).max().item())
    assert max(largest) <= bound * (1 + 1e-9) and largest[1] > 0.9 * bound
    for broken in (torch.inf, torch.nan):
        released = dpagd.noisy_changes(whole, first(whole), torch.full_like(move, broken))
        assert released.isfinite().all(), "kills a record whose loss is no number"
        assert (released > 0).all(), "kills one that counts as small, so that its step is chosen"


class Line(nn.Module):
    """One weight w, logits (0, w x): on records x = 1 the loss is convex, least where sigmoid(w) is
    label 1's share."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(x), self.weight * x], dim=1)


SHARES, EACH = (0.75, 0.25), 40
LABELS = torch.cat([(torch.arange(EACH) < share * EACH).long() for share in SHARES])


def valley(*plans: DpagdPlan) -> tuple[Cohort, LocalState]:
    """Clients at w = 0 whose losses stand far above their noise, and where they start."""
    quiet = [dataclasses.replace(one, noise_multiplier=1e-4) for one in plans]
    here = dataclasses.replace(world(list(plans)), plans=quiet, gradients=RecordGradients(Line()))
    return here, DPAGD.start(here, torch.zeros(1))


def step(here: Cohort, state: LocalState, choices: list[int]) -> LocalState:
    """A step in which each client, all but certainly, chooses so.

    Its records put the least loss on the other side of 0 than its w, and its learning rate puts
    there the candidate of that number; for 0, even the first one lands far beyond. The rest are
    worse by 1 nat at least, and the noise on their difference is 0.016 nats. False alarm: below
    1e-100 each.
    """
    w, alpha = state.params[:, 0], state.memory["alpha_max"]
    side = (w > 0).long()
    share = torch.tensor(SHARES)[side]
    ahead, direction = share.logit() - w, share - w.sigmoid() - 0.5 * state.optimizer[0][:, 0]
    parts = torch.tensor([3 / choice if choice else 3 * 4.0 for choice in choices])
    rate = ahead / direction * parts / alpha
    data = CohortData(
        torch.ones(2 * EACH, 1), LABELS, [np.arange(EACH) + EACH * n for n in side.tolist()]
    )
    return DPAGD.step(dataclasses.replace(here, data=data, learning_rate=lambda taken: rate), state)


WIDE = {"agd_change_clip": None, "agd_loss_clip": 20.0}


def test_zero_raises_the_budget_and_another_choice_moves():
    """Client 0 finds no step size twice, then one; client 1 moves at once."""
    here, state = valley(*[plan(agd_growth=0.5, agd_largest=3.0, **WIDE)] * 2)
    for choices in ([0, 2], [0, 3], [1, 1]):
        before, state = state, step(here, state, choices)
    assert state.memory["level"].tolist() == [2, 0] and state.taken.tolist() == [1, 3]
    assert state.memory["counts"].tolist() == [
        [[1, 0, 0, 0], [0, 1, 1, 0]],
        [[3, 0, 0, 0], [0, 0, 0, 0]],
    ]
    assert before.params[0] == 0 and not before.optimizer[0][0].any(), "nothing has moved"
    found = torch.tensor([[SHARES[0]], [SHARES[0]]]).logit()
    torch.testing.assert_close(state.params, found, rtol=1e-2, atol=0.0)
    assert state.memory["measured"].tolist() == [0, 0]


def test_the_largest_step_size_follows_the_chosen_ones():
    """tau = 2, eta = 0.1: (1 + eta) times the larger of the last two; zeros do not count."""
    (here, state), limits = valley(plan(agd_largest=3.0, **WIDE)), []
    for chosen in (1, 0, 2, 3, 1, 1, 1):
        state = step(here, state, [chosen])
        limits.append(state.memory["alpha_max"].item())
    assert limits == pytest.approx([3.0, 3.0, 2.2, 2.2, 2.42, 2.42, 1.1 * 2.42 / 3])


def test_at_its_bound_a_zero_ends_the_step():
    """Kills a client that goes on measuring: four zeros, three raises, one step over, and a fresh
    gradient next."""
    here, state = valley(plan(**WIDE))
    for _ in range(4):
        state = step(here, state, [0])
    assert state.memory["level"].tolist() == [3] and state.taken.tolist() == [1]
    assert state.memory["measured"].tolist() == [0] and state.params.tolist() == [[0.0]]
    state = step(here, state, [0])
    assert state.memory["counts"].tolist() == [[[1, 0, 0, 1], [0, 1, 1, 1]]]
