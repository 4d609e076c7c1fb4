"""Baseline: plain Flower + Ray + Opacus, written as the documentation of the three describes.

Flower's Message API (`ServerApp`, `ClientApp`, `FedAvg`) under `run_simulation`, whose backend is a
pool of Ray actors; local DPSGD by Opacus (`PrivacyEngine.make_private`, Poisson sampling, flat
clipping at 1). One Flower node per client.

The work: scikit-learn's digits (1,437 records for training, 360 for testing, one fixed
permutation), Dirichlet label skew over the clients, R rounds in which every client takes S local
steps, the global model tested after each round.

    python benchmarks/peers/flower_ray_opacus.py --clients 100 --rounds 10 --steps 3 --model mlp

The last line of the output is a JSON object: seconds             from the first line of this file
  to the end of the simulation, Ray's start and stop included seconds_per_round   median over the
  rounds after the first (training, aggregation, test); null with one round seconds_first_round the
  first round, in which the actors start and import their libraries round_seconds       every round
  accuracy            of the last global model on the test records; accuracies: one per round
  parameters, arguments, versions

What is charged for privacy: a new `PrivacyEngine` is made for each training message, as in Flower's
own Opacus example (an actor serves many clients and nothing of Opacus survives a message). Its
accountant has seen the S steps of that message alone, so the epsilon it would report is *one
round's*; a client that takes part in R rounds has spent the epsilon of R * S steps, which nobody
counts here. With the defaults (noise multiplier 1, sample rate 0.5, S = 3) and delta 1e-5, Opacus'
accountant gives 5.9 after one message where the ten rounds cost 19.0 (PRV, its default; with RDP
6.5 and 20.7). Asking for epsilon is not part of the work that is timed.

What is in the baseline's favour, so that the figure is not one of careless use:
- one thread per worker, as many workers as `--workers`, one CPU per client, no dashboard, no
  telemetry, no logs;
- no evaluation on the clients, and no wait of a second for nodes to register (`FedAvg` alone would
  sleep);
- each actor reads the data once and keeps it; the apps are pickled by reference, not by value (see
  the last lines);
- Opacus is imported by the actors alone, in parallel.
"""

# ruff: noqa: E402
import time

START = time.perf_counter()

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_LOG_LEVEL"] = "ERROR"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import logging
import platform
import statistics
import warnings
from functools import lru_cache
from importlib.metadata import version
from itertools import chain, islice, repeat

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRAINING_RECORDS = 1437
MIN_RECORDS = 2
CLIP_NORM = 1.0

# --------------------------------------------------------------------------------------------------
# data and models


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All 1,797 records in one fixed order, pixels in [-1, 1]; the first 1,437 are for training."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return torch.from_numpy(x[order] / 8.0 - 1.0).float(), torch.from_numpy(y[order]).long()


@lru_cache(maxsize=1)
def partition(clients: int, concentration: float, seed: int) -> list[np.ndarray]:
    """Record numbers of each client: every class is dealt in Dirichlet proportions, redrawn until
    no client is tiny."""
    labels = digits()[1][:TRAINING_RECORDS].numpy()
    generator = np.random.default_rng(seed)
    for _ in range(1000):
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, concentration))
            cuts = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
            owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
        if np.bincount(owner, minlength=clients).min() >= MIN_RECORDS:
            return [np.flatnonzero(owner == client) for client in range(clients)]
    raise ValueError(
        f"no Dirichlet({concentration}) partition over {clients} clients with at least "
        f"{MIN_RECORDS} records each in 1000 draws: use fewer clients or a larger --dirichlet"
    )


def build_model(name: str) -> nn.Module:
    """linear: 650 parameters, mlp: 2,410, cnn: 9,258."""
    if name == "linear":
        return nn.Linear(64, 10)
    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


# --------------------------------------------------------------------------------------------------
# ClientApp

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's S steps of DPSGD, from the global model in the message to the local model in the
    reply."""
    from opacus import PrivacyEngine

    prepare_actor()
    config = message.content["config"]
    place = context.node_config
    client, clients = int(place["partition-id"]), int(place["num-partitions"])
    # `torch.manual_seed` would also queue the seed for a GPU, with a stack trace, for each message.
    torch.default_generator.manual_seed(hash((config["seed"], config["server-round"], client)))

    x, y = digits()
    mine = torch.from_numpy(partition(clients, config["dirichlet"], config["seed"])[client])
    dataset = TensorDataset(x[mine], y[mine])
    model = build_model(config["model"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=config["lr"]),
        data_loader=loader_of_rate(dataset, config["sample-rate"]),
        noise_multiplier=config["noise-multiplier"],
        max_grad_norm=CLIP_NORM,
    )
    # Opacus rounds the expected batch size down to an integer: 0, a division by zero, for a client
    # with fewer records than 1 / rate. Gradients are divided by the expectation itself.
    optimizer.expected_batch_size = config["sample-rate"] * len(dataset)

    criterion = nn.CrossEntropyLoss()
    for inputs, targets in islice(chain.from_iterable(repeat(loader)), config["steps"]):
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()

    content = {
        "arrays": ArrayRecord(model._module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(dataset)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@lru_cache(maxsize=1)
def prepare_actor() -> None:
    """Once per actor: one thread, and no warnings (empty Poisson batches, no secure mode) into its
    log file."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("opacus").setLevel(logging.ERROR)


