"""Settings of clients, server, strategies, data and execution: what each is unless it is given, and
where its range ends.

Written down a second time, for a range that is a little too wide accepts what voids a guarantee or
a result, and a default that has changed changes every run that says nothing.
"""

import pytest
from pydantic import ValidationError

from client import settings as of_client
from client.settings import Local
from mechanisms import settings as of_mechanisms
from mechanisms.settings import (
    MECHANISM_NAMES,
    Dpagd,
    DpHero,
    Dpis,
    Dpsur,
    Privacy,
    Screening,
    Settings,
)
from server import settings as of_server
from server.settings import Rounds
from sim.config import settings as of_runs
from sim.config.presets import CENTRAL, CENTRAL_ROWS, FIXED, PRESETS, SCATTERING_ROWS, preset
from sim.config.settings import EXECUTION_ONLY, Data, Execution
from strategies import settings as of_strategies
from strategies.settings import Aggregation, FedFed

TINY = 1e-9
BOUNDS = (1e-6, 1e30), (0.99e-6, 1.01e30)
"""Of what a record adds to a sum: taken, and refused."""
OWN, NOT_OWN = (
    ("own:NAME", "a.b_1:C2"),
    ("own:", ":NAME", "own:a b", "1:a", "own:a:b", "a/b:c", "own", "own:a.b"),
)
RANGES: dict[type[Settings], dict[str, tuple[object, tuple, tuple]]] = {
    # name: default, the outermost values that are taken, the nearest that are refused
    Privacy: {
        "mechanism": ("dpsgd", (*MECHANISM_NAMES, *OWN), ("sgd", *NOT_OWN)),
        "mechanism_settings": (None, (None, "beta = 0.9"), (3,)),
        "epsilon": (8.0, (TINY,), (0.0,)),
        "budgets": (None, (None,), (3, "liberal=8:1")),  # beside epsilon
        "delta": (1e-5, (TINY, 1 - TINY), (0.0, 1.0)),
        "trust": ("local", ("aggregate", "server"), ("nobody",)),
        "honest": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "aggregate_bits": (32, (2, 62), (1, 63)),
        "noise_bands": (1, (1, 1024), (0, 1025)),
        "unit": ("record", ("client",), ("person",)),
        "budget": ("certified", ("published",), ("paper",)),
        "noise_multiplier": (None, (None, TINY), (0.0, -TINY)),
        "clip_norm": (1.0, *BOUNDS),
        "sample_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "batch_size": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "sampling": ("poisson", ("fixed", "shuffled"), ("none",)),
        "clipping": ("flat", ("auto",), ("none",)),
        "clip_quantile": (None, (None, TINY, 1 - TINY), (0.0, 1.0)),
        "noise_decay": (0.0, (0.0,), (-TINY,)),
        "strict_delta": (False, (True,), ()),
    },
    Dpsur: {
        "dpsur_accounting": ("visible", ("selective", "every-trial"), ("none",)),
        "dpsur_validation_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "dpsur_validation_noise": (None, (None, TINY, 1e6), (0.0, 1e6 + 1)),
        "dpsur_loss_clip": (1e-3, (TINY,), (0.0,)),
        "dpsur_beta": (-1.0, (-1e9, 1e9), ()),
        "dpsur_cap_share": (0.1, (TINY, 0.995 - TINY), (0.0, 0.995)),
    },
    Dpis: {
        "dpis_sampling": ("importance", ("uniform",), ("none",)),
        "dpis_slack": (2.0, (TINY,), (0.0,)),
        "dpis_floor": (0.05, (TINY, 1.0), (0.0, 1 + TINY)),
        "dpis_norm_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "dpis_norm_share": (0.01, (TINY, 1 - TINY), (0.0, 1.0)),
        "dpis_clip": (None, (None, TINY), (0.0,)),
        "dpis_first_phase": (0.1, (0.0, 1.0), (-TINY, 1 + TINY)),
    },
    DpHero: {
        "hero_clipping": ("whitened", ("isotropic",), ("none",)),
        "hero_floor": (0.1, (TINY, 1.0), (0.0, 1 + TINY)),
        "hero_refresh": (1, (1, 10**9), (0, 10**9 + 1)),
    },
    Screening: {
        "screening_data": ("own", ("public",), ("none",)),
        "screening_gain": (1.0, (0.0,), (-TINY,)),
        "screening_q0": (None, (None, 0.0), (-TINY,)),
        "screening_stages": (5, (1, 10**9), (0, 10**9 + 1)),
        "screening_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "screening_clip": (0.1, (None, TINY), (0.0,)),
        "screening_cap_share": (0.1, (TINY, 0.995 - TINY), (0.0, 0.995)),
        "forced_after": (5, (1, 10**9), (0, 10**9 + 1)),
        "allow_unproved": (False, (True,), ()),
    },
    Dpagd: {
        "agd_search_share": (0.1, (TINY, 1 - TINY), (0.0, 1.0)),
        "agd_candidates": (4, (1, 10**9), (0, 10**9 + 1)),
        "agd_largest": (1.0, (TINY,), (0.0,)),
        "agd_window": (10, (1, 10**9), (0, 10**9 + 1)),
        "agd_stretch": (0.1, (0.0,), (-TINY,)),
        "agd_loss_clip": (5.0, *BOUNDS),
        "agd_change_clip": (0.1, (None, *BOUNDS[0]), BOUNDS[1]),
        "agd_growth": (0.1, (TINY, 1.0), (0.0, 1 + TINY)),
        "agd_raises": (10, (0, 10**9), (-1, 10**9 + 1)),
    },
    Local: {
        "steps": (1, (1, 10**6), (0, 10**6 + 1)),
        "epochs": (None, (None, TINY, 1e6), (0.0, 1e6 + 1)),
        "optimizer": ("sgd", ("adam",), ("none",)),
        "lr": (1.0, (TINY,), (0.0,)),
        "momentum": (0.0, (0.0, 1 - TINY), (-TINY, 1.0)),
        "keep_state": (False, (True,), ()),
        "personal_layers": (None, (None, "1"), (3,)),
        "lr_schedule": ("constant", ("linear", "cosine"), ("none",)),
        "memory_limit": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "max_records": (None, (None, 1, 10**9), (0, 10**9 + 1)),
    },
    Rounds: {
        "rounds": (20, (1, 10**6), (0, 10**6 + 1)),
        "fraction": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "dropout": (0.0, (0.0, 1 - TINY), (-TINY, 1.0)),
        "dropout_trace": (None, (None, "0@1"), (3,)),
        "buffer": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "stragglers": (0.0, (0.0, 1 - TINY), (-TINY, 1.0)),
        "straggler_factor": (10.0, (TINY, 1e6), (0.0, 1e6 + 1)),
        "attackers": (0.0, (0.0, 1 - TINY), (-TINY, 1.0)),
        "attack_factor": (-1.0, (-1e3, 1e3), (-1001.0, 1001.0)),
        "max_participations": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "evaluate_every": (1, (1, 10**9), (0, 10**9 + 1)),
        "keep_checkpoints": (2, (2, 10**9), (1, 10**9 + 1)),
    },
    Aggregation: {
        "strategy": ("fedavg", ("fednova", *OWN), ("none", *NOT_OWN)),
        "strategy_settings": (None, (None, "eta = 0.1"), (3,)),
        "server_lr": (None, (None, TINY), (0.0,)),
        "server_momentum": (0.9, (0.0, 1 - TINY), (-TINY, 1.0)),
        "server_beta2": (0.99, (0.0, 1 - TINY), (-TINY, 1.0)),
        "server_tau": (1e-3, (TINY,), (0.0,)),
        "proximal_mu": (0.01, (0.0,), (-TINY,)),
        "weighting": ("records", ("uniform",), ("none",)),
    },
    FedFed: {
        "shared_source": ("prototypes", ("distilled", "public", "none"), ("private",)),
        "share_budget": (0.3, (TINY, 1 - TINY), (0.0, 1.0)),
        "share_noise": (None, (None, TINY, 1e6), (0.0, 1e6 + 1)),
        "share_clip": (None, (None, *BOUNDS[0]), BOUNDS[1]),
        "share_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "share_views": (1, (1, 10**9), (0, 10**9 + 1)),
        "label_epsilon": (None, (None, 1e-6), (0.0, 9e-7)),
        "public_labels": (False, (True,), ()),
        "shared_weight": (0.2, (0.0, 1 - TINY), (-TINY, 1.0)),
        "shared_batch": (64, (1, 10**9), (0, 10**9 + 1)),
        "prototype_features": ("fixed", ("distilled",), ("none",)),
        "distill_budget": (0.5, (TINY, 1 - TINY), (0.0, 1.0)),
        "distill_rounds": (20, (1, 10**6), (0, 10**6 + 1)),
        "distill_lr": (0.5, (TINY,), (0.0,)),
        "distill_clip": (1.0, *BOUNDS),
        "distill_latent": (8, (1, 10**9), (0, 10**9 + 1)),
        "distill_penalty": (1.0, (0.0,), (-TINY,)),
    },
    Data: {
        "dataset": ("digits", ("mine.npz",), (None, 3)),
        "data_dir": (None, (None, "data"), (3,)),
        "label_column": ("label", ("outcome",), (None,)),
        "client_column": (None, (None, "hospital"), (3,)),
        "columns": (None, (None, "known.toml"), (3,)),
        "categories": ("one-hot", ("codes",), ("dummies",)),
        "loss": ("cross-entropy", ("package.module:function",), (None,)),
        "metric": (None, (None, "package.module:function"), (3,)),
        "features": ("pixels", ("scattering", *OWN), ("wavelets", *NOT_OWN)),
        "features_settings": (None, (None, "weights = 'net.safetensors'"), (3,)),
        "init_from": (None, (None, "runs/a"), (3,)),
        "feature_pixels": ("unit", ("imagenet", "opponent"), ("cifar10",)),
        "feature_deskew": (False, (True,), (1,)),
        "feature_flips": (False, (True,), (1,)),
        "feature_scales": (1, (1, 4), (0, 5)),
        "feature_whitening": (False, (True,), (1,)),
        "feature_groups": (0, (0, 10**9), (-1, 10**9 + 1)),
        "model": ("linear", ("package:Class",), (None,)),
        "activation": ("tanh", ("relu",), ("none",)),
        "word_vectors": (None, (None, "glove.txt"), (3,)),
        "train_embedding": (False, (True,), (1,)),
        "standardize": ("none", ("private",), ("public",)),
        "standardize_noise": (8.0, (TINY, 1e6), (0.0, 1e6 + 1)),
        "standardize_clip": (1.0, *BOUNDS),
        "clients": (100, (1, 10**7), (0, 10**7 + 1)),
        "partition": (
            "dirichlet",
            ("iid", "shards", "quantity", "given", *OWN),
            ("none", *NOT_OWN),
        ),
        "partition_settings": (None, (None, "skew = 0.3"), (3,)),
        "dirichlet": (0.5, (TINY,), (0.0,)),
        "min_records": (2, (1, 10**9), (0, 10**9 + 1)),
        "shards_per_client": (2, (1, 10**9), (0, 10**9 + 1)),
        "public_records": (0, (0, 10**9), (-1, 10**9 + 1)),
        "validation_records": (0, (0, 10**9), (-1, 10**9 + 1)),
        "evaluation": ("basic", ("detailed", "clients"), ("all",)),
        "score_noise": (8.0, (TINY, 1e6), (0.0, 1e6 + 1)),
        "client_holdout": (0.0, (0.0, 1 - TINY), (-TINY, 1.0)),
        "evaluate_on": ("test", ("validation",), ("train",)),
    },
    Execution: {
        "seed": (0, (0, 2**63 - 1), (-1, 2**63)),
        "release": (False, (True,), (1,)),
        "engine": ("auto", ("inline", "ray"), ("flower",)),
        "workers": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "groups": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "chunk_clients": (None, (None, 1, 10**9), (0, 10**9 + 1)),
        "ray_address": (None, (None, "auto"), (3,)),
        "cpus_per_worker": (1.0, (TINY,), (0.0,)),
        "gpus_per_worker": (None, (None, 0.0), (-TINY,)),
        "device": ("auto", ("cpu", "cuda"), ("gpu",)),
        "tf32": (False, (True,), (1,)),
        "bf16": (False, (True,), (1,)),
        "out": ("runs", ("elsewhere",), (None,)),
        "name": (
            None,
            (None, "a", "0.b_C-1", "a" * 200),
            ("", "a" * 201, ".a", "_a", "-a", "a/b", "a b"),
        ),
        "track": ("none", ("tensorboard", "mlflow", "wandb"), ("aim",)),
        "quiet": (False, (True,), (1,)),
    },
}
ROWS = [(table, name, *row) for table, rows in RANGES.items() for name, row in rows.items()]


