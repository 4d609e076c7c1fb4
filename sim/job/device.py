"""The computing device, and a fixed order of summation: the same run gives the same bits."""

import torch
from threadpoolctl import threadpool_limits

from mechanisms.kernels import fix_kernels
from sim.config.fields import Config


def in_one_order(config: Config) -> None:
    """Make this process compute a run's sums in one order.

    Raises:
        ValueError: CUDA was requested but is not available.
    """
    single_thread()
    if device_of(config).type == "cuda":
        fix_kernels(config.run.tf32)


def single_thread() -> None:
    """Limit torch and NumPy to one thread: sums have one order, and processes share the cores."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def memory_of(device: torch.device) -> int:
    """A GPU's memory in bytes, rounded down to a power of 2: the same for GPUs of one kind."""
    total = torch.cuda.get_device_properties(device).total_memory
    return int(2 ** (total.bit_length() - 1))


def device_of(config: Config) -> torch.device:
    """The computing device.

    Raises:
        ValueError: CUDA was requested but is not available.
    """
    present = torch.cuda.is_available()
    if config.run.device == "cuda" and not present:
        raise ValueError(
            "device = cuda, but no CUDA device is present: use --device auto or --device cpu"
        )
    return torch.device("cuda" if present and config.run.device != "cpu" else "cpu")
