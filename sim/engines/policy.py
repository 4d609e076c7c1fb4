"""What a Flower node does at a server's request: what its own environment or policy file allows.

A message names the run directory, in which the node writes its ledger and what clients keep, the
data directory, to which missing data sets and features are written, files of initial parameters and
of budgets, and a model, a loss, a metric, a data set, features, a mechanism, a strategy and a
partition, whose modules are imported if they are of somebody's own. A node with a policy file of
its own writes below its own folder instead, and bounds what all runs together may cost any of its
records (`client.own_budget`).
"""

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError, field_validator

from mechanisms import durable
from mechanisms.client_rows import is_file
from mechanisms.plugins import plugin
from mechanisms.settings import Settings
from sim.config.fields import Config
from sim.config.names import did_you_mean
from sim.config.settings import BY_LABEL, RUN_NAME, expanded, is_hub, is_table
from sim.data.files import DATA_DIR_VARIABLE, is_function

if TYPE_CHECKING:
    from sim.job.job import Job

POLICY = "DP_FED_NODE_POLICY"
"""The variable with the path of a node's policy file."""
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


class Policy(Settings):
    """A node's policy file"""

    folder: str = Field(min_length=1)
    """absolute path of a folder, made by its owner, for the node's ledgers of all runs"""
    epsilon: float = Field(gt=0)
    """budget of any record of the node over all runs [nats]"""
    delta: float = Field(gt=0, lt=1)
    """delta of that budget [probability]"""
    modules: list[str] = Field(default_factory=list)
    """modules from which the node imports objects that are not the project's own"""

    @field_validator("folder")
    @classmethod
    def _is_there(cls, folder: str) -> str:
        if not expanded(folder).is_absolute():
            raise ValueError("relative: started elsewhere, the node would begin another budget")
        if not expanded(folder).is_dir():
            raise ValueError("not there: without its disk, the node would begin another budget")
        return folder

    @property
    def home(self) -> Path:
        """The folder, without links."""
        return expanded(self.folder).resolve()


def own() -> Policy | None:
    """This node's policy file; None if it has none.

    Raises:
        ValueError: it cannot be used, or a variable says what belongs into it.
    """
    path = os.environ.get(POLICY)
    if not path:
        return None
    for variable, key in ((FOLDER, "folder"), (MODULES, "modules")):
        if os.environ.get(variable):
            raise ValueError(
                f"{variable} and {POLICY} are both set, but only one may be: set {key} in {path}, "
                f"and drop {variable}"
            )
    return read(POLICY, path)


def read(name: str, path: str) -> Policy:
    """The policy file that ``name`` has named.

    Raises:
        ValueError: it cannot be read, or has an unknown or missing key or a value out of its
            bounds.
    """
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise ValueError(f"{name} = {path} cannot be read ({fault.strerror}): correct it") from None
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{name} = {path} is not a TOML file: {fault}") from None
    try:
        return Policy.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{name} = {path}: {_fault(given, error)}") from None


def _fault(given: Mapping[str, object], error: ValidationError) -> str:
    """The first error of a policy file."""
    first, known = error.errors()[0], Policy.model_fields
    key = str(first["loc"][0])
    if key not in known:
        return f"unknown key {key}{did_you_mean(key, known)} (keys: {', '.join(known)})"
    said = f"{key} is {given[key]!r}" if key in given else f"{key} is missing"
    return f"{said} ({first['msg']}): give its {known[key].description}"


def check(config: Config, run_dir: Path, own: Policy | None = None) -> None:
    """Refuse what this node is not to do.

    Raises:
        ValueError: the run directory or the data directory is not below the node's own folder, a
            module is not on the node's list, secure aggregation or released scores are asked for,
            or, by the node's own policy file, what is not protected from the server.
    """
    refuse_scores(config)
    refuse_aggregation(config)
    home = expanded(os.environ.get(FOLDER) or DEFAULT_FOLDER).resolve()
    listed = [name for part in os.environ.get(MODULES, "").split(",") if (name := part.strip())]
    remedy = f"start the node with {MODULES}="
    if own is None:
        _check_folder("run_dir", run_dir, home)
    else:
        refuse_unprotected(config)
        home, listed = own.home, own.modules
        remedy = "have its owner add to modules in its policy file "
    own_data = os.environ.get(DATA_DIR_VARIABLE)
    if config.data.data_dir and config.data.data_dir != own_data:
        _check_folder("data_dir", expanded(config.data.data_dir), home)
    for setting in ("init_from", "word_vectors"):
        if name := config.value(setting):
            _check_folder(setting, expanded(name), home)
    for setting in ("budgets", "dropout_trace"):
        if is_file(text := config.value(setting) or ""):
            _check_folder(setting, expanded(text), home)
    for setting, module in _modules(config):
        allowed = [*listed, FLOWER] if setting in CALLED else [*PACKAGES, *listed]
        if not _below(module, allowed):
            raise ValueError(
                f"{setting} = {config.value(setting)!r} needs {module}, which this Flower node "
                f"does not import (it imports {', '.join(allowed)}): {remedy}{module}, or give "
                f"another --{setting}"
            )
        if setting in (*CALLED, "dataset") and module != LOADER:
            _check_home(setting, config.value(setting), allowed)