def made(table: type[Settings], name: str, value: object) -> Settings:
    """A table with one setting given; the amount of local work is either steps or epochs."""
    beside = {"steps": None} if name == "epochs" and value is not None else {}
    return table(**{name: value} | beside)


def test_every_setting_has_a_row():
    modules = (of_mechanisms, of_client, of_server, of_strategies, of_runs)
    tables = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Settings)
    }
    assert set(RANGES) == tables - {Settings}
    assert {table: set(rows) for table, rows in RANGES.items()} == {
        table: set(table.model_fields) for table in RANGES
    }


@pytest.mark.parametrize(("table", "name", "default", "taken", "refused"), ROWS)
def test_a_setting_has_its_default_and_its_range_ends_where_it_should(
    table, name, default, taken, refused
):
    """Kills `<=` for `<` at either end, a bound that is left out, and another default."""
    assert getattr(table(), name) == default and type(getattr(table(), name)) is type(default)
    for value in taken:
        assert getattr(made(table, name, value), name) == value
    for value in refused:
        with pytest.raises(ValidationError):
            made(table, name, value)


def test_a_resumed_run_may_change_what_affects_no_result_and_nothing_else():
    assert {
        "workers",
        "engine",
        "ray_address",
        "cpus_per_worker",
        "gpus_per_worker",
        "track",
        "quiet",
    } == EXECUTION_ONLY


