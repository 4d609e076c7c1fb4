"""pfl-research's yardstick in pfl itself: 1,000 users of 50 images, 50 users a round, without
privacy or with its central one.

    PFL-PYTHON benchmarks/peers/pfl_yardstick.py --records RECORDS.npz --rounds 30
    PFL-PYTHON benchmarks/peers/pfl_yardstick.py --records RECORDS.npz --net SmallCNN \\
        --noise-multiplier 1

Written as its own benchmark is (`benchmarks/image_classification/pytorch` of apple/pfl-research):
`SimulatedBackend`, `FederatedAveraging`, `PyTorchModel` with SGD, local batches of 10 at rate 0.1
for one epoch, users weighed alike, central evaluation every 10 rounds; one process with one thread,
or with ``--threads 0`` with as many as torch takes for itself.
With ``--noise-multiplier`` users are protected by its `CentrallyAppliedPrivacyMechanism` around a
`GaussianMechanism` made from its `PLDPrivacyAccountant`.

Its accountant charges users who enter a round by independent coins, each at most once. Its sampler
(`get_user_sampler("random", ...)`) draws 50 users with replacement: in 7 of 10 rounds a user enters
twice and moves the sum by two clip norms.

The last line of the output is a JSON object: seconds of the process up to the end of training,
`round_seconds` and `round_cpu_seconds` of each round, accuracy, epsilon, versions.
"""

# ruff: noqa: E402
import time

START = time.perf_counter()

import argparse
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import nn
from yardstick import BATCH, CLIP_NORM, COHORT, NETS, RATE, USERS, accuracy, records, split


class Clock(TrainingProcessCallback):
    """The end of each round, on the wall and on the CPU."""

    def __init__(self) -> None:
        self.ends = [(time.perf_counter(), time.process_time())]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


def network(name: str) -> nn.Module:
    """A net, with the loss and the metrics that pfl asks for."""
    module = NETS[name]()

    def loss(
        self: nn.Module, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False
    ) -> torch.Tensor:
        self.eval() if is_eval else self.train()
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(
        self: nn.Module, x: torch.Tensor, y: torch.Tensor, is_eval: bool = True
    ) -> dict[str, Weighted]:
        self.eval()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}

    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)
    return module


def accountant(arguments: argparse.Namespace) -> PLDPrivacyAccountant:
    """pfl's own, of what is charged."""
    return PLDPrivacyAccountant(
        num_compositions=arguments.rounds,
        sampling_probability=COHORT / USERS,
        mechanism="gaussian",
        noise_parameter=arguments.noise_multiplier,
        delta=arguments.delta,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records",
        type=Path,
        required=True,
        help=".npz with x, y, x_test, y_test; pixels in uint8",
    )
    parser.add_argument("--net", choices=NETS, default="TwoLayerCNN")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise-multiplier", type=float, help="none: without privacy")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--threads", type=int, default=1, help="of torch; 0: its own choice")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    np.random.seed(arguments.seed)  # noqa: NPY002
    x, y, x_test, y_test = records(arguments.records)
    users = [Dataset(raw_data=[x[part], y[part]]) for part in split(y, arguments.seed)]
    module = network(arguments.net)
    postprocessors, charged = [WeightByUser()], None
    if arguments.noise_multiplier is not None:
        charged = accountant(arguments)
        noise = GaussianMechanism.from_privacy_accountant(charged, CLIP_NORM)
        postprocessors.append(CentrallyAppliedPrivacyMechanism(noise))
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", range(USERS)))
    clock, evaluation = Clock(), NNEvalHyperParams(local_batch_size=1000)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=arguments.rounds,
            evaluation_frequency=10,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=postprocessors),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=RATE, local_num_epochs=1, local_batch_size=BATCH
        ),
        model_eval_params=evaluation,
        callbacks=[
            CentralEvaluationCallback(
                Dataset(raw_data=[x_test, y_test]), model_eval_params=evaluation, frequency=10
            ),
            clock,
        ],
    )
    seconds = time.perf_counter() - START
    wall, cpu = (np.diff([end[kind] for end in clock.ends]).tolist() for kind in (0, 1))
    print(
        json.dumps(
            {
                "seconds": seconds,
                "round_seconds": wall,
                "round_cpu_seconds": cpu,
                "accuracy": accuracy(module.eval(), x_test, y_test),
                "epsilon": charged and charged.epsilon,
                "versions": {name: version(name) for name in ("pfl", "torch", "dp-accounting")},
            }
        )
    )


if __name__ == "__main__":
    main()
