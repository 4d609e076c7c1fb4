"""The LSTM of IMDB: its recurrence, its gradients record by record, its weights, and a whole
run."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.gradients.recurrence import recurrence
from mechanisms.layout import Layout
from sim.commands.guard import main_guard
from sim.data.words import Words
from sim.models.networks import build
from sim.run import command
from tests.published import publish
from tests.record_models import plain_gradients
from tests.reviews import write

WORDS = 12
FLOAT32 = {"rtol": 2e-4, "atol": 2e-7}


def clip(norms: Tensor) -> Tensor:
    return (0.05 / norms).clamp(max=1)


def network(trained: bool = False, seed: int = 3) -> nn.Module:
    return build("lstm", (20,), 2, seed, words=Words(WORDS, trained=trained))


def reviews(clients: int, records: int) -> tuple[Tensor, Tensor]:
    """Records of 20 words: the first is all filling, the others begin with more and more of it."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(1, WORDS, (clients, records, 20), generator=generator)
    x[:, 0] = 0
    for n in range(1, records):
        x[:, n, : 3 * n] = 0
    return x, torch.randint(0, 2, (clients, records), generator=generator)


def inputs(
    shape: tuple[int, int, int, int], ways: int, units: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Random x `[K, T, B, in]`, weight and bias of a recurrence, and the place of its gradient."""
    generator, (clients, times, records, width) = torch.Generator().manual_seed(2), shape
    gates = clients, ways, 4 * units
    sizes = shape, (*gates, width + units), gates
    drawn = [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]
    at = torch.zeros(clients, ways, times + 1, records, 4 * units, dtype=dtype)
    return [drawn[0].requires_grad_(), at.requires_grad_(), *drawn[1:]]


@pytest.mark.parametrize("ways", [1, 2])
def test_the_recurrence_has_the_gradient_of_its_differences(ways: int) -> None:
    """Of all states, of h_T and of c_T, by finite differences."""
    x, *rest = inputs((2, 4, 3, 2), ways, 2)
    assert torch.autograd.gradcheck(lambda x: recurrence(x, *rest)[:3], x)


def test_the_gradient_of_the_gates_is_that_of_inputs_that_enter_them_unchanged() -> None:
    """And at last its sum over the steps."""
    x, at, weight, bias = inputs((2, 4, 3, 8), 1, 2)
    weight[..., :8] = torch.eye(8)
    output, h, c, _ = recurrence(x, at, weight, bias)
    loss = output.pow(3).sum() + h.sum() + c.square().sum()
    of_x, of_at = torch.autograd.grad(loss, [x, at])
    torch.testing.assert_close(of_at[:, 0, :-1], of_x)
    torch.testing.assert_close(of_at[:, 0, -1], of_x.sum(1))


def test_slopes_of_some_steps_at_a_time_are_those_of_all() -> None:
    """5 steps of many records go 2, 2 and 1 at a time; of few, all at once."""
    x, at, weight, bias = inputs((1, 5, 2**12, 3), 2, 2, torch.float32)

    def found(some: slice) -> tuple[Tensor, ...]:
        output, *_ = recurrence(x[:, :, some], at[..., some, :], weight, bias)
        return torch.autograd.grad(output.pow(3).sum(), [x, at])

    parts = [found(slice(start, start + 2**9)) for start in range(0, 2**12, 2**9)]
    for whole, *own in zip(found(slice(None)), *parts, strict=True):
        torch.testing.assert_close(whole, torch.stack(own).sum(0))


@pytest.mark.parametrize("records", [5, 256])
def test_the_recurrence_is_that_of_torch(records: int) -> None:
    """Large batches are multiplied in parts."""
    cells = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in cells.parameters():
        nn.init.uniform_(parameter, -0.2, 0.2, generator)
    x = torch.randn(records, 6, 32, generator=generator)

    def both(*names: str) -> Tensor:
        own = [[getattr(cells, name + end) for name in names] for end in ("_l0", "_l0_reverse")]
        return torch.stack([torch.cat(one, -1) for one in own])[None]

    weight = both("weight_ih", "weight_hh")
    at = torch.zeros(1, 2, 7, records, 128)
    bias = both("bias_ih") + both("bias_hh")
    output, h, c, seen = recurrence(x.transpose(0, 1)[None], at, weight, bias)
    expected, (last, memory) = cells(x)
    torch.testing.assert_close(output[0].transpose(0, 1).flatten(2), expected)
    torch.testing.assert_close(h[0], last)
    torch.testing.assert_close(c[0], memory)
    assert (
        torch.equal(seen[0, 1, :, :, :32], x.transpose(0, 1).flip(0))
        and not seen[:, :, 0, :, 32:].any()
    )
    assert torch.equal(seen[0, 0, 1:, :, 32:], output[0, :-1, :, 0])


def test_the_recurrence_by_pytorch_is_that_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch computes it on a GPU."""
    given = inputs((2, 5, 3, 6), 2, 4, torch.float32)

    def found() -> list[torch.Tensor]:
        output, h, c, seen = recurrence(*given)
        loss = output.square().sum() + h.sum() + c.sum()
        return [output, h, c, seen, *torch.autograd.grad(loss, given[:2])]

    expected = found()
    monkeypatch.setattr("mechanisms.gradients.recurrence.TYPES", ())
    torch.testing.assert_close(found(), expected)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("max_records", [None, 2])
def test_gradients_are_those_of_autograd(
    trained: bool, clients: int, max_records: int | None
) -> None:
    module, (x, y) = network(trained), reviews(clients, 5)
    gradients = RecordGradients(module, max_records=max_records)
    params = gradients.layout.initial(module) * torch.tensor([1.0, 0.5, 2.0])[:clients, None]
    expected = plain_gradients(module, params, x, y)
    total, norms = gradients.scaled_sum(params, x, y, clip)
    assert gradients.is_tapped(x, y)
    torch.testing.assert_close(norms, expected.norm(dim=2), **FLOAT32)
    torch.testing.assert_close(total, (clip(norms).unsqueeze(2) * expected).sum(1), **FLOAT32)


def test_no_records_and_no_clients_have_no_gradient() -> None:
    module = network()
    gradients = RecordGradients(module)
    params = gradients.layout.initial(module).expand(2, -1)
    for some in (params, params[:0]):
        x, y = (
            torch.zeros(len(some), 0, 20, dtype=torch.long),
            torch.zeros(len(some), 0, dtype=torch.long),
        )
        total, norms = gradients.scaled_sum(some, x, y, clip)
        assert torch.equal(total, torch.zeros_like(some)) and norms.shape == (len(some), 0)


def test_the_filling_has_no_vector_and_no_gradient() -> None:
    module, (x, y) = network(trained=True), reviews(1, 5)
    gradients = RecordGradients(module)
    total, _ = gradients.scaled_sum(gradients.layout.initial(module).unsqueeze(0), x, y, clip)
    vectors = gradients.layout.unflatten(total)["0.weight"][0]
    assert not module[0].weight[0].any() and not vectors[0].any() and vectors[1:].any(1).all()


def test_vectors_are_constants_unless_they_are_trained() -> None:
    assert Layout.of(network()).size == 21_202
    assert Layout.of(network(trained=True)).size == 21_202 + 100 * WORDS
    assert torch.equal(network()[0].weight, network(trained=True)[0].weight)


def test_given_vectors_are_taken_as_they_are() -> None:
    given = np.arange(WORDS * 7, dtype=np.float32).reshape(WORDS, 7)
    module = build("lstm", (20,), 2, 0, words=Words(WORDS, given))
    assert (
        torch.equal(module[0].weight[1:], torch.from_numpy(given[1:]))
        and not module[0].weight[0].any()
    )
    assert given[0].any() and module(torch.ones(3, 20, dtype=torch.long)).shape == (3, 2)


@pytest.mark.parametrize(("activation", "applied"), [("tanh", torch.tanh), ("relu", torch.relu)])
def test_the_network_is_that_of_the_appendix(activation: str, applied) -> None:
    """Vectors, a layer, both directions, the mean of all states, two layers; given vectors stay as
    they were."""
    given = np.random.default_rng(0).normal(size=(WORDS, 7)).astype(np.float32)
    kept, (x, _) = given.copy(), reviews(1, 5)
    module = build("lstm", (20,), 4, 0, activation, Words(WORDS, given))
    inner, cells, hidden, last = module[1], module[3], module[5], module[7]
    states, _ = cells(applied(inner(module[0].weight[x[0]])))
    assert states.shape == (5, 20, 64) and np.array_equal(given, kept)
    torch.testing.assert_close(module(x[0]), last(applied(hidden(states.mean(dim=1)))))


def test_weights_depend_on_the_seed_alone() -> None:
    def parameters(seed: int) -> Tensor:
        return torch.cat([p.detach().flatten() for p in network(seed=seed).parameters()])

    state = torch.get_rng_state()
    first = parameters(7)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, parameters(7)) and not torch.equal(first, parameters(8))


