"""The engine without Flower and Ray: all groups in this process, one after the other."""

from pathlib import Path

from mechanisms.mechanism import Mechanism
from server.federation import Exchange
from sim.job.job import Job
from sim.phases.course import Host


def inline_exchange(job: Job, folder: Path, mechanism: Mechanism | None = None) -> Exchange:
    """An exchange with nodes in this process; ``mechanism`` replaces the configuration's."""
    host = Host(job, folder, mechanism)
    return lambda requests: (
        host.node(request.group, request.phase).train(request) for request in requests
    )
