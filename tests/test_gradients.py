"""Laws of sums of scaled per-record gradients that hold whatever way they are computed."""

import pytest
import torch
from torch import Tensor, nn

from mechanisms.gradients.factors import Unscaled
from mechanisms.gradients.independence import refuse_mixing_layers
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.metric import transform
from tests.record_models import (
    GENERAL,
    TAPPED,
    Case,
    Problem,
    plain_gradients,
    problem,
    shared,
)

CASES = {**TAPPED, **GENERAL}
CORE = ("mlp", "conv2d, stride, padding", "gram", "embedding", "groupnorm", "tied", "lstm")
SOME = {name: CASES[name] for name in CORE}
INPUTS = (
    "mlp",
    "conv2d, groups",
    "gram",
    "groupnorm",
    "layernorm on planes",
    "own parameter",
    "gru",
)
MAPPED = (
    "mlp",
    "long sequence",
    "gram",
    "conv2d",
    "conv2d, groups",
    "groupnorm",
    "embedding",
    "tied",
    "lstm",
)
ROUNDING = {"rtol": 1e-9, "atol": 1e-11}


def by_case(cases: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


def ones(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)


def clip(norms: Tensor) -> Tensor:
    return (0.5 / norms).clamp(max=1)


def one_by_one(p: Problem) -> Tensor:
    """`[K, B, P]`: what the engine takes each record's gradient to be, by factors that pick one
    record."""
    picks = torch.eye(p.x.shape[1], dtype=p.params.dtype)
    sums = [
        p.gradients.scaled_sum(p.params, p.x, p.y, lambda n, pick=pick: pick.expand_as(n))[0]
        for pick in picks
    ]
    return torch.stack(sums, dim=1)


@by_case(CASES)
def test_each_record_has_the_gradient_of_plain_autograd(case: Case) -> None:
    p = problem(case)
    torch.testing.assert_close(
        one_by_one(p), plain_gradients(p.module, p.params, p.x, p.y), **ROUNDING
    )


@by_case(CASES)
def test_norms_and_clipped_sums(case: Case) -> None:
    p = shared(case)
    expected = plain_gradients(p.module, p.params, p.x, p.y)
    total, norms = p.gradients.scaled_sum(p.params, p.x, p.y, clip)
    torch.testing.assert_close(norms, expected.norm(dim=2), **ROUNDING)
    torch.testing.assert_close(total, (clip(norms).unsqueeze(2) * expected).sum(1), **ROUNDING)
    torch.testing.assert_close(p.gradients.norms(p.params, p.x, p.y), norms, **ROUNDING)


@by_case(CASES)
def test_a_cohort_is_its_clients_one_by_one(case: Case) -> None:
    p = shared(case, clients=3)
    together = p.gradients.scaled_sum(p.params, p.x, p.y, clip)
    alone = [p.gradients.scaled_sum(p.params[[k]], p.x[[k]], p.y[[k]], clip) for k in range(3)]
    for joint, parts in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(joint, torch.cat(parts), **ROUNDING)


@by_case(SOME)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_non_finite_record_adds_nothing(case: Case, bad: float) -> None:
    """Whatever factor its norm gives it."""
    p = shared(case)
    norms = p.gradients.norms(p.params, p.x, p.y)
    without = p.gradients.scaled_sum(
        p.params, p.x, p.y, lambda n: ones(n).index_fill(1, torch.tensor(1), 0.0)
    )[0]

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, targets % 3, reduction="none") * torch.where(
            targets > 2, bad, 1.0
        )

    poisoned = RecordGradients(p.module, loss)
    marked = p.y + 3 * (torch.arange(3) == 1)
    for factor in (1.0, 0.0, torch.inf, torch.nan):
        total, found = poisoned.scaled_sum(
            p.params, p.x, marked, lambda n, factor=factor: torch.where(n.isinf(), factor, 1.0)
        )
        torch.testing.assert_close(total, without, **ROUNDING)
        assert torch.isinf(found[:, 1]).all()
        torch.testing.assert_close(found[:, [0, 2]], norms[:, [0, 2]], **ROUNDING)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e300])
def test_a_non_finite_input_leaves_the_others_as_they_are(name: str, bad: float) -> None:
    p = shared(CASES[name])
    others = p.gradients.scaled_sum(p.params, p.x[:, 1:], p.y[:, 1:], clip)
    x = p.x.clone()
    x[:, 0] = bad
    total, norms = p.gradients.scaled_sum(
        p.params, x, p.y, lambda n: clip(n) * (torch.arange(3) > 0)
    )
    torch.testing.assert_close(total, others[0], **ROUNDING)
    torch.testing.assert_close(norms[:, 1:], others[1], **ROUNDING)
    assert not norms.isnan().any()


