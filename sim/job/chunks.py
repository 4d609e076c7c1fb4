"""Which clients are computed together, and in which group: rules that know sizes alone, the same on
every machine."""

import numpy as np

CHUNK_ENTRIES = 2**24
"""Parameters of all clients of a chunk together, at most (where a single client has fewer); and
what a step of theirs holds on a CPU, where that is more than `MIN_CLIENTS` clients' worth."""
MIN_CLIENTS = 5
"""Clients of a chunk, at least: a chunk has a cost of its own."""
CACHED_ENTRIES = 2**21
"""Parameters of all clients of a chunk together, at most, on a CPU: further rows of them only push
each other out."""


def chunk_width(clients: int, parameters: int, entries: int) -> int:
    """Clients computed together where the user has not said.

    Together they share the fixed cost of a step's calls: 10 to 20 times faster for small models of
    few records, and nothing where the work of one client, ``entries``, fills the cache, as it does
    for convolutions. There, more clients would only be padded to the largest of them. Nor does it
    gain where one client's parameters fill the cache. A rule instead of a trial run: the same on
    every machine.
    """
    wanted = min(max(25, clients // 40), 250)
    filling = max(MIN_CLIENTS, CHUNK_ENTRIES // max(entries, 1))
    return max(
        1, min(wanted, filling, (CACHED_ENTRIES if entries else CHUNK_ENTRIES) // parameters)
    )


def group(sizes: np.ndarray, chunk_clients: int, groups: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Chunks of clients of similar size, dealt to groups so that their work is even.

    Chunks depend on the sizes and the chunk size only, so results do not depend on the number of
    groups (as long as every group gets a chunk; with more groups than that, chunks are made
    smaller).

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
