"""DPAGD: Lee, Kifer, "Concentrated Differentially Private Gradient Descent with Adaptive
per-Iteration Privacy Budget", KDD 2018. For K clients at once.

Algorithm 2, per client with its public number of records n. A step measures the gradient with its
present budget rho_ng (precision, ``rho = 1 / (2 s^2)`` for noise multiplier s) and searches for a
step size along it:

    g~    = sum_{i in B} clip(g_i, C_grad)  +  N(0, (s_g C_grad)^2 I)
    d     = direction(g~ / (q n)),  Phi = {0, 1/m, ..., 1} alpha_max
    alpha = argmin over Phi of  sum_{i in B'} l_i(w - lr alpha d)  +  noise            (NoisyMax)

- alpha > 0: w <- w - lr alpha d. After every tau such moves alpha_max <- (1 + eta) (the largest of
  their alpha).
- alpha = 0: no step size helps, the direction is too noisy. rho_ng <- (1 + gamma) rho_ng, a further
  measurement g_2 of precision gamma times the old rho_ng is released, ``g~ <- (g~ + gamma g_2) / (1
  + gamma)`` is the mean by inverse variances, of precision (1 + gamma) rho_ng (GradAvg), and a
  search along it follows.

B and B' are Poisson batches of rate q, drawn afresh for every release. A raised rho_ng stays for
the steps to come in the round (with ``keep_state``, as alpha_max does, for later rounds).

Guarantee: one record of one client, zero-out adjacency. A measurement is ``SGM(q, s)`` at its own
s. A search is one Gaussian vector: each record adds a vector in [-c, c]^m (changes of its loss), of
norm at most ``sqrt(m) c``; the noise on every coordinate has deviation ``s_v sqrt(m) c``, and the
choice is post-processing: ``SGM(q, s_v)``. Noise, candidates and the end of a round depend on
earlier outputs (and on no other secret), so the run is adaptive: equal allotments in advance and a
filter, with q = 1 of one Gaussian, else at one order (`accounting.allotment`). A round's allotment
is the cost of its planned steps at the first budgets. A measurement and its search are made if what
is left pays for both; else the client idles until the round's end, and what it did not spend is
left for its next round.

Deviations, and why:

- The paper has no sampled batches: with q = 1 a step is its step, and GradAvg measures one and the
  same sum again.
- NoisyMax: the paper releases the choice alone, with noise whose cost is known without sampling. A
  Gaussian vector is released here, because the accountant knows its cost under sampling.
- A record's loss is clipped to [0, C_obj], and its change from the present model is compared. The
  argmin is the same, but alpha = 0 needs no noise, and the change has a bound c of its own, which
  can be much smaller: losses are of order one, their changes in one step are not. With
  ``agd_change_clip none`` the bound is as published, c = C_obj.
- The paper normalises g~ and its step sizes are lengths. Here d is what the optimizer makes of
  DPSGD's gradient, and step sizes are multiples of the learning rate: alpha = 1 is DPSGD's step,
  draw for draw.
- rho_ng grows a bounded number of times. After that, alpha = 0 ends the step and leaves w as it is.
- The paper composes in zCDP, which bounds all orders at once. Sampled Gaussians do not satisfy
  zCDP, so they take one order; with q = 1 a run is certified as one Gaussian. The published cost is
  the planned budget: with q = 1 it is exactly the paper's total rho.

Edge cases: an empty batch adds noise and counts. A record with a non-finite gradient adds 0; a loss
that is not a number counts as C_obj.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from mechanisms import dpsgd
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import ROUNDING, covered
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpagd_plan import FRESH, FURTHER, DpagdPlan
from mechanisms.equal_rounds import calibrate, epsilons_spent, with_accounts
from mechanisms.mechanism import Mechanism
from mechanisms.sampling import poisson

LASTING = ("level", "alpha_max", "peak", "moves")
"""Memory that a client keeps from round to round, if it keeps any."""


def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
    """The state before the first step from ``params [P]``.

    Memory: DPSGD's, and ``level`` int64 ``[K]``, how often rho_ng has grown; ``alpha_max``;
    ``peak`` and ``moves``, the largest alpha and the number of moves since alpha_max changed;
    ``measured`` int64 ``[K]``, measurements of the present gradient, and ``gradient [K, P]``, their
    mean; ``counts`` int64 ``[K, 2, levels]``, measurements in this round.
    """
    state, plans = dpsgd.start(cohort, params), _plans(cohort)
    none = torch.zeros(len(plans), dtype=torch.int64, device=params.device)
    return state.remember(
        level=none,
        alpha_max=state.taken.new_tensor([p.own.agd_largest for p in plans]),
        peak=torch.zeros_like(state.taken),
        moves=none,
        measured=none,
        gradient=torch.zeros_like(state.params),
        counts=none[:, None, None].repeat(1, 2, plans[0].own.agd_raises + 1),
    )


def active(cohort: Cohort, state: LocalState) -> torch.Tensor:
    """Bool ``[K]``, the filter: who has a step left and pays for a measurement and its search."""
    plans, counts = _plans(cohort), state.memory["counts"].cpu().numpy()
    places = zip(_kind(state).tolist(), state.memory["level"].tolist(), strict=True)
    pays = [
        spent + plan.costs[place] <= account.allotted * (1.0 - ROUNDING / 2.0)
        for plan, account, spent, place in zip(
            plans, cohort.accounts, _spent(cohort, counts), places, strict=True
        )
    ]
    return (state.taken < cohort.plan("steps")) & torch.tensor(pays, device=state.taken.device)


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """A measurement of each client's gradient, then a search along the mean in this step."""
    state = _measure(cohort, state)
    full = state.descend(cohort, state.memory["gradient"] / dpsgd.expected_size(cohort)[:, None])
    chosen = _search(cohort, state, full.params - state.params)
    fraction = chosen.to(state.params) / _plans(cohort)[0].own.agd_candidates
    alpha = fraction * state.memory["alpha_max"]
    params = state.params + alpha[:, None] * (full.params - state.params)
    moved = LocalState(params, full.optimizer, full.taken, state.memory)
    return _follow(cohort, moved, alpha).where(chosen > 0, _raise(cohort, state))


