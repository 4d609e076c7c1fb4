"""What a Flower node does at a server's request: what its own environment allows.

A message names the run directory, in which the node writes its ledger and what clients keep, the
data directory, to which missing data sets and features are written, a file of initial parameters,
and a model, a loss, a metric, a data set, features, a mechanism, a strategy and a partition, whose
modules are imported if they are of somebody's own.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mechanisms.plugins import plugin
from sim.config.fields import Config
from sim.config.settings import is_hub
from sim.data.files import DATA_DIR_VARIABLE, is_function

FOLDER = "DP_FED_NODE_FOLDER"
"""The variable with the folder below which a node writes."""
DEFAULT_FOLDER = "runs"
"""In the folder where the node was started."""
MODULES = "DP_FED_NODE_MODULES"
"""The variable with the modules that a node imports, separated by commas."""
LOADER = "datasets"
"""The module that loads data sets of Hugging Face's, into a folder of its own."""
PACKAGES = ("mechanisms", "client", "strategies", "server", "sim")
"""The project's own, which are allowed but for what is called."""
CALLED = ("strategy", "partition", "features")
"""Settings whose object is called with arguments that the server chooses."""
FLOWER = "flwr.serverapp.strategy"
"""The module of Flower's own strategies, which is allowed for these."""


def check(config: Config, run_dir: Path) -> None:
    """Refuse what this node is not to do.

    Raises:
        ValueError: the run directory or the data directory is not below the node's own folder, a
            module is not on the node's list, or secure aggregation is asked for.
    """
    refuse_aggregation(config)
    _check_folder("run_dir", run_dir)
    own_data = os.environ.get(DATA_DIR_VARIABLE)
    if config.data.data_dir and config.data.data_dir != own_data:
        _check_folder("data_dir", Path(config.data.data_dir).expanduser())
    if config.data.init_from:
        _check_folder("init_from", Path(config.data.init_from).expanduser())
    listed = [name for part in os.environ.get(MODULES, "").split(",") if (name := part.strip())]
    for setting, module in _modules(config):
        allowed = [*listed, FLOWER] if setting in CALLED else [*PACKAGES, *listed]
        if not _below(module, allowed):
            raise ValueError(
                f"{setting} = {config.value(setting)!r} needs {module}, which this Flower node "
                f"does not import (it imports {', '.join(allowed)}): start the node with "
                f"{MODULES}={module}, or give another --{setting}"
            )
        if setting in CALLED:
            _check_home(setting, config.value(setting), allowed)


def _check_home(setting: str, name: str, allowed: Sequence[str]) -> None:
    """Refuse to call what an allowed module has merely imported.

    Raises:
        ValueError: it is defined elsewhere.
    """
    home = str(getattr(plugin(setting, name, "an object"), "__module__", None))
    if not _below(home, allowed):
        raise ValueError(
            f"{setting} = {name!r} is of {home}, from which this Flower node calls nothing (but "
            f"from {', '.join(allowed)}): define it in a module that the node has in {MODULES}"
        )


def _below(module: str, names: Sequence[str]) -> bool:
    """Whether it is one of these modules, or below one."""
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def refuse_aggregation(config: Config) -> None:
    """Refuse what would give the server a group's own sum, with the noise of that group alone.

    Raises:
        ValueError: clients trust secure aggregation.
    """
    if config.privacy.trust == "aggregate":
        raise ValueError(
            "trust is aggregate, but a Flower node sends the server the sum of its own group, with "
            "too little noise: use python -m sim.run, or --trust local"
        )


def _modules(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that have a module imported, each with that module."""
    for setting, name in config.own.items():
        yield setting, name.partition(":")[0]
    dataset = config.data.dataset
    if is_hub(dataset):
        yield "dataset", LOADER
    elif is_function(dataset):
        yield "dataset", dataset.partition(":")[0]


def _check_folder(name: str, path: Path) -> None:
    folder = Path(os.environ.get(FOLDER) or DEFAULT_FOLDER).expanduser().resolve()
    if not path.resolve().is_relative_to(folder):
        raise ValueError(
            f"{name} = {path} is not below {folder}, where alone this Flower node works: give one "
            f"there, or start the node with {FOLDER} set to another one"
        )
