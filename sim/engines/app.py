"""The Flower apps of ``flwr run``: the same server loop and nodes, on Flower's own engines.

The run configuration has one key, ``flags``, with a command line of ``python -m sim.run``. The
number of groups is the number of Flower nodes. Nodes write their ledgers into the run directory, so
they must share its file system, and each allows it (`sim.engines.policy`); one with a policy file
writes into a folder of its own. A relative path is resolved in the working directory of the
SuperLink or the SuperNode that uses it.

A deployed SuperNode starts a process for each message, so torch is imported only where needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from client.app import client_app
from client.messages import Answering
from server.app import PATIENCE, consult, exchange_over, find_groups
from sim.commands.flags import Request, parse
from sim.config.configuration import check_in_use
from sim.config.fields import Config
from sim.engines import policy
from sim.job import environment

if TYPE_CHECKING:
    from sim.job.job import Job

FLAGS = "flags"
"""The key of the run configuration."""

environment.prepare()  # before torch is imported, and before Ray's workers start, which inherit it

_WORKERS = ("workers", "ray_address", "cpus_per_worker", "gpus_per_worker")
DECIDED_BY_FLOWER = ("engine", "groups", *_WORKERS)
"""Settings that Flower decides in a new run."""


def flags(run_config: Mapping[str, bool | int | float | str]) -> list[str]:
    """The arguments in a run configuration.

    Raises:
        ValueError: it has another key, or an unclosed quote.
    """
    for name, value in run_config.items():
        if name != FLAGS:
            raise ValueError(
                f"{name} = {value!r} is no key of the run configuration, which is one command "
                f"line: give --run-config '{FLAGS}=\"--{name} {value}\"'"
            )
    line = run_config.get(FLAGS, "")
    try:
        return shlex.split(str(line))
    except ValueError as fault:
        raise ValueError(
            f"{FLAGS} = {line!r} is no command line ({fault}): close the quote"
        ) from None


def _asked(run_config: Mapping[str, bool | int | float | str]) -> Request:
    """The request in a run configuration.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    request = parse(flags(run_config), "flwr run", "")
    if request.resume is None:  # else the nodes refuse it, but for workers of this machine
        policy.refuse_aggregation(request.config)
        policy.refuse_scores(request.config)
    decided = [name for name in DECIDED_BY_FLOWER if name in request.given]
    if decided and request.resume is None:
        name = decided[0]
        raise ValueError(
            f"{name} is {request.config.value(name)}, but Flower decides that: leave {name} out"
        )
    return request


server = ServerApp()


@server.main()
def _serve(grid: Grid, context: Context) -> None:
    """One run, from its configuration to its report.

    Raises:
        ValueError: a user error, before the run directory is created; or training diverged.
        RuntimeError: a node refuses, before that, too; or it has failed.
    """
    request = _asked(context.run_config)
    from server.manifest import RUN, run_of
    from server.noting import noting
    from sim.engines import session
    from sim.job import manifest, rundir

    folder = (request.resume or rundir.choose(request.config)).resolve()
    nodes = find_groups(grid, getattr(grid, "patience", PATIENCE))
    config = request.config if request.resume else _with_groups(request.config, len(nodes))
    job = _job(config.model_dump_json())
    if len(job.groups) > len(nodes):
        raise ValueError(
            f"{folder} has {len(job.groups)} groups, but only {len(nodes)} Flower nodes answered"
        )
    nodes = nodes[: len(job.groups)]  # others have no client
    keeping = [group for group, host in enumerate(nodes) if host.keeps]
    if keeping:  # the nodes refuse it as well
        policy.refuse_unprotected(job.config)
        policy.check_alone(job)
    # the nodes have no file of budgets or of dropouts
    read = {"privacy": job.config.privacy, "rounds": job.config.rounds}
    config = config.model_copy(update=read)
    settings = {"settings": config.model_dump_json(), "run_dir": str(folder)}
    if not request.resume:
        consult(grid, [host.node for host in nodes], settings)
        folder = rundir.create(folder, job)
        settings["run_dir"] = str(folder)
    settings[RUN] = run_of(folder) or ""
    exchange = exchange_over(grid, [host.node for host in nodes], settings)
    if keeping:
        files = manifest.ledger_files(folder, job)
        exchange = noting(exchange, {group: files[group] for group in keeping}, job.plans)
    session.run(job, folder, session.Engine(exchange, getattr(grid, "leave", lambda: None)))


def _with_groups(config: Config, groups: int) -> Config:
    groups = min(groups, config.data.clients)
    return config.model_copy(update={"run": config.run.model_copy(update={"groups": groups})})


_known: dict[str, Job] = {}
"""The newest job of this process, by its settings."""


def know(job: Job) -> None:
    """Keep a job that this process has already built."""
    _known.clear()
    _known[job.config.model_dump_json()] = job


def _job(settings: str, features: Path | None = None) -> Job:
    if settings not in _known:
        from sim.job.device import in_one_order
        from sim.phases.build import build

        config = _settings(settings)
        in_one_order(config)
        job = build(config, features=features)
        _known.clear()
        _known[settings] = job
    return _known[settings]


def _settings(text: str) -> Config:
    """The settings in a message.

    Raises:
        ValueError: they are damaged, or of another version, or one has no effect: a mechanism may
            not be made to draw by a setting that its charges do not know.
    """
    try:
        config = Config.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or text[:60]
        raise ValueError(
            f"settings in a message are damaged, or of another version ({where}: {first['msg']}): "
            "run the same version at the server and at its nodes"
        ) from None
    check_in_use(config)
    return config


def _node_of(config: Mapping[str, Any], context: Context) -> Answering:
    """A node for this message only, as another process may have charged its ledger in between."""
    run_dir, group, own = Path(config["run_dir"]), config["group"], policy.own()
    policy.check(_settings(config["settings"]), run_dir, own)
    if own is None:
        check_shared(run_dir, group)
    from sim.phases.course import Host

    if own is None:
        return Host(_job(config["settings"]), run_dir).node(group, config["phase"])
    from client.own_budget import Budgeted, OwnBudget
    from server.manifest import RUN
    from sim.job.job import TRAIN

    try:
        job = _job(config["settings"], own.home / "features")
    except Exception as fault:  # whose text may quote records
        raise ValueError(
            f"group {group} cannot be built on its Flower node: the node's own log says why"
        ) from fault
    policy.check_alone(job)
    folder = policy.folder_of(own, job, run_dir, config[RUN])

    def node() -> Answering:
        policy.check_records(folder, job)
        return Host(job, folder).node(group, TRAIN)

    return Budgeted(OwnBudget(own.home, own.epsilon, own.delta), folder, job.plans, node)


def _consent(config: Mapping[str, Any]) -> None:
    """Refuse what this node is not to do."""
    policy.check(_settings(config["settings"]), Path(config["run_dir"]), policy.own())


def check_shared(run_dir: Path, group: int) -> None:
    """Refuse to host a group where the server would not see what it writes.

    Raises:
        ValueError: the run directory does not exist here.
    """
    if not (run_dir / "config.toml").is_file():
        raise ValueError(
            f"the run directory {run_dir} does not exist for the Flower node of group {group}: "
            "set out to the absolute path of a folder that the server and all nodes share; ledgers "
            "are written there"
        )


client = client_app(_node_of, lambda: policy.own() is not None, _consent)