@by_case(SOME)
def test_no_records(case: Case) -> None:
    p = problem(case, records=0)
    total, norms = p.gradients.scaled_sum(p.params, p.x, p.y, clip)
    assert torch.equal(total, torch.zeros_like(p.params)) and norms.shape == (2, 0)
    assert p.gradients.losses(p.params, p.x, p.y).shape == (2, 0)
    outputs = problem(case).gradients.logits(p.params, problem(case).x)
    assert p.gradients.logits(p.params, p.x).shape == (2, 0, *outputs.shape[2:])


@by_case(SOME)
def test_one_record(case: Case) -> None:
    p = shared(case, clients=1, records=1)
    expected = plain_gradients(p.module, p.params, p.x, p.y)
    torch.testing.assert_close(
        p.gradients.scaled_sum(p.params, p.x, p.y, ones)[0], expected[:, 0], **ROUNDING
    )


@by_case(SOME)
def test_padding_adds_nothing(case: Case) -> None:
    p = shared(case)
    kept = p.gradients.scaled_sum(p.params, p.x[:, :2], p.y[:, :2], clip)[0]
    padded = p.gradients.scaled_sum(p.params, p.x, p.y, lambda n: clip(n) * (torch.arange(3) < 2))[
        0
    ]
    torch.testing.assert_close(padded, kept, **ROUNDING)


@by_case(CASES)
def test_factors_that_look_at_no_norm_give_the_plain_weighted_sum(case: Case) -> None:
    """Also where a record has weight 0, and where one is not finite, which must add nothing."""
    p = shared(case, clients=2)
    weights = torch.arange(p.y.shape[:2].numel()).view(p.y.shape[:2]).to(p.params) % 3
    broken = p.x.clone() if p.x.is_floating_point() else p.x
    if p.x.is_floating_point():
        broken[0, 0] = torch.nan
    for x in (p.x, broken):
        expected, _ = p.gradients.scaled_sum(p.params, x, p.y, lambda norms: weights)
        torch.testing.assert_close(
            p.gradients.scaled_sum(p.params, x, p.y, Unscaled(weights))[0], expected, **ROUNDING
        )


@by_case({name: TAPPED[name] for name in ("mlp", "conv2d, groups", "groupnorm")})
def test_factors_that_look_at_no_norm_cost_none(case: Case) -> None:
    p = shared(case)
    assert not p.gradients.scaled_sum(p.params, p.x, p.y, Unscaled(torch.ones(p.y.shape[:2])))[
        1
    ].any()


def test_a_memory_limit_bounds_what_a_pass_holds_and_leaves_the_result_alone() -> None:
    """Kills a limit that is not read, or read as entries: these passes hold 2 * 24 of them for each
    record."""
    module, passes = nn.Linear(23, 1), []

    def counting(norms: torch.Tensor) -> torch.Tensor:
        passes.append(int((norms > 0).sum()))
        return clip(norms)

    x, y = torch.randn(1, 50, 23, generator=torch.Generator().manual_seed(0)), torch.ones(1, 50)
    whole, cut = (
        RecordGradients(module, lambda o, y: (o[:, 0] - y) ** 2, memory_limit=m)
        for m in (None, 4 * 48 * 7)
    )
    params = whole.layout.initial(module).unsqueeze(0)
    expected = whole.scaled_sum(params, x, y, clip)
    torch.testing.assert_close(cut.scaled_sum(params, x, y, counting), expected)
    assert len(passes) > 1 and max(passes) <= 2 * 7 and sum(passes) == 50


@by_case(SOME)
@pytest.mark.parametrize("max_records", [1, 2, 4, 7])
def test_the_cut_into_passes_does_not_matter(case: Case, max_records: int) -> None:
    p, cut = shared(case), shared(case, max_records=max_records)
    mask = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    whole = p.gradients.scaled_sum(p.params, p.x, p.y, lambda n: clip(n) * mask)
    for one, other in zip(
        whole, cut.gradients.scaled_sum(p.params, p.x, p.y, lambda n: clip(n) * mask), strict=True
    ):
        torch.testing.assert_close(other, one, **ROUNDING)
    torch.testing.assert_close(
        cut.gradients.losses(p.params, p.x, p.y), p.gradients.losses(p.params, p.x, p.y)
    )


@by_case(SOME)
@pytest.mark.parametrize("max_records", [1, 2, 4])
def test_the_cut_into_passes_does_not_matter_where_no_norm_is_looked_at(
    case: Case, max_records: int
) -> None:
    """Kills a later pass that replaces what an earlier one has summed."""
    p, cut = shared(case), shared(case, max_records=max_records)
    weights = Unscaled(torch.tensor([[1.0, 0.0, 3.0], [2.0, 1.0, 0.5]]))
    whole, parts = (q.gradients.scaled_sum(p.params, p.x, p.y, weights)[0] for q in (p, cut))
    torch.testing.assert_close(parts, whole, **ROUNDING)


