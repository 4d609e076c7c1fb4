"""Partitions by a function of the user's own, ``package.module:function``."""

import copy

import numpy as np

from mechanisms import plugins

FORM = "a function from x, y, clients and rng, as far as it names them, to the records' owners"


def owners(
    name: str,
    settings: str | None,
    records: tuple[np.ndarray, np.ndarray],
    clients: int,
    rng: np.random.Generator,
    minimum: int,
) -> np.ndarray:
    """The owner of each record, int64 ``[N]`` in 0 .. clients - 1.

    Args:
        name: ``package.module:function``.
        settings: text with its own arguments (`mechanisms.plugins.values`).
        records: ``x [N, ...]`` and ``y [N, ...]``, of which it gets views that cannot be written.
        clients: how many there are.
        rng: where its draws come from.
        minimum: records that each client has at least, 1 or more.

    Raises:
        ValueError: it cannot be imported or called, draws from anything but ``rng``, returns
            something else, or leaves a client with too few records.
    """
    found = plugins.plugin("partition", name, FORM)
    given = plugins.values("partition_settings", settings)
    if not callable(found):
        raise ValueError(f"partition = {name!r} is a {type(found).__name__}: name {FORM}")
    views = [array.view() for array in records]
    for view in views:
        view.flags.writeable = False

    def called() -> np.ndarray:
        offered = {"x": views[0], "y": views[1], "clients": clients, "rng": copy.deepcopy(rng)}
        return _array(name, plugins.call("partition", name, found, offered, given))

    owner = called()
    if owner.shape != (len(views[1]),) or owner.dtype.kind not in "iu":
        raise ValueError(
            f"partition = {name!r} gives {owner.dtype} of shape {owner.shape}, not an integer for "
            f"each of {len(views[1])} records: return the client that each belongs to"
        )
    if not 0 <= owner.min() <= owner.max() < clients:
        raise ValueError(
            f"partition = {name!r} gives owners from {owner.min()} to {owner.max()}, but clients "
            f"count from 0 to {clients - 1}: correct it, or give other --clients"
        )
    if not np.array_equal(owner, called()):  # each Flower node builds the partition by itself
        raise ValueError(
            f"partition = {name!r} gives other owners when it is called again: draw from rng alone"
        )
    least = int(np.bincount(owner, minlength=clients).min())
    if least < minimum:
        raise ValueError(
            f"partition = {name!r} leaves a client with {least} records, fewer than min_records = "
            f"{minimum}: lower --min-records, or give each client more"
        )
    return owner.astype(np.int64)


def _array(name: str, given: object) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError:
        raise ValueError(
            f"partition = {name!r} gives rows of several lengths, not an integer for each record: "
            "return the client that each belongs to"
        ) from None
