"""The user's own models, given as `package.module:Class`."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mechanisms.plugins import one_line, plugin, taken
from sim.data.words import Words

FORM = "a class of models, a subclass of torch.nn.Module"
GIVEN = ("input_shape", "classes", "words")
"""What a class is given, if its constructor has parameters of these names."""


@contextmanager
def trying(name: str) -> Iterator[None]:
    """Name the user's own model in whatever it raises when it is tried before a run.

    Raises:
        ValueError: in one line, for anything but a lack of memory.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if ":" not in name or isinstance(error, ValueError | MemoryError | torch.OutOfMemoryError):
            raise
        raise ValueError(
            f"model = {name!r} fails when it is tried on records ({one_line(error)}): correct its "
            "forward"
        ) from error


def build_own(
    name: str, input_shape: tuple[int, ...], classes: int, seed: int, words: Words | None
) -> nn.Module:
    """Build a model from `package.module:Class` and try it on two records of zeros.

    PyTorch's CPU generator is seeded meanwhile and restored afterwards.

    Raises:
        ValueError: the class cannot be imported, built or run, is no `nn.Module`, or its output is
            not [B, classes], or [B, T, classes] for records [B, T] of words; its parameters or its
            output are not float32.
    """
    kind, vocabulary = _import_class(name), words.count if words else 0
    dtype = torch.int64 if words else torch.float32
    given = dict(zip(GIVEN, (tuple(input_shape), classes, vocabulary), strict=True))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = kind(**{key: given[key] for key in taken("model", name, kind, GIVEN)})
            module.eval()
        except (Exception, SystemExit) as error:  # the user's code can raise anything
            raise ValueError(
                f"model = {name!r} cannot be built ({one_line(error)}) from input_shape = "
                f"{tuple(input_shape)} and classes = {classes}: correct its constructor"
            ) from error
        try:
            with torch.no_grad():
                output = module(torch.zeros(2, *input_shape, dtype=dtype))
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"model = {name!r} cannot be run on two records of shape {tuple(input_shape)} "
                f"({one_line(error)}): correct its forward, or its layers' sizes"
            ) from error
    shapes = [(2, classes), *([(2, *input_shape, classes)] if words else [])]
    if not isinstance(output, torch.Tensor) or output.shape not in shapes:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"model = {name!r} maps 2 records to {shape}, not to logits {shapes[-1]}: end it in "
            f"{classes} outputs"
        )
    for own, tensor in [*module.named_parameters(), ("output", output)]:
        if tensor.dtype != torch.float32:
            raise ValueError(
                f"model = {name!r}: {own} is of {tensor.dtype}, not torch.float32: make it so"
            )
        if own != "output" and not tensor.isfinite().all():
            raise ValueError(
                f"model = {name!r}: {own} is not finite before training: correct its constructor"
            )
    return module.train()


def _import_class(name: str) -> type[nn.Module]:
    """The class of `package.module:Class`."""
    found = plugin("model", name, FORM)
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        kind = getattr(found, "__name__", "") if inspect.isclass(found) else ""
        what = f"the class {kind}" if kind else f"of type {type(found).__name__}"
        raise ValueError(
            f"model = {name!r} is {what}, not {FORM} whose constructor may take "
            f"{', '.join(GIVEN)}: name such a class"
        )
    return found
