"""What a Flower node does at a server's request: what its own environment allows.

A message names the run directory, in which the node writes its ledger and what clients keep, the
data directory, to which missing data sets and features are written, and the model, whose module is
imported.
"""

import os
from pathlib import Path

from sim.config.fields import Config
from sim.data.files import DATA_DIR_VARIABLE

FOLDER = "DP_FED_NODE_FOLDER"
"""The variable with the folder below which a node writes."""
DEFAULT_FOLDER = "runs"
"""In the folder where the node was started."""
MODULES = "DP_FED_NODE_MODULES"
"""The variable with the modules that a node imports for a model, separated by commas."""
PACKAGES = ("mechanisms", "client", "strategies", "server", "sim")
"""The project's own, which are always allowed."""


def check(config: Config, run_dir: Path) -> None:
    """Refuse what this node is not to do.

    Raises:
        ValueError: the run directory or the data directory is not below the node's own folder, or
            the model's module is not on the node's list.
    """
    _check_folder("run_dir", run_dir)
    own_data = os.environ.get(DATA_DIR_VARIABLE)
    if config.data.data_dir and config.data.data_dir != own_data:
        _check_folder("data_dir", Path(config.data.data_dir).expanduser())
    module, own, _ = config.data.model.partition(":")
    listed = [name.strip() for name in os.environ.get(MODULES, "").split(",")]
    allowed = [*PACKAGES, *filter(None, listed)]
    if own and not any(f"{module}.".startswith(f"{name}.") for name in allowed):
        raise ValueError(
            f"model = {config.data.model!r} is of a module that this Flower node does not import "
            f"(it imports {', '.join(allowed)}): start the node with {MODULES}={module}, or give "
            "another --model"
        )


def _check_folder(name: str, path: Path) -> None:
    folder = Path(os.environ.get(FOLDER) or DEFAULT_FOLDER).expanduser().resolve()
    if not path.resolve().is_relative_to(folder):
        raise ValueError(
            f"{name} = {path} is not below {folder}, where alone this Flower node writes: give the "
            f"run a folder there, or start the node with {FOLDER} set to another one"
        )
