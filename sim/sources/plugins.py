"""Objects of the user's own, named ``package.module:NAME`` as models, losses and data sets are."""

import importlib

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
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or " ")
        remedy = (
            f"start where {module.partition('.')[0]}.py is, or add that folder to PYTHONPATH"
            if absent
            else f"correct what the module does when it is imported; {form} is expected there"
        )
        raise ValueError(
            f"{said}: module {module!r} cannot be imported ({reason}): {remedy}"
        ) from error
    if found is None:
        remedy = OWN_PROGRAM if module == "__main__" else f"name {form} of that module"
        raise ValueError(f"{said}: module {module!r} has no {attribute!r}: {remedy}")
    return found


def find(module: str, qualname: str) -> object:
    """The object of that name, possibly with dots, in a module; None if there is none."""
    found: object = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found
