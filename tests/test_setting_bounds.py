"""Settings of clients, server and strategies: what each is unless it is given, and where its range
ends.

Written down a second time, for a range that is a little too wide accepts what voids a guarantee or
a result, and a default that has changed changes every run that says nothing.
"""

import pytest
from pydantic import ValidationError

from client.settings import Local
from mechanisms.settings import Settings
from server.settings import Rounds
from strategies.settings import Aggregation, FedFed

TINY = 1e-9
RANGES: dict[type[Settings], dict[str, tuple[object, tuple, tuple]]] = {
    # name: default, the outermost values that are taken, the nearest that are refused
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