@by_case(CASES)
def test_losses_and_logits(case: Case) -> None:
    p = problem(case)
    for k, row in enumerate(p.params):
        named = p.gradients.layout.unflatten(row)
        expected = torch.func.functional_call(p.module, named, (p.x[k],))
        torch.testing.assert_close(p.gradients.logits(p.params, p.x)[k], expected, **ROUNDING)
        losses = nn.functional.cross_entropy(expected, p.y[k], reduction="none")
        torch.testing.assert_close(p.gradients.losses(p.params, p.x, p.y)[k], losses, **ROUNDING)


def test_a_tiny_norm_is_rounded_up_and_a_huge_one_counts_as_non_finite() -> None:
    """Kills a norm of 1e-13 that is taken for 0: a bound of 1e-14 would not hold."""
    gradients = RecordGradients(
        nn.Linear(1, 1, bias=False), lambda output, y: output.squeeze(1) * y
    )
    params, scale = torch.ones(1, 1), torch.tensor([[1e-20, 1e-13, 1.0, 1e30]])
    total, norms = gradients.scaled_sum(params, torch.ones(1, 4, 1), scale, ones)
    assert (
        norms[0].tolist() == pytest.approx([1e-12, 1e-12, 1.0, torch.inf], rel=1e-6) and total == 1
    )
    clipped, _ = gradients.scaled_sum(
        params, torch.ones(1, 4, 1), scale, lambda n: (1e-14 / n).clamp(max=1)
    )
    assert clipped <= 3e-14
    zero = RecordGradients(Vanishing())
    assert (
        zero.norms(
            zero.layout.initial(Vanishing())[None], torch.zeros(1, 2, 1), torch.zeros(1, 2).long()
        )
        .eq(0)
        .all()
    )


class Vanishing(nn.Module):
    """A model of one parameter, without a gradient at records of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, 2 * x], dim=1) * self.scale


def test_a_norm_is_never_underestimated_by_underflow() -> None:
    """The squares of the inputs, 1e-46, are 0 in float32; the gradient's norm is 4e-4."""
    gradients = RecordGradients(
        nn.Linear(16, 1, bias=False), lambda output, y: output.squeeze(1) * y
    )
    x, y = torch.full((1, 1, 16), 1e-23), torch.full((1, 1), 1e19)
    total, norms = gradients.scaled_sum(torch.ones(1, 16), x, y, lambda n: (1e-6 / n).clamp(max=1))
    assert gradients.is_tapped(x, y) and norms >= 4e-4 and total.norm() <= 1e-6 * (1 + 1e-5)


@by_case({name: CASES[name] for name in MAPPED})
def test_a_metric_maps_the_output_index_of_its_layers(case: Case) -> None:
    p = shared(case)
    layout = p.gradients.layout
    expected, metric = plain_gradients(p.module, p.params, p.x, p.y), {}
    for name, shape in list(zip(layout.names, layout.shapes, strict=True))[:-1]:
        layer = name.rpartition(".")[0]
        metric[layer] = torch.sin(torch.arange(2.0 * shape[0] ** 2, dtype=torch.float64)).view(
            2, shape[0], shape[0]
        )
    parts = layout.unflatten(expected)
    for name in layout.names:
        if (layer := name.rpartition(".")[0]) in metric:
            parts[name] = torch.einsum("koi,kbi...->kbo...", metric[layer], parts[name])
    mapped = layout.flatten(parts)
    total, norms = p.gradients.scaled_sum(p.params, p.x, p.y, clip, metric)
    torch.testing.assert_close(norms, mapped.norm(dim=2), **ROUNDING)
    torch.testing.assert_close(total, (clip(norms).unsqueeze(2) * mapped).sum(1), **ROUNDING)
    torch.testing.assert_close(p.gradients.norms(p.params, p.x, p.y, metric), norms, **ROUNDING)
    back = {
        layer: torch.linalg.inv(matrix + 3 * torch.eye(matrix.shape[1]))
        for layer, matrix in metric.items()
    }
    there = {layer: matrix + 3 * torch.eye(matrix.shape[1]) for layer, matrix in metric.items()}
    torch.testing.assert_close(transform(back, layout, transform(there, layout, total)), total)


def test_factors_that_look_at_no_norm_are_applied_under_the_metric_too() -> None:
    p, weights = shared(CASES["mlp"]), torch.tensor([0.5, 0.0, 2.0])
    layout, weights = p.gradients.layout, weights.to(p.params).expand(p.y.shape)
    outputs = layout.shapes[0][0]
    metric = {
        layout.names[0].rpartition(".")[0]: 2.0
        * torch.eye(outputs).to(p.params).expand(len(p.params), -1, -1)
    }
    expected = p.gradients.scaled_sum(p.params, p.x, p.y, lambda norms: weights, metric)[0]
    torch.testing.assert_close(
        p.gradients.scaled_sum(p.params, p.x, p.y, Unscaled(weights), metric)[0], expected
    )


