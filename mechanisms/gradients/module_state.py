"""Refusal of modules that keep a state from call to call: it carries records past the clipping.

A layer that counts, caches or averages what it sees, or fits itself to its first batch, gives a
record a gradient that depends on others; one that writes into the records, too, as later steps see
them. `refuse_state` runs a copy on made-up records, in training and in evaluation mode, and
compares everything that it holds. `Snapshot` is the cheap comparison
for models whose own Python runs on real records.
"""

import copy
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mechanisms.gradients.program import place_of_difference, traced

_OWN = {"_parameters", "_buffers", "_modules", "training"}
_WEIGHTS = {"_flat_weights", "_flat_weight_refs"}
"""What recurrent layers derive from their parameters."""
_DEPTH = 4
_TOLERANCE = 1e-3
_REMEDY = (
    "so a record's influence cannot be bounded: compute each record from its own numbers and the "
    "parameters alone"
)


class Snapshot:
    """What the layers of `module` hold when this is made, by identity and version."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = dict(_held(module))

    def refuse_change(self) -> None:
        """Raises ValueError naming the first layer that holds something else now."""
        now = dict(_held(self._module))
        for place in self._before.keys() | now.keys():
            one, other = self._before.get(place, ()), now.get(place, ())
            if len(one) != len(other) or not all(map(_identical, one, other)):
                _refuse(self._module, *place)


def refuse_state(module: nn.Module, records: Tensor) -> None:
    """Raises ValueError if the module writes into its records, naming the first layer that a
    forward pass changes, or that computes something else in training mode than in evaluation mode.

    `records [n, ...]` are made up. Errors of the module pass through.
    """
    tried = copy.deepcopy(module)
    outputs = []
    for training in (True, False):
        tried.train(training)
        before = {place: _kept(value) for place, value in _values(tried)}
        given = records.clone()
        version = given._version
        with torch.no_grad():
            outputs.append(tried(given))
        if given._version != version:
            raise ValueError(
                f"{named(module, '')} writes into the records that it is given, which later steps "
                "and scores see: copy them first (x.clone()), or leave out inplace=True of what "
                "it begins with"
            )
        after = {place: _kept(value) for place, value in _values(tried)}
        for place in [*after, *before]:
            if place not in before or place not in after or not _same(before[place], after[place]):
                _refuse(tried, *place)
    programs = [traced(copy.deepcopy(module).train(training)) for training in (True, False)]
    if (programs[0] is None) != (programs[1] is None):
        _refuse_modes(module, "")
    if programs[0] is not None and programs[1] is not None:
        path = place_of_difference(programs[0], programs[1])
        if path is not None:
            _refuse_modes(module, path)
    if all(isinstance(output, Tensor) for output in outputs) and not close(*outputs):
        _refuse_modes(module, "")


def named(module: nn.Module, path: str) -> str:
    """A layer as messages name it."""
    kind = type(module.get_submodule(path)).__name__
    return f"layer '{path}' ({kind})" if path else f"the model ({kind})"


def _refuse(module: nn.Module, path: str, name: str) -> None:
    raise ValueError(f"{named(module, path)} changes its '{name}' in a forward pass, {_REMEDY}")


def _refuse_modes(module: nn.Module, path: str) -> None:
    raise ValueError(
        f"{named(module, path)} computes something else in training mode than in evaluation mode, "
        f"or draws at random, {_REMEDY}"
    )


def _values(module: nn.Module) -> Iterator[tuple[tuple[str, str], Any]]:
    """Parameters, buffers and other attributes of all layers, by path and name."""
    for path, layer in module.named_modules():
        for name, value in [*layer._parameters.items(), *layer._buffers.items()]:
            yield (path, name), value
        own = _OWN | _WEIGHTS if isinstance(layer, nn.RNNBase) else _OWN
        for name, value in vars(layer).items():
            if name not in own:
                yield (path, name), value


def _held(module: nn.Module) -> Iterator[tuple[tuple[str, str], tuple[Any, ...]]]:
    for place, value in _values(module):
        if isinstance(value, Tensor):
            yield place, (value, value._version)
        elif isinstance(value, Collection) and not isinstance(value, str | bytes):
            last = value[-1] if isinstance(value, list | tuple) and value else None
            yield place, (value, len(value), last)
        else:
            yield place, (value,)


def _identical(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) is int and one == other)


def _kept(value: Any, depth: int = _DEPTH) -> Any:
    """A copy to compare with later; a value without comparable parts is kept itself."""
    if isinstance(value, Tensor):
        return value.detach().clone(), value._version  # a write of equal numbers is a write, too
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, nn.Module | type) or callable(value) or depth == 0:
        return value
    if isinstance(value, dict):
        return {key: _kept(one, depth - 1) for key, one in value.items()}
    if isinstance(value, set | frozenset | str | bytes | range):
        return copy.copy(value)
    if isinstance(value, Collection):
        return [_kept(one, depth - 1) for one in value]
    if hasattr(value, "__dict__"):
        return type(value), _kept(vars(value), depth - 1)
    return value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or bool(one == other)


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same up to rounding."""
    if one.shape != other.shape or not torch.equal(one.isfinite(), other.isfinite()):
        return False
    size = torch.where(one.isfinite(), one, 0.0).abs().amax() if one.numel() else 0.0
    return bool(((one - other)[one.isfinite()].abs() <= _TOLERANCE * (1.0 + size)).all())