def _measure(cohort: Cohort, state: LocalState) -> LocalState:
    """A noisy sum of clipped gradients, averaged with this step's earlier ones (GradAvg)."""
    plans, memory = _plans(cohort), state.memory
    total, _ = dpsgd.clipped_sum(cohort, state, dpsgd.draw(cohort))
    bound, kind = memory["clip_norm"], _kind(state)
    rows = torch.arange(len(plans), device=bound.device)
    table = torch.from_numpy(np.stack([plan.multipliers for plan in plans])).to(bound)
    std = table[rows, kind, memory["level"]] * bound
    noisy = cohort.noised(total, bound, std, "noise")
    gamma = plans[0].own.agd_growth
    average = torch.where(
        kind[:, None] == FRESH, noisy, (memory["gradient"] + gamma * noisy) / (1.0 + gamma)
    )
    counts = memory["counts"].clone()
    counts[rows, kind, memory["level"]] += 1
    return state.remember(gradient=average, measured=memory["measured"] + 1, counts=counts)


def _search(cohort: Cohort, state: LocalState, move: torch.Tensor) -> torch.Tensor:
    """Int64 ``[K]`` in 0..m: which step along ``move [K, P]``, in units of alpha_max / m, has the
    least noisy loss."""
    changes = noisy_changes(cohort, state, move)
    return torch.cat([torch.zeros_like(changes[:, :1]), changes], dim=1).argmin(dim=1)


def noisy_changes(cohort: Cohort, state: LocalState, move: torch.Tensor) -> torch.Tensor:
    """The release of a search: noisy sums of clipped changes of loss, float64 ``[K, m]``, at
    alpha_max / m, ..., alpha_max."""
    plans, own = _plans(cohort), _plans(cohort)[0].own
    rates = cohort.exact("sample_rate")
    batch = poisson(cohort.data, rates, cohort.streams.of("search batch"))

    def clipped_losses(params: torch.Tensor) -> torch.Tensor:
        losses = cohort.losses(params, batch, rates).double()
        return losses.nan_to_num(nan=own.agd_loss_clip).clamp(0.0, own.agd_loss_clip)

    before, count, bound = clipped_losses(state.params), own.agd_candidates, change_clip(plans[0])
    whole = torch.full((len(plans),), count**0.5 * bound, dtype=torch.float64, device=move.device)
    sums = []
    for number in range(1, count + 1):
        alpha = state.memory["alpha_max"] * (number / count)
        change = clipped_losses(state.params + alpha[:, None] * move) - before
        parts = torch.where(batch.mask, change.clamp(-bound, bound), 0.0)
        sums.append(cohort.arithmetic.parts(parts, whole).sum(dim=1))
    multiplier = torch.tensor(
        [plan.search_multiplier for plan in plans], dtype=torch.float64, device=move.device
    )
    return cohort.noised(torch.stack(sums, dim=1), whole, multiplier * count**0.5 * bound, "search")


