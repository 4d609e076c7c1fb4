"""What a run has come to, read from its directory, whether it is finished or was interrupted."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors

from mechanisms.accounting import accountant
from mechanisms.accounting import ledger as ledgers
from mechanisms.layout import Layout
from server import orders
from server.checkpoints import Checkpoints
from server.records import RoundRecord, Summary, finite, largest
from sim.config.fields import Config
from sim.data import features
from sim.data.words import words_of
from sim.job.device import device_of
from sim.library.caller import lent
from sim.phases.build import model_of
from sim.showing.audit import FILE as AUDIT
from sim.showing.audit import Audit
from sim.showing.report import write_report
from sim.showing.run import read_run

MODEL = "model.safetensors"


class Result:
    """A run, as its directory says.

    Nothing is kept: while a run goes on, each look shows how far it has come.
    """

    def __init__(self, folder: str | Path):
        """Open a run directory.

        Raises:
            ValueError: it is no run directory, or a file of it is damaged.
        """
        self.folder = Path(folder).absolute()
        """The run directory."""
        self.config: Config = read_run(self.folder).config
        """Every setting, as ``result.config.value(name)``."""

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end; ``sim.train(resume=...)`` goes on with others."""
        return self.summary is not None

    @property
    def rounds(self) -> list[RoundRecord]:
        """A record of each finished round."""
        return list(read_run(self.folder).records)

    @property
    def summary(self) -> Summary | None:
        """The closing figures, client by client; None until the run is finished."""
        return read_run(self.folder).summary

    @property
    def accuracy(self) -> float | None:
        """Of the last model that was evaluated, in [0, 1]; None before the first."""
        run = read_run(self.folder)
        if run.summary is not None:
            return run.summary.accuracy
        known = [record.accuracy for record in run.records if finite(record.accuracy) is not None]
        return known[-1] if known else None

    @property
    def epsilon(self) -> float:
        """The certified epsilon of the client who has spent most; infinite without privacy.

        Of a run that is not finished, it is what the ledger says, at the order that was fixed
        before the run began: it counts a round that was begun, and holds whatever made the run
        stop.

        Raises:
            ValueError: a file of the ledger, or the file of orders, is damaged or missing.
        """
        summary, privacy = self.summary, self.config.privacy
        if privacy.mechanism == "none":
            return math.inf
        if summary is not None:
            found = largest(summary.epsilon_certified)
            return math.inf if found is None else found
        order_of, spent = orders.read(self.folder), ledgers.read(self.folder / "ledger")
        if unknown := sorted(set(spent) - set(order_of)):
            file = self.folder / orders.FILE
            raise ValueError(f"client {unknown[0]} has no Renyi order in {file}: restore the file")
        figures = (
            accountant.epsilon(charges, privacy.delta, orders=(order_of[client],)).epsilon
            for client, charges in spent.items()
        )
        return max(figures, default=0.0)

    @property
    def audit(self) -> Audit | None:
        """What an audit has found; None where there was none."""
        path = self.folder / AUDIT
        return Audit.from_json(json.loads(path.read_text())) if path.exists() else None

    def report(self) -> Path:
        """The path of the report, one HTML page, which is drawn if it is not there yet."""
        path = self.folder / "report.html"
        return path if path.exists() else write_report(self.folder)

    def model(self) -> torch.nn.Module:
        """The model with the weights of the last finished round, on the CPU, in evaluation mode.

        It takes records as the run's models saw them: the pixels of a data set by name are
        normalised, arrays of your own are as you gave them (``uint8`` divided by 255).

        Raises:
            ValueError: no round is finished, or data set or class cannot be found again.
        """
        tensors, data = self._tensors(), self.config.data
        with lent():
            dataset = features.load(data, device_of(self.config))
            module = model_of(self.config, dataset, words_of(data, dataset))
        if isinstance(tensors, torch.Tensor):
            tensors = Layout.of(module).unflatten(tensors)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
        return module.eval()

    def _tensors(self) -> dict[str, torch.Tensor] | torch.Tensor:
        """The last model by name, or as the row of its newest checkpoint."""
        path = self.folder / MODEL
        if path.exists():
            return load_tensors(path.read_bytes())
        newest = Checkpoints(self.folder / "checkpoints", keep=1).newest()
        if newest is None:
            raise ValueError(f"{self.folder} has no finished round: sim.train(resume=...) goes on")
        return torch.from_numpy(newest.params)

    def __repr__(self) -> str:
        """Folder and main figures."""
        state = "finished" if self.finished else "not finished"
        accuracy = "none" if self.accuracy is None else f"{self.accuracy:.4f}"
        figures = f"{len(self.rounds)} rounds, accuracy {accuracy}, epsilon {self.epsilon:.4g}"
        return f"Result({str(self.folder)!r}: {state}, {figures})"
