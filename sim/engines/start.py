"""Starts or resumes a run: job, run directory, engine."""

from pathlib import Path

from sim.commands.flags import Request
from sim.engines.cluster import Cluster, from_start, starting
from sim.engines.inline import inline_exchange
from sim.engines.moving import Moving
from sim.engines.session import Engine, run
from sim.job import rundir
from sim.job.device import device_of, in_one_order
from sim.phases.build import build


def train(request: Request, cluster: Cluster | None = None) -> Path:
    """Train as requested, on the given or a new cluster; returns the run directory.

    Raises:
        ValueError: a user error, in one line.
    """
    if cluster is None:
        with starting(request.config) as cluster:
            return train(request, cluster)
    in_one_order(request.config)
    if request.resume is None:
        folder = rundir.choose(request.config)
        job = build(request.config)
        rundir.create(folder, job)
    else:
        rundir.check_resumable(request.resume)
        folder, job = request.resume, build(request.config)
    if job.config.run.engine == "inline":
        run(job, folder, Engine(inline_exchange(job, folder)))
    elif from_start(job.config.run) or device_of(job.config).type == "cuda":
        from sim.engines.ray_grid import serve

        serve(job, folder, cluster)
    else:
        moving = Moving(job, folder, cluster)
        run(job, folder, Engine(moving, cluster.leave, lambda: moving.where))
    return folder
