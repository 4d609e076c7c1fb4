"""A model as an ONNX file, by PyTorch's own exporter. An extra: ``[onnx]``."""

import contextlib
import io
import warnings
from pathlib import Path

import torch

from mechanisms import durable
from mechanisms.plugins import one_line

INPUT, OUTPUT = "records", "outputs"


def export(module: torch.nn.Module, records: torch.Tensor, path: Path) -> Path:
    """Write a module as an ONNX file whose first dimension is free; its path.

    Args:
        module: in evaluation mode, on the CPU.
        records: two records as it takes them.
        path: of the file, which is complete or absent.

    Raises:
        ValueError: a package is missing, or the module cannot be expressed.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"an ONNX file needs onnx and onnxscript ({error}): pip install onnx onnxscript"
        ) from error
    part = path.with_name(f".{path.name}.part")
    free = ({0: torch.export.Dim.AUTO},)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(
                module,
                (records,),
                part,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=free,
                external_data=False,
                dynamo=True,
            )
        durable.rename(part, path)
    except Exception as error:  # the exporter and the user's code can raise anything
        part.unlink(missing_ok=True)
        raise ValueError(
            f"{type(module).__name__} cannot be written as ONNX ({one_line(error)[:300]}): use "
            "operations that torch.onnx.export knows"
        ) from error
    return path