def loader_of_rate(dataset: TensorDataset, rate: float) -> DataLoader:
    """A loader from which Opacus derives exactly this sampling rate: it takes 1 / (number of
    batches).

    With a `batch_size` the rate would be 1 / ceil(records / batch_size), 0.5 for a client of two
    records whatever the rate asked for.
    """
    # only their number matters, Opacus replaces the sampler
    batches = [[index] for index in range(round(1 / rate))]
    return DataLoader(dataset, batch_sampler=batches)


# --------------------------------------------------------------------------------------------------
# ServerApp


def count_replies(replies: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """How many clients answered: a client that fails is only logged by Flower."""
    return MetricRecord({"replies": len(replies)})


class Rounds:
    """Central test after each round, and the time at which it was done."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.ends: list[float] = []
        self.accuracies: list[float] = []

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        x, y = (part[TRAINING_RECORDS:] for part in digits())
        self.model.load_state_dict(arrays.to_torch_state_dict())
        with torch.inference_mode():
            accuracy = (self.model(x).argmax(1) == y).double().mean().item()
        self.ends.append(time.perf_counter())
        self.accuracies.append(accuracy)
        return MetricRecord({"accuracy": accuracy})

    @property
    def seconds(self) -> list[float]:
        return [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]


def build_server(arguments: argparse.Namespace, rounds: Rounds) -> ServerApp:
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < arguments.clients:
            time.sleep(0.01)
        strategy = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=count_replies)
        names = ("model", "steps", "seed", "dirichlet", "sample_rate", "noise_multiplier", "lr")
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(rounds.model.state_dict()),
            num_rounds=arguments.rounds,
            train_config=ConfigRecord(
                {name.replace("_", "-"): getattr(arguments, name) for name in names}
            ),
            evaluate_fn=rounds.evaluate,
        )
        for server_round in range(1, arguments.rounds + 1):
            replies = result.train_metrics_clientapp.get(server_round, {}).get("replies", 0)
            if replies != arguments.clients:
                raise RuntimeError(
                    f"round {server_round}: {replies} of {arguments.clients} clients answered"
                )

    return server_app


# --------------------------------------------------------------------------------------------------
# command line


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Plain Flower + Ray + Opacus on scikit-learn's digits"
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument(
        "--dirichlet", type=float, default=0.5, help="concentration of the label skew"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="local steps per round")
    parser.add_argument("--model", choices=("linear", "mlp", "cnn"), default="mlp")
    parser.add_argument("--workers", type=int, default=2, help="Ray actors, one CPU each")
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    parser.add_argument(
        "--sample-rate",
        type=float,
        default=0.5,
        help="Poisson sampling; 1 / rate must be an integer",
    )
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in ("clients", "rounds", "steps", "workers"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: must be at least 1")
    rate = arguments.sample_rate
    if not 0 < rate <= 1 or abs(1 / rate - round(1 / rate)) > 1e-6:
        parser.error(
            f"--sample-rate {rate}: Opacus samples at 1 / (number of batches), so 1 / rate must be "
            "an integer"
        )
    return arguments


def main(start: float) -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    rounds = Rounds(build_model(arguments.model))
    run_simulation(
        server_app=build_server(arguments, rounds),
        client_app=client_app,
        num_supernodes=arguments.clients,
        backend_config={
            "init_args": {
                "num_cpus": arguments.workers,
                "include_dashboard": False,
                "logging_level": "error",
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    packages = ("flwr", "ray", "opacus", "torch", "numpy", "scikit-learn")
    report = {
        "seconds": time.perf_counter() - start,
        "seconds_per_round": statistics.median(rounds.seconds[1:])
        if arguments.rounds > 1
        else None,
        "seconds_first_round": rounds.seconds[0],
        "round_seconds": rounds.seconds,
        "accuracy": rounds.accuracies[-1],
        "accuracies": rounds.accuracies[1:],
        "parameters": sum(parameter.numel() for parameter in rounds.model.parameters()),
        "arguments": vars(arguments),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    # Ray pickles the apps of the main script by value, with every message, and an actor would then
    # read the data for each message anew. Taken from an importable module they travel by name, as
    # the apps of `flwr run` do.
    import flower_ray_opacus

    flower_ray_opacus.main(START)
