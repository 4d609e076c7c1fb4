"""Batch normalization replaced by group normalization, which sees one record at a time."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

CHANNELS, MAX_GROUPS = 16, 32
"""Channels of a group and the most groups (Wu and He 2018, "Group Normalization", Table 3)."""


def to_group_norm(module: nn.Module) -> list[str]:
    """Replace every batch normalization in a module by group normalization, in place.

    Scale, shift and epsilon are kept. Running statistics are dropped: the module is another
    function, and is trained on, or used as it is at a loss.

    Returns:
        A line for each change: where, what it was, and what it is.

    Raises:
        ValueError: it is no module, or itself one, or one is lazy and has not seen a record;
            nothing is changed.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module is {module!r}: give a torch.nn.Module")
    found = [one for one in module.named_modules() if isinstance(one[1], _BatchNorm)]
    for path, norm in found:
        if norm is module or not norm.num_features:
            fault = "is the whole module" if norm is module else "has not seen a record"
            raise ValueError(
                f"{path or 'the module'} ({type(norm).__name__}) {fault}: put it into a module, "
                "and call it once"
            )
    replaced = {norm: _group_norm(norm) for _, norm in found}
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, replaced[child])
    return [f"{path}: {norm} -> {replaced[norm]}" for path, norm in found]


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    most = min(MAX_GROUPS, max(1, channels // CHANNELS))
    groups = next(n for n in range(most, 0, -1) if channels % n == 0)
    found = nn.GroupNorm(groups, channels, norm.eps, norm.affine)
    found.weight, found.bias = norm.weight, norm.bias
    return found.train(norm.training)
