"""Which kernels a GPU takes: those that give the same bits each time, with all digits where a clip
bound depends on them. And for which sizes a CPU has its best ones."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import threadpool_info

# A workspace of a fixed size, without which cuBLAS may add up in another order.
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
# cuBLAS may put products of float32 and float64 together from shorter ones, with fewer digits than
# exact sums need.
_NATIVE = {"CUBLAS_EMULATE_SINGLE_PRECISION": "0", "CUBLAS_EMULATE_DOUBLE_PRECISION": "0"}

# Chips for whose wide registers OpenBLAS has kernels for small matrices, and the most
# multiplications of such a product.
_WITH_SMALL_KERNELS, _SMALL = {"SkylakeX", "Cooperlake", "SapphireRapids"}, 10**6


@cache
def small_product() -> float:
    """Multiplications up to which a product of NumPy's is computed by kernels for small matrices;
    infinity where OpenBLAS has none."""
    return _SMALL if _WITH_SMALL_KERNELS & set(openblas_kernels()) else math.inf


def openblas_kernels() -> list[str]:
    """The chips whose kernels NumPy's and SciPy's BLAS use here, or OPENBLAS_CORETYPE."""
    found = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
    return sorted({one["architecture"] for one in found})


def fix_kernels(tf32: bool = False) -> None:
    """Take only kernels that give the same bits each time, before a GPU is first used.

    An operation that has no such kernel raises an error. With ``tf32`` products of float32 may use
    the first 10 binary digits of their factors, except in sums of scaled gradients.

    Raises:
        ValueError: the caller's program has used a GPU before in another way.
    """
    os.environ.setdefault(*_WORKSPACE)
    os.environ.update(_NATIVE)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = tf32
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = tf32
    # products of short factors are added up in float32 all the way
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    if torch.cuda.is_initialized():
        _try_product()


def _try_product() -> None:
    """PyTorch reads the workspace's size at a process's first product on a GPU, and never again."""
    one = torch.ones(1, 1, device="cuda")
    try:
        torch.mm(one, one)
    except RuntimeError as fault:
        name, value = _WORKSPACE
        if name not in str(fault):
            raise
        raise ValueError(
            f"this program has multiplied matrices on a GPU before {name} was set, so that sums "
            f"may have other bits each time: set {name}={value} before it starts, or use --device "
            "cpu"
        ) from None


@contextmanager
def with_all_digits() -> Iterator[None]:
    """Products and convolutions of float32 use all digits of their factors, whatever `fix_kernels`
    allows.

    With fewer, a clipped record could add more to a sum than the clip bound.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    allowed = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = allowed
