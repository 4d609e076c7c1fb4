"""Presets (``--preset NAME``): a cell of a recipe, of a paper or of ours, as settings of a run."""

from sim.config.names import suggest
from sim.config.papers import RECIPES
from sim.config.recipe import Values, cells, checked, read

_RECIPES = (
    ("mnist", "mnist-scattering"),
    ("fmnist", "fmnist-scattering"),
    ("cifar10", "cifar10-scattering"),
    ("imdb", "imdb"),
)

PRESETS: dict[str, str] = {
    **{f"dpsur-pvldb-{data}": f"{recipe}/DPSUR/3" for data, recipe in _RECIPES},
    **{f"dpis-ccs22-{data}": f"{recipe}/DPIS/3" for data, recipe in _RECIPES},
    **{
        f"screening-2022-{data}": f"screening-{data}/noise screening/3"
        for data in ("mnist", "fmnist", "cifar10")
    },
    **{f"dphero-{data}": f"dphero-{data}/DP-Hero/3" for data in ("mnist", "cifar10")},
    "dphero-fedfed-mnist": "fedfed-alpha/FedFed, DP-Hero/0.5",
    "linear-mnist": "mnist-scattering/DPSGD linear on upright digits/3",
    "linear-fmnist": "fmnist-scattering/DPSGD linear on two scales/3",
    "linear-cifar10": "cifar10-scattering/DPSGD linear on three scales/3",
    "linear-federated-mnist": "trust-mnist/100: local, record, upright/8",
}
"""Preset -> recipe/row/column; the column is used unless another has the given epsilon."""


def settings(name: str, given: Values, central: bool) -> Values:
    """The settings of a preset, which ``given`` ones override; a given epsilon selects its column.

    Args:
        name: a name in `PRESETS`.
        given: settings of a file and of flags.
        central: whether one client holds all records.

    Raises:
        ValueError: an unknown preset, or one for another number of clients.
    """
    if name not in PRESETS:
        raise ValueError(f"--preset {name!r} is unknown: {suggest(name, PRESETS)}")
    stem, row, column = PRESETS[name].split("/")
    recipe = read(RECIPES / f"{stem}.toml")
    if (recipe.clients == "one") != central:
        one = recipe.clients == "one"
        number, other = ("one client", "sim.central") if one else ("many clients", "sim.run")
        raise ValueError(f"--preset {name} is for {number}: use python -m {other}, or drop it")
    budget = given.get("budget", "certified")
    own = {cell.column: cell.settings for cell in cells(recipe, budget) if cell.row == row}
    epsilon = given.get("epsilon", own[column]["epsilon"])
    wanted = [each for each, values in own.items() if values["epsilon"] == epsilon]
    return checked(own[column if column in wanted or not wanted else wanted[0]])
