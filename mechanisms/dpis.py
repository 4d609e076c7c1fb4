"""DPIS: Wei, Bao, Xiao, Yang, "DPIS: An Enhanced Mechanism for Differentially Private SGD with
Importance Sampling", CCS 2022. For K clients at once.

Per client, with its public number of records N, expected batch size b = q N, noise multiplier s and
clip bound C. All norms |g_i| are clipped to C.

An epoch has ceil(1/q) steps; the first one starts with the round. At the start of each, from
records that are drawn with probability p:

    K* = sum |g_i| / p + N(0, (s_K C)^2),  C = min(clip norm, c K* / N)      (Eq. 16, optional)
    K  = sum |g_i| / p + N(0, (s_K C)^2),  K = max(b C, min(K, N C))         (Eqs. 11, 12)
    ghat_i = min(C, max(g_L, k |g_i|)),    C for a record that no epoch of the round has drawn

In every step record i enters with probability b |g_i| / K: it is proposed with probability
b ghat_i / K, and a proposed record is accepted with probability |g_i| / ghat_i. Then

    g = ( sum of (K / N) g_i / |g_i| over those that entered  +  N(0, s^2 C^2 I) ) / b       (Eq. 7)

and the optimizer's step follows. Every accepted record adds a vector of norm K / N, so the
sensitivity does not depend on its probability. A record whose norm has grown beyond ghat since the
epoch began counts as if its norm were ghat (a bias, not a leak). A step computes about k b
gradients. A record's state ghat_i depends on its own coins and on released values only.

Guarantee: one record of one client, zero-out adjacency. A step is ``SGM(b C / K, s C N / K)``
(Lemma 3.1 at |g| = C), a norm sum ``SGM(p, s_K p)``, since its noise stands outside the factor 1/p.
K, K* and C are outputs, so the run is adaptive: allotments in advance and a filter, at one order
(`accounting.allotment`). K = N C costs most. Noise (Section 4.2): in the first a_E of the run's
epochs as if K were N C; after that, what is left is shared equally by the steps to come, and each
epoch's noise follows from its share and its K.

Deviations, and why:

- ghat is at most C, not k C. Then no proposal probability exceeds 1; dividing by a truncated one,
  as the paper does, breaks the sensitivity. The maximum with b C is taken last: Eq. (12) can undo
  it.
- Algorithm 1, line 26 divides by b twice; Eq. (7) is right.
- K* comes from a uniform batch of its own at the present model. C is a multiple of the mean norm,
  at most the configured clip norm and at least ``MIN_CLIP`` of it, computed anew in each epoch:
  clients keep nothing of it.
- s_K = 0.02 N as in the paper, but more if the norm sums would cost more than a given share of the
  steps: with few records 0.02 N is hardly any noise. K then says little, which costs no privacy:
  any K in [b C, N C] is valid.
- With q = 1 no K is released, since b C = N C leaves no choice. Nothing is gained over DPSGD then.
- N is public and used as it is. The published column has the paper's noisy release of N, its cost
  of the norm sums (multiplier s_K, as if the noise stood inside the factor 1/p) and its cost of the
  steps as planned, for K = N C.
- ``uniform`` sampling turns importance sampling off: all ghat = C and K = N C, and every proposed
  record is accepted and only clipped. This is DPSGD, draw for draw.

Edge cases: b may be below 1. An empty batch adds noise and counts. A zero gradient is never
accepted; one that is not finite adds 0 to every sum, and its record is proposed as if its norm were
C.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from mechanisms import importance
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import covered
from mechanisms.arithmetic import Arithmetic
from mechanisms.clipping import clip_factors
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpis_plan import DpisPlan, Epoch, allocate
from mechanisms.dpsgd import expected_size
from mechanisms.equal_rounds import calibrate, epsilons_spent, with_accounts
from mechanisms.mechanism import Mechanism
from mechanisms.plan import merge
from mechanisms.randomness import Source
from mechanisms.sampling import threshold

MIN_CLIP = 0.1
"""Floor of an adaptive clip bound, in units of the configured one."""
EPOCHAL = ("clip_norm", "norm_ratio", "multiplier")
"""Memory with a column for each epoch: C, K / (N C) and s."""


def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
    """The state before the first step from ``params [P]``.

    Memory, float64: ``ghat [K, n]`` before it is clamped (inf: unknown); the `EPOCHAL` numbers
    ``[K, epochs]``; and ``spent [K]`` by the client so far, in nats.
    """
    plans = _plans(cohort)
    epochs, size = max(p.epochs for p in plans), max(map(len, cohort.data.records))
    one = torch.ones(len(plans), epochs, dtype=torch.float64, device=params.device)
    ghat = torch.full((len(plans), size), torch.inf, dtype=torch.float64, device=params.device)
    memory = dict.fromkeys(EPOCHAL, one)
    spent = torch.tensor(
        [account.spent for account in cohort.accounts], dtype=torch.float64, device=params.device
    )
    return LocalState.start(cohort, params).remember(ghat=ghat, spent=spent, **memory)


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One step of every client; those at the start of an epoch look at their norms first."""
    state = _begin(cohort, state)
    rate, ghat, clip, norm_ratio, multiplier = _now(cohort, state)
    rates = rate / norm_ratio
    proposals = importance.propose(cohort, rates, ghat)
    bound, std = norm_ratio * clip, multiplier.to(state.params) * clip.to(state.params)
    by_norm = torch.tensor([p.importance for p in _plans(cohort)], device=clip.device)[:, None]

    def factors(norms: torch.Tensor) -> torch.Tensor:
        """K / (N |g|) for accepted records; uniformly sampled ones are all accepted and clipped."""
        c, k = clip.to(norms), norm_ratio.to(norms)
        unit = torch.where(proposals.accepted(norms, c), (k * c)[:, None] / norms, 0.0)
        return torch.where(by_norm, unit, clip_factors(norms, c) * proposals.batch.mask)

    total, _ = cohort.gradient_sum(state.params, proposals.batch, factors, bound, rates.tolist())
    noisy = cohort.noised(total, bound, std, "noise")
    return state.descend(cohort, noisy / expected_size(cohort)[:, None])


