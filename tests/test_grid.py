"""Laws of exact sums and of the grid they are noised on: what one record can move, and by how
much."""

import dataclasses
import functools
import math
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from mechanisms import grid
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.arithmetic import FLOATS, GRID, LossTest
from mechanisms.clipping import CLIPPING
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.forms import Held, Looked, Outer
from mechanisms.gradients.passes import Passes
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.randomness import Streams, SystemStreams, seed_key
from mechanisms.rounded_gaussian import SCALE_BITS
from mechanisms.sampling import COIN, threshold
from mechanisms.settings import Dpagd, Privacy
from mechanisms.sharing import ClassSums, SharingPlan, Sum
from sim.config.settings import Data
from strategies.settings import FedFed
from tests import small
from tests.devices import CPU, META, Noted
from tests.record_models import GENERAL, TAPPED, Apply, Case

CASES = {**TAPPED, **GENERAL}
WIDTH = 16
ROUNDING = 1e-6


class Opposed(nn.Module):
    """Two positions of which only the difference counts: gradients cancel where both are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h[:, 0] - h[:, 1]


@functools.cache
def engine(case: Case) -> RecordGradients:
    """One for all problems of a case that share it, so that its route is searched once."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return RecordGradients(case.model())


class Problem:
    """A model in float32 on random records of one size, with clip norms of its own for each
    client."""

    def __init__(
        self,
        case: Case,
        records: int = 5,
        scale: float = 1.0,
        seed: int = 7,
        shared: RecordGradients | None = None,
    ) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = case.model()
            self.gradients = shared or RecordGradients(module)
            start = self.gradients.layout.initial(case.model())
            self.params = start + 0.3 * torch.randn(2, len(start))
            shape = (2, records, *case.shape)
            self.x = torch.randint(0, 7, shape) if case.indices else scale * torch.randn(shape)
            self.y = torch.randint(0, 3, (2, records))
        self.bound = torch.tensor([0.5, 3.0])

    def sum(
        self, mask: Tensor, clip: str = "flat", x: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The exact sum over the records of a mask ``[K, B]``, and all norms."""
        x = self.x if x is None else x
        factors = lambda norms: CLIPPING[clip](norms, self.bound) * mask  # noqa: E731
        return self.gradients.whole_sum(self.params, x, self.y, factors, self.bound, WIDTH)

    def masks(self) -> list[Tensor]:
        """Each record alone."""
        return [one.expand(2, -1) for one in torch.eye(self.x.shape[1])]


@pytest.mark.parametrize("name", CASES)
def test_an_exact_sum_is_the_sum_of_each_record_s_own_part(name):
    """To the last unit: one record moves it by its own part, whoever the others are. Kills rounding
    after the sum."""
    p = Problem(CASES[name], shared=engine(CASES[name]))
    whole, norms = p.sum(torch.ones(2, 5))
    parts = torch.stack([p.sum(mask)[0] for mask in p.masks()])
    assert torch.equal(whole, parts.sum(dim=0)) and whole.dtype == torch.int64
    most = grid.PART * (1 + 2.0**-22 * p.params.shape[1] ** 0.5)
    assert (parts.double().norm(dim=2) <= most).all()
    assert torch.equal(norms, p.sum(torch.zeros(2, 5))[1])
    assert torch.equal(norms, p.gradients.norms(p.params, p.x, p.y, width=WIDTH))


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_the_sum_in_floats(name):
    """Kills a wrong unit, and a form that adds up something else."""
    p = Problem(CASES[name], shared=engine(CASES[name]))
    whole, norms = p.sum(torch.ones(2, 5))
    total, found = p.gradients.scaled_sum(
        p.params, p.x, p.y, lambda n: CLIPPING["flat"](n, p.bound)
    )
    torch.testing.assert_close(norms.float(), found, rtol=1e-5, atol=1e-12)
    assert (
        whole.double() * p.bound[:, None] / grid.PART - total
    ).abs().max() <= ROUNDING * p.bound.max()


@pytest.mark.parametrize(
    "name", ["mlp", "conv2d", "embedding", "lstm", "groupnorm", "own parameter"]
)
def test_a_record_has_the_same_part_at_every_place_and_in_every_batch(name):
    """Order, batch size and cut change no bit. Kills passes whose shape follows from who was
    drawn."""
    p = Problem(CASES[name], records=37)
    whole, norms = p.sum(torch.ones(2, 37))
    order = torch.from_numpy(np.random.default_rng(0).permutation(37))
    p.x, p.y = p.x[:, order], p.y[:, order]
    turned, moved = p.sum(torch.ones(2, 37))
    assert torch.equal(turned, whole) and torch.equal(moved, norms[:, order])
    p.x, p.y = p.x[:, :21], p.y[:, :21]
    assert torch.equal(p.sum(torch.ones(2, 21))[1], norms[:, order[:21]])


def worst_part(case: Case, scale: float, seed: int, clip: str) -> float:
    """The largest part of a record, in clip norms: a sum with it less the sum without it."""
    p = Problem(case, records=3, scale=scale, seed=seed, shared=engine(case))
    with_, _ = p.sum(torch.ones(2, 3), clip)
    null = p.x.clone()
    null[:, 0] = torch.nan
    without, norms = p.sum(torch.ones(2, 3), clip, null)
    assert norms[:, 0].isinf().all()
    return float(((with_ - without).double().norm(dim=1) / grid.PART).max())


ADVERSE = {
    "positions that cancel": Case(Opposed, (2, 8)),
    "numbers that are alike": Case(
        lambda: nn.Sequential(Apply(lambda x: 0 * x + x[:, :1]), nn.Linear(8, 8)), (8,)
    ),
    "steep": Case(
        lambda: nn.Sequential(nn.Linear(8, 8), Apply(lambda x: 1e6 * x), nn.Linear(8, 3)), (8,)
    ),
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["mlp", "conv2d", "groupnorm", *ADVERSE]),
    st.floats(-30.0, 38.0),
    st.integers(0, 2**31),
    st.sampled_from(["flat", "auto"]),
)
def test_a_record_moves_the_sum_by_the_clip_norm_at_most(name, exponent, seed, clip):
    """One record replaced by the null record, inputs from 1e-30 to 1e38. Kills norms that
    cancellation, overflow or underflow makes too small.
    """
    case = ADVERSE.get(name) or CASES[name]
    assert worst_part(case, 10.0**exponent, seed, clip) <= 1.0 + 1e-6


def test_positions_that_cancel_are_clipped_in_floats_too():
    """Both positions equal: a record's own sum, in a batch of two, has the norm that was clipped.
    Inputs to 1e15."""
    case = ADVERSE["positions that cancel"]
    for scale in (1.0, 1e8, 1.7e9, 1e15):
        p = Problem(case, records=2, scale=scale)
        p.x[:, :, 1] = p.x[:, :, 0]
        for clip in CLIPPING:

            def first(norms, clip=clip, bound=p.bound):
                return CLIPPING[clip](norms, bound) * torch.tensor([1.0, 0.0])

            total, _ = p.gradients.scaled_sum(p.params, p.x, p.y, first)
            assert (total.norm(dim=1) <= p.bound * (1 + 1e-6)).all()


def test_a_factor_too_large_is_cut():
    """Whatever a mechanism asks for, a part stays within the bound."""
    p = Problem(CASES["mlp"])
    factors = lambda norms: 1e6 + 0 * norms  # noqa: E731
    for mask in p.masks():
        total, _ = p.gradients.whole_sum(
            p.params, p.x, p.y, lambda n, mask=mask: factors(n) * mask, p.bound, WIDTH
        )
        assert (
            total.double().norm(dim=1) <= grid.PART * (1 + 2.0**-22 * p.params.shape[1] ** 0.5)
        ).all()


def test_the_norm_of_an_outer_product_covers_its_rounding():
    """A direction whose entries all round up is longer than the vector; the norm is that of the
    longer one."""
    left, right = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 4000), 1.0)
    for size in np.random.default_rng(0).uniform(1.0, 2.0, 50):
        form = Outer(left, float(size) * right + 0.3 * torch.sin(torch.arange(4000.0)))
        norm = form.squared_norms(whole=True).sqrt()
        part = form.whole_sum(grid.PART / norm, None).double().norm()
        assert part <= grid.PART * (1 + 2.0**-40)


def test_a_sum_of_many_parts_of_full_size_is_exact():
    """An odd number of odd parts of nearly 2^44: kills stretches whose sum float64 would round."""
    parts = 2**44 - 1 - 2 * torch.arange(1_999)
    assert Held(torch.ones(1, 1_999, 1)).whole_sum(parts.double()[None], None).item() == sum(
        parts.tolist()
    )


@pytest.mark.parametrize(("device", "times"), [(CPU, 20), (META, 1)], ids=str)
def test_a_gpu_adds_up_many_records_at_once(device, times):
    """As few as a CPU's caches hold would cost a GPU a handful of kernels each."""
    rows, one = torch.zeros(2, 20, 1, 2**16, device=device), torch.zeros(2, 20, 1, 1, device=device)
    scales, seen = torch.ones(2, 20, dtype=torch.float64, device=device), []
    for form, sides in ((Held(rows), 1), (Outer(one, rows), 2)):
        with Noted(seen.append):
            form.whole_sum(scales, None)
        assert seen.count(Tensor.round_) == times * sides
        seen.clear()


def test_passes_have_one_shape_whoever_was_drawn():
    """Kills a shape that follows from the number of records drawn, which tells a coin to all other
    records."""
    passes, seen = Passes(None, None, 4), set()
    for drawn in (1, 17, 40, 95):
        for _, b in passes.cut(torch.zeros(3, drawn, 5), 10, False, 40):
            seen.add(b.stop - b.start)
    assert seen == {48}
    assert {b.stop - b.start for _, b in passes.cut(torch.zeros(3, 95, 5), 10**6, False, 40)} == {
        16
    }


def test_a_pass_is_a_copy():
    """Kernels look at where in memory numbers stand: each pass begins where any other does, full or
    not."""
    x, y = torch.arange(60.0).view(1, 20, 3), torch.zeros(1, 20, dtype=torch.int64)
    shown = lambda x, y: (x.sum(2), x.double().sum((1, 2)).round())  # noqa: E731
    for b in (slice(0, 16), slice(4, 20), slice(16, 32)):
        ((_, xs, ys),) = Passes(None, None, 4).of_shape(x[:, b], y[:, b], b, (), shown)
        assert xs.shape == (1, 16, 3) and torch.equal(xs[:, : 20 - b.start], x[:, b])
        assert (
            xs.data_ptr() % 64 == 0 and xs.data_ptr() != x[:, b].data_ptr() and ys.shape == (1, 16)
        )


class Own(nn.Module):
    """Parameters outside of layers: no tap follows them, and its products are the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.second = (
            nn.Linear(17, 33),
            nn.Parameter(torch.ones(33)),
            nn.Linear(33, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * self.scale)


@pytest.mark.parametrize(
    "case", [Case(Own, (17,)), Case(lambda: nn.Linear(13, 3), (13,))], ids=["untapped", "odd"]
)
def test_norms_and_losses_are_the_same_wherever_a_record_stands(case):
    """In every batch, for gradients and losses, whichever of both is asked first, to the last bit.

    Kills products by kernels that take a batch's rows in another order, and a route that depends on
    what came first.
    """
    p, again = Problem(case, records=45), Problem(case, records=45)
    norms = p.gradients.norms(p.params, p.x, p.y, width=40)
    losses = again.gradients.losses(p.params, p.x, p.y, 40)
    assert torch.equal(again.gradients.norms(p.params, p.x, p.y, width=40), norms)
    assert torch.equal(p.gradients.losses(p.params, p.x, p.y, 40), losses)
    torch.testing.assert_close(losses, p.gradients.losses(p.params, p.x, p.y))
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(45)[: rng.integers(1, 45)])
        x, y = p.x[:, order], p.y[:, order]
        assert torch.equal(p.gradients.norms(p.params, x, y, width=40), norms[:, order])
        assert torch.equal(p.gradients.losses(p.params, x, y, 40), losses[:, order])


def test_records_of_a_model_that_is_not_traced_go_one_by_one():
    """The user's own Python sees one record at a time, so that it cannot tell who else is there."""
    p, sizes = Problem(Case(Own, (17,)), records=5), []
    route = p.gradients._routes.of(p.x, p.y)
    run = route.engine.run
    route.engine.run = lambda params, x, *rest: sizes.append(x.shape[:2]) or run(params, x, *rest)
    p.sum(torch.ones(2, 5))
    assert sizes == [(1, 1)] * 10


def test_where_a_kernel_sees_a_record_s_place_records_go_one_by_one():
    """Kills a check that is not made, and one that is made and has no consequence."""
    p = Problem(CASES["mlp"])
    expected, again = p.sum(torch.ones(2, 5)), Problem(CASES["mlp"])
    engine = again.gradients._routes.of(p.x, p.y).engine
    run, p = engine.run, again

    def shifted(params: Tensor, x: Tensor, *rest: object) -> object:
        """Gradients that depend on a record's place, unless there is one place only."""
        shift = 1 + 2.0**-20 * torch.arange(x.shape[1]).view(-1, *[1] * (x.dim() - 2))
        return run(params, x * shift, *rest)

    engine.run = shifted
    total, norms = p.sum(torch.ones(2, 5))
    torch.testing.assert_close(norms, expected[1], rtol=1e-6, atol=0)
    assert (total - expected[0]).abs().max() <= 1e-6 * grid.PART
    order = [3, 1, 4, 0, 2]
    p.x, p.y = p.x[:, order], p.y[:, order]
    assert torch.equal(p.sum(torch.ones(2, 5))[0], total)


def test_where_a_sum_alone_depends_on_the_places_of_records_they_go_one_by_one():
    """What is shown of each record is the same everywhere, and what is added up is not."""
    x, y = torch.zeros(1, 4, 3), torch.zeros(1, 4, dtype=torch.int64)
    of_the_first = lambda x, y: (x, x[:, 0].sum())  # noqa: E731
    passes = Passes(None, None, 4).of_shape(x, y, slice(0, 4), (), of_the_first)
    assert [xs.shape[1] for _, xs, _ in passes] == [1] * 4


def test_where_what_is_shown_of_a_record_depends_on_its_place_records_go_one_by_one():
    """Though their sum does not. Kills a look at sums alone."""
    x, y = torch.zeros(1, 4, 3), torch.zeros(1, 4, dtype=torch.int64)
    numbered = lambda x, y: (torch.arange(x.shape[1]).expand(1, -1), torch.zeros(()))  # noqa: E731
    passes = Passes(None, None, 4).of_shape(x, y, slice(0, 4), (), numbered)
    assert [xs.shape[1] for _, xs, _ in passes] == [1] * 4


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(2, 4, 3),
        torch.zeros(1, 8, 3),
        torch.zeros(1, 4, 5),
        torch.zeros(1, 4, 3, dtype=torch.float64),
    ],
    ids=["clients", "records", "numbers", "type"],
)
def test_a_pass_of_another_kind_is_tried_anew(other):
    """A kernel may see places with two clients' products and not with one's. Kills what was found
    for one kind of pass and is taken for another."""
    passes, x = Passes(None, None, 4), torch.zeros(1, 4, 3)

    def places(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = (x.shape, x.dtype) == (other.shape, other.dtype)
        return x, x[:, 0].sum() if seen else x.sum() * 0

    for one, taken in ((x, [4]), (other, [1] * other.shape[1])):
        y = torch.zeros(one.shape[:2], dtype=torch.int64)
        found = passes.of_shape(one, y, slice(0, one.shape[1]), (), places)
        assert [xs.shape[1] for _, xs, _ in found] == taken


def test_a_pass_under_a_metric_is_tried_anew():
    """Its products are others. Kills what was found without a metric and is taken with one."""
    p, metric, widths = Problem(CASES["mlp"]), {"1": torch.eye(5).expand(2, 5, 5)}, []
    p.gradients.norms(p.params, p.x, p.y, width=WIDTH)
    engine = p.gradients._routes.of(p.x, p.y).engine
    run = engine.run

    def shifted(params: Tensor, x: Tensor, y: Tensor, own: dict[str, Tensor]) -> object:
        """Gradients that depend on a record's place under a metric."""
        widths.append(x.shape[1])
        shift = 1 + 2.0**-10 * torch.arange(x.shape[1]).view(-1, *[1] * (x.dim() - 2))
        return run(params, x * shift if own else x, y, own)

    engine.run = shifted
    p.gradients.norms(p.params, p.x, p.y, width=WIDTH)
    assert widths == [WIDTH], "tried before"
    p.gradients.norms(p.params, p.x, p.y, metric, width=WIDTH)
    assert widths[-5:] == [1] * 5


@pytest.mark.parametrize("form", ["held", "outer", "looked"])
def test_a_record_that_is_left_out_adds_nothing_whatever_it_holds(form):
    """In floats and in whole numbers. Kills a factor 0 on numbers that are not finite."""
    rng = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 3, 2, 4, generator=rng), torch.randn(2, 3, 2, 5, generator=rng)
    keep = torch.tensor([[True, False, True], [True, True, False]])
    index = torch.randint(0, 6, (2, 3, 2), generator=rng)

    def sums(left: Tensor) -> tuple[Tensor, Tensor]:
        made = {"held": Held(left), "outer": Outer(left, other), "looked": Looked(index, left, 6)}
        factors = torch.where(keep, 1.5, 0.0)
        return (
            made[form].weighted_sum(factors, keep),
            made[form].whole_sum(factors.double() * 2.0**20, keep),
        )

    broken = torch.where(keep[..., None, None], one, torch.nan)
    zeroed = torch.where(keep[..., None, None], one, 0.0)
    for found, expected in zip(sums(broken), sums(zeroed), strict=True):
        assert expected.any() and torch.equal(found, expected)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (Privacy, "clip_norm"),
        (Dpagd, "agd_loss_clip"),
        (Dpagd, "agd_change_clip"),
        (Data, "standardize_clip"),
        (FedFed, "share_clip"),
        (FedFed, "distill_clip"),
    ],
)
def test_whatever_bound_a_setting_takes_has_so_many_units(table, name):
    """2^44 over a bound near the smallest float is infinite, and every part the smallest integer:
    a sum then told whether the number of records is even."""
    taken = 0
    for bound in 10.0 ** np.arange(-323, 309):
        with suppress(ValidationError):
            table(**{name: float(bound)})
            values = torch.tensor([[bound, -bound / 2.0, 0.0]])
            units = grid.whole_parts(values, torch.tensor([bound]))
            assert units.tolist() == [[2**44, -(2**43), 0]]
            taken += 1
    assert taken > 30


