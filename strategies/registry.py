"""The strategies by name: a new one is a file, a row here and a name in strategies/settings.py."""

from collections.abc import Callable

from mechanisms.plugins import plugin
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


FORM = "a function from strategies.settings.Aggregation to a strategies.strategy.Strategy"


def strategy_of(settings: Aggregation, own: FedFed) -> Strategy:
    """The strategy that ``settings`` name; ``own`` are the settings of FedFed alone.

    Raises:
        ValueError: the user's own is no such function.
    """
    name = settings.strategy
    if name == "fedfed":
        return fedfed(settings, own)
    if ":" not in name:
        return STRATEGIES[name](settings)
    found = made = plugin("strategy", name, FORM)
    if callable(made):
        try:
            found = made(settings)
        except (Exception, SystemExit) as fault:  # the user's code can raise anything
            why = " ".join(f"{type(fault).__name__}: {fault}".split())
            raise ValueError(
                f"strategy = {name!r} failed ({why}): correct it; it is {FORM}"
            ) from fault
    if not isinstance(found, Strategy):
        raise ValueError(
            f"strategy = {name!r} gives an object of type {type(found).__name__}: name {FORM}"
        )
    return found
