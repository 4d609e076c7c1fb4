"""What a data set changes in the defaults: a row per ``--dataset``, a setting per entry."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"model": "linear"},
    "mnist": {"model": "cnn", "lr": 4.0, "rounds": 45},
    "fmnist": {"model": "cnn", "lr": 4.0, "rounds": 45},
    "cifar10": {"model": "cnn-cifar"},
}

OTHER: dict[str, Any] = {"model": "linear"}
"""For a user's own arrays."""


def preset(dataset: object) -> dict[str, Any]:
    """The settings that ``dataset`` changes."""
    return PRESETS.get(dataset, OTHER) if isinstance(dataset, str) else OTHER
