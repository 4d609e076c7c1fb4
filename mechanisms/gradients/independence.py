"""Refusal of layers under which a record has no gradient of its own.

Per-record clipping bounds the influence of a record only if its gradient is a function of that
record and of the parameters. Batch normalization breaks this (its statistics mix the batch),
dropout draws from a global generator, an embedding with `max_norm` changes its weights by the
records it sees, and nobody can look into what TorchScript has compiled. Mixing outside such layers
is found by trial (`gradients.record_trial`).
"""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from mechanisms.gradients.module_state import named


def refuse_mixing_layers(module: nn.Module) -> None:
    """Raises ValueError naming the first layer of `module` that makes records depend on each other.

    Refused are batch normalization in every form (also SyncBatchNorm, the lazy ones, and
    InstanceNorm with `track_running_stats`), in train and eval mode alike, dropout with p > 0 in
    any layer that has it, embeddings that rewrite their weights (`max_norm`) or have sparse
    gradients, and modules of TorchScript.
    """
    for path, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            place = f"layer '{path}'" if path else "the model"
            raise ValueError(
                f"{place} is a module of TorchScript, whose operations cannot be checked to keep "
                "records apart: use the torch.nn.Module that it was made from, without "
                "torch.jit.script or torch.jit.trace"
            )
        place = named(module, path)
        if isinstance(layer, _NormBase) and not _is_per_record(layer):
            raise ValueError(
                f"{place} mixes the records of a batch, so a record's influence cannot be bounded: "
                "replace it by GroupNorm or LayerNorm, as sim.to_group_norm does"
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
            layer.max_norm is not None or layer.sparse
        ):
            option, value = ("sparse", True) if layer.sparse else ("max_norm", layer.max_norm)
            raise ValueError(
                f"{place} has {option} = {value}: it rewrites its weights in a forward pass, or "
                f"has no dense gradient; leave {option} at its default"
            )
        probability = _dropout(layer)
        if probability > 0:
            raise ValueError(
                f"{place} has dropout p = {probability}, which must be 0: its draws come from the "
                "global generator and are not reproducible; set p to 0 or remove the layer"
            )


def _is_per_record(layer: _NormBase) -> bool:
    instance = isinstance(layer, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
    return instance and not layer.track_running_stats


def _dropout(layer: nn.Module) -> float:
    if isinstance(layer, _DropoutNd):
        return layer.p
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout
    return 0.0
