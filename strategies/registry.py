"""The strategies by name: a new one is a file, a row here and a name in strategies/settings.py.
One of the user's own is called by its name, and so is one of Flower's."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

from mechanisms import plugins
from strategies import trial
from strategies.fedavg import WEIGHTS, fedavg
from strategies.fedfed import fedfed
from strategies.fednova import fednova
from strategies.fedopt import adagrad, adam, fedopt, yogi
from strategies.fedprox import fedprox
from strategies.mrmtl import mrmtl
from strategies.settings import Aggregation, FedFed
from strategies.strategy import Strategy

STRATEGIES: dict[str, Callable[[Aggregation], Strategy]] = {
    "fedavg": fedavg,
    "fedadagrad": fedopt(adagrad, usual_rate=0.3),
    "fedadam": fedopt(adam, usual_rate=0.05),
    "fedyogi": fedopt(yogi, usual_rate=0.05),
    "fedprox": fedprox,
    "fednova": fednova,
    "mrmtl": mrmtl,
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


FORM = (
    "a function that returns a strategies.strategy.Strategy, or one of Flower's strategies, a "
    "subclass of flwr.serverapp.strategy.Strategy"
)


def _own(settings: Aggregation) -> Strategy:
    """What the user's own function returns, given its settings and ``weights`` if it asks for
    them: the clients' weights by ``weighting``. One of Flower's is wrapped."""
    name, given = settings.strategy, plugins.values("strategy_settings", settings.strategy_settings)
    found: Any = plugins.plugin("strategy", name, FORM)
    weights = WEIGHTS[settings.weighting]
    if inspect.isclass(found):
        from strategies import app  # it takes a while to import Flower

        app.refuse(name, found)

    def make() -> Any:
        if not callable(found):  # an instance of a strategy of Flower's
            return copy.deepcopy(found)
        return plugins.call("strategy", name, found, {"weights": weights}, given)

    made = make()
    if isinstance(made, Strategy):
        return trial.checked(name, made)
    from strategies import app

    if not isinstance(made, app.flower.Strategy):
        verb = "gives" if callable(found) else "is"
        raise ValueError(f"strategy = {name!r} {verb} a {type(made).__name__}: name {FORM}")
    if given and not callable(found):
        raise ValueError(
            f"strategy_settings = {settings.strategy_settings!r}, but {name} is an instance, which "
            "has its own: name its class, or leave them out"
        )
    return app.wrapped(name, make, weights)
