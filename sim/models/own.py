"""The user's own models, given as `package.module:Class`."""

import importlib
import inspect

import torch
from torch import nn

from sim.data.words import Words

OWN_PROGRAM = (
    "it was defined in a notebook or a script, and is only known there: define the class again "
    "and resume from Python, by sim.train(resume=...), or keep it in a module of its own"
)


def build_own(
    name: str, input_shape: tuple[int, ...], classes: int, seed: int, words: Words | None
) -> nn.Module:
    """Build a model from `package.module:Class` and try it on two records of zeros.

    PyTorch's CPU generator is seeded meanwhile and restored afterwards.

    Raises:
        ValueError: the class cannot be imported, built or run, is no `nn.Module`, or its output is
            not [B, classes]; its parameters or its output are not float32.
    """
    kind, vocabulary = _import_class(name), words.count if words else 0
    dtype = torch.int64 if words else torch.float32
    given = {"input_shape": tuple(input_shape), "classes": classes, "words": vocabulary}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            named = inspect.signature(kind).parameters
            module = kind(**{key: value for key, value in given.items() if key in named})
            module.eval()
            with torch.no_grad():
                output = module(torch.zeros(2, *input_shape, dtype=dtype))
        except (Exception, SystemExit) as error:  # the user's code can raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"model = {name!r} cannot be built and run on two records of shape "
                f"{tuple(input_shape)} ({reason}): its constructor may take input_shape and "
                "classes, and every other argument needs a default"
            ) from error
    if not isinstance(output, torch.Tensor) or output.shape != (2, classes):
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"model = {name!r} maps 2 records to {shape}, not to logits (2, {classes}): end it in "
            f"{classes} outputs"
        )
    for own, tensor in [*module.named_parameters(), ("output", output)]:
        if tensor.dtype != torch.float32:
            raise ValueError(
                f"model = {name!r}: {own} is of {tensor.dtype}, not torch.float32: make it so"
            )
    return module.train()


def _import_class(name: str) -> type[nn.Module]:
    """The class of `package.module:Class`."""
    path, _, attribute = name.partition(":")
    try:
        found = find(path, attribute)
    except (Exception, SystemExit) as error:  # the user's module can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"model = {name!r}: module {path!r} cannot be imported ({reason}): install it or add "
            "it to PYTHONPATH"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        holds = f"holds a {type(found).__name__} of that name"
        what = "has no such class" if found is None else holds
        remedy = OWN_PROGRAM if path == "__main__" else "name a subclass of torch.nn.Module"
        raise ValueError(f"model = {name!r}: module {path!r} {what}: {remedy}")
    return found


def find(module: str, qualname: str) -> object:
    """The object of that name, possibly with dots, in a module; None if there is none."""
    found: object = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found
