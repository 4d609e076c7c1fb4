"""The strategies by name: a new one is a file, a row here and a name in strategies/settings.py.
One of the user's own is called by its name, and so is one of Flower's."""

from collections.abc import Callable
from typing import Any

from mechanisms import plugins
from strategies.fedavg import WEIGHTS, fedavg
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
    """The strategy that ``settings`` name; ``own`` are the settings of FedFed alone.

    Raises:
        ValueError: one of the user's own cannot be imported or called, or returns something else.
    """
    if ":" in settings.strategy:
        return _own(settings)
    if settings.strategy == "fedfed":
        return fedfed(settings, own)
    return STRATEGIES[settings.strategy](settings)


FORM = "a function that returns a strategies.strategy.Strategy"


def _own(settings: Aggregation) -> Strategy:
    """What the user's own function returns, given its settings and ``weights`` if it asks for
    them: the clients' weights by ``weighting``."""
    name, given = settings.strategy, plugins.values("strategy_settings", settings.strategy_settings)
    found: Any = plugins.plugin("strategy", name, FORM)
    if not callable(found):
        raise ValueError(f"strategy = {name!r} is a {type(found).__name__}: name {FORM}")
    made = plugins.call("strategy", name, found, {"weights": WEIGHTS[settings.weighting]}, given)
    if not isinstance(made, Strategy):
        raise ValueError(f"strategy = {name!r} gives a {type(made).__name__}: name {FORM}")
    return made
