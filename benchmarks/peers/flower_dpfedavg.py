"""The yardstick in Flower, with its own central guarantee for whole clients.

    python benchmarks/peers/flower_dpfedavg.py --records RECORDS.npz --net SmallCNN --rounds 100 \\
        --noise-multiplier 1

Flower's Message API under `run_simulation`, written as its documentation describes: one node per
user, `DifferentialPrivacyServerSideFixedClipping` around `FedAvg`, with its `RdpAccountant`. Local
batches of 10 at rate 0.1 for one epoch; a central test every 10 rounds; one Ray actor with one
thread.

Each round Flower draws 50 nodes without replacement. Its strategy lets the accountant charge
Gaussian releases without amplification alone. What the same accountant gives for other samplings is
reported beside that: draws without replacement, which are what happens, for users that are replaced
by others; and independent coins, which are not what happens, for users that are added or removed.

In its favour: no telemetry, no logs, no wait for nodes, no evaluation on clients, an actor that
reads its records once, apps that are pickled by reference. CPU time is that of the driver and of
the actor's training alone; Ray's own processes are not counted.

The last line of the output is a JSON object: `round_seconds` of each round, `cpu` seconds,
accuracy, epsilon by sampling, versions.
"""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_LOG_LEVEL"] = "ERROR"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import random
import time
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from torch import nn
from yardstick import BATCH, CLIP_NORM, COHORT, NETS, RATE, USERS, accuracy, records, split

SAMPLINGS = {
    SamplingMethod.NO_AMPLIFICATION: NeighboringRelation.ADD_OR_REMOVE_ONE,
    SamplingMethod.WITHOUT_REPLACEMENT: NeighboringRelation.REPLACE_ONE,
    SamplingMethod.POISSON: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
"""What Flower's accountant can charge, with the relation that it asks for."""

client_app = ClientApp()


@lru_cache(maxsize=1)
def users(path: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Once per actor: its records, and the places of each user's."""
    torch.set_num_threads(1)
    x, y, _, _ = records(Path(path))
    return x, y, split(y, seed)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch of a user."""
    start, config = time.process_time(), message.content["config"]
    x, y, parts = users(config["records"], config["seed"])
    part = parts[int(context.node_config["partition-id"])]
    model = NETS[config["net"]]()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in part[torch.randperm(len(part))].split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    seconds = time.process_time() - start
    metrics = MetricRecord({"num-examples": len(part), "cpu": seconds})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(content=RecordDict(content), reply_to=message)


def sum_up(replies: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """How many clients answered, and their CPU time."""
    seconds = sum(reply["metrics"]["cpu"] for reply in replies)
    return MetricRecord({"replies": len(replies), "cpu": seconds})


class Rounds:
    """The end of each round, and the last accuracy."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        _, _, self.x, self.y = records(arguments.records)
        self.model = NETS[arguments.net]()
        self.last = arguments.rounds
        self.ends: list[float] = []
        self.training = 0.0

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Look at the test part every 10 rounds and at the end."""
        if server_round % 10 == 0 or server_round == self.last:
            self.model.load_state_dict(arrays.to_torch_state_dict())
            self.accuracy = accuracy(self.model, self.x, self.y)
        self.ends.append(time.perf_counter())
        return None


def accountant(arguments: argparse.Namespace, sampling: SamplingMethod) -> RdpAccountant:
    """Flower's own, before the first round."""
    return RdpAccountant(PrivacyConfig(arguments.delta, USERS, SAMPLINGS[sampling], sampling))


def epsilons(arguments: argparse.Namespace) -> dict[str, float]:
    """What Flower's accountant charges for all rounds, by sampling."""
    event = GaussianPrivacyEvent(arguments.noise_multiplier, COHORT, USERS)
    charged = {}
    for sampling in SAMPLINGS:
        one = accountant(arguments, sampling)
        one.compose(event, arguments.rounds)
        charged[sampling.value] = one.get_privacy_spent().epsilon
    return charged


def build_server(arguments: argparse.Namespace, rounds: Rounds) -> ServerApp:
    """The server's side of all rounds."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < USERS:
            time.sleep(0.01)
        config = PrivacyConfig(
            arguments.delta,
            USERS,
            NeighboringRelation.ADD_OR_REMOVE_ONE,
            SamplingMethod.NO_AMPLIFICATION,
        )
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(
                fraction_train=COHORT / USERS, fraction_evaluate=0.0, train_metrics_aggr_fn=sum_up
            ),
            noise_multiplier=arguments.noise_multiplier,
            clipping_norm=CLIP_NORM,
            num_sampled_clients=COHORT,
            accountant=RdpAccountant(config),
        )
        settings = {"net": arguments.net, "seed": arguments.seed}
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(rounds.model.state_dict()),
            num_rounds=arguments.rounds,
            train_config=ConfigRecord({**settings, "records": str(arguments.records.resolve())}),
            evaluate_fn=rounds.evaluate,
        )
        for server_round in range(1, arguments.rounds + 1):
            metrics = result.train_metrics_clientapp.get(server_round, {})
            if metrics.get("replies") != COHORT:
                raise RuntimeError(f"round {server_round}: {metrics} of {COHORT} clients")
            rounds.training += metrics["cpu"]

    return server_app


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--net", choices=NETS, default="SmallCNN")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    random.seed(arguments.seed)
    np.random.seed(arguments.seed)  # noqa: NPY002
    rounds = Rounds(arguments)
    run_simulation(
        server_app=build_server(arguments, rounds),
        client_app=client_app,
        num_supernodes=USERS,
        backend_config={
            "init_args": {
                "num_cpus": 1,
                "include_dashboard": False,
                "logging_level": "error",
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    packages = ("flwr", "ray", "torch", "dp-accounting")
    print(
        json.dumps(
            {
                "round_seconds": np.diff(rounds.ends).tolist(),
                "cpu": time.process_time() + rounds.training,
                "accuracy": rounds.accuracy,
                "epsilon": epsilons(arguments),
                "versions": {name: version(name) for name in packages},
            }
        )
    )


if __name__ == "__main__":
    # As in flower_ray_opacus.py: the apps of an importable module travel by name, not by value.
    import flower_dpfedavg

    flower_dpfedavg.main()