MNIST = {"model": "cnn", "lr": 4.0, "rounds": 45}
FEATURES = {"model": "linear", "feature_groups": 27}
ALONE = {"engine": "inline", "steps": None, "epochs": 1.0, "momentum": 0.9, "clip_norm": 0.1}
DEFAULTS = {
    # data set: by pixels, what features change, what one client changes
    "digits": ({"model": "linear"}, {}, {"batch_size": 256, "lr": 1.0}),
    "mnist": (
        MNIST,
        {"clip_norm": 5.0, "lr": 0.2, "rounds": 60},
        {"batch_size": 1024, "lr": 1.0, "rounds": 20},
    ),
    "fmnist": (
        MNIST,
        {"clip_norm": 5.0, "lr": 0.2, "rounds": 60},
        {"batch_size": 2048, "lr": 4.0, "rounds": 20},
    ),
    "cifar10": (
        {"model": "cnn-cifar"},
        {"feature_pixels": "imagenet"},
        {"batch_size": 4096, "lr": 1.0, "rounds": 30},
    ),
    "imdb": (
        {"model": "lstm", "lr": 4.0, "rounds": 45},
        {},
        {"batch_size": 1024, "optimizer": "adam", "lr": 0.02, "rounds": 10},
    ),
    "mine.npz": ({"model": "linear"}, {}, {"batch_size": 256, "lr": 1.0}),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_data_set_has_the_defaults_that_published_figures_were_made_with(name):
    """All of them, and no other: one that has changed changes every run of the data set that says
    nothing."""
    pixels, features, alone = DEFAULTS[name]
    assert preset(name) == pixels and preset(name, True) == pixels | ALONE | alone
    assert preset(name, False, "scattering") == pixels | FEATURES | features
    assert preset(name, False, "net:frozen") == {"model": "linear", "feature_groups": 1}
    assert preset(name, True, "scattering") == pixels | FEATURES | features | ALONE | alone
    assert DEFAULTS.keys() == PRESETS.keys() | {"mine.npz"}
    assert CENTRAL_ROWS.keys() | SCATTERING_ROWS.keys() < PRESETS.keys()
    assert preset(None, True) == preset("mine.npz", True) and CENTRAL.keys() > ALONE.keys()


def test_one_client_that_holds_all_records_trains_as_if_there_were_no_server():
    """Kills a server that slows it down, a round that it misses, and several groups for one."""
    own = {"clients": 1, "partition": "iid", "keep_state": True, "fraction": 1.0, "groups": 1}
    own |= {"server_lr": 1.0, "server_momentum": 0.0, "max_participations": None, "workers": 1}
    own |= {"strategy": "fedavg", "weighting": "records", "shared_source": "prototypes"}
    assert {name: FIXED[name] for name in own} == own and FIXED["chunk_clients"] is None


def test_no_noise_is_for_training_without_privacy_alone():
    for given in ({"noise_multiplier": 0.0}, {"noise_multiplier": None, "epsilon": None}):
        assert Privacy(mechanism="none", **given).noise_multiplier == given["noise_multiplier"]
        for mechanism in set(MECHANISM_NAMES) - {"none"}:
            with pytest.raises(ValidationError, match="noise_multiplier"):
                Privacy(mechanism=mechanism, **given)
    assert Privacy(epsilon=None, noise_multiplier=TINY).epsilon is None


def test_a_batch_is_of_a_rate_or_of_a_size():
    """A size is given to each client as a rate, at most 1."""
    assert Privacy(batch_size=4).of_size(10) == Privacy(sample_rate=0.4)
    assert Privacy(batch_size=4).rate(3) == 1.0 and Privacy(sample_rate=0.3).rate(3) == 0.3
    assert Privacy(sample_rate=0.3).of_size(7) == Privacy(sample_rate=0.3)