def _now(cohort: Cohort, state: LocalState) -> tuple[torch.Tensor, ...]:
    """Parameters of this step, float64: q, C, K / (N C) and s ``[K]``, and ghat / C ``[K, n]``."""
    plans, device = _plans(cohort), state.params.device
    epoch = torch.tensor(_epochs(plans, state), device=device)[:, None]
    clip, norm_ratio, multiplier = (state.memory[name].gather(1, epoch)[:, 0] for name in EPOCHAL)
    given = [[p.sample_rate, p.own.dpis_floor] for p in plans]
    rate, floor = torch.tensor(given, dtype=torch.float64, device=device).unbind(1)
    ghat = torch.maximum(state.memory["ghat"] / clip[:, None], floor[:, None]).clamp(max=1.0)
    return rate, ghat, clip, norm_ratio, multiplier


def _begin(cohort: Cohort, state: LocalState) -> LocalState:
    """Clients that start an epoch look at their norms, release and pay for K* and K, and set C,
    ghat and the noise."""
    plans, taken = _plans(cohort), state.taken.long().tolist()
    places = enumerate(zip(plans, taken, strict=True))
    starting = [k for k, (p, n) in places if n < p.steps and n % p.epoch_steps == 0]
    if not starting:
        return state
    epochs = _epochs(plans, state)
    table = {name: rows.cpu().numpy().copy() for name, rows in state.memory.items()}
    clipping = [k for k in starting if plans[k].own.dpis_clip is not None]
    for_clip = _places(cohort, "clip sum", clipping)
    for_sum = _places(cohort, "norm sum", [k for k in starting if plans[k].releases_norm_sum])
    seen = [np.union1d(*both).astype(np.int64) for both in zip(for_clip, for_sum, strict=True)]
    rates = [min(1.0, plan.norm_sums * plan.own.dpis_norm_rate) for plan in plans]
    norms = importance.look(cohort, state.params, seen, rates)
    begun = []
    for k in starting:
        of_clip, of_sum = (norms[k][np.searchsorted(seen[k], at[k])] for at in (for_clip, for_sum))
        sources = [cohort.streams.of(purpose)[k] for purpose in ("clip sum", "norm sum")]
        clip = _clip_norm(plans[k], of_clip, sources[0], cohort.arithmetic)
        norm_ratio = _norm_ratio(plans[k], of_sum, clip, sources[1], cohort.arithmetic)
        account = replace(cohort.accounts[k], spent=float(table["spent"][k]))
        begun.append(Epoch(plans[k], cohort.nth[k], epochs[k], account, norm_ratio, clip))
        if plans[k].importance:
            table["ghat"][k, seen[k]] = plans[k].own.dpis_slack * norms[k]
    for k, epoch, (multiplier, account) in zip(starting, begun, allocate(begun), strict=True):
        chosen = epoch.clip_norm, epoch.norm_ratio, multiplier
        for name, value in zip(EPOCHAL, chosen, strict=True):
            table[name][k, epoch.number] = value
        table["spent"][k] = account.spent
    return state.remember(
        **{name: torch.from_numpy(rows).to(state.params.device) for name, rows in table.items()}
    )


