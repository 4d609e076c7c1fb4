"""Imports torchvision even if its compiled operators do not fit the installed torch.

The registry's torchvision is built for CUDA. On a CPU-only torch its extension does not load, and
`import torchvision` fails with "operator torchvision::nms does not exist", because it refers to
undeclared operators. Declaring them is enough for data sets, transforms and models; calling them
would still fail, but nothing does. Only downloads use it.
"""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_torchvision() -> ModuleType:
    """The module `torchvision`; idempotent, and without effect on one that fits its torch.

    Raises:
        ValueError: torchvision is not installed, or cannot be imported for another reason.
    """
    made = f"install the torchvision built for torch {torch.__version__}"
    remedy = f"{made}, or use a data set that needs none (digits)"
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"torchvision is not installed: {remedy}")
    _load_extension(Path(spec.submodule_search_locations[0]))
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    try:
        return importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"torchvision cannot be imported ({type(error).__name__}: {reason}): {remedy}"
        ) from error


def download(kind: str, root: Path) -> None:
    """Download a data set's files, without reading them, which for some needs pickle.

    Raises:
        Exception: whatever torchvision or the network raises.
    """
    cls = getattr(import_torchvision().datasets, kind)
    unread = cls.__new__(cls)  # its constructor would read them
    unread.root = str(root)
    unread.download()


def _load_extension(package: Path) -> None:
    """Load the compiled operators if they fit, so that only missing ones are declared."""
    for library in package.glob("_C.*"):
        try:
            torch.ops.load_library(str(library))
        except OSError:  # built for another torch or for CUDA: torchvision works without it
            continue