def test_too_many_records_for_an_exact_sum_are_refused_by_their_public_number():
    """Of those that hold them, not of those that were drawn; class sums and statistics, too."""
    few, many = np.arange(grid.MAX_RECORDS - 1), np.arange(grid.MAX_RECORDS)
    world = small.cohort([DpsgdPlan(1e-6, 1.0, 1.0, 1)])
    for arithmetic, records, refused in (
        (FLOATS, many, False),
        (GRID, few, False),
        (GRID, many, True),
    ):
        data = dataclasses.replace(world.data, records=[records])
        with pytest.raises(ValueError, match="262144") if refused else nullcontext():
            dataclasses.replace(world, arithmetic=arithmetic, data=data)
    x, y = torch.zeros(grid.MAX_RECORDS, 1), torch.zeros(grid.MAX_RECORDS, dtype=torch.int64)
    for release in (
        ClassSums(SharingPlan(1.0, 1.0), torch.clone, 2, 1),
        Sum(SharingPlan(1.0, 1.0), torch.clone, 1),
    ):
        with pytest.raises(ValueError, match="262144"):
            release([x], [y], SystemStreams(1, CPU), GRID)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 400), st.floats(1e-3, 1e4), st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_the_noise_is_at_least_the_charged_multiple_of_what_a_record_moves(
    entries, multiplier, seed, clip
):
    """Deviation over the distance of the points of neighbouring sums: at least s. Kills a slack
    that is too small."""
    rng = np.random.default_rng(seed)
    part = rng.normal(size=entries) if seed % 2 else np.ones(entries)
    part = np.rint(part / np.linalg.norm(part) * grid.PART * (1 + 2.0**-22 * math.sqrt(entries)))
    sums = torch.from_numpy(rng.integers(-(2**60), 2**60, (1, entries)))
    neighbours = torch.cat([sums, sums + torch.from_numpy(part).to(torch.int64)])
    std = torch.full((2,), clip * multiplier)  # float32, as plans give it
    noisy = grid.noised(neighbours, torch.full((2,), clip), std, torch.zeros_like(neighbours))
    steps = (
        grid.noised(neighbours, torch.full((2,), clip), std, torch.full_like(neighbours, 2**50))
        - noisy
    )
    points = noisy / (steps[:, :1] * 2.0**-50)
    assert multiplier * float((points[1] - points[0]).norm()) <= 2.0**SCALE_BITS


