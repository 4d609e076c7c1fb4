"""Reads what is shown of a run from the files of its directory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.accounting.accountant import Charges
from server import closing, orders, paid
from server.guarantees import by_group
from server.records import Epsilon, RoundRecord, Summary, finite, read_rounds
from server.store import ROUNDS, Store
from sim.config.configuration import Config, load
from sim.config.fields import SETTINGS


@dataclass(frozen=True)
class Run:
    """The contents of a run directory that are shown.

    Attributes:
        folder: the run directory.
        config: the run's configuration.
        records: the records of its finished rounds.
        sizes: records per client, int64 ``[clients]``.
        counts: records per client and class, int64 ``[clients, classes]``; None for a release,
            which does not publish them, and where targets are no classes.
        summary: the summary; None until the run is finished.
        paid: what each client has paid.
    """

    folder: Path
    config: Config
    records: tuple[RoundRecord, ...]
    sizes: np.ndarray
    counts: np.ndarray | None
    summary: Summary | None
    paid: Mapping[int, Charges]

    @property
    def alone(self) -> bool:
        """Whether one client holds all records."""
        return len(self.sizes) == 1

    @property
    def accuracy(self) -> float | None:
        """Accuracy, or the configuration's metric, of the final model; of an unfinished run, of the
        last model that was evaluated, None before the first."""
        if self.summary is not None:
            return self.summary.accuracy
        known = [one.accuracy for one in self.records if finite(one.accuracy) is not None]
        return known[-1] if known else None

    @property
    def target(self) -> Epsilon:
        """The budget that no client exceeds, of personal ones the largest; None without one or
        without privacy."""
        return finite(float(self.config.targets.max()))

    @property
    def budgets(self) -> tuple[Mapping[str, Any], ...]:
        """What each group of personal budgets has spent (`server.guarantees.by_group`); before the
        end what it may spend, as no other figure is proved whatever ends the run."""
        if self.summary:
            return self.summary.budgets
        proved = self.config.privacy.budget == "certified"
        spent = self.config.targets if proved else np.full(len(self.sizes), math.inf)
        return by_group(self.config.groups, spent.tolist())


def so_far(folder: Path, config: Config, spent: Mapping[int, Charges]) -> float:
    """The largest certified epsilon of what clients have paid in a private run that is not
    finished, a round in progress included; at most a certified budget. It comes from the Renyi
    orders that were fixed before the run began, and holds whatever makes it end.

    Raises:
        ValueError: the file of orders is damaged, or lacks a client.
    """
    order_of, privacy = orders.read(folder), config.privacy
    if unknown := sorted(set(spent) - set(order_of)):
        file = folder / orders.FILE
        raise ValueError(f"client {unknown[0]} has no Renyi order in {file}: restore the file")
    targets = config.targets
    budgets = targets if privacy.budget == "certified" else np.full(len(targets), math.inf)
    kinds = {
        (frozenset(charges.items()), order_of[client], float(budgets[client]))
        for client, charges in spent.items()
    }
    found = (
        orders.running(dict(charges), privacy.delta, order, budget).epsilon
        for charges, order, budget in kinds
    )
    return max(found, default=0.0)


def read_run(run_dir: Path, summary: Summary | None = None) -> Run:
    """Read a run directory, ignoring a last line of ``rounds.jsonl`` that a crash cut off.

    ``summary`` is that of a run which is about to write it.

    Raises:
        ValueError: it is not a run directory, or a file in it is damaged.
    """
    if not (run_dir / "config.toml").is_file():
        raise ValueError(
            f"{run_dir} is no run directory, it has no config.toml: give the directory of a run"
        )
    spent = paid.read(run_dir)
    Store(run_dir, 2).check_rounds()
    config = load(run_dir / "config.toml", {}, lenient=SETTINGS)
    records, summary = read_rounds(run_dir / ROUNDS), summary or closing.read(run_dir)
    try:
        with np.load(run_dir / "partition.npz", allow_pickle=False) as arrays:
            known = not config.run.release and "counts" in arrays.files
            sizes, counts = arrays["sizes"], arrays["counts"] if known else None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ValueError(
            f"{run_dir} has a damaged or missing file ({fault}): resume the run, or restore it"
        ) from None
    return Run(run_dir, config, records, sizes, counts, summary, spent)
