"""The run directory: created atomically, and finished with the model and the summary."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from mechanisms import durable
from mechanisms.accounting.accountant import by_renyi, epsilon
from mechanisms.registry import mechanism_of
from server import closing
from server.guarantees import by_group, guarantees
from server.loop import Standing
from server.records import Summary, largest, total_seconds
from server.store import MODEL
from sim.config import configuration as configs
from sim.config.caveats import caveats
from sim.config.fields import Config
from sim.job import card, inputs, manifest
from sim.job.job import Job
from sim.tracking import tracker

LOCK = "lock"


def choose(config: Config, resumes: bool = True) -> Path:
    """The path of a new run directory; only its parent folder is created.

    Args:
        config: the run's configuration.
        resumes: whether the command can go on with a run.

    Raises:
        ValueError: the folder exists, its parent cannot be written, or the tracker's package is
            not installed.
    """
    tracker.check(config.run.track)
    parent = make_parent(config)
    name = config.run.name or time.strftime("%Y%m%d-%H%M%S")
    folder, copy = parent / name, 2
    while os.path.lexists(folder):
        if config.run.name:
            resumes &= (folder / "config.toml").is_file()
            remedy = f", or resume it with --resume {folder}" if resumes else ""
            raise ValueError(f"name = {name}: {folder} exists; give another --name{remedy}")
        folder, copy = parent / f"{name}-{copy}", copy + 1
    return folder


def make_parent(config: Config) -> Path:
    """The parent folder of run directories, created if missing.

    Raises:
        ValueError: it cannot be created or written, or is '', as of a variable that is not set.
    """
    if not config.run.out:
        raise ValueError("out is '', and . is this folder: give --out a folder")
    return make_writable("out", Path(config.run.out))


def make_writable(name: str, folder: Path) -> Path:
    """The folder that the flag ``name`` gives, or its file is in, created if missing.

    Raises:
        ValueError: it cannot be created or written.
    """
    remedy = f"give --{name} a writable folder"
    try:
        str(folder).encode()  # files that name it are in UTF-8
        durable.make_folder(folder)
    except (OSError, ValueError) as fault:  # a name may have a null character
        reason = getattr(fault, "strerror", fault)
        raise ValueError(f"{name} = {folder} cannot be created ({reason}): {remedy}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{name} = {folder} cannot be written: {remedy}")
    return folder


def create(folder: Path, job: Job, exactly: bool = False) -> Path:
    """Create the run directory with all that stays, under a temporary name first; returns it.

    If another start has taken the name since it was chosen, it is another one, unless ``exactly``.

    Raises:
        ValueError: the name was given, or has to be this one, and is taken.
    """
    exactly |= bool(job.config.run.name)
    return place(folder, lambda part, _: _fill(part, job), exactly)


def place(folder: Path, fill: Callable[[Path, Path], None], exactly: bool = False) -> Path:
    """Create a folder of results, or of a similar name if it is taken; returns it.

    Args:
        folder: its path, as `choose` gives it.
        fill: writes into its first argument, a folder that is renamed to its second one.
        exactly: whether no other name will do.

    Raises:
        ValueError: the name has to be this one, and is taken.
    """
    found, copy = folder, 2
    while not _place(found, fill):
        if exactly:
            raise ValueError(
                f"name = {folder.name}: another run is starting in {folder}; give another --name"
            )
        found, copy = folder.with_name(f"{folder.name}-{copy}"), copy + 1
    return found


def _place(folder: Path, fill: Callable[[Path, Path], None]) -> bool:
    """Whether the folder was created: False if another start has taken its name."""
    part = folder.with_name(f".{folder.name}.part")
    durable.make_folder(part)
    try:
        with lock(part):
            if not (part / LOCK).exists():  # it was another start's, which has renamed it
                return False
            fill(part, folder)
            durable.rename(part, folder)
    except RunInUse:
        return False
    except OSError as fault:
        if fault.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
        shutil.rmtree(part, ignore_errors=True)  # another start has renamed its own
        return False
    return True


def _fill(part: Path, job: Job) -> None:
    durable.make_folder(part / "ledger", private=True)
    durable.make_folder(part / "checkpoints")
    configs.save(job.config, part / "config.toml")
    with durable.writing(part / "partition.npz", private=True) as file:
        np.savez_compressed(file, allow_pickle=False, **_partition(job))
    inputs.write(part, job)
    durable.make_empty(manifest.ledger_files(part, job))
    manifest.write(part, job)


def _partition(job: Job) -> dict[str, np.ndarray]:
    """Records per client, and per class, if targets are classes, except in a release: no budget
    pays for exact counts."""
    arrays = {"sizes": job.partition.sizes}
    labels = None if job.config.run.release else job.dataset.labels
    if labels is not None:
        arrays["counts"] = job.partition.counts(labels, job.dataset.classes)
    return arrays


class RunInUse(ValueError):
    """Another process holds the run directory."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock the run directory: two processes that resume the same run would both charge it.

    Raises:
        RunInUse: another process holds it.
    """
    held = [folder / LOCK, *folder.glob(manifest.FILE)]  # the first can be taken for stale
    with ExitStack() as stack:
        try:
            for path in held:
                stack.enter_context(durable.locked(path, wait=False))
        except BlockingIOError:
            raise RunInUse(
                f"{folder} is in use by another process: wait until it ends, or end it"
            ) from None
        yield


def summarize(folder: Path, job: Job, standing: Standing) -> Summary:
    """The run's summary, from its records and charges."""
    budgets, records, privacy = standing.budgets, standing.records, job.config.privacy
    delta, which = privacy.delta, job.plans.which
    certified = budgets.epsilons("certified")
    worst = budgets.charges_of(int(np.argmax(certified)))
    renyi = max((by_renyi(one, delta) for one in budgets.histories()), key=lambda one: one.epsilon)
    noise = np.array([getattr(plan, "noise_multiplier", 0.0) for plan in job.plans.plans])
    accuracy, loss = (records[-1].accuracy, records[-1].loss) if records else (None, None)
    return Summary(
        accuracy=accuracy,
        loss=loss,
        epsilon_certified=tuple(certified.tolist()),
        epsilon_published=tuple(budgets.epsilons("published").tolist()),
        delta=delta,
        order=renyi.order,
        noise_multiplier=tuple(noise[which].tolist()),
        events=tuple(budgets.events().tolist()),
        retired=int((~budgets.eligible()).sum()),
        rounds=standing.now.round,
        seconds=total_seconds(records),
        run_dir=str(folder),
        release=job.config.run.release,
        epsilon_renyi=renyi.epsilon,
        method=epsilon(worst, delta).method,
        note=mechanism_of(privacy).note,
        budget=privacy.budget,
        evaluated_on=job.config.data.evaluate_on,
        caveats=caveats(job.config),
        metric=job.config.data.metric_name,
        guarantees=guarantees(
            privacy.trust, privacy.unit, job.config.data.clients, largest(certified.tolist())
        ),
        budgets=by_group(job.config.groups, certified.tolist()),
    )


def finish(
    folder: Path, job: Job, params: np.ndarray, summary: Summary, written: Sequence[str] = ()
) -> None:
    """Write the final model, its card, and the summary, which vouches for both and for files
    ``written`` before."""
    tensors = inputs.constants(job) | job.gradients.layout.unflatten(torch.from_numpy(params))
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    durable.write(folder / MODEL, content)
    card.write(folder, job, summary)
    closing.write(folder, summary, (MODEL, card.FILE, *written))