def test_the_slack_is_small_and_too_much_noise_is_refused():
    assert grid.slack(26_010, 3.0) < 1e-4 and grid.slack(11_000_000, 3.0) < 2e-3
    with pytest.raises(ValueError, match="lower --noise-multiplier"):
        grid.slack(10**7, 1e6)


def test_a_noisy_sum_is_the_sum_and_so_many_steps_of_the_grid():
    """Kills noise of another scale than s' C / 2^28, and sums in another unit."""
    total, draws = torch.tensor([[3, -(2**44), 2**50]]), torch.tensor([[0, 2**28, -(2**27)]])
    noisy = grid.noised(total, torch.tensor([2.0]), torch.tensor([6.0]), draws)
    expected = torch.tensor([[0.0, -2.0 + 6.0, 128.0 - 3.0]], dtype=torch.float64)
    torch.testing.assert_close(noisy, expected, rtol=1e-5, atol=1e-6)
    plain = grid.noised(total, torch.tensor([2.0]), torch.tensor([0.0]), draws)
    torch.testing.assert_close(plain, total.double() * 2.0**-43)


def test_sums_beyond_the_grid_are_held_at_its_edge():
    """There float64 would no longer tell neighbours apart. Only a noise multiplier that proves
    nothing leads there."""
    total = torch.tensor([[2**61, -(2**61)]])
    noisy = grid.noised(total, torch.ones(1), torch.full((1,), 2.0**-12), torch.zeros_like(total))
    raised = 2.0**-12 * (1 + grid.slack(2, 2.0**-12))
    assert (noisy.abs() == grid.MAX_POINT * raised * 2.0**-SCALE_BITS).all()


