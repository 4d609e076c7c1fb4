"""The Python interface: `train`, `train_central`, `audit_run` and `price` do what the commands do.

They leave the caller's process as it was. Keyword arguments are the settings by name, as listed by
``--help`` and in a run directory's ``config.toml``, with the same validation and defaults, except
that by default the engine is ``inline`` and nothing is printed. None means "not set".
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w
from torch import nn

from mechanisms.plugins import find
from sim.auditing.session import audit
from sim.commands.account import MAX_ORDER, MAX_RECORDS
from sim.commands.flags import Request, request
from sim.config.fields import find_setting
from sim.data.given import keep
from sim.engines import start
from sim.job import rundir
from sim.library.caller import borrowed_process
from sim.library.result import Result
from sim.models.norms import to_group_norm
from sim.phases.prices import figures_of, outlook_of, prices

__all__ = ["Result", "audit_run", "price", "to_group_norm", "train", "train_central"]

DEFAULTS: Mapping[str, Any] = {"engine": "inline", "quiet": True}
"""Defaults that differ from those of the commands."""
OWN = "__main__"
"""The module name of a notebook's cells and of a running script."""

Source = str | os.PathLike[str] | None


def train(
    *, config: Source = None, preset: str | None = None, resume: Source = None, **settings: Any
) -> Result:
    """Train many clients, as ``python -m sim.run`` does, with the same model bit for bit.

    Args:
        config: path of a TOML file of settings; keyword arguments override it.
        preset: name of a paper's preset; file and keyword arguments override it.
        resume: directory of a run to resume.
        settings: settings by name. ``dataset`` may also be arrays (x, y) or (x, y, x_test, y_test)
            of NumPy or PyTorch, or a dictionary of them with ``client``, kept in
            ``<out>/datasets``. ``model`` may also be a class, and ``mechanism_settings``,
            ``strategy_settings`` and ``partition_settings`` dictionaries.

    Raises:
        ValueError: a user error, with the command's message.
    """
    return _trained(_request(settings, config, preset, resume))


def train_central(
    *, config: Source = None, preset: str | None = None, resume: Source = None, **settings: Any
) -> Result:
    """Train one client that holds all records, as ``python -m sim.central`` does; see `train`.

    Raises:
        ValueError: a user error, with the command's message.
    """
    return _trained(_request(settings, config, preset, resume, central=True))


def audit_run(
    *,
    canaries: int | None = None,
    confidence: float = 0.95,
    black_box: bool = False,
    config: Source = None,
    preset: str | None = None,
    **settings: Any,
) -> Result:
    """Train once with canaries, as ``python -m sim.audit`` does.

    ``result.audit`` holds the lower bound on epsilon.

    Args:
        canaries: number of canaries, each in or out by a coin; None: at most 1000.
        confidence: confidence of the lower bound, in (0, 1).
        black_box: canaries with wrong labels and an attacker who sees the final model only, rather
            than crafted gradients and every upload.
        config, preset, settings: as for `train`.

    Raises:
        ValueError: a user error, with the command's message.
    """
    _check_switch("black_box", black_box)
    if isinstance(canaries, bool):
        raise ValueError(f"canaries is {canaries}: give a whole number")
    asked = _request(settings, config, preset, None)
    with borrowed_process():
        found = audit(asked.config, canaries, black_box, confidence)
        return Result(found.run_dir)


