"""The computing device, and a fixed order of summation: the same run gives the same bits."""

import torch
from threadpoolctl import threadpool_limits

from sim.config.fields import Config


def single_thread() -> None:
    """Limit torch and NumPy to one thread: sums have one order, and processes share the cores.

    On a GPU, kernels that sum in a varying order are disabled.
    """
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1)
    threadpool_limits(1)


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
