"""The run directory: created atomically, and finished with the model and the summary."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from mechanisms import durable
from mechanisms.accounting.accountant import ORDERS, epsilon
from mechanisms.registry import MECHANISMS
from server.loop import Standing
from server.records import Summary, total_seconds
from sim.config import configuration as configs
from sim.config.caveats import caveats
from sim.config.fields import Config
from sim.job import inputs
from sim.job.job import Job

AUDITED = "audited"
"""A file that marks a run with canaries, which a resumed run would lack."""


def choose(config: Config) -> Path:
    """The path of a new run directory; only its parent folder is created.

    Raises:
        ValueError: the folder exists, or its parent cannot be written.
    """
    parent = make_parent(config)
    name = config.run.name or time.strftime("%Y%m%d-%H%M%S")
    folder, copy = parent / name, 2
    while folder.exists():
        if config.run.name:
            raise ValueError(
                f"name = {name}: {folder} exists; give another --name, or resume it with --resume "
                f"{folder}"
            )
        folder, copy = parent / f"{name}-{copy}", copy + 1
    return folder


def make_parent(config: Config) -> Path:
    """The parent folder of run directories, created if missing.

    Raises:
        ValueError: it cannot be created or written.
    """
    parent = Path(config.run.out)
    try:
        durable.make_folder(parent)
    except OSError as fault:
        raise ValueError(
            f"out = {parent} cannot be created ({fault.strerror}): give --out a writable folder"
        ) from None
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"out = {parent} cannot be written: give --out a writable folder")
    return parent


def create(folder: Path, job: Job) -> None:
    """Create the run directory with configuration and partition, under a temporary name first."""
    part = folder.with_name(f".{folder.name}.part")
    for name in ("ledger", "checkpoints"):
        (part / name).mkdir(parents=True, exist_ok=True)
    configs.save(job.config, part / "config.toml")
    with durable.writing(part / "partition.npz") as file:
        np.savez_compressed(file, allow_pickle=False, **_partition(job))
    inputs.write(part, job)
    part.rename(folder)
    durable.sync_folder(folder.parent)


def _partition(job: Job) -> dict[str, np.ndarray]:
    """Records per client, and per class except in a release: no budget pays for exact counts."""
    arrays = {"sizes": job.partition.sizes}
    if not job.config.run.release:
        arrays["counts"] = job.partition.counts(job.dataset.y, job.dataset.classes)
    return arrays


def check_resumable(folder: Path) -> None:
    """Refuse to resume an audited run.

    Raises:
        ValueError: the run was audited.
    """
    if (folder / AUDITED).exists():
        raise ValueError(
            f"{folder} is an audited run, whose canaries were not kept: start a new one"
        )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock the run directory: two processes that resume the same run would both charge it.

    Raises:
        ValueError: another process holds it.
    """
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is in use by another process: wait until it ends, or end it"
            ) from None
        yield


def summarize(folder: Path, job: Job, standing: Standing) -> Summary:
    """The run's summary, from its records and charges."""
    budgets, records = standing.budgets, standing.records
    clients, delta = range(len(job.plans.which)), job.config.privacy.delta
    certified = budgets.epsilons("certified")
    worst = budgets.charges_of(int(np.argmax(certified)))
    by_renyi = [epsilon(charges, delta, orders=ORDERS) for charges in budgets.histories()]
    renyi = max(by_renyi, key=lambda one: one.epsilon)
    accuracy, loss = (records[-1].accuracy, records[-1].loss) if records else (None, None)
    return Summary(
        accuracy=accuracy,
        loss=loss,
        epsilon_certified=tuple(certified.tolist()),
        epsilon_published=tuple(budgets.epsilons("published").tolist()),
        delta=delta,
        order=renyi.order,
        noise_multiplier=tuple(getattr(job.plans.of(c), "noise_multiplier", 0.0) for c in clients),
        events=tuple(sum(budgets.charges_of(c).values()) for c in clients),
        retired=int((~budgets.eligible()).sum()),
        rounds=standing.now.round,
        seconds=total_seconds(records),
        run_dir=str(folder),
        release=job.config.run.release,
        epsilon_renyi=renyi.epsilon,
        method=epsilon(worst, delta).method,
        note=MECHANISMS[job.config.privacy.mechanism].note,
        budget=job.config.privacy.budget,
        evaluated_on=job.config.data.evaluate_on,
        caveats=caveats(job.config),
    )


def finish(folder: Path, job: Job, params: np.ndarray, summary: Summary) -> None:
    """Write the final model and the summary."""
    tensors = inputs.constants(job) | job.gradients.layout.unflatten(torch.from_numpy(params))
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    durable.write(folder / "model.safetensors", content)
    durable.write(folder / "summary.json", json.dumps(summary.to_json(), indent=1).encode())
