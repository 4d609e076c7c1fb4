"""The strategies by name: a new one is a file, a row here and a name in strategies/settings.py."""

from collections.abc import Callable

from strategies.fedavg import fedavg
from strategies.fedfed import fedfed
from strategies.fednova import fednova
from strategies.fedopt import adagrad, adam, fedopt, yogi
from strategies.fedprox import fedprox
from strategies.settings import Aggregation, FedFed
from strategies.strategy import Strategy

STRATEGIES: dict[str, Callable[[Aggregation], Strategy]] = {
    "fedavg": fedavg,
    "fedadagrad": fedopt(adagrad, usual_rate=0.3),
    "fedadam": fedopt(adam, usual_rate=0.05),
    "fedyogi": fedopt(yogi, usual_rate=0.05),
    "fedprox": fedprox,
    "fednova": fednova,
}


def strategy_of(settings: Aggregation, own: FedFed) -> Strategy:
    """The strategy that ``settings`` name; ``own`` are the settings of FedFed alone."""
    if settings.strategy == "fedfed":
        return fedfed(settings, own)
    return STRATEGIES[settings.strategy](settings)
