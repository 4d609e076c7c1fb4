"""Frozen networks that make features of records: torchvision's with weights from a file, or the
user's own, ``package.module:NAME``.

A network sees one record at a time. So a record's features depend on that record alone, whatever
the network's layers are, and clipping and noise of a model on top protect it as they do for pixels.
"""

import hashlib
import importlib
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from mechanisms import durable, plugins
from sim.sources.torchvision_compat import import_torchvision

FORM = "a class or function that makes a torch.nn.Module"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels, as torchvision's weights expect them."""


class Backbone:
    """A frozen network on a device.

    Attributes:
        digest: of its code, its settings, and all its parameters and buffers.
    """

    def __init__(self, name: str, settings: str | None, device: torch.device) -> None:
        """Build the network in evaluation mode.

        Raises:
            ValueError: it cannot be imported or called, or is no `torch.nn.Module`, or has one of
            TorchScript.
        """
        self._said = f"features = {name!r}"
        found = plugins.plugin("features", name, FORM)
        if not callable(found):
            raise ValueError(f"{self._said} is a {type(found).__name__}: name {FORM}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            module = plugins.call(
                "features", name, found, {}, plugins.values("features_settings", settings)
            )
        if not isinstance(module, nn.Module):
            raise ValueError(f"{self._said} makes a {type(module).__name__}: name {FORM}")
        if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
            raise ValueError(
                f"{self._said} has a module of TorchScript, whose weights may be constants that no "
                "digest sees: use the torch.nn.Module that it was made from"
            )
        self._module = module.eval().requires_grad_(False).to(device)
        self._device = device
        self._state = self._state_digest()
        code = repr((name, plugins.source(name), settings, self._state))
        self.digest = hashlib.blake2b(code.encode(), digest_size=16).hexdigest()

    def __call__(self, records: torch.Tensor) -> torch.Tensor:
        """Features float32 ``[N, ...]`` of records ``[N, ...]``, on the CPU, one at a time.

        Raises:
            ValueError: the network fails, makes something else, draws at random, or changes.
        """
        first = self._one(records[:1])
        if not torch.equal(first, self._one(records[:1])):
            raise ValueError(
                f"{self._said} makes other features of a record when it is called again: draw "
                "nothing in evaluation mode, and keep nothing"
            )
        features = torch.empty(len(records), *first.shape[1:])
        for row, record in zip(features, records.split(1), strict=True):
            row.copy_(self._one(record)[0])
        if self._state_digest() != self._state:
            raise ValueError(
                f"{self._said} changes its parameters or buffers from record to record, so that "
                "features depend on other records: leave them as they are in evaluation mode"
            )
        return features

    def _one(self, record: torch.Tensor) -> torch.Tensor:
        """The features of one record ``[1, ...]``."""
        try:
            with torch.no_grad():
                found = self._module(record.to(self._device))
        except (Exception, SystemExit) as error:  # the user's code can raise anything
            raise ValueError(
                f"{self._said} cannot be run on a record of shape {tuple(record.shape[1:])} "
                f"({plugins.one_line(error)}): correct its forward, or the sizes that it takes"
            ) from error
        if not isinstance(found, torch.Tensor) or found.ndim < 2 or len(found) != 1:
            what = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ValueError(
                f"{self._said} makes {what} of one record, not numbers [1, ...]: return a row of "
                "features for each record"
            )
        if not torch.isfinite(found).all():
            raise ValueError(
                f"{self._said} makes features that are not finite: correct its weights"
            )
        return found.float().cpu()

    def _state_digest(self) -> bytes:
        """Of parameters and all buffers, those that no file keeps, too."""
        digest = hashlib.blake2b()
        for name, tensor in chain(self._module.named_parameters(), self._module.named_buffers()):
            digest.update(repr((name, tensor.dtype, tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.digest()


def torchvision(network: str, weights: str, pixels: int = 224) -> nn.Module:
    """A network of torchvision without its last linear layer, for images ``[N, C, H, W]`` from 0 to
    1.

    Args:
        network: its name in `torchvision.models`, such as ``resnet18``.
        weights: .safetensors file of its weights. Those of the last linear layer are left out.
        pixels: height and width to which images are scaled.

    Raises:
        ValueError: there is no such network, or the file does not hold its weights.
    """
    models = importlib.import_module(f"{import_torchvision().__name__}.models")
    try:
        module = models.get_model(network, weights=None)
    except ValueError:
        raise ValueError(
            f"torchvision has no network {network!r}: name one of its models"
        ) from None
    last = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)][-1:]
    if not last:
        raise ValueError(f"{network} has no linear layer to be left out: name another network")
    module.set_submodule(last[0], nn.Identity())
    tensors = read_weights(Path(weights))
    kept = {name: t for name, t in tensors.items() if not name.startswith(f"{last[0]}.")}
    try:
        module.load_state_dict(kept)
    except RuntimeError as fault:
        raise ValueError(f"{weights} is not of {network}: {' '.join(str(fault).split())}") from None
    return nn.Sequential(_Scaled(pixels), module)


class _Scaled(nn.Module):
    """Images as torchvision's networks take them."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self._pixels = pixels
        self.mean: torch.Tensor
        self.deviation: torch.Tensor
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("deviation", torch.tensor(DEVIATION)[:, None, None])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = images.expand(-1, 3, -1, -1)
        size = (self._pixels, self._pixels)
        scaled = nn.functional.interpolate(images, size, mode="bilinear", antialias=True)
        return (scaled - self.mean) / self.deviation


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors file by name.

    Raises:
        ValueError: the file is missing, or holds something else.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no file: give the path of a network's weights")
    try:
        return load(durable.read(path))
    except SafetensorError as fault:
        raise ValueError(
            f"{path} is no .safetensors file ({' '.join(str(fault).split())}): save a network's "
            "state_dict by safetensors.torch.save_file"
        ) from None
