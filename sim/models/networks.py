"""Models: a table of small classifiers, or the user's `torch.nn.Module`.

All models of the table are `nn.Sequential` of layers that treat records independently. Their
weights and biases are uniform in +-1 / sqrt(fan-in), PyTorch's rule, but drawn from a generator of
their own that depends on `seed` alone; no global random state is touched. Models of word sequences
are in `sim/models/sequences.py`.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sim.config.names import suggest
from sim.data.words import Words
from sim.models.own import build_own
from sim.models.sequences import SEQUENCE_MODELS

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}

Shape = tuple[int, ...]
"""Shape of one record: (F,) features or (C, H, W) image."""


def build(
    name: str,
    input_shape: Shape,
    classes: int,
    seed: int,
    activation: str = "tanh",
    words: Words | None = None,
) -> nn.Module:
    """A model from records [B, *input_shape] to outputs [B, classes], on the CPU, in training mode.

    Args:
        name: one of `NAMES`, or the user's `package.module:Class`. Such a class receives those of
            the keyword arguments `input_shape`, `classes` and `words` (vocabulary size) that its
            constructor names; PyTorch's CPU generator is seeded while it is built and restored
            afterwards.
        input_shape: shape of one record: (F,), (C, H, W), or (T,) for words.
        classes: number of outputs, at least 1.
        seed: seed of the initial weights, 0 .. 2**63 - 1.
        activation: `tanh` or `relu`, between the layers of the table's models; unused by `linear`
            and by the user's classes.
        words: the vocabulary, if records are int64 word numbers; None if they are float32.

    Raises:
        ValueError: unknown name or activation; a value outside its range; images too small, or no
            images, for a convolutional model; words for a numeric model, or the reverse; a class
            that cannot be imported, built or run, is no `nn.Module`, or whose output is not
            [B, classes].
    """
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation = {activation!r} is unknown: {suggest(activation, ACTIVATIONS)}"
        )
    if min(input_shape, default=0) < 1 or classes < 1:
        raise ValueError(
            f"input_shape = {input_shape}, classes = {classes}: a model needs sizes of at least 1 "
            "and an output"
        )
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed} is outside 0 .. 2**63 - 1: choose one within")
    if ":" in name:
        return build_own(name, input_shape, classes, seed, words)
    if name not in NAMES:
        raise ValueError(
            f"model = {name!r} is unknown: {suggest(name, NAMES)}, or package.module:Class"
        )
    if (name in SEQUENCE_MODELS) != (words is not None):
        kinds = ("sequences of words", "numbers")[:: -1 if words else 1]
        near = ", ".join(SEQUENCE_MODELS if words else _BUILDERS)
        raise ValueError(
            f"model = {name!r} takes {kinds[0]}, and records here are {kinds[1]}: use one of {near}"
        )
    return _own_layers(name, input_shape, classes, seed, ACTIVATIONS[activation], words)


def _own_layers(
    name: str,
    shape: Shape,
    classes: int,
    seed: int,
    activation: type[nn.Module],
    words: Words | None,
) -> nn.Module:
    """A model of the table, with weights drawn from the seed."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    with torch.random.fork_rng(devices=[]):  # layers draw weights, which are redrawn below
        if words is not None:
            module = nn.Sequential(*SEQUENCE_MODELS[name](classes, activation, words, rng))
        else:
            module = nn.Sequential(*_BUILDERS[name](shape, classes, activation))
    for layer in module:
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.LSTM):
            initialise(layer, rng)
    return module


def initialise(layer: nn.Linear | nn.Conv2d | nn.LSTM, rng: np.random.Generator) -> None:
    """Draw the parameters in their order, uniform in +-1 / sqrt(fan-in; for an LSTM, its units)."""
    fan_in = layer.hidden_size if isinstance(layer, nn.LSTM) else layer.weight[0].numel()
    bound = 1 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            draw = rng.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(draw))