def price(
    *,
    records: int | Sequence[int] | None = None,
    orders: Sequence[float] | None = None,
    config: Source = None,
    preset: str | None = None,
    central: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """The most that a run can cost, before it begins, as ``python -m sim.account`` computes it.

    Args:
        records: records per client, one number for all or one for each; None: the data set is
            loaded and split.
        orders: orders of a Renyi curve to include, each above 1.
        central: whether one client holds all records.
        config, preset, settings: as for `train`.

    Raises:
        ValueError: a user error, with the command's message.
    """
    _check_switch("central", central)
    asked = _request(settings, config, preset, None, central).config
    sizes = None if records is None else np.atleast_1d(records)
    if sizes is not None and not (
        sizes.ndim == 1 and sizes.dtype.kind in "iu" and (sizes <= MAX_RECORDS).all()
    ):
        raise ValueError(
            f"records = {records!r} must be whole numbers of at most {MAX_RECORDS:g}: one for all "
            "clients, or one for each"
        )
    curve = None if orders is None else _renyi_orders(orders)
    with borrowed_process():
        outlook = outlook_of(asked, None if sizes is None else sizes.tolist())
        return figures_of(asked, prices(outlook), curve)


def _renyi_orders(given: Sequence[float]) -> list[float]:
    orders = np.asarray(given)
    numbers = orders.ndim == 1 and orders.dtype.kind in "iuf"
    if not (numbers and ((orders > 1) & (orders <= MAX_ORDER)).all()):
        raise ValueError(
            f"orders = {given!r} must be a list of Renyi orders above 1 and at most "
            f"{MAX_ORDER:g}: give [2, 8]"
        )
    return orders.astype(float).tolist()


def _check_switch(name: str, value: Any) -> None:
    """Refuse what is neither true nor false, such as the text "no", which counts as true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r}: give True or False")


def _trained(asked: Request) -> Result:
    with borrowed_process():
        return Result(start.train(asked))


def _request(
    settings: Mapping[str, Any],
    config: Source,
    preset: str | None,
    resume: Source,
    central: bool = False,
) -> Request:
    """The request made by keyword arguments; arrays are saved to a file, a class becomes its name.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    if "resume" in settings:
        raise ValueError(f"resume is {settings['resume']!r}, but nothing is resumed: leave it out")
    given = {name: _value(name, value) for name, value in settings.items()}
    if not isinstance(preset, str | None):
        raise ValueError(f"preset is {preset!r}: give a name")
    for name, path in (("config", config), ("resume", resume)):
        if not isinstance(path, str | os.PathLike | None):
            raise ValueError(f"{name} is {path!r}: give a path")
    files = [None if path is None else os.fspath(path) for path in (config, resume)]
    places: dict[str, Any] = {"config": files[0], "paper": preset, "resume": files[1]}

    def ask(values: Mapping[str, Any]) -> Request:
        return request(values, **places, central=central, defaults=DEFAULTS)

    arrays = given.get("dataset")
    if isinstance(arrays, tuple | list | Mapping):
        others = ask({name: value for name, value in given.items() if name != "dataset"})
        if others.resume is None:
            parent = rundir.make_writable("out", rundir.make_parent(others.config).absolute())
        else:
            parent = others.resume.absolute().parent
        given["dataset"] = str(keep(arrays, parent, others.config.data.loss))
    asked = ask(given)
    engine = asked.config.run.engine
    local = [one for one in asked.config.own.items() if one[1].startswith(f"{OWN}:")]
    if local and engine != "inline":
        setting, name = local[0]
        raise ValueError(
            f"{setting} = {name} was defined in a notebook or a script, which the workers of "
            f"engine = {engine} cannot import: leave engine out, or keep it in a module of its own"
        )
    return asked


def _value(name: str, value: Any) -> Any:
    """A setting's value as a file would contain it.

    Raises:
        ValueError: an unknown setting, or a class that cannot be found by its name.
    """
    setting = find_setting(name, others=("config", "preset", "resume"))
    if name == "model" and inspect.isclass(value):
        return _named(value)
    if name.endswith("_settings") and isinstance(value, Mapping):
        return ", ".join(f"{key} = {_toml(name, key, one)}" for key, one in value.items())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if name == "dataset" and not isinstance(value, str | tuple | list | Mapping):
        kind = type(value).__name__
        wanted = "give a name, a path, or arrays (x, y, x_test, y_test)"
        raise ValueError(f"dataset is a {kind}: {wanted}")
    return setting.read(value)


def _toml(setting: str, key: str, value: Any) -> str:
    """A value of a plug-in's setting as TOML.

    Raises:
        ValueError: TOML has no such value.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        line = tomli_w.dumps({"key": plain}).removeprefix("key = ")
    except TypeError:
        line = "[key]"
    if line.startswith("[key"):  # what is no single value
        raise ValueError(
            f"{setting}: {key} = {value!r} has no form in a file: give a number, a text, True or "
            "False, or a list of them"
        )
    return line.replace("\n", "")


def _named(kind: type) -> str:
    """``module:Class`` of a model's class, by which a resumed run finds it.

    Raises:
        ValueError: it is not a model, or cannot be imported by that name.
    """
    if not issubclass(kind, nn.Module):
        raise ValueError(f"model = {kind.__qualname__} is no torch.nn.Module: derive it from that")
    module, name = kind.__module__, kind.__qualname__
    try:
        found = find(module, name)
    except ImportError:
        found = None
    if found is not kind:
        raise ValueError(
            f"model = {name} cannot be found as {module}:{name}, so a run could not be resumed: "
            "define the class at the top level of a module or of a notebook's cell, and give the "
            "newest definition"
        )
    return f"{module}:{name}"