def test_wrong_metrics_are_refused() -> None:
    p = shared(CASES["mlp"])
    with pytest.raises(ValueError, match="layer 'fc'"):
        p.gradients.norms(p.params, p.x, p.y, {"fc": torch.ones(2, 5, 5)})
    with pytest.raises(ValueError, match=r"layer '1' has shape \(2, 6, 6\).*\(2, 5, 5\)"):
        p.gradients.norms(p.params, p.x, p.y, {"1": torch.ones(2, 6, 6)})
    with pytest.raises(ValueError, match=r"layer '1' has shape \(1, 5, 5\).*\(2, 5, 5\)"):
        p.gradients.norms(p.params, p.x, p.y, {"1": torch.ones(1, 5, 5)})


def test_wrong_shapes_are_refused() -> None:
    p = shared(CASES["linear"])
    with pytest.raises(ValueError, match="P = 15"):
        p.gradients.norms(p.params[:, 1:], p.x, p.y)
    with pytest.raises(ValueError, match=r"x has shape \(1, 3, 4\)"):
        p.gradients.norms(p.params, p.x[:1], p.y)
    with pytest.raises(ValueError, match=r"y has shape \(2, 2\)"):
        p.gradients.norms(p.params, p.x, p.y[:, :2])
    with pytest.raises(ValueError, match=r"\(2, 1\).*\(2, 3\)"):
        p.gradients.scaled_sum(p.params, p.x, p.y, lambda n: n[:, :1])


def test_a_target_may_be_several_numbers() -> None:
    """Of a regression: the gradient of |W x + b - y|^2 is 2 (W x + b - y) (x, 1)^T."""
    module, generator = nn.Linear(4, 3), torch.Generator().manual_seed(0)
    gradients = RecordGradients(module, lambda output, y: (output - y).square().sum(1))
    x, y = (torch.randn(1, 5, n, generator=generator) for n in (4, 3))
    params = gradients.layout.initial(module)[None]
    gap = (module(x[0]) - y[0]).detach()
    expected = 2 * gap.norm(dim=1) * (x[0].square().sum(1) + 1).sqrt()
    torch.testing.assert_close(gradients.norms(params, x, y)[0], expected)
    torch.testing.assert_close(gradients.losses(params, x, y)[0], gap.square().sum(1))


MIXING_LAYERS = [
    nn.BatchNorm2d(2),
    nn.BatchNorm1d(2, track_running_stats=False),
    nn.SyncBatchNorm(2),
    nn.LazyBatchNorm1d(),
    nn.InstanceNorm2d(2, track_running_stats=True),
]


@pytest.mark.parametrize("layer", MIXING_LAYERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("training", [True, False])
def test_layers_that_mix_records_are_refused_by_name(layer: nn.Module, training: bool) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(layer)).train(training)
    with pytest.raises(
        ValueError, match=rf"'1\.0' \({type(layer).__name__}\).*GroupNorm or LayerNorm"
    ):
        RecordGradients(module)


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.1), nn.LSTM(2, 2, 2, dropout=0.1), nn.MultiheadAttention(2, 1, 0.1)]
)
def test_dropout_is_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"'0'.*p = 0\.1.*set p to 0"):
        refuse_mixing_layers(nn.Sequential(layer))


@pytest.mark.parametrize(
    "compiled", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2))]
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_modules_of_torchscript_are_refused_at_any_depth(compiled) -> None:
    module = compiled(nn.Linear(2, 2))
    for whole, place in [
        (module, "the model"),
        (nn.Sequential(nn.Sequential(module)), r"layer '0\.0'"),
    ]:
        with pytest.raises(ValueError, match=f"^{place} is a module of TorchScript"):
            refuse_mixing_layers(whole)


@pytest.mark.parametrize(
    "options, name", [({"max_norm": 1.0}, "max_norm"), ({"sparse": True}, "sparse")]
)
def test_embeddings_without_a_dense_gradient_are_refused_by_name(
    options: dict[str, float], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"'0' \(Embedding\) has {name}"):
        refuse_mixing_layers(nn.Sequential(nn.Embedding(3, 2, **options)))  # type: ignore[arg-type]


def test_per_record_normalization_and_silent_dropout_are_allowed() -> None:
    refuse_mixing_layers(
        nn.Sequential(nn.InstanceNorm2d(2), nn.GroupNorm(1, 2), nn.LayerNorm(2), nn.Dropout(0.0))
    )