def _linear(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """Softmax regression on all numbers of a record."""
    return [nn.Flatten(), nn.Linear(math.prod(shape), classes)]


def _mlp(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """One hidden layer of 32."""
    return [nn.Flatten(), nn.Linear(math.prod(shape), 32), activation(), nn.Linear(32, classes)]


def _cnn(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """DPSUR's appendix, MNIST and Fashion-MNIST: 26,010 parameters on 1x28x28 with 10 classes."""
    channels, *sides = _image("cnn", shape, 16)
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    return [
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * height * width, 32),
        activation(),
        nn.Linear(32, classes),
    ]


def _cnn_cifar(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """DPSUR's appendix, CIFAR-10 (3x3 kernels, padding 1): 550,570 parameters on 3x32x32."""
    channels, height, width = _image("cnn-cifar", shape, 8)
    layers: list[nn.Module] = []
    for wide in (32, 64, 128):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), activation()]
        layers += [nn.Conv2d(wide, wide, 3, padding=1), activation(), nn.MaxPool2d(2)]
        channels = wide
    features = channels * (height // 8) * (width // 8)
    return [*layers, nn.Flatten(), nn.Linear(features, 128), activation(), nn.Linear(128, classes)]


def _lenet(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """LeNet-5 (LeCun et al. 1998), DP-Hero's model for MNIST: 61,706 parameters on 1x28x28.

    DP-Hero gives no shapes. Unlike in LeCun's, each channel of the second layer sees all of the
    first, and pooling has no weights.
    """
    channels, *sides = _image("lenet", shape, 12)
    height, width = ((side // 2 - 4) // 2 for side in sides)
    return [
        nn.Conv2d(channels, 6, 5, padding=2),
        activation(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * height * width, 120),
        activation(),
        nn.Linear(120, 84),
        activation(),
        nn.Linear(84, classes),
    ]


def _cnn_5x5(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """DP-Hero's model for CIFAR-10, from Abadi et al. (2016): 1,832,266 parameters on 3x32x32.

    Two convolutions and two layers of 384. DP-Hero gives neither channels nor padding: 64 and 2,
    as in Abadi et al.
    """
    channels, height, width = _image("cnn-5x5", shape, 4)
    return [
        nn.Conv2d(channels, 64, 5, padding=2),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 384),
        activation(),
        nn.Linear(384, 384),
        activation(),
        nn.Linear(384, classes),
    ]


def _cnn_scattering(shape: Shape, classes: int, activation: type[nn.Module]) -> list[nn.Module]:
    """Tramer and Boneh 2021, features of grey images (padding 1): 33,066 parameters on 81x7x7."""
    channels, height, width = _image("cnn-scattering", shape, 1)
    return [
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        activation(),
        nn.Conv2d(16, 32, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(32 * ((height + 1) // 2) * ((width + 1) // 2), 32),
        activation(),
        nn.Linear(32, classes),
    ]


def _cnn_scattering_cifar(
    shape: Shape, classes: int, activation: type[nn.Module]
) -> list[nn.Module]:
    """Tramer and Boneh 2021, features of colour images: 187,210 parameters on 243x8x8."""
    channels, height, width = _image("cnn-scattering-cifar", shape, 2)
    return [
        nn.Conv2d(channels, 64, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(64 * (height // 2) * (width // 2), classes),
    ]


_BUILDERS: dict[str, Callable[[Shape, int, type[nn.Module]], list[nn.Module]]] = {
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
    "cnn-cifar": _cnn_cifar,
    "lenet": _lenet,
    "cnn-5x5": _cnn_5x5,
    "cnn-scattering": _cnn_scattering,
    "cnn-scattering-cifar": _cnn_scattering_cifar,
}
NAMES = (*_BUILDERS, *SEQUENCE_MODELS)


def _image(name: str, shape: Shape, least: int) -> Shape:
    """The shape, checked to be that of an image of at least `least` x `least` pixels."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"model = {name!r} needs images (C, H, W) of at least {least}x{least} pixels, and "
            f"records here have shape {tuple(shape)}: use linear or mlp"
        )
    return shape
