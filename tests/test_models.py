"""Models: the papers' sizes, weights that depend on the seed alone, and users' own classes."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from sim.config.presets import preset
from sim.data.words import Words
from sim.models.networks import NAMES, build
from sim.models.sequences import SEQUENCE_MODELS

SIZES = [
    ("linear", (1, 8, 8), 10, 650),
    ("linear", (5,), 3, 18),
    ("mlp", (1, 28, 28), 10, 784 * 32 + 32 + 330),
    ("cnn", (1, 28, 28), 10, 26_010),
    ("cnn", (3, 16, 17), 4, 16 * 193 + 8_224 + 32 * 33 + 33 * 4),
    ("cnn-cifar", (3, 32, 32), 10, 550_570),
    ("cnn-cifar", (1, 8, 8), 10, 286_432 + 128 * 129 + 1_290),
    ("lenet", (1, 28, 28), 10, 61_706),
    ("lenet", (3, 12, 13), 4, 6 * 76 + 16 * 151 + 120 * 17 + 84 * 121 + 4 * 85),
    ("cnn-5x5", (3, 32, 32), 10, 1_832_266),
    ("cnn-5x5", (1, 4, 6), 4, 64 * 26 + 64 * 1_601 + 384 * 65 + 384 * 385 + 4 * 385),
    ("cnn-scattering", (81, 7, 7), 10, 33_066),
    ("cnn-scattering", (81, 2, 3), 4, 16 * 730 + 4_640 + 32 * 65 + 33 * 4),
    ("cnn-scattering-cifar", (243, 8, 8), 10, 187_210),
    ("cnn-scattering-cifar", (3, 2, 5), 10, 64 * 28 + 36_928 + 10 * 129),
]


def parameters(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(("name", "shape", "classes", "size"), SIZES)
def test_models_have_their_papers_sizes(
    name: str, shape: tuple[int, ...], classes: int, size: int
) -> None:
    module = build(name, shape, classes, 0)
    assert parameters(module).numel() == size
    assert module(torch.randn(3, *shape)).shape == (3, classes) and module.training


@pytest.mark.parametrize(
    ("dataset", "shape"), [("digits", (1, 8, 8)), ("mnist", (1, 28, 28)), ("fmnist", (1, 28, 28))]
)
def test_default_models_fit_their_data(dataset: str, shape: tuple[int, ...]) -> None:
    assert build(preset(dataset)["model"], shape, 10, 0)(torch.zeros(1, *shape)).shape == (1, 10)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(SEQUENCE_MODELS)))
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    state = torch.get_rng_state()
    first = parameters(build(name, (1, 28, 28), 10, 7))
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, parameters(build(name, (1, 28, 28), 10, 7)))
    assert not torch.equal(first, parameters(build(name, (1, 28, 28), 10, 8)))


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (1, 28, 28)), ("cnn", (1, 28, 28)), ("cnn-cifar", (3, 32, 32))]
)
def test_weights_are_uniform_within_one_over_root_fan_in(name: str, shape: tuple[int, ...]) -> None:
    """The variance of n uniform draws strays by 0.9 / sqrt(n); 6 deviations: false alarms below
    1e-8."""
    layers = [
        layer
        for layer in build(name, shape, 10, 1).modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    assert len(layers) >= 2
    for layer in layers:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        assert layer.weight.abs().max() <= bound and layer.bias.abs().max() <= bound
        scaled = layer.weight.detach() / bound
        assert abs(3 * scaled.square().mean() - 1) < 5.4 / math.sqrt(scaled.numel())
        assert layer.weight.dtype == torch.float32 and layer.weight.requires_grad


LAYERS = {
    "linear": "Flatten Linear",
    "mlp": "Flatten Linear * Linear",
    "cnn": "Conv2d * MaxPool2d Conv2d * MaxPool2d Flatten Linear * Linear",
    "cnn-cifar": "Conv2d * Conv2d * MaxPool2d " * 3 + "Flatten Linear * Linear",
    "lenet": "Conv2d * AvgPool2d Conv2d * AvgPool2d Flatten Linear * Linear * Linear",
    "cnn-5x5": "Conv2d * MaxPool2d Conv2d * MaxPool2d Flatten Linear * Linear * Linear",
    "cnn-scattering": "Conv2d * Conv2d * Flatten Linear * Linear",
    "cnn-scattering-cifar": "Conv2d * MaxPool2d Conv2d * Flatten Linear",
}
"""As in the appendices; a star is the activation."""


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("activation", "kind"), [("tanh", "Tanh"), ("relu", "ReLU")])
def test_models_have_their_papers_layers(name: str, activation: str, kind: str) -> None:
    found = " ".join(type(layer).__name__ for layer in build(name, (1, 32, 32), 10, 0, activation))
    assert found == LAYERS[name].replace("*", kind)
    assert set(LAYERS) | set(SEQUENCE_MODELS) == set(NAMES)


FAULTS = [
    ({"name": "lineer"}, "'lineer' is unknown: did you mean 'linear'"),
    ({"name": "resnet"}, "package.module:Class"),
    ({"activation": "rellu"}, "did you mean 'relu'"),
    ({"name": "cnn", "input_shape": (1, 8, 8)}, "at least 16x16 pixels"),
    ({"name": "cnn", "input_shape": (64,)}, "(64,): use linear or mlp"),
    ({"name": "cnn", "input_shape": (1, 16, 15)}, "at least 16x16 pixels"),
    ({"name": "cnn-cifar", "input_shape": (3, 7, 32)}, "at least 8x8 pixels"),
    ({"name": "lenet", "input_shape": (1, 11, 12)}, "at least 12x12 pixels"),
    ({"name": "cnn-5x5", "input_shape": (3, 4, 3)}, "at least 4x4 pixels"),
    ({"name": "cnn-scattering-cifar", "input_shape": (3, 1, 2)}, "at least 2x2 pixels"),
    ({"name": "cnn-scattering", "input_shape": (81,)}, "at least 1x1 pixels"),
    ({"classes": 0}, "classes = 0"),
    ({"input_shape": ()}, "input_shape = ()"),
    ({"input_shape": (0,)}, "input_shape = (0,)"),
    ({"input_shape": (1, 0, 8)}, "input_shape = (1, 0, 8)"),
    ({"seed": -1}, "seed = -1"),
    (
        {"name": "lstm"},
        "'lstm' takes sequences of words, and records here are numbers: use one of linear, mlp",
    ),
    (
        {"name": "mlp", "words": Words(9)},
        "'mlp' takes numbers, and records here are sequences of words: use one of lstm",
    ),
    ({"seed": 2**63}, "outside 0 .. 2**63 - 1"),
    (
        {"name": "no.such.module:Net"},
        "module 'no.such.module' cannot be imported (ModuleNotFoundError",
    ),
    ({"name": "no.such.module:Net"}, "start where no.py is, or add that folder to PYTHONPATH"),
    ({"name": "own_nets:Absent"}, "has no 'Absent': name a class of models, a subclass of torch.n"),
    ({"name": "__main__:Absent"}, "has no 'Absent': it was defined in a notebook or a script"),
    ({"name": "own_nets:"}, "has no ''"),
    ({"name": ":Net"}, "cannot be imported"),
    (
        {"name": "own_nets:SIZE"},
        "is of type int, not a class of models, a subclass of torch.nn.Module",
    ),
    ({"name": "own_nets:Plain"}, "is the class Plain, not a class of models"),
    (
        {"name": "own_nets:factory"},
        "is of type function, not a class of models, a subclass of torch",
    ),
    ({"name": "own_nets:factory"}, "whose constructor may take input_shape, classes, words: name"),
    (
        {"name": "own_nets:Needy"},
        "its constructor needs width, and is given no more than those of input_shape, classes, "
        "words that it names: give the others defaults",
    ),
    ({"name": "own_nets:Fixed", "classes": 5}, "maps 2 records to (2, 3), not to logits (2, 5)"),
    ({"name": "own_nets:Fixed", "input_shape": (7,)}, "(RuntimeError: "),
    ({"name": "own_nets:Pair"}, "maps 2 records to tuple"),
    ({"name": "broken_nets:Net"}, "(ZeroDivisionError: division by zero)"),
]
OWN_NETS = """
import torch
from torch import nn
SIZE = 3
class Plain: pass
class Net(nn.Module):
    def __init__(self, classes, hidden=4, *, input_shape):
        super().__init__()
        first, last = nn.Linear(input_shape[0], hidden), nn.Linear(hidden, classes)
        self.layers = nn.Sequential(first, nn.Dropout(), last)
    def forward(self, x):
        return self.layers(x)