def test_a_mean_loss_does_not_depend_on_the_order_of_records():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 200)) * 10.0 ** np.arange(200))
    orders = [torch.from_numpy(np.random.default_rng(n).permutation(200)) for n in range(5)]
    sums = [GRID.total(rows[:, order]) for order in orders]
    assert all(torch.equal(one, sums[0]) for one in sums)
    torch.testing.assert_close(sums[0], FLOATS.total(rows))
    assert GRID.total(
        torch.tensor([[1.0, torch.inf], [torch.nan, 0.0], [1.0, 2.0]])
    ).isnan().tolist() == [1, 1, 0]


class Chosen:
    """Draws that were chosen beforehand."""

    def __init__(self, *draws: int):
        self._draws = torch.tensor(draws)

    def rounded(self, purpose: str, size: int) -> Tensor:
        return self._draws[:, None]


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-6, 1e3), st.floats(0.01, 1e4), st.floats(-50, 50), st.sampled_from([-1.0, 1.0]))
def test_a_test_s_acceptance_lies_within_what_is_charged(bound, noise, beta, side):
    """At both ends of a change, the draws that are accepted are no more and no fewer than the
    charged normal law has.

    Kills a clip on the grid's outer side, and a threshold that rounding moves out.
    """
    change, test = (
        torch.tensor([side * bound], dtype=torch.float64),
        LossTest([bound], [noise], [beta]),
    )

    def accepted(draw: int) -> bool:
        return bool(GRID.below(change, test, Chosen(draw), "test"))

    low, high = -(2**62), 2**62
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    edge = (low + 0.5) / 2.0**SCALE_BITS  # accepted: round(2^28 Z) <= low
    assert (beta - 1) / (2 * noise) <= edge <= (beta + 1) / (2 * noise)
    assert edge == pytest.approx((beta - side) / (2 * noise), abs=3 * 2.0**-SCALE_BITS)
    assert Acceptance.of_noisy_loss(1.0, noise, beta).lowest >= 0


