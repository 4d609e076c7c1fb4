"""The run directory: made whole or not at all, and finished with the model, the summary and the
report."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from mechanisms import durable
from mechanisms.accounting.accountant import Charges, epsilon, pld_epsilon
from mechanisms.registry import MECHANISMS
from server.loop import Standing
from server.records import Epsilon, Summary, largest, total_seconds
from sim.config import configuration as configs
from sim.config.caveats import caveats
from sim.config.fields import Config
from sim.job import inputs
from sim.job.job import Job

MAX_PLD = 20
"""Distinct histories of charges, at most, for which privacy-loss distributions are computed: each
takes a moment."""
AUDITED = "audited"
"""A file that says that canaries were planted, which a resumed run would not have."""


def choose(config: Config) -> Path:
    """Where a new run will be; nothing is made yet but the parent folder.

    Raises:
        ValueError: the folder exists, or its parent cannot be written.
    """
    parent = make_parent(config)
    name = config.run.name or time.strftime("%Y%m%d-%H%M%S")
    folder, copy = parent / name, 2
    while folder.exists():
        if config.run.name:
            raise ValueError(
                f"name = {name}: {folder} exists; give another --name, or go on with --resume "
                f"{folder}"
            )
        folder, copy = parent / f"{name}-{copy}", copy + 1
    return folder


def make_parent(config: Config) -> Path:
    """The parent folder of run directories, made where it is missing.

    Raises:
        ValueError: it cannot be made or written.
    """
    parent = Path(config.run.out)
    try:
        durable.make_folder(parent)
    except OSError as fault:
        raise ValueError(
            f"out = {parent} cannot be made ({fault.strerror}): give --out a folder to write to"
        ) from None
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"out = {parent} cannot be written: give --out a folder to write to")
    return parent


def create(folder: Path, job: Job) -> None:
    """Make the run directory with its configuration and partition, under a temporary name first."""
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
    """Records of each client; of each class, too, unless it is a release: nothing pays for exact
    numbers of labels."""
    arrays = {"sizes": job.partition.sizes}
    if not job.config.run.release:
        arrays["counts"] = job.partition.counts(job.dataset.y, job.dataset.classes)
    return arrays


def check_resumable(folder: Path) -> None:
    """Refuse to go on with a run that was audited.

    Raises:
        ValueError: it was.
    """
    if (folder / AUDITED).exists():
        raise ValueError(
            f"{folder} is an audited run, whose canaries were not kept: start a new one"
        )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the run directory: two processes that go on with one run would both charge it.

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
    """The run's closing figures, from what was charged."""
    budgets, records = standing.budgets, standing.records
    clients, delta = range(len(job.plans.which)), job.config.privacy.delta
    certified = budgets.epsilons("certified")
    worst = budgets.charges_of(int(np.argmax(certified)))
    accuracy, loss = (records[-1].accuracy, records[-1].loss) if records else (None, None)
    return Summary(
        accuracy=accuracy,
        loss=loss,
        epsilon_certified=tuple(certified.tolist()),
        epsilon_published=tuple(budgets.epsilons("published").tolist()),
        epsilon_pld=_largest_pld(budgets.histories(), delta),
        delta=delta,
        order=epsilon(worst, delta).order,
        noise_multiplier=tuple(getattr(job.plans.of(c), "noise_multiplier", 0.0) for c in clients),
        events=tuple(sum(budgets.charges_of(c).values()) for c in clients),
        retired=int((~budgets.eligible()).sum()),
        rounds=standing.now.round,
        seconds=total_seconds(records),
        run_dir=str(folder),
        release=job.config.run.release,
        note=MECHANISMS[job.config.privacy.mechanism].note,
        budget=job.config.privacy.budget,
        evaluated_on=job.config.data.evaluate_on,
        caveats=caveats(job.config),
    )


def _largest_pld(histories: Sequence[Charges], delta: float) -> Epsilon:
    """The largest epsilon by privacy-loss distributions: whose certified one is largest need not
    have it.

    None where one history has none, or there are more than `MAX_PLD`.
    """
    return (
        None
        if len(histories) > MAX_PLD
        else largest([pld_epsilon(charges, delta) for charges in histories])
    )


def finish(folder: Path, job: Job, params: np.ndarray, summary: Summary) -> None:
    """Write the final model and the summary."""
    tensors = inputs.constants(job) | job.gradients.layout.unflatten(torch.from_numpy(params))
    durable.write(
        folder / "model.safetensors", save({name: t.contiguous() for name, t in tensors.items()})
    )
    durable.write(folder / "summary.json", json.dumps(summary.to_json(), indent=1).encode())
