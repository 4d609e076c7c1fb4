"""Divides clients into chunks and groups by their sizes alone, the same on every machine."""

import numpy as np

CHUNK_ENTRIES = 2**24
"""Maximum parameters of a chunk's clients, and maximum tensor entries of their step on a CPU."""
MIN_CLIENTS = 5
"""Minimum clients of a chunk under the bound on a step: each chunk has a fixed cost."""
CACHED_ENTRIES = 2**21
"""Maximum parameters of a chunk's clients on a CPU; more evict each other from the cache."""


def chunk_width(clients: int, parameters: int, entries: int) -> int:
    """The default number of clients computed together.

    They share the fixed cost of a step's calls, which makes small models with few records 10 to 20
    times faster. It gains nothing if one client's work (``entries``, as for convolutions) or
    parameters fill the cache: more clients would only be padded to the largest. A rule rather than
    a trial run, so that it is the same on every machine.
    """
    wanted = min(max(25, clients // 40), 250)
    filling = max(MIN_CLIENTS, CHUNK_ENTRIES // max(entries, 1))
    cached = (CACHED_ENTRIES if entries else CHUNK_ENTRIES) // parameters
    return max(1, min(wanted, filling, cached))


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