def test_a_test_whose_bound_is_less_than_a_point_of_the_grid_is_refused():
    """One client's noise is enough. Kills an acceptance that no longer depends on the loss."""
    change, most = torch.zeros(2, dtype=torch.float64), 2.0 ** (SCALE_BITS - 1)
    GRID.below(change, LossTest([1.0, 1.0], [0.5, most], [0.0, 0.0]), Chosen(0, 0), "test")
    refused = r"^dpsur_validation_noise = 1\.5e\+08 must be at most 2\^27 in a release: lower"
    for noise in ([0.5, 1.5e8], [1.5e8, 0.5]):
        with pytest.raises(ValueError, match=refused):
            GRID.below(change, LossTest([1.0, 1.0], noise, [0.0, 0.0]), Chosen(0, 0), "test")


@pytest.mark.parametrize("beta", [1e9, 1e12, 1e300])
def test_a_threshold_beyond_all_noise_decides_alone(beta):
    """Kills one that overflows: a test that all pass then passed nobody."""
    for sign in (1.0, -1.0):
        test = LossTest([1e-3], [3.0], [sign * beta])
        for side in (-1e-3, 1e-3):
            change = torch.tensor([side], dtype=torch.float64)
            streams = Streams(seed_key(0), 1, [0], CPU)
            assert GRID.below(change, test, streams, "test").tolist() == [sign > 0]


