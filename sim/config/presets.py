"""What a data set changes in the defaults: a row per ``--dataset``, a setting per entry."""

from collections.abc import Mapping
from typing import Any

from sim.config.settings import Data
from strategies.settings import Aggregation, FedFed

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"model": "linear"},
    "mnist": {"model": "cnn", "lr": 4.0, "rounds": 45},
    "fmnist": {"model": "cnn", "lr": 4.0, "rounds": 45},
    "cifar10": {"model": "cnn-cifar"},
    "imdb": {"model": "lstm", "lr": 4.0, "rounds": 45},
}

OTHER: dict[str, Any] = {"model": "linear"}
"""For a user's own arrays."""

SCATTERING: dict[str, Any] = {"model": "linear", "feature_groups": 27}
"""With scattering features, over the data set's own row. On MNIST this is ahead of a network on
pixels."""

SCATTERING_ROWS: dict[str, dict[str, Any]] = {
    "mnist": {"clip_norm": 5.0, "lr": 0.2, "rounds": 60},
    "fmnist": {"clip_norm": 5.0, "lr": 0.2, "rounds": 60},
}
"""What a data set changes in those."""

CENTRAL: dict[str, Any] = {
    "engine": "inline",
    "steps": None,
    "epochs": 1.0,
    "batch_size": 256,
    "momentum": 0.9,
    "clip_norm": 0.1,
    "lr": 1.0,
}
"""For one client that holds all records (`sim.central`), over the data set's own row."""

CENTRAL_ROWS: dict[str, dict[str, Any]] = {
    "mnist": {"batch_size": 1024, "rounds": 20},
    "fmnist": {"batch_size": 2048, "lr": 4.0, "rounds": 20},
    "cifar10": {"batch_size": 4096, "rounds": 30},
    "imdb": {"batch_size": 1024, "optimizer": "adam", "lr": 0.02, "rounds": 10},
}
"""What a data set changes in those."""

FIXED: dict[str, Any] = {
    "clients": 1,
    "partition": "iid",
    **{
        name: Data.model_fields[name].default
        for name in ("dirichlet", "min_records", "shards_per_client")
    },
    **{
        name: field.default
        for model in (Aggregation, FedFed)
        for name, field in model.model_fields.items()
    },
    "server_lr": 1.0,
    "server_momentum": 0.0,
    "keep_state": True,
    "fraction": 1.0,
    "max_participations": None,
    "workers": 1,
    "groups": 1,
    "chunk_clients": None,
}
"""What it is to be one client that holds all records: its local steps are the training, the server
only looks on."""


def preset(
    dataset: object, central: bool = False, features: object = "pixels"
) -> Mapping[str, Any]:
    """The settings that ``dataset`` changes, for many clients or for one, with what its
    ``features`` change in them."""
    name = dataset if isinstance(dataset, str) else ""
    row = PRESETS.get(name, OTHER)
    if features == "scattering":
        row = row | SCATTERING | SCATTERING_ROWS.get(name, {})
    return row | CENTRAL | CENTRAL_ROWS.get(name, {}) if central else row
