"""The number of Ray workers, by the CPU cores that there are."""

import math
import os
from collections.abc import Sequence

from sim.config.settings import Execution


def workers_of(run: Execution, cores: Sequence[float] | None = None) -> int:
    """As many as were asked for, or as many as fit on machines with so many CPU ``cores`` each
    (None: on this one); at least 1.

    A worker does not extend over two machines: cores that are left over on each do not add up.
    """
    if run.workers:
        return run.workers
    machines = [os.cpu_count() or 1] if cores is None else cores
    return max(1, sum(math.floor(own / run.cpus_per_worker) for own in machines))