def test_a_test_on_the_grid_is_that_in_floats():
    """The same noise: draws of one stream, as floats and as whole numbers, decide alike."""
    streams = Streams(seed_key(0), 1, range(400), CPU)
    draws = streams.rounded("validation noise", 1)

    class Same:
        def normal(self, purpose: str, size: int) -> Tensor:
            return (draws.double() * 2.0**-SCALE_BITS).float()

        def rounded(self, purpose: str, size: int) -> Tensor:
            return draws if purpose == "x" else -draws

    change = torch.linspace(-0.5, 0.5, 400, dtype=torch.float64)
    test = LossTest([0.5] * 400, [0.7] * 400, [-0.3] * 400)
    assert torch.equal(
        GRID.below(change, test, Same(), "x"), FLOATS.below(change, test, Same(), "x")
    )


@given(st.floats(0.0, 1.0))
def test_a_coin_is_below_its_threshold_with_the_charged_probability_at_most(rate):
    """Coins are multiples of 2^-53: the number of them below a threshold that is one is exact.
    Kills rounding up."""
    assert float(threshold(rate) / COIN).is_integer() and rate - COIN <= threshold(rate) <= rate


def test_a_release_has_no_float_noise_and_never_the_same_draws():
    streams = SystemStreams(3, CPU)
    with pytest.raises(TypeError, match="grid"):
        streams.normal("noise", 4)
    with pytest.raises(TypeError, match="grid"):
        FLOATS.noised_from(streams.of("noise")[0], torch.zeros(1, 1), 1.0, 1.0)
    assert len(streams.of("coins")) == 3
    draws = [
        streams.rounded("noise", 4),
        streams.rounded("noise", 4),
        SystemStreams(3, CPU).rounded("noise", 4),
    ]
    assert (
        draws[0].shape == (3, 4) and len({int(n) for part in draws for n in part.flatten()}) == 36
    )