def change_clip(plan: DpagdPlan) -> float:
    """c: bound on the change of a record's loss that a search sees."""
    loss_clip, change_clip = plan.own.agd_loss_clip, plan.own.agd_change_clip
    return loss_clip if change_clip is None else min(change_clip, loss_clip)


def _follow(cohort: Cohort, moved: LocalState, alpha: torch.Tensor) -> LocalState:
    """The state after moves by ``alpha [K]``: alpha_max adapts, and the next step measures anew."""
    own, memory = _plans(cohort)[0].own, moved.memory
    moves, peak = memory["moves"] + 1, torch.maximum(memory["peak"], alpha)
    due = moves >= own.agd_window
    return moved.remember(
        alpha_max=torch.where(due, (1.0 + own.agd_stretch) * peak, memory["alpha_max"]),
        peak=torch.where(due, 0.0, peak),
        moves=torch.where(due, 0, moves),
        measured=torch.zeros_like(moves),
    )


def _raise(cohort: Cohort, still: LocalState) -> LocalState:
    """The state after no step size helped: rho_ng grows for a new measurement, or the step ends."""
    level, measured = still.memory["level"], still.memory["measured"]
    over = level >= _plans(cohort)[0].own.agd_raises
    after = replace(still, taken=still.taken + over.to(still.taken))
    return after.remember(
        level=torch.where(over, level, level + 1), measured=torch.where(over, 0, measured)
    )


def realized(cohort: Cohort, state: LocalState) -> Sequence[Charges]:
    """What the allotments have paid for in this round."""
    counts = state.memory["counts"].cpu().numpy()
    rows = zip(_plans(cohort), cohort.accounts, counts, strict=True)
    return [covered(plan.releases(row), account.order) for plan, account, row in rows]


def metrics(cohort: Cohort, state: LocalState) -> Mapping[str, torch.Tensor]:
    """At the round's end: alpha_max, growth of rho_ng, steps and measurements in the round ``[K]``;
    and the epsilon of what was really spent, which is no guarantee."""
    plans, memory = _plans(cohort), state.memory
    spent = _spent(cohort, memory["counts"].cpu().numpy())
    epsilons = epsilons_spent(plans, cohort.accounts, spent)
    return {
        "agd_largest_step_size": memory["alpha_max"],
        "agd_gradient_budget": (1.0 + plans[0].own.agd_growth) ** memory["level"].double(),
        "agd_steps": state.taken,
        "agd_measurements": memory["counts"].sum(dim=(1, 2)).double(),
        "agd_epsilon_spent": torch.tensor(epsilons, dtype=torch.float64),
    }


def _kind(state: LocalState) -> torch.Tensor:
    """Int64 ``[K]``: whether the next measurement is `FRESH` or `FURTHER`, of the same gradient."""
    return torch.where(state.memory["measured"] > 0, FURTHER, FRESH)


def _spent(cohort: Cohort, counts: np.ndarray) -> list[float]:
    """What each client has spent so far, in this round by ``counts [K, 2, levels]`` [nats]."""
    rows = zip(_plans(cohort), cohort.accounts, counts, strict=True)
    return [
        account.spent + float(row[row > 0] @ plan.costs[row > 0]) for plan, account, row in rows
    ]


def _plans(cohort: Cohort) -> list[DpagdPlan]:
    return with_accounts(cohort, DpagdPlan)


MECHANISM = Mechanism(
    DpagdPlan.of,
    step,
    active,
    start=start,
    metrics=metrics,
    realized=realized,
    calibrate=calibrate,
    lasting=LASTING,
    searches=True,
    note="DPAGD's paper adds the planned budget up at all orders at once and takes the best; "
    "the certified figure is the budget to which a filter holds the run: of one Gaussian if "
    "all records are in each batch, else at one order, named in advance.",
)
