"""The Flower apps of ``flwr run``: the same server loop and the same nodes, on Flower's own engines.

Settings are those of ``python -m sim.run``, given as ``--run-config "clients=20 rounds=3"``. The number of groups is
the number of Flower nodes. Ledgers are written where a node runs, under the run directory's path.
"""

import functools
from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid

from client.app import client_app
from client.node import Node
from server.app import exchange_over, find_groups, server_app
from sim import config as configs
from sim import job as jobs
from sim import rundir, session
from sim.fields import SETTINGS


def _serve(context: Context, grid: Grid) -> None:
    nodes = find_groups(grid)
    given = {name.replace("-", "_"): value for name, value in context.run_config.items()}
    resume = given.pop("resume", "")
    if resume:
        folder = Path(str(resume))
        job = jobs.build(configs.load(folder / "config.toml", {}))
    else:
        values = {n: SETTINGS[n].from_text(v) if isinstance(v, str) else v for n, v in given.items() if n in SETTINGS}
        config = configs.load(None, values | {"groups": len(nodes)})
        folder = rundir.choose(config).resolve()
        job = jobs.build(config)
        rundir.create(folder, job)
    if len(job.groups) != len(nodes):
        raise ValueError(f"{len(nodes)} Flower nodes, but the run has {len(job.groups)} groups of clients")
    settings = {"settings": job.config.model_dump_json(), "run_dir": str(folder)}
    session.run(job, folder, exchange_over(grid, nodes, settings))


@functools.lru_cache(maxsize=4)
def _node(settings: str, run_dir: str, group: int) -> Node:
    jobs.single_thread()
    return jobs.node(jobs.build(configs.Config.model_validate_json(settings)), group, Path(run_dir))


def _node_of(config: ConfigRecord, context: Context) -> Node:
    return _node(config["settings"], config["run_dir"], config["group"])


server = server_app(_serve)
client = client_app(_node_of)
