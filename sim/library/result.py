"""The result of a run, read from its directory, finished or not."""

import math
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as load_tensors

from mechanisms import durable
from mechanisms.accounting.group import check_records
from mechanisms.layout import Layout
from server import closing, paid
from server.guarantees import Guarantee, guarantees
from server.records import Evaluation, RoundRecord, Summary, largest
from server.store import MODEL, Store
from sim.config.fields import Config
from sim.config.settings import is_table
from sim.data.files import own_file
from sim.data.words import words_of
from sim.features import loading as features
from sim.job.device import device_of
from sim.library.caller import borrowed_process
from sim.library.onnx import export
from sim.models import personal
from sim.phases.build import model_of
from sim.showing import audit, wording
from sim.showing.audit import Audit
from sim.showing.ledger import spent
from sim.showing.report import write_report
from sim.showing.run import read_run, so_far
from sim.sources import columns


class Result:
    """A run, read from its directory.

    Every access reads the files again, so a run in progress shows its current state.
    """

    def __init__(self, folder: str | Path):
        """Open a run directory.

        Raises:
            ValueError: it is not a run directory, or a file in it is damaged.
        """
        self.folder = _path("folder", folder).absolute()
        """The run directory."""
        self.config: Config = read_run(self.folder).config
        """The configuration; ``result.config.value(name)`` is a setting."""

    @property
    def finished(self) -> bool:
        """Whether the run is complete; ``sim.train(resume=...)`` continues one that is not."""
        return self.summary is not None

    @property
    def rounds(self) -> list[RoundRecord]:
        """The records of the finished rounds."""
        return list(read_run(self.folder).records)

    @property
    def summary(self) -> Summary | None:
        """The summary with epsilons by client; None until the run is finished."""
        return read_run(self.folder).summary

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last evaluated model, in [0, 1]; None before the first evaluation."""
        return read_run(self.folder).accuracy

    @property
    def evaluation(self) -> Evaluation | None:
        """Further scores of the final model, by class and by client; None without --evaluation.

        Raises:
            ValueError: the file is damaged, missing, or of another run.
        """
        return closing.evaluation(self.folder)

    @property
    def epsilon(self) -> float:
        """The largest certified epsilon of any client; infinite without privacy.

        For an unfinished run it comes from the ledger (`sim.showing.run.so_far`): it includes a
        round in progress, and holds whatever made the run stop.

        Raises:
            ValueError: a ledger file or the file of orders is damaged or missing.
        """
        summary = self.summary
        if not self.config.private:
            return math.inf
        if summary is not None:
            found = largest(summary.epsilon_certified)
            return math.inf if found is None else found
        return so_far(self.folder, self.config, paid.read(self.folder))

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Against whom what is protected, at which certified epsilon, the strongest first.

        Raises:
            ValueError: a ledger file or the file of orders is damaged or missing.
        """
        privacy, clients = self.config.privacy, self.config.data.clients
        return guarantees(privacy.trust, privacy.unit, clients, self.epsilon)

    def epsilon_of_group(self, records: int) -> float:
        """The certified epsilon of a person with this many records with one client; the largest of
        all clients, infinite without privacy.

        Raises:
            ValueError: the run is not finished, or a ledger file is damaged or missing.
        """
        check_records(records)
        rows = spent(self.folder, None, records)["clients"]
        return max((row["epsilon_group"] for row in rows), default=0.0)

    @property
    def audit(self) -> Audit | None:
        """The audit's result; None if the run was not audited."""
        return audit.read(self.folder)

    def report(self) -> Path:
        """The path of the report, one HTML page, which is drawn anew."""
        return write_report(self.folder)

    def model(self, client: int | None = None) -> torch.nn.Module:
        """The model with the weights of the last finished round, on the CPU, in evaluation mode; or
        a client's own, where clients have models of their own. A warning says if a checkpoint is
        missing, so that they are of an earlier round.

        It takes records as in training: pixels of a built-in data set are normalised, your own
        arrays are as you gave them (``uint8`` divided by 255).

        Raises:
            ValueError: no round is finished, the data set or class cannot be found, or the client
                has no model of its own.
        """
        tensors, data = self._tensors(), self.config.data
        with borrowed_process():
            dataset = features.load(data, device_of(self.config))
            module = model_of(self.config, dataset, words_of(data, dataset))
        if isinstance(tensors, torch.Tensor):
            tensors = Layout.of(module).unflatten(tensors)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
            if client is not None:
                self._personalise(module, client)
        return module.eval()

    def encode(self, path: str | Path) -> torch.Tensor:
        """The rows of another table as the model takes them, float32 ``[N, F]``: encoded as those
        of the table that the run was trained on.

        Raises:
            ValueError: the run was trained on no table, or a table cannot be used.
        """
        data = self.config.data
        if not is_table(data.dataset):
            raise ValueError(
                f"dataset = {data.dataset} is no table: give model() records as in training"
            )
        found = columns.encoded(_path("path", path), own_file(data.dataset), data)
        return torch.from_numpy(found.astype(np.float32))

    def _personalise(self, module: torch.nn.Module, client: int) -> None:
        """Give the server's model the parameters that are a client's own."""
        closing.check_kept(self.folder)
        layout, parameters = Layout.of(module), dict(module.named_parameters())
        params = layout.initial(module).numpy()
        found = personal.models(self.folder, self.config, layout, params)
        model = next((row for number, row in found if number == client), None)
        if model is None:
            raise ValueError(
                f"client = {client} has no model of its own in {self.folder}: name a client that "
                "has taken part in a run with --personal-layers or --strategy mrmtl"
            )
        for name, tensor in layout.unflatten(torch.from_numpy(model)).items():
            parameters[name].copy_(tensor)

    def to_onnx(self, path: str | Path) -> Path:
        """Write the model as an ONNX file, for any number of records at a time; its path.

        Raises:
            ValueError: as `model`; the extra ``[onnx]`` is not installed, or the model has an
                operation that ONNX lacks.
        """
        place = _path("path", path)
        return export(self.model(), self._example(), place)

    def _example(self) -> torch.Tensor:
        """Two records of zeros, as the model takes them."""
        with borrowed_process():
            x = features.load(self.config.data, device_of(self.config)).x
        return torch.from_numpy(np.zeros((2, *x.shape[1:]), x.dtype))

    def _tensors(self) -> dict[str, torch.Tensor] | torch.Tensor:
        """The last model's tensors by name, or the flat parameters of the newest checkpoint."""
        if self.finished:
            return load_tensors(durable.read(self.folder / MODEL))
        newest = Store(self.folder, 2).newest()
        if newest is None:
            raise ValueError(f"{self.folder} has no finished round: sim.train(resume=...) resumes")
        if newest.round < (known := len(self.rounds)):
            warnings.warn(
                f"the model is that of round {newest.round} of {known}, as later checkpoints are "
                "missing: sim.train(resume=...) repeats what can be",
                stacklevel=3,
            )
        return torch.from_numpy(newest.params)

    def __repr__(self) -> str:
        """Folder, state, rounds, accuracy and epsilon."""
        state = "finished" if self.finished else "not finished"
        accuracy = "none" if self.accuracy is None else f"{self.accuracy:.4f}"
        spent = wording.epsilon(self.epsilon, infinite="inf")
        numbers = f"{len(self.rounds)} rounds, accuracy {accuracy}, epsilon {spent}"
        return f"Result({str(self.folder)!r}: {state}, {numbers})"


def _path(name: str, given: str | os.PathLike[str]) -> Path:
    """An argument that is a path.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"{name} is {given!r}: give a path")
    return Path(given)
