"""Settings of clients, server and strategies: what each is unless it is given, and where its range
ends.

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
from strategies import settings as of_strategies
from strategies.settings import Aggregation, FedFed

TINY = 1e-9
RANGES: dict[type[Settings], dict[str, tuple[object, tuple, tuple]]] = {
    # name: default, the outermost values that are taken, the nearest that are refused
    Privacy: {
        "mechanism": ("dpsgd", MECHANISM_NAMES, ("sgd",)),
        "epsilon": (8.0, (TINY,), (0.0,)),
        "delta": (1e-5, (TINY, 1 - TINY), (0.0, 1.0)),
        "budget": ("certified", ("published",), ("paper",)),
        "noise_multiplier": (None, (None, TINY), (0.0, -TINY)),
        "clip_norm": (1.0, (1e-6,), (0.99e-6,)),
        "sample_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "batch_size": (None, (None, 1), (0,)),
        "clipping": ("flat", ("auto",), ("none",)),
        "clip_quantile": (None, (None, TINY, 1 - TINY), (0.0, 1.0)),
        "noise_decay": (0.0, (0.0,), (-TINY,)),
        "strict_delta": (False, (True,), ()),
    },
    Dpsur: {
        "dpsur_accounting": ("visible", ("selective", "every-trial"), ("none",)),
        "dpsur_validation_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "dpsur_validation_noise": (None, (None, TINY), (0.0,)),
        "dpsur_loss_clip": (1e-3, (TINY,), (0.0,)),
        "dpsur_beta": (-1.0, (-1e9, 1e9), ()),
        "dpsur_cap_share": (0.1, (TINY, 1 - TINY), (0.0, 1.0)),
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
        "hero_refresh": (1, (1,), (0,)),
    },
    Screening: {
        "screening_data": ("own", ("public",), ("none",)),
        "screening_gain": (1.0, (0.0,), (-TINY,)),
        "screening_q0": (None, (None, 0.0), (-TINY,)),
        "screening_stages": (5, (1,), (0,)),
        "screening_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "screening_clip": (0.1, (None, TINY), (0.0,)),
        "screening_cap_share": (0.1, (TINY, 1 - TINY), (0.0, 1.0)),
        "forced_after": (5, (1,), (0,)),
        "allow_unproved": (False, (True,), ()),
    },
    Dpagd: {
        "agd_search_share": (0.1, (TINY, 1 - TINY), (0.0, 1.0)),
        "agd_candidates": (4, (1,), (0,)),
        "agd_largest": (1.0, (TINY,), (0.0,)),
        "agd_window": (10, (1,), (0,)),
        "agd_stretch": (0.1, (0.0,), (-TINY,)),
        "agd_loss_clip": (5.0, (TINY,), (0.0,)),
        "agd_change_clip": (0.1, (None, TINY), (0.0,)),
        "agd_growth": (0.1, (TINY, 1.0), (0.0, 1 + TINY)),
        "agd_raises": (10, (0,), (-1,)),
    },
    Local: {
        "steps": (1, (1,), (0,)),
        "epochs": (None, (None, TINY), (0.0,)),
        "optimizer": ("sgd", ("adam",), ("none",)),
        "lr": (1.0, (TINY,), (0.0,)),
        "momentum": (0.0, (0.0, 1 - TINY), (-TINY, 1.0)),
        "keep_state": (False, (True,), ()),
        "lr_schedule": ("constant", ("linear", "cosine"), ("none",)),
        "memory_limit": (None, (None, 1), (0,)),
        "max_records": (None, (None, 1), (0,)),
    },
    Rounds: {
        "rounds": (20, (1,), (0,)),
        "fraction": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "max_participations": (None, (None, 1), (0,)),
        "evaluate_every": (1, (1,), (0,)),
        "keep_checkpoints": (2, (2,), (1,)),
    },
    Aggregation: {
        "strategy": ("fedavg", ("fednova",), ("none",)),
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
        "share_noise": (None, (None, TINY), (0.0,)),
        "share_clip": (None, (None, TINY), (0.0,)),
        "share_rate": (1.0, (TINY, 1.0), (0.0, 1 + TINY)),
        "share_views": (1, (1,), (0,)),
        "label_epsilon": (None, (None, TINY), (0.0,)),
        "public_labels": (False, (True,), ()),
        "shared_weight": (0.2, (0.0, 1 - TINY), (-TINY, 1.0)),
        "shared_batch": (64, (1,), (0,)),
        "prototype_features": ("fixed", ("distilled",), ("none",)),
        "distill_budget": (0.5, (TINY, 1 - TINY), (0.0, 1.0)),
        "distill_rounds": (20, (1,), (0,)),
        "distill_lr": (0.5, (TINY,), (0.0,)),
        "distill_clip": (1.0, (TINY,), (0.0,)),
        "distill_latent": (8, (1,), (0,)),
        "distill_penalty": (1.0, (0.0,), (-TINY,)),
    },
}
ROWS = [(table, name, *row) for table, rows in RANGES.items() for name, row in rows.items()]


def made(table: type[Settings], name: str, value: object) -> Settings:
    """A table with one setting given; the amount of local work is either steps or epochs."""
    beside = {"steps": None} if name == "epochs" and value is not None else {}
    return table(**{name: value} | beside)


def test_every_setting_has_a_row():
    modules = (of_mechanisms, of_client, of_server, of_strategies)
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
