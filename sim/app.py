"""The Flower apps of ``flwr run``: the same server loop and the same nodes, on Flower's own engines.

The run configuration has the flags of ``python -m sim.run`` as keys; an empty one is not given. The number of groups is
the number of Flower nodes. Nodes write their ledgers into the run directory, so they share its file system. A relative
path is resolved in the working directory of the SuperLink or the SuperNode that uses it.
"""

import functools
from pathlib import Path

from flwr.app import ConfigRecord, Context, UserConfig
from flwr.serverapp import Grid

from client.app import client_app
from client.node import Node
from server.app import exchange_over, find_groups, server_app
from sim import environment, rundir, session
from sim import job as jobs
from sim.cli import parse
from sim.config import Config

environment.prepare()  # Flower starts Ray's workers after this module is imported: they inherit it


def flags(run_config: UserConfig) -> list[str]:
    """The command line of ``python -m sim.run`` that says the same as a run configuration."""
    line = []
    for name, value in run_config.items():
        if isinstance(value, bool):
            line.append(f"--{name}" if value else f"--no-{name}")
        elif value != "":
            line.append(f"--{name}={value}")
    return line


def _serve(context: Context, grid: Grid) -> None:
    """One run, from its configuration to its report.

    Raises:
        ValueError: anything the user can mend; before the run directory is made, or when training diverged.
    """
    jobs.single_thread()
    request = parse(flags(context.run_config), "flwr run", "")
    nodes = find_groups(grid)
    if request.resume is None:
        config = _with_groups(request.config, len(nodes))
        folder = rundir.choose(config).resolve()
    else:
        config, folder = request.config, request.resume.resolve()
    job = jobs.build(config)
    if len(job.groups) > len(nodes):
        raise ValueError(f"{folder} has {len(job.groups)} groups of clients, but there are {len(nodes)} Flower nodes")
    if request.resume is None:
        rundir.create(folder, job)
    settings = {"settings": config.model_dump_json(), "run_dir": str(folder)}
    session.run(job, folder, exchange_over(grid, nodes, settings))


def _with_groups(config: Config, groups: int) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"groups": groups})})


@functools.lru_cache(maxsize=1)
def _job(settings: str) -> jobs.Job:
    jobs.single_thread()
    return jobs.build(Config.model_validate_json(settings))


@functools.cache
def _node(settings: str, run_dir: str, group: int) -> Node:
    """The node of a group; it stays in its process, which serves one run.

    Raises:
        ValueError: the run directory is not there, so that nobody would find the charges.
    """
    if not Path(run_dir, "config.toml").is_file():
        raise ValueError(
            f"the run directory {run_dir} is not there for the Flower node of group {group}: set out to an absolute "
            "path that the server and all nodes share; ledgers are written there"
        )
    return jobs.node(_job(settings), group, Path(run_dir))


def _node_of(config: ConfigRecord, context: Context) -> Node:
    return _node(config["settings"], config["run_dir"], config["group"])


server = server_app(_serve)
client = client_app(_node_of)
