"""A model's trainable parameters as one flat row.

Every mechanism clips, noises and sums whole parameter vectors; a model wants named tensors.
`Layout` is the fixed correspondence between the two, with any number of leading axes (client,
record) in front.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of a model's P trainable parameters, as in `named_parameters`.

    Only parameters with `requires_grad` take part; frozen ones and buffers are constants that the
    model keeps. A tensor that is used under several names (tied weights) counts once, under its
    first name.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of `module`.

        Raises:
            ValueError: it has no trainable parameter, or a layer with such parameters at two
                places, which `torch.func.functional_call` leaves without them.
        """
        places = dict[nn.Module, str]()
        for path, layer in module.named_modules(remove_duplicate=False):
            first = places.setdefault(layer, path)
            if first != path and any(p.requires_grad for p in layer.parameters()):
                raise ValueError(
                    f"layer '{path}' is layer '{first}' again: keep it under one name, and call it "
                    "twice in forward, or have two layers share its tensors"
                )
        named = module.named_parameters()
        trainable = {name: tuple(p.shape) for name, p in named if p.requires_grad}
        if not trainable:
            raise ValueError(
                f"module {type(module).__name__} has 0 trainable parameters, at least 1 is needed: "
                "set requires_grad on the parameters to train"
            )
        ends = tuple(accumulate(prod(shape) for shape in trainable.values()))
        return cls(tuple(trainable), tuple(trainable.values()), (0, *ends[:-1]), ends[-1])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """The named views `{name: [..., *shape]}` of `flat [..., P]`. Raises ValueError on another
        last dimension."""
        if flat.dim() == 0 or flat.shape[-1] != self.size:
            raise ValueError(
                f"flat has shape {tuple(flat.shape)}, its last dimension must be P = {self.size}: "
                "flatten the parameters with the layout of the same model"
            )
        lead = flat.shape[:-1]
        entries = zip(self.names, self.shapes, self.offsets, strict=True)
        return {
            name: flat.narrow(-1, start, prod(shape)).view((*lead, *shape))
            for name, shape, start in entries
        }

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """The row `[..., P]` of `{name: [..., *shape]}`; leading axes are equal for all names.

        Raises ValueError if the names are not exactly the layout's, or if a tensor does not end in
        its shape.
        """
        if set(named) != set(self.names):
            wrong = sorted(set(named) ^ set(self.names))
            raise ValueError(
                f"named has missing or unknown parameters {wrong}, expected exactly "
                f"{list(self.names)}"
            )
        rows = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            tensor = named[name]
            lead = tensor.shape[: tensor.dim() - len(shape)]
            if (*lead, *shape) != tuple(tensor.shape):
                raise ValueError(
                    f"parameter {name} has shape {tuple(tensor.shape)}, it must end in {shape}"
                )
            rows.append(tensor.reshape(*lead, prod(shape)))
        return torch.cat(rows, dim=-1)

    def initial(self, module: nn.Module) -> Tensor:
        """A copy `[P]` of the present parameter values of `module`."""
        parameters = dict(module.named_parameters())
        return self.flatten({name: parameters[name].detach() for name in self.names})
