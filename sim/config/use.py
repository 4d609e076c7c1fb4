"""Which settings are in use: those of an unselected mechanism or strategy have no effect."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sim.config.fields import OWN_NAME, SETTINGS, TABLES, Config
from sim.config.settings import is_hub, is_table

ValueOf = Callable[[str], Any]
"""Function from the name of a setting to its value."""


@dataclass(frozen=True)
class Need:
    """A condition on one setting.

    Attributes:
        setting: its name.
        values: values that meet the condition.
        holds: whether a value meets it.
        words: the condition as flags say it.
        owns: whether dependent settings belong to these values, rather than to all but a few.
    """

    setting: str
    values: tuple[Any, ...]
    holds: Callable[[Any], bool]
    words: str
    owns: bool = True


Way = tuple[Need, ...]
"""Conditions that together give a setting an effect."""


def _one_of(setting: str, *values: Any) -> Need:
    flag = SETTINGS[setting].flag
    if values == (False,):
        words = flag.replace("--", "--no-", 1)
    else:
        words = f"{flag} {' or '.join('none' if value is None else str(value) for value in values)}"
    return Need(setting, values, lambda value: value in values, words)


def _given(setting: str, example: Any) -> Need:
    """The setting has a value."""
    return Need(setting, (example,), lambda value: value is not None, SETTINGS[setting].flag)


def _mechanism(*names: str) -> Need:
    return _one_of("mechanism", *names)


def _mechanism_but(*names: str) -> Need:
    others = tuple(name for name in SETTINGS["mechanism"].choices if name not in names)
    words = f"a --mechanism other than {' or '.join(names)}"
    return Need("mechanism", others, lambda value: value not in names, words, owns=False)


def _own(setting: str) -> Need:
    words = f"a {SETTINGS[setting].flag} of your own, {OWN_NAME},"
    return Need(setting, (OWN_NAME,), lambda value: ":" in value, words, owns=False)


def _has_activation(model: str) -> bool:
    return model != "linear" and ":" not in model


TABLE = Need("dataset", ("table.csv",), is_table, "a --dataset that is a table", owns=False)
COLUMNS = Need(
    "dataset",
    ("table.csv", "hf:name"),
    lambda name: is_table(name) or is_hub(name),
    "a --dataset that has columns",
    owns=False,
)
DIVIDED = Need(
    "partition",
    ("dirichlet",),
    lambda name: name != "given",
    "a --partition other than given",
    owns=False,
)
FEATURES = Need(
    "features",
    ("scattering",),
    lambda name: name != "pixels",
    "--features other than pixels",
    owns=False,
)
NAMED = ("mechanism", "strategy", "partition", "features")
PRIVATE = _mechanism_but("none")
OURS = Need(
    "strategy",
    ("fedavg",),
    lambda name: ":" not in name and name != "mrmtl",
    "a built-in --strategy other than mrmtl",
    owns=False,
)
SELECTIVE = _one_of("dpsur_accounting", "selective")
OWN_TEST = (_mechanism("screening"), _one_of("screening_data", "own"))
DPIS, IMPORTANCE = _mechanism("dpis"), _one_of("dpis_sampling", "importance")
NORM_SUMS: tuple[Way, ...] = ((DPIS, IMPORTANCE), (DPIS, _given("dpis_clip", 1.0)))
FEDFED = _one_of("strategy", "fedfed")
SHARES = (FEDFED, _one_of("shared_source", "prototypes", "distilled"))
SINGLY = (FEDFED, _one_of("shared_source", "distilled"))
CLASSES = (FEDFED, _one_of("shared_source", "prototypes"))
DISTILS: tuple[Way, ...] = (SINGLY, (*CLASSES, _one_of("prototype_features", "distilled")))
LEADS = (FEDFED, _one_of("shared_source", "prototypes", "distilled", "public"))
STANDARD = _one_of("standardize", "private")
LOCAL, SUMS = _one_of("trust", "local"), _one_of("trust", "server", "aggregate")
AGGREGATE, CLIENTS = _one_of("trust", "aggregate"), _one_of("unit", "client")
ATTACKED = Need("attackers", (0.1,), bool, "--attackers above 0", owns=False)
BUFFERED = _given("buffer", 1)
SLOW = Need("stragglers", (0.1,), bool, "--stragglers above 0", owns=False)
LOCAL_STEPS: tuple[Way, ...] = ((LOCAL,), (SUMS, CLIENTS))
IMDB, RAY = _one_of("dataset", "imdb"), _one_of("engine", "auto", "ray")


def _privately(*ways: Way) -> tuple[Way, ...]:
    """Ways that also need a private mechanism."""
    return tuple((PRIVATE, *way) for way in ways)


def _of_table(table: str, need: Need) -> dict[str, tuple[Way, ...]]:
    return dict.fromkeys(TABLES[table].model_fields, ((need,),))


USES: dict[str, tuple[Way, ...]] = {
    "label_column": ((COLUMNS,),),
    "client_column": ((COLUMNS, _one_of("partition", "given")),),
    "columns": ((TABLE,),),
    "categories": ((TABLE,),),
    **dict.fromkeys(
        (
            *("feature_pixels", "feature_deskew", "feature_flips"),
            *("feature_scales", "feature_whitening"),
        ),
        ((_one_of("features", "scattering"),),),
    ),
    "feature_groups": ((FEATURES,),),
    "activation": (
        (Need("model", ("mlp",), _has_activation, "a built-in --model other than linear"),),
    ),
    "word_vectors": ((IMDB,),),
    "train_embedding": ((IMDB,),),
    "standardize_noise": ((PRIVATE, STANDARD),),
    "standardize_clip": ((PRIVATE, STANDARD),),
    **{f"{name}_settings": ((_own(name),),) for name in NAMED},
    "min_records": ((DIVIDED,),),
    "dirichlet": ((_one_of("partition", "dirichlet", "quantity"),),),
    "shards_per_client": ((_one_of("partition", "shards"),),),
    "epsilon": ((PRIVATE,),),
    "budgets": ((PRIVATE,),),
    "budget": ((PRIVATE,),),
    "noise_multiplier": ((PRIVATE,),),
    "clip_norm": ((PRIVATE,),),
    "strict_delta": ((PRIVATE,),),
    "unit": ((SUMS,),),
    "honest": ((AGGREGATE,),),
    "aggregate_bits": ((AGGREGATE,),),
    "buffer": ((LOCAL,),),
    "stragglers": ((LOCAL, BUFFERED),),
    "straggler_factor": ((LOCAL, BUFFERED, SLOW),),
    "attackers": ((LOCAL,),),
    "attack_factor": ((LOCAL, ATTACKED),),
    "noise_bands": ((_one_of("trust", "server"), CLIENTS),),
    "sampling": ((_mechanism("dpsgd"), LOCAL), (_mechanism("dpsgd"), SUMS, CLIENTS)),
    "clipping": ((_mechanism_but("none", "dpis"),),),
    "clip_quantile": ((_mechanism_but("none", "dpis", "dpagd"), LOCAL), (PRIVATE, SUMS, CLIENTS)),
    "noise_decay": (
        (_mechanism_but("none", "dpis", "dpagd"), _one_of("trust", "local", "server")),
    ),
    **_of_table("dpsur", _mechanism("dpsur")),
    "dpsur_cap_share": ((_mechanism("dpsur"), SELECTIVE),),
    **_of_table("dpis", DPIS),
    "dpis_slack": ((DPIS, IMPORTANCE),),
    "dpis_floor": ((DPIS, IMPORTANCE),),
    "dpis_first_phase": ((DPIS, IMPORTANCE),),
    "dpis_norm_rate": NORM_SUMS,
    "dpis_norm_share": NORM_SUMS,
    **_of_table("dphero", _mechanism("dphero")),
    **_of_table("screening", _mechanism("screening")),
    "screening_gain": ((_mechanism("screening"), _one_of("screening_q0", None)),),
    "screening_rate": (OWN_TEST,),
    "screening_clip": (OWN_TEST,),
    "screening_cap_share": ((*OWN_TEST, _given("screening_clip", 0.1)),),
    "forced_after": (
        (_mechanism("screening"), _one_of("screening_data", "public")),
        (*OWN_TEST, _one_of("screening_clip", None)),
    ),
    "allow_unproved": ((*OWN_TEST, _one_of("screening_clip", None)),),
    **_of_table("dpagd", _mechanism("dpagd")),
    "optimizer": LOCAL_STEPS,
    "momentum": LOCAL_STEPS,
    "keep_state": ((LOCAL,),),
    "personal_layers": ((LOCAL,),),
    "score_noise": ((_one_of("evaluation", "released"),),),
    "client_holdout": ((_one_of("evaluation", "clients", "released"),),),
    "weighting": ((LOCAL,),),
    "server_lr": ((OURS,),),
    "server_momentum": ((OURS,),),
    "server_beta2": ((_one_of("strategy", "fedadam", "fedyogi"),),),
    "server_tau": ((_one_of("strategy", "fedadagrad", "fedadam", "fedyogi"),),),
    "proximal_mu": ((_one_of("strategy", "fedprox", "mrmtl"),),),
    **_of_table("fedfed", FEDFED),
    "share_budget": _privately((*CLASSES, _one_of("share_noise", None)), *DISTILS),
    "share_noise": _privately(SHARES),
    "share_clip": _privately(SHARES),
    "share_rate": (SINGLY,),
    "share_views": (SINGLY,),
    "label_epsilon": _privately((*SINGLY, _one_of("public_labels", False))),
    "public_labels": _privately(SINGLY),
    "shared_weight": (LEADS,),
    "shared_batch": (LEADS,),
    "prototype_features": (CLASSES,),
    "distill_budget": _privately(*DISTILS),
    "distill_clip": _privately(*DISTILS),
    "distill_rounds": (SHARES,),  # they number the later rounds, with or without a generator
    "distill_lr": DISTILS,
    "distill_latent": DISTILS,
    "distill_penalty": DISTILS,
    "ray_address": ((RAY,),),
    "cpus_per_worker": ((RAY,),),
    "gpus_per_worker": ((RAY,),),
    "tf32": ((_one_of("device", "cuda"),),),
}
"""Setting -> alternative conditions under which it has an effect; all others always have one."""


def in_use(name: str, value_of: ValueOf) -> bool:
    """Whether a setting has an effect under a configuration."""
    return not missing(name, value_of)


def missing(name: str, value_of: ValueOf) -> list[Way]:
    """The unmet conditions of each way to use a setting; empty if the setting is in use."""
    ways = USES.get(name, ((),))
    lacks = [tuple(need for need in way if not need.holds(value_of(need.setting))) for way in ways]
    return lacks if all(lacks) else []


def unused(config: Config) -> Iterator[str]:
    """The names of the settings that have no effect under a configuration."""
    return (name for name in USES if not in_use(name, config.value))


def used_by_table(config: Config) -> dict[str, list[str]]:
    """The names of the settings in use by table; tables without any are left out."""
    idle = set(unused(config))
    found = {
        table: [name for name in model.model_fields if name not in idle]
        for table, model in TABLES.items()
    }
    return {table: names for table, names in found.items() if names}


def refusal(name: str, config: Config) -> str:
    """The error for a setting without effect: name, value, what uses it, remedy."""
    lacks = missing(name, config.value)
    ways = [
        way for way in dict.fromkeys(lacks) if not any(set(other) < set(way) for other in lacks)
    ]
    uses = ", or ".join(" with ".join(need.words for need in way) for way in ways)
    need = ways[0][0]
    return (
        f"{name} is {_shown(config.value(name))}, which {need.setting} = "
        f"{_shown(config.value(need.setting))} does not use, but {uses} does: give that, or leave "
        f"{name} out"
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else str(value)
