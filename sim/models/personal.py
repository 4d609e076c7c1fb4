"""Personal models: which parameters are a client's own, and its model after a run.

A client trains its own parameters by the same noisy steps as all others, and starts each round from
where it left them. Layers of its own (`personal_layers`; FedPer, Arivazhagan et al. 2019) are not
sent; with MR-MTL (`strategies.mrmtl`) all parameters are its own, and all are sent.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from client.client_state import own_parameters
from mechanisms.layout import Layout
from server import manifest
from sim.config.fields import Config
from strategies.registry import strategy_of


def mask(config: Config, layout: Layout) -> np.ndarray | None:
    """Bool ``[P]``: the parameters that are a client's own; None if none are.

    Raises:
        ValueError: a personal layer is none of the model's, or no other is left.
    """
    if strategy_of(config.strategy, config.fedfed).personal:
        return np.ones(layout.size, dtype=bool)
    layers = config.local.personal_layers
    return None if layers is None else below(layers, layout)


def below(layers: str, layout: Layout) -> np.ndarray:
    """Bool ``[P]``: the parameters of these layers, given by their names and commas.

    Raises:
        ValueError: a layer is none of the model's, or no parameter is left.
    """
    found = np.zeros(layout.size, dtype=bool)
    ends = (*layout.offsets[1:], layout.size)
    for layer in (part.strip() for part in layers.split(",")):
        chosen = [f"{name}.".startswith(f"{layer}.") for name in layout.names]
        if not any(chosen):
            raise ValueError(
                f"personal_layers is {layers!r}, but the model has no layer {layer!r}: choose "
                f"among {', '.join(layout.names)}, or what these begin with before a dot"
            )
        for is_chosen, start, end in zip(chosen, layout.offsets, ends, strict=True):
            found[start:end] |= is_chosen
    if found.all():
        raise ValueError(
            f"personal_layers is {layers!r}, which are all parameters of the model: leave one "
            "layer to the server, or use --strategy mrmtl --proximal-mu 0"
        )
    return found


def folder(run_dir: Path, group: int) -> Path:
    """Where a group's clients keep what is their own."""
    return run_dir / "clients" / f"group-{group:04d}"


def models(
    run_dir: Path, config: Config, layout: Layout, params: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Number and model ``[P]`` of each client that has taken part: the server's ``params [P]`` with
    its own parameters as after its last round. Nothing if no parameters are clients' own.

    Raises:
        ValueError: a file is damaged, or of another run.
    """
    if (own := mask(config, layout)) is None:
        return
    run = manifest.run_of(run_dir) or ""
    for group in range(config.run.groups or 1):
        for client, row in own_parameters(folder(run_dir, group), run).items():
            model = params.copy()
            model[own] = row
            yield client, model
