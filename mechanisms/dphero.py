"""DP-Hero: noise shaped by the previous model (Zheng et al., "DP-Hero"), for K clients at once.

Guidance (Section 4.1). For each layer with a weight W of k rows (a convolution reshaped to a
matrix, rows its output channels), the model before the step gives the eigenvectors B and
eigenvalues e of W W^T, and

    v_i = e_i sqrt(k) / |e|,     floored at ``floor`` (the root mean square of v is 1)

The noise on that layer is ``C s B diag(v) n`` with n standard normal: it is large where the model
is. A bias shares its layer's output index and is treated with it; parameters without a matrix (or
of more than ``MAX_ROWS`` rows) keep v = 1.

The paper claims DPSGD's epsilon for this, since the total variance is DPSGD's. That is no proof:
with v = (sqrt 2, 0) the second coordinate is released exactly. (Nor does Theorem 5 hold, that T
steps cost as much as the largest of them.)

- ``isotropic``, as published: records are clipped in Euclidean norm. The certified cost of a step
  is that of the smallest noise, ``SGM(q, s min v)``; v depends on outputs, so the floor, which is
  fixed in advance, is charged.
- ``whitened`` (ours, the default): ``h_i = diag(v)^-1 B^T g_i`` in every layer, the whole vector
  h_i is clipped to C, gets isotropic noise ``C s n``, and is mapped back by ``B diag(v)``. The
  noise is exactly the paper's, and a step costs exactly ``SGM(q, s)``: B and v come from the model
  before the step, which is charged already.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mechanisms import dpsgd
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import HeterogeneousGaussian
from mechanisms.arithmetic import GRID
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.mechanism import Mechanism
from mechanisms.metric import Metric, transform
from mechanisms.plan import Terms, steady
from mechanisms.settings import DpHero

MAX_ROWS = 1_024
"""A larger matrix (an embedding's) is left alone: its decomposition would cost more than the
step."""


@steady
@dataclass(frozen=True)
class HeroPlan(DpsgdPlan):
    """A client's plan: DPSGD's, and how the noise is shaped.

    Attributes:
        isotropic: clip in Euclidean norm, as published, instead of in the noise's geometry.
        floor: the smallest v allowed, in (0, 1].
        refresh: steps between two decompositions.
    """

    isotropic: bool = False
    floor: float = 0.1
    refresh: int = 1

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "HeroPlan":
        """The plan of some terms with this noise multiplier."""
        own = terms.own_of(DpHero, "DP-Hero")
        return cls(
            **cls.poisson(terms, noise),
            isotropic=own.hero_clipping == "isotropic",
            floor=own.hero_floor,
            refresh=own.hero_refresh,
        )

    def round_charges(self, nth: int) -> Charges:
        """``steps`` sampled Gaussians; the isotropic ones at the floor of the noise."""
        if not self.isotropic:
            return super().round_charges(nth)
        event = HeterogeneousGaussian(self.sample_rate, self.multiplier(nth), self.floor)
        return {event: self.steps}


def guidance(weight: torch.Tensor, floor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvectors and scales of the noise from weights ``[K, k, ...]`` and floors ``[K]``.

    Returns:
        B ``[K, k, k]``, whose columns are eigenvectors of W W^T, and v ``[K, k]`` in the same
        order. v = 1 where W = 0, and where W W^T is not finite: training has diverged, which the
        sum of updates refuses by name.
    """
    matrix = weight.flatten(2)
    square = matrix @ matrix.mT
    finite = square.isfinite().all(dim=2, keepdim=True).all(dim=1, keepdim=True)
    square = torch.where(finite, square, 0.0)
    values, basis = torch.linalg.eigh(square)
    length = values.norm(dim=1, keepdim=True)
    scale = torch.where(length > 0, values * values.shape[1] ** 0.5 / length, 1.0)
    return basis, scale.clamp(min=floor[:, None])


def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
    """The state before the first step, with the guidance of the model ``params [P]``."""
    state = dpsgd.start(cohort, params)
    return state.remember(**_look(cohort, state.params))


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One step of every client by the guidance in its memory, which is then renewed when due."""
    layout, batch = cohort.gradients.layout, dpsgd.draw(cohort)
    forth, back = _maps(state.memory)
    if cohort.plans[0].isotropic:
        if cohort.arithmetic is GRID:
            raise ValueError(
                "hero_clipping is isotropic, for which a release has no exact sums: use whitened"
            )
        total, norms = dpsgd.clipped_sum(cohort, state, batch)
        noise = dpsgd.noised(cohort, state, torch.zeros_like(total))
        noisy = total + transform(back, layout, noise)
    else:
        total, norms = dpsgd.clipped_sum(cohort, state, batch, forth)
        noisy = transform(back, layout, dpsgd.noised(cohort, state, total))
    after = dpsgd.descend(cohort, state, noisy, norms, batch)
    due = after.taken % cohort.plan("refresh") == 0
    if not due.any():
        return after
    return after.remember(**_look(cohort, after.params)).where(due, after)


def metrics(cohort: Cohort, state: LocalState) -> dict[str, torch.Tensor]:
    """The smallest and largest v ``[K]`` of all layers at the round's end, from released models;
    none if no layer has guidance."""
    found = [scale for name, scale in state.memory.items() if name.endswith("|v")]
    if not found:
        return {}
    scales = torch.cat(found, dim=1)
    return {"hero_least_scale": scales.amin(dim=1), "hero_largest_scale": scales.amax(dim=1)}


def _look(cohort: Cohort, params: torch.Tensor) -> dict[str, torch.Tensor]:
    """The guidance of models ``[K, P]`` as memory: ``layer|B`` and ``layer|v``."""
    memory, floor = {}, cohort.plan("floor")
    for name, weight in cohort.gradients.layout.unflatten(params).items():
        layer, _, kind = name.rpartition(".")
        if weight.dim() > 2 and kind == "weight" and weight.shape[1] <= MAX_ROWS:
            memory[f"{layer}|B"], memory[f"{layer}|v"] = guidance(weight, floor)
    return memory


def _maps(memory: Mapping[str, torch.Tensor]) -> tuple[Metric, Metric]:
    """For each layer ``diag(v)^-1 B^T`` and its way back ``B diag(v)``, each ``[K, k, k]``."""
    forth, back = {}, {}
    for name, basis in memory.items():
        layer, _, kind = name.rpartition("|")
        if kind == "B":
            scale = memory[f"{layer}|v"]
            forth[layer] = basis.mT / scale[:, :, None]
            back[layer] = basis * scale[:, None, :]
    return forth, back


MECHANISM = Mechanism(HeroPlan.of, step, start=start, metrics=metrics)
