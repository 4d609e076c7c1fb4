"""Where trackers write: TensorBoard, MLflow, Weights & Biases, or anything of the same form.

Each is kept from adding what it collects by itself: settings, source, command line, output,
measurements of the machine. Nothing is sent anywhere.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from mechanisms import durable

PROJECT = "dp-federated-simulator"
"""What trackers call a group of runs."""


class Sink(Protocol):
    """Where a tracker writes."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one round."""

    def close(self) -> None:
        """Finish the files."""


class TensorBoard:
    """Event files."""

    def __init__(self, folder: Path, name: str):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A local store of files, in which the run has the run directory's name."""

    def __init__(self, folder: Path, name: str):
        # folders, which later versions ask for explicitly, need no database package
        os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        from mlflow.tracking import MlflowClient

        durable.make_folder(folder / ".trash")  # or a store that MLflow has in memory would miss it
        self._client = MlflowClient(tracking_uri=folder.absolute().as_uri())
        experiment = self._client.create_experiment(PROJECT)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """A run in offline mode, which ``wandb sync`` can upload."""

    def __init__(self, folder: Path, name: str):
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        alone = wandb.Settings(
            mode="offline",
            reinit="create_new",  # not the caller's own run, which may be online
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(project=PROJECT, name=name, dir=str(folder), settings=alone)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Path, str], Sink]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""Names of trackers, which are those of their packages."""