def _places(cohort: Cohort, purpose: str, clients: Sequence[int]) -> list[np.ndarray]:
    """Positions of the records that enter a norm sum, by fresh coins; none for other clients."""
    places = [np.empty(0, dtype=np.int64) for _ in cohort.plans]
    for k in clients:
        coins = cohort.streams.of(purpose)[k].random(len(cohort.data.records[k]))
        places[k] = np.flatnonzero(coins < threshold(_plans(cohort)[k].own.dpis_norm_rate))
    return places


def noisy_norm_sum(
    plan: DpisPlan, norms: np.ndarray, clip_norm: float, source: Source, arithmetic: Arithmetic
) -> float:
    """Eq. (11), ``sum min(|g_i|, C) / p + N(0, (s_K C)^2)`` over drawn records; a norm that is not
    finite adds 0."""
    rate, limit = plan.own.dpis_norm_rate, torch.tensor([clip_norm], dtype=torch.float64)
    bounded = np.where(np.isfinite(norms), np.minimum(norms, clip_norm), 0.0)
    total = arithmetic.parts(torch.from_numpy(bounded)[None], limit).sum(dim=1, keepdim=True)
    std = rate * plan.norm_noise * clip_norm
    return float(arithmetic.noised_from(source, total, clip_norm, std)) / rate


def _clip_norm(plan: DpisPlan, norms: np.ndarray, source: Source, arithmetic: Arithmetic) -> float:
    """C: a multiple of the noisy mean norm K* / N, in [`MIN_CLIP`, 1] times the configured C."""
    if plan.own.dpis_clip is None:
        return plan.clip_norm
    mean = noisy_norm_sum(plan, norms, plan.clip_norm, source, arithmetic) / plan.records
    return min(plan.clip_norm, max(MIN_CLIP * plan.clip_norm, plan.own.dpis_clip * mean))


def _norm_ratio(
    plan: DpisPlan, norms: np.ndarray, clip_norm: float, source: Source, arithmetic: Arithmetic
) -> float:
    """K / (N C), in [q, 1]; that is K in [b C, N C], the maximum taken last."""
    if not plan.releases_norm_sum:
        return 1.0
    norm_sum = noisy_norm_sum(plan, norms, clip_norm, source, arithmetic)
    return max(plan.sample_rate, min(norm_sum / (plan.records * clip_norm), 1.0))


def realized(cohort: Cohort, state: LocalState) -> Sequence[Charges]:
    """What the round's allotment has paid for."""
    result, names = [], ("norm_ratio", "clip_norm", "multiplier")
    columns = [state.memory[name].tolist() for name in names]  # read once, not number by number
    for k, (plan, account) in enumerate(zip(_plans(cohort), cohort.accounts, strict=True)):
        charges: Charges = {event: plan.epochs * n for event, n in plan.norm_sum_charges.items()}
        for epoch in range(plan.epochs):
            numbers = (rows[k][epoch] for rows in columns)
            charges = merge(charges, {plan.step_event(*numbers): plan.steps_of(epoch)})
        result.append(covered(charges, account.order))
    return result


def metrics(cohort: Cohort, state: LocalState) -> Mapping[str, torch.Tensor]:
    """Means over the epochs of K / (N C), C and s ``[K]``; and the epsilon of what was really
    spent, which is no guarantee."""
    plans = _plans(cohort)
    spent = epsilons_spent(plans, cohort.accounts, state.memory["spent"].tolist())

    def mean(name: str) -> torch.Tensor:
        rows = zip(state.memory[name].cpu(), plans, strict=True)
        return torch.stack([row[: plan.epochs].mean() for row, plan in rows])

    return {
        "dpis_clip_norm": mean("clip_norm"),
        "dpis_norm_ratio": mean("norm_ratio"),
        "dpis_noise_multiplier": mean("multiplier"),
        "dpis_epsilon_spent": torch.tensor(spent, dtype=torch.float64),
    }


def _plans(cohort: Cohort) -> list[DpisPlan]:
    return with_accounts(cohort, DpisPlan)


def _epochs(plans: Sequence[DpisPlan], state: LocalState) -> list[int]:
    """The present epoch of each client in its round, from 0; the last one for a finished round."""
    taken = state.taken.long().tolist()
    return [
        min(n // plan.epoch_steps, plan.epochs - 1) for plan, n in zip(plans, taken, strict=True)
    ]


MECHANISM = Mechanism(
    DpisPlan.of,
    step,
    start=start,
    metrics=metrics,
    realized=realized,
    calibrate=calibrate,
    lasting=(),
    sized=True,
    note="DPIS's paper charges norm sums as if their noise, too, were divided by the "
    "sampling rate, and counts the number of records as a release; the certified figure is "
    "the budget to which a filter holds the run.",
)
