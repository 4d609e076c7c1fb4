"""Divides clients into chunks and groups by their sizes alone, the same on every machine."""

import math

import numpy as np

CHUNK_ENTRIES = 2**24
"""Maximum tensor entries of the step of a chunk's clients on a CPU."""
MIN_CLIENTS = 5
"""Minimum clients of a chunk under the bound on a step: each chunk has a fixed cost."""
SMALL_CLIENTS, MANY_CLIENTS = 100, 500
"""Minimum and maximum clients of a chunk where a client's step is small, if there are so many."""
CHUNKS = 8
"""Chunks of a round: several workers need several, and in fewer, clients are less alike in size."""
CACHED_ENTRIES = 2**21
"""Maximum parameters of a chunk's clients on a CPU; more evict each other from the cache."""
ROWS = 24
"""Rows of all parameters that a client's step may hold at once on a GPU: its model, sum and
direction, the noise of several steps, the optimizer's rows, and those of a step on trial."""
MEMORY_SHARE = 4
"""A chunk takes at most one part in so many of a GPU's memory."""
MAX_CLIENTS = 4096
"""Maximum clients of a chunk on a GPU, which is busy with fewer."""


def chunk_width(clients: int, fraction: float, parameters: int, entries: int) -> int:
    """The default number of clients of a chunk on a CPU, of which ``fraction`` is in a round.

    Those of a round share the fixed cost of a step's calls, which makes small models with few
    records 10 to 20 times faster. It gains nothing if one client's work (``entries``, as for
    convolutions) or parameters fill the cache: more clients would only be padded to the largest. A
    rule rather than a trial run, so that it is the same on every machine.
    """
    wanted = min(max(SMALL_CLIENTS, int(fraction * clients) // CHUNKS), MANY_CLIENTS)
    filling = max(MIN_CLIENTS, CHUNK_ENTRIES // max(entries, 1))
    together = max(1, min(wanted, filling, CACHED_ENTRIES // parameters))
    most = together if together <= MIN_CLIENTS else _width(together, fraction)
    return math.ceil(clients / math.ceil(clients / most))  # no chunk with a small rest


def device_width(clients: int, fraction: float, parameters: int, entries: int, memory: int) -> int:
    """The default number of clients of a chunk on a GPU with so many bytes of memory.

    A step's calls cost the same for any number of clients, so as many of a round's are together as
    fit, with batches of so many ``entries`` each. But no more than an eighth of them: chunks hold
    clients of similar size, the more similar the more chunks there are, and several GPUs need
    several chunks.
    """
    needed = 4 * (ROWS * parameters + 2 * entries)
    wanted = min(max(25, int(fraction * clients) // CHUNKS), MAX_CLIENTS)
    return _width(max(1, min(wanted, memory // MEMORY_SHARE // needed)), fraction)


def _width(together: int, fraction: float) -> int:
    """Clients of a chunk of which about so many are in a round."""
    return max(1, int(together / fraction))


def group(sizes: np.ndarray, chunk_clients: int, groups: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Chunks of clients of similar size, dealt to groups so that the work is even.

    Chunks depend on the sizes and the chunk size only, so results do not depend on the number of
    groups, unless there are more groups than chunks, which makes chunks smaller.

    Returns:
        For each group its chunks, each an int64 array of client numbers in ascending order.
    """
    groups = min(groups, len(sizes))
    width = min(chunk_clients, len(sizes) // groups)
    by_size = np.argsort(-sizes, kind="stable")
    chunks = [np.sort(by_size[at : at + width]) for at in range(0, len(by_size), width)]
    dealt: list[list[np.ndarray]] = [[] for _ in range(groups)]
    load = np.zeros(groups)
    for chunk in chunks:  # largest first, to the least loaded
        least = int(np.argmin(load))
        dealt[least].append(chunk)
        load[least] += len(chunk) * sizes[chunk].max()
    return tuple(tuple(chunks) for chunks in dealt)
