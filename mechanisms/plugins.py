"""Objects of the user's own, named ``package.module:NAME``, what they are called with, and their
code."""

import importlib
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

OWN_PROGRAM = (
    "it was defined in a notebook or a script, and is only known there: define it again and resume "
    "from Python, by sim.train(resume=...), or keep it in a module of its own"
)


def plugin(setting: str, name: str, form: str) -> object:
    """The object ``name`` that a setting gives.

    Args:
        setting: the setting's name, for messages.
        name: ``package.module:NAME``.
        form: what the object should be, for messages.

    Raises:
        ValueError: the module cannot be imported, or has no such object.
    """
    module, _, attribute = name.partition(":")
    said = f"{setting} = {name!r}"
    try:
        found = find(module, attribute)
    except (Exception, SystemExit) as error:  # the user's module can raise anything
        absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or " ")
        remedy = (
            f"start where {module.partition('.')[0]}.py is, or add that folder to PYTHONPATH"
            if absent
            else f"correct what the module does when it is imported; {form} is expected there"
        )
        raise ValueError(
            f"{said}: module {module!r} cannot be imported ({one_line(error)}): {remedy}"
        ) from error
    if found is None:
        remedy = OWN_PROGRAM if module == "__main__" else f"name {form} of that module"
        raise ValueError(f"{said}: module {module!r} has no {attribute!r}: {remedy}")
    return found


def one_line(error: BaseException) -> str:
    """An exception's type and message, for the error that reports it."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def find(module: str, qualname: str) -> object:
    """The object of that name, possibly with dots, in a module; None if there is none."""
    found: object = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def values(setting: str, text: str | None) -> dict[str, Any]:
    """The settings of an object of the user's own, from text such as ``beta = 0.9, window = 5``.

    Raises:
        ValueError: the text is no such list.
    """
    try:
        tables = tomllib.loads(f"own = {{{text or ''}}}")
    except (ValueError, RecursionError) as fault:
        reason = " ".join(str(fault).split())
    else:
        if tables.keys() == {"own"}:
            return dict(tables["own"])
        reason = "a brace is closed that was not opened"
    raise ValueError(
        f"{setting} = {text!r} is no list of settings ({reason}): write them as in a TOML file "
        'with commas between, such as "beta = 0.9, window = 5"'
    )


def call(
    setting: str,
    name: str,
    found: Callable[..., Any],
    offered: Mapping[str, object],
    own: Mapping[str, object],
) -> Any:
    """What an object of the user's own returns, called with its own settings and with those of the
    ``offered`` arguments that it has parameters for.

    Raises:
        ValueError: it needs other arguments, does not take the settings, or fails.
    """
    given = {key: offered[key] for key in taken(setting, name, found, offered, own)}
    try:
        return found(**given, **own)
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        said = f"{setting} = {name!r}" + (f" with {setting}_settings = {dict(own)}" if own else "")
        raise ValueError(f"{said} fails ({one_line(error)}): correct it") from error


def taken(
    setting: str,
    name: str,
    found: Callable[..., Any],
    offered: Iterable[str],
    own: Iterable[str] | None = None,
) -> list[str]:
    """The names among ``offered`` of which the object has a parameter, in its order.

    Raises:
        ValueError: it needs what is neither offered nor among its own settings.
    """
    parameters = inspect.signature(found).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = tuple(offered)
    others = [
        one.name
        for one in parameters
        if one.name not in (*known, *(own or ()))
        and one.default is inspect.Parameter.empty
        and one.kind in (*named, inspect.Parameter.POSITIONAL_ONLY)
    ]
    if others:
        what = "its constructor" if inspect.isclass(found) else "it"
        remedy = "" if own is None else f", or values in {setting}_settings"
        raise ValueError(
            f"{setting} = {name!r}: {what} needs {', '.join(others)}, and is given no more than "
            f"those of {', '.join(known)} that it names: give the others defaults{remedy}"
        )
    return [one.name for one in parameters if one.name in known and one.kind in named]


def source(name: str) -> str:
    """The code of a named object: of the whole module that defines it, or of the object alone in a
    script or notebook, which changes around it; its name where there is no source."""
    module, _, attribute = name.partition(":")
    found = find(module, attribute)
    if inspect.isclass(found) or inspect.isfunction(found):
        module = found.__module__
    whole: Any = found if module == "__main__" else sys.modules[module]
    try:
        return inspect.getsource(whole)
    except (OSError, TypeError):
        return name
