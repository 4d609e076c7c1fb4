"""Who sends a request again when a Ray worker has died: the engine, in a simulation alone."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mechanisms.accounting import ledger
from server import loop
from server.store import Store
from sim.data.partition import Partition
from sim.engines.cluster import starting
from sim.engines.ray_grid import TRIES, ray_exchange
from sim.phases import training
from tests import phases


@dataclass(frozen=True, eq=False)
class Fatal(Partition):
    """Whoever looks at a record dies, and leaves a line."""

    trace: Path = Path()

    def of(self, client: int) -> None:
        with self.trace.open("a") as file:
            file.write("died\n")
        os._exit(1)


def test_a_request_is_sent_again_in_a_simulation_and_never_in_a_release(tmp_path):
    """A release that is asked again draws again, at a price that nobody had planned; a simulation draws the same."""
    given = {"engine": "ray", "workers": 1, "strategy": "fedavg", "standardize": "none"}
    with starting(phases.job(tmp_path, **given).config) as cluster:
        for release, tries in ((False, TRIES), (True, 1)):
            folder = tmp_path / str(release)
            job = phases.job(folder, release, **given)
            fatal = Fatal(job.partition.indices, job.partition.offsets, folder / "trace")
            job, federation = replace(job, partition=fatal), training.federation(job)
            store = Store(folder, keep_checkpoints=2)
            (folder / "ledger").mkdir()
            with pytest.raises(RuntimeError, match="group 0 failed: its worker died"):
                loop.run(federation, ray_exchange(job, folder, cluster), store, loop.restore(federation, store), [])
            assert (folder / "trace").read_text() == "died\n" * tries
            once = job.plans.of(0).round_charges(1)
            assert ledger.read(folder / "ledger") == dict.fromkeys(range(phases.CLIENTS), once)
