"""Parameters that training starts from, from a file or from a finished run."""

import warnings
from pathlib import Path

import torch
from torch import nn

from server import closing, manifest
from server.store import MODEL
from sim.sources.backbones import read_weights

SHOWN = 4
"""Names of parameters that a warning lists."""


def start_from(model: nn.Module, path: str) -> None:
    """Give a model the tensors of a file, or of a run directory's model, that have a name and shape
    of its own.

    Raises:
        ValueError: the file is missing, damaged, or not the model that the run ended with, or it
            has not ended, or is an audit's; or none of its tensors is the model's.

    Warns:
        UserWarning: some of the model's parameters are not in the file, and stay as they are.
    """
    file = Path(path)
    if not file.exists():
        raise ValueError(
            f"init_from = {path!r} does not exist: give a .safetensors file, or the directory of a "
            "finished run"
        )
    if file.is_dir():
        if closing.read(file) is None:
            raise ValueError(
                f"init_from = {path!r} is not the directory of a finished run: resume the run, or "
                "give a .safetensors file"
            )
        if manifest.load(file).get("canaries"):
            raise ValueError(
                f"init_from = {path!r} is an audited run, whose model has learnt canaries: name "
                "another run"
            )
        file /= MODEL
    tensors = read_weights(file)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    found = {
        name: tensor
        for name, tensor in tensors.items()
        if name in own and tensor.shape == own[name].shape
    }
    if not found:
        raise ValueError(
            f"init_from = {path!r} has no tensor of this model, whose first is "
            f"{_said(next(iter(own.items())))}: give a file of the same --model"
        )
    with torch.no_grad():
        for name, tensor in found.items():
            if not torch.isfinite(tensor).all():
                raise ValueError(f"init_from = {path!r}: {name} is not finite: give another file")
            own[name].copy_(tensor)
    if others := [_said(item) for item in own.items() if item[0] not in found]:
        more = f" and {len(others) - SHOWN} others" if len(others) > SHOWN else ""
        warnings.warn(
            f"init_from = {path!r} lacks {', '.join(others[:SHOWN])}{more}: they start as without "
            "it",
            stacklevel=2,
        )


def _said(item: tuple[str, torch.Tensor]) -> str:
    name, tensor = item
    return f"{name} {tuple(tensor.shape)}"