class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
    def forward(self, x):
        return self.layer(x)
class Counting(Fixed):
    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))
    def forward(self, x):
        self.passes += self.training
        return super().forward(x)
def factory(classes):
    return Fixed()
class Needy(Fixed):
    def __init__(self, width):
        super().__init__()
class Pair(Fixed):
    def forward(self, x):
        return self.layer(x), x
"""


@pytest.fixture
def own_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_nets.py").write_text(OWN_NETS)
    (tmp_path / "broken_nets.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(("change", "words"), FAULTS)
@pytest.mark.usefixtures("own_nets")
def test_faulty_arguments_are_named(change: dict, words: str) -> None:
    arguments = {"name": "linear", "input_shape": (6,), "classes": 3, "seed": 0} | change
    with pytest.raises(ValueError) as caught:
        build(**arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.usefixtures("own_nets")
def test_own_classes_get_what_their_constructor_names_and_leave_the_random_state() -> None:
    state = torch.get_rng_state()
    first = build("own_nets:Net", (6,), 3, 5)
    assert torch.equal(state, torch.get_rng_state()) and first.training
    assert first.layers[0].weight.shape == (4, 6) and first.layers[2].weight.shape == (3, 4)
    assert torch.equal(parameters(first), parameters(build("own_nets:Net", (6,), 3, 5)))
    assert not torch.equal(parameters(first), parameters(build("own_nets:Net", (6,), 3, 6)))
    assert build("own_nets:Fixed", (6,), 3, 0).layer.weight.shape == (3, 6)


@pytest.mark.usefixtures("own_nets")
def test_the_trial_of_an_own_class_leaves_no_trace_in_it() -> None:
    """It is tried on records of zeros. Kills a trial in training mode, which moves what a module
    keeps of its records."""
    module = build("own_nets:Counting", (6,), 3, 0)
    assert module.passes.item() == 0 and module.training
