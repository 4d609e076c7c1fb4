"""Defaults that depend on the data set: a row per ``--dataset``, an entry per setting."""

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
"""Defaults for a user's own arrays."""

SCATTERING: dict[str, Any] = {"model": "linear", "feature_groups": 27}
"""Settings with scattering features; overrides the data set's row. Beats a network on pixels on
MNIST."""

SCATTERING_ROWS: dict[str, dict[str, Any]] = {
    "mnist": {"clip_norm": 5.0, "lr": 0.2, "rounds": 60},
    "fmnist": {"clip_norm": 5.0, "lr": 0.2, "rounds": 60},
    "cifar10": {"feature_pixels": "imagenet"},
}
"""Changes to `SCATTERING` by data set."""

BACKBONE: dict[str, Any] = {"model": "linear", "feature_groups": 1}
"""Settings with features of a frozen network; replaces the data set's row."""

CENTRAL: dict[str, Any] = {
    "engine": "inline",
    "steps": None,
    "epochs": 1.0,
    "batch_size": 256,
    "momentum": 0.9,
    "clip_norm": 0.1,
    "lr": 1.0,
}
"""Settings of one client that holds all records (`sim.central`); overrides the data set's row."""

CENTRAL_ROWS: dict[str, dict[str, Any]] = {
    "mnist": {"batch_size": 1024, "rounds": 20},
    "fmnist": {"batch_size": 2048, "lr": 4.0, "rounds": 20},
    "cifar10": {"batch_size": 4096, "rounds": 30},
    "imdb": {"batch_size": 1024, "optimizer": "adam", "lr": 0.02, "rounds": 10},
}
"""Changes to `CENTRAL` by data set."""

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
    "trust": "local",
    "keep_state": True,
    "personal_layers": None,
    "fraction": 1.0,
    "dropout": 0.0,
    "dropout_trace": None,
    "buffer": None,
    "attackers": 0.0,
    "max_participations": None,
    "workers": 1,
    "groups": 1,
    "chunk_clients": None,
}
"""Settings that central training fixes: one client's local steps are the training."""


def preset(
    dataset: object, central: bool = False, features: object = "pixels"
) -> Mapping[str, Any]:
    """The defaults that ``dataset`` and ``features`` change, for many clients or one."""
    name = dataset if isinstance(dataset, str) else ""
    row = PRESETS.get(name, OTHER)
    if features == "scattering":
        row = row | SCATTERING | SCATTERING_ROWS.get(name, {})
    elif features != "pixels":
        row = BACKBONE
    return row | CENTRAL | CENTRAL_ROWS.get(name, {}) if central else row