def refuse_unprotected(config: Config) -> None:
    """Refuse what a node with a policy of its own does for nobody: what the server could read.

    Raises:
        ValueError: there is no noise, or the server knows it, or is to add it; it takes records out
            of protection; or numbers of clients' records or of outputs tell what the records hold.
    """
    privacy, data = config.privacy, config.data
    ends = "but the policy of this Flower node"
    if not config.private:
        raise ValueError(
            f"mechanism is {privacy.mechanism}, {ends} allows private ones only: give another"
        )
    if privacy.trust != "local":
        raise ValueError(
            f"trust is {privacy.trust}, {ends} has it add all noise itself: use --trust local"
        )
    if not config.run.release:
        raise ValueError(
            f"release is false, {ends} asks for noise that the server cannot compute from the "
            "seed: add --release"
        )
    if data.public_records:
        raise ValueError(
            f"public_records is {data.public_records}, {ends} has all its records protected: use 0"
        )
    if data.partition in BY_LABEL:
        raise ValueError(
            f"partition is {data.partition}, {ends} divides no records by their labels, of which "
            "clients' numbers of records would tell: use --partition iid, quantity or given"
        )
    if data.client_column is not None:
        raise ValueError(
            f"client_column is {data.client_column!r}, {ends} divides no records by a column that "
            "the server names, whose values would be counted: use an .npz with an array client"
        )
    if is_table(data.dataset) and data.columns is None:
        raise ValueError(
            f"columns is not set, {ends} reads no categories off a table, as their number would "
            "be told: give --columns, a file that states them"
        )


def check_alone(job: "Job") -> None:
    """Refuse phases before training, whose results a node without a shared folder does not see.

    Raises:
        ValueError: there is one.
    """
    *before, _ = job.plans_of  # the last one is training
    if before:
        raise ValueError(
            f"phases before training are {', '.join(before)}, but a Flower node with a policy of "
            "its own shares no folder in which it would see their results: use --standardize none, "
            "another --strategy than fedfed and another --evaluation than released"
        )


def folder_of(own: Policy, job: "Job", run_dir: Path, run: str) -> Path:
    """Where a node with its own policy keeps the files of a run: the same when it is resumed,
    another one if a client's number may mean other records, or if the server's manifest, of digest
    ``run``, is another run's: what clients keep is paid for in the run that they keep it from."""
    config = job.config
    known = repr((str(run_dir), run, config.data.model_dump_json(), config.run.seed))
    name = run_dir.name if RUN_NAME.fullmatch(run_dir.name) else "run"
    return own.home / f"{name}-{hashlib.blake2b(known.encode(), digest_size=8).hexdigest()}"


def check_records(folder: Path, job: "Job") -> None:
    """Refuse a run whose clients had other records before its first charge: where a client's number
    means other records, a record may have paid by two numbers, of which the larger would count.

    Raises:
        ValueError: the folder of the run began with other records.
    """
    from client.own_budget import LEDGER
    from sim.job import inputs

    if (folder / LEDGER).exists():
        inputs.check(folder, job)
    else:
        durable.make_folder(folder, private=True)
        inputs.write(folder, job)


def _check_home(setting: str, name: str, allowed: Sequence[str]) -> None:
    """Refuse to call what an allowed module has merely imported.

    Raises:
        ValueError: it is defined elsewhere.
    """
    home = str(getattr(plugin(setting, name, "an object"), "__module__", None))
    if not _below(home, allowed):
        raise ValueError(
            f"{setting} = {name!r} is of {home}, from which this Flower node calls nothing (but "
            f"from {', '.join(allowed)}): define it in a module that the node allows"
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


def refuse_scores(config: Config) -> None:
    """Refuse scores by client, whose noise the server's process would add.

    Raises:
        ValueError: they are to be released.
    """
    if config.data.evaluation == "released":
        raise ValueError(
            "evaluation is released, but with Flower nodes the server's process would look at the "
            "clients' records to score them: use python -m sim.run, or --evaluation detailed"
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


def _check_folder(name: str, path: Path, folder: Path) -> None:
    if not path.resolve().is_relative_to(folder):
        raise ValueError(
            f"{name} = {path} is not below {folder}, where alone this Flower node works: give "
            f"another {name}, or have the node work elsewhere, by {FOLDER} or its policy file"
        )