def test_weights_of_the_lstm_are_uniform_within_one_over_root_units() -> None:
    """16,896 draws: the mean square strays by 0.7 per cent; 6 deviations: false alarms below
    1e-8."""
    drawn = torch.cat([p.detach().flatten() for p in network()[3].parameters()]) * math.sqrt(32)
    assert (
        len(drawn) == 2 * 128 * 66
        and drawn.abs().max() <= 1
        and abs(3 * drawn.square().mean() - 1) < 0.042
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = write(tmp_path_factory.mktemp("data"))
    with pytest.MonkeyPatch.context() as patch:
        publish(patch, root)
        yield root


def run(out: Path, folder: Path, name: str, *flags: str) -> int:
    argv = (
        f"--dataset=imdb --data-dir={folder} --clients=4 --chunk-clients=2 --rounds=2 "
        "--sample-rate=0.5"
    ).split()
    return main_guard(
        command, [*argv, "--engine=inline", "--quiet", f"--out={out}", f"--name={name}", *flags]
    )


@pytest.mark.usefixtures("no_report")
def test_groups_change_no_bit_and_the_model_has_its_vectors(folder: Path, tmp_path: Path) -> None:
    models = []
    for groups in ("1", "2"):
        assert run(tmp_path, folder, groups, "--groups", groups) == 0
        models.append(load_file(tmp_path / groups / "model.safetensors"))
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    module = build("lstm", (80,), 2, 0, words=Words(20_000))
    module.load_state_dict({name: torch.from_numpy(array) for name, array in models[0].items()})
    assert models[0]["0.weight"].std() == pytest.approx(1, abs=0.01)


@pytest.mark.usefixtures("no_report")
def test_a_run_goes_on_with_the_vectors_it_began_with(folder: Path, tmp_path: Path, capsys) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("good 1 2\nbad 2 1\n")
    assert run(tmp_path, folder, "a", "--word-vectors", str(vectors)) == 0
    model = load_file(tmp_path / "a" / "model.safetensors")
    assert model["0.weight"].shape == (20_000, 2) and model["0.weight"][5].tolist() == [1, 2]
    again = ["--resume", str(tmp_path / "a"), "--quiet"]
    assert main_guard(command, again) == 0
    vectors.write_text("good 1 2\nbad 2 1.5\n")
    assert main_guard(command, again) == 2
    assert "is not what" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--model=linear"],
            "'linear' takes numbers, and records here are sequences of words: use one of lstm",
        ),
        (
            ["--dataset=digits", "--model=lstm"],
            "'lstm' takes sequences of words, and records here are numbers",
        ),
        (
            ["--dataset=digits", "--train-embedding"],
            "train_embedding is on, which dataset = digits does not use",
        ),
        (["--word-vectors=absent.txt"], "word_vectors = absent.txt cannot be read"),
        (["--features=scattering"], "no scattering features"),
        (["--standardize=private"], "standardize is private, but word numbers"),
        (
            ["--strategy=fedfed", "--shared-source=prototypes"],
            "shared_source is prototypes, but word numbers with noise",
        ),
    ],
)
def test_what_cannot_be_used_together_is_named(flags, words, folder, tmp_path, capsys) -> None:
    assert run(tmp_path / "runs", folder, "a", *flags) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "runs" / "a").exists()


def test_a_model_of_ones_own_is_told_how_many_words_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own_words.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, words, classes):\n"
        "        super().__init__()\n"
        "        self.words, self.out = nn.Embedding(words, 4), nn.Linear(4, classes)\n"
        "    def forward(self, x):\n"
        "        return self.out(self.words(x).mean(1))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert build("own_words:Net", (80,), 2, 0, words=Words(WORDS)).words.num_embeddings == WORDS
