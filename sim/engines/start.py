"""Starts or resumes a run: job, run directory, engine."""

from pathlib import Path

from sim.commands.flags import Request
from sim.config.caveats import tells_times
from sim.config.fields import Config
from sim.engines.cluster import Cluster, from_start, starting
from sim.engines.drawer import Report
from sim.engines.inline import inline_exchange
from sim.engines.moving import Moving
from sim.engines.session import Engine, run
from sim.job import rundir
from sim.job.device import device_of, in_one_order
from sim.job.workers import workers_of
from sim.phases.build import build


def train(request: Request, cluster: Cluster | None = None, report: Report | None = None) -> Path:
    """Train as requested, on the given or a new cluster; returns the run directory.

    ``report`` writes the report; by default, and if Ray has all rounds, this process does.

    Raises:
        ValueError: a user error, in one line.
    """
    if cluster is None:
        with starting(request.config) as cluster:
            return train(request, cluster, report)
    in_one_order(request.config)
    folder = request.resume or rundir.choose(request.config)
    job = build(request.config, cluster.workers(request.config.run))

    def create(exactly: bool = False) -> Path:
        return folder if request.resume else rundir.create(folder, job, exactly)

    if job.config.run.engine == "inline":
        folder = create()
        run(job, folder, Engine(inline_exchange(job, folder), report=report))
    elif all_by_workers(job.config):
        cluster.begin().result()  # reports Ray and Flower that cannot be imported
        from sim.engines.ray_grid import grid_of, serve

        grid = grid_of(job, folder, cluster)  # before anything is written
        serve(job, create(exactly=True), grid)
    else:
        folder = create()
        moving = Moving(job, folder, cluster)
        told = tells_times(job.config)  # when it moves depends on how long requests took
        run(
            job, folder, Engine(moving, cluster.leave, lambda: moving.where if told else "", report)
        )
    return folder


def all_by_workers(config: Config) -> bool:
    """Whether all rounds are for Ray's workers: if the user says so, or there are several GPUs, of
    which this process would use one."""
    several = device_of(config).type == "cuda" and workers_of(config.run) > 1
    return from_start(config.run) or several
