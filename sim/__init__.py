"""Federated learning with local differential privacy, for programs and notebooks.

    import sim

    result = sim.train(dataset=(x, y, x_test, y_test), model=Net, clients=20, epsilon=8)

`docs/python.md` says more. Nothing heavy is loaded until one of these names is used.
"""

from typing import TYPE_CHECKING, Any

from sim import hidden

hidden.check()

if TYPE_CHECKING:
    from sim.library.api import audit_run, price, train, train_central
    from sim.library.result import Result
    from sim.models.norms import to_group_norm

__all__ = ["Result", "audit_run", "price", "to_group_norm", "train", "train_central"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from sim.commands.version import version

        return version()
    if name not in __all__:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    from sim.library import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
