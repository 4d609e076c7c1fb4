"""Laws of the configuration: precedence, round trip, one line for every fault."""

import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.settings import MECHANISM_NAMES, Privacy
from sim.config import presets
from sim.config.checks import check_delta, check_parts, check_sizes
from sim.config.configuration import Config, differences, load, save
from sim.config.fields import SETTINGS, TABLES, Setting
from sim.config.names import did_you_mean, nearest

ROOT = Path(__file__).parent.parent


def write(folder: Path, text: str) -> Path:
    path = folder / "given.toml"
    path.write_text(text)
    return path


def values_of(setting: Setting) -> st.SearchStrategy:
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.kind is bool:
        return st.booleans()
    if setting.kind is str:
        return st.text("abc/é \"'\\#\n" if setting.name != "name" else "ab.0", min_size=1).filter(
            lambda t: t[0] != "."
        )
    if setting.kind is int:
        bounds = [one.le for one in setting.info.metadata if hasattr(one, "le")]
        return st.integers(2, min(10**6, *bounds))
    bounds = [one.lt for one in setting.info.metadata if hasattr(one, "lt")]
    below = min([0.999, *bounds])
    return st.floats(0.001, below, exclude_max=True) | st.sampled_from([1e-6, 0.1, 1 / 3])


def overrides() -> st.SearchStrategy:
    bound = ("epochs", "partition", "shards_per_client", "client_column", "batch_size", "budgets")
    bound += ("dropout_trace",)
    # those contradict others
    free = {name: values_of(s) for name, s in SETTINGS.items() if name not in bound}
    return st.fixed_dictionaries({}, optional=free)


def test_a_setting_has_one_table():
    assert len(SETTINGS) == sum(len(model.model_fields) for model in TABLES.values())


def test_the_value_of_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"^unknown setting lrr; did you mean lr\?$"):
        load(None, {}).value("lrr")


def test_every_setting_says_what_it_is():
    assert all(len(s.info.description) > 10 for s in SETTINGS.values())


@settings(max_examples=40)
@given(overrides())
def test_a_saved_configuration_loads_equal(values):
    config = load(None, values, lenient=values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        save(config, path)
        assert load(path, {}) == config
        assert [p.name for p in Path(folder).iterdir()] == ["config.toml"]


@pytest.mark.parametrize("unset", ["epsilon", "steps", "workers", "name"])
def test_what_is_unset_stays_unset(tmp_path, unset):
    config = load(
        None,
        {unset: None, "noise_multiplier": 1.0, **({"epochs": 2.0} if unset == "steps" else {})},
    )
    save(config, tmp_path / "config.toml")
    assert load(tmp_path / "config.toml", {}).value(unset) is None


def test_a_saved_configuration_outlives_its_preset(tmp_path, monkeypatch):
    config = load(None, {"dataset": "mnist"})
    save(config, tmp_path / "config.toml")
    monkeypatch.setitem(
        presets.PRESETS, "mnist", {"model": "mlp", "epochs": 3.0, "workers": 7, "rounds": 99}
    )
    assert load(tmp_path / "config.toml", {}) == config


@pytest.mark.parametrize("dataset", [*presets.PRESETS, "mine.npz"])
def test_presets_are_valid(dataset):
    config = load(None, {"dataset": dataset})
    assert all(config.value(name) == value for name, value in presets.preset(dataset).items())


@pytest.mark.parametrize(
    ("dataset", "central", "features", "expected"),
    [
        (
            "mnist",
            False,
            "pixels",
            {"model": "cnn", "lr": 4.0, "rounds": 45, "clip_norm": 1.0, "feature_groups": 0},
        ),
        (
            "mnist",
            False,
            "scattering",
            {"model": "linear", "lr": 0.2, "rounds": 60, "clip_norm": 5.0},
        ),
        (
            "cifar10",
            False,
            "scattering",
            {"model": "linear", "rounds": 20, "clip_norm": 1.0, "feature_groups": 27},
        ),
        (
            "digits",
            True,
            "pixels",
            {"model": "linear", "lr": 1.0, "batch_size": 256, "epochs": 1.0, "steps": None},
        ),
        (
            "mnist",
            True,
            "pixels",
            {"model": "cnn", "lr": 1.0, "rounds": 20, "batch_size": 1024, "clip_norm": 0.1},
        ),
        (
            "fmnist",
            True,
            "scattering",
            {"model": "linear", "lr": 4.0, "rounds": 20, "batch_size": 2048},
        ),
        (
            "imdb",
            True,
            "pixels",
            {"model": "lstm", "optimizer": "adam", "lr": 0.02, "momentum": 0.9},
        ),
    ],
)
def test_defaults_go_from_the_data_set_over_its_features_to_one_client_and_its_data_set(
    dataset, central, features, expected
):
    """The settings by which the figures of the documentation were made."""
    found = load(None, {"dataset": dataset, "features": features}, central)
    assert {name: found.value(name) for name in expected} == expected
    alone = {
        "keep_state": True,
        "server_momentum": 0.0,
        "server_lr": 1.0,
        "clients": 1,
        "fraction": 1.0,
    }
    assert not central or {name: found.value(name) for name in alone} == alone


def test_every_data_set_has_the_model_that_the_documentation_says():
    text = (ROOT / "docs/howto/data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\| `([\w-]+)`[^|]*\| [^|]* \|$", text, re.M)
    models = {name: model for name, model in rows if name in presets.PRESETS}
    assert models == {name: row["model"] for name, row in presets.PRESETS.items()}


def test_precedence(tmp_path, monkeypatch):
    monkeypatch.setitem(presets.PRESETS, "mnist", {"rounds": 2, "clients": 2, "lr": 2.0})
    file = write(tmp_path, '[data]\ndataset = "mnist"\nclients = 3\n[local]\nlr = 3\n')
    config = load(file, {"lr": 4.0})
    assert (
        config.data.min_records,
        config.rounds.rounds,
        config.data.clients,
        config.local.lr,
    ) == (2, 2, 3, 4.0)


def test_a_flag_names_the_preset_before_the_file_does(tmp_path):
    file = write(tmp_path, '[data]\ndataset = "mnist"\n')
    assert load(file, {"dataset": "cifar10"}).data.model == presets.PRESETS["cifar10"]["model"]


@pytest.mark.parametrize(
    ("file", "flags", "expected"),
    [
        ("[local]\nepochs = 2", {}, {"epochs": 2, "steps": None}),
        ("[local]\nepochs = 2", {"steps": 3}, {"epochs": None, "steps": 3}),
        ("[local]\nsteps = 2", {"epochs": 3.0}, {"epochs": 3, "steps": None}),
        ("[data]\ndirichlet = 0.1", {}, {"partition": "dirichlet", "dirichlet": 0.1}),
        (
            '[data]\npartition = "iid"',
            {"dirichlet": 0.1},
            {"partition": "dirichlet", "dirichlet": 0.1},
        ),
        (
            '[data]\npartition = "quantity"',
            {"dirichlet": 0.1},
            {"partition": "quantity", "dirichlet": 0.1},
        ),
        (
            "",
            {"dirichlet": 0.1, "partition": "quantity"},
            {"partition": "quantity", "dirichlet": 0.1},
        ),
        ('[data]\npartition = "iid"\ndirichlet = 0.5', {}, {"partition": "iid", "dirichlet": 0.5}),
        ("", {"shards_per_client": 3}, {"partition": "shards", "shards_per_client": 3}),
    ],
)
def test_a_layer_implies_and_unsets(tmp_path, file, flags, expected):
    config = load(write(tmp_path, file), flags)
    assert {name: config.value(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("below", "unset", "kept"),
    [
        ("[local]\nsteps = 7", "epochs", ("steps", 7)),
        ("[privacy]\nsample_rate = 0.25", "batch_size", ("sample_rate", 0.25)),
    ],
)
def test_what_a_layer_unsets_takes_no_rival_s_place(tmp_path, below, unset, kept):
    """A flag that says "not set" leaves the other of the pair as the file has it. Kills a layer
    that unsets both."""
    assert load(write(tmp_path, below), {unset: None}).value(kept[0]) == kept[1]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[data]\nclients = 3", "clients is 3"),
        ('[data]\npartition = "shards"', "partition is shards"),
        ("[rounds]\nfraction = 0.5", "fraction is 0.5"),
        ("[local]\nkeep_state = false", "keep_state is False"),
    ],
)
def test_a_file_of_many_clients_is_refused_for_one(tmp_path, text, part):
    """Else the file would be read and not be used. Kills a check of flags alone."""
    load(write(tmp_path, text), {})
    with pytest.raises(ValueError, match=f"{part}, but one client that holds all records has no"):
        load(write(tmp_path, text), {}, central=True)


def test_a_file_may_hold_the_usual_value_of_one_client_for_what_is_not_in_use(tmp_path):
    """Of either kind of training, as files were written by hand for both; no other."""
    usual = presets.CENTRAL["clip_norm"]
    for value, refused in ((usual, False), (1.0, False), (0.7, True)):
        path = write(tmp_path, f'[privacy]\nmechanism = "none"\nclip_norm = {value}\n')
        if refused:
            with pytest.raises(ValueError, match=r"clip_norm is 0\.7, which mechanism = none"):
                load(path, {})
        else:
            assert load(path, {}) == load(None, {"mechanism": "none"})


def test_a_word_that_is_like_none_has_no_suggestion():
    """Kills a suggestion that misleads, and one that is missing for a slip of a letter."""
    for word in ("xyzzy", "wavelength", "kubernetes", "0"):
        assert nearest(word, SETTINGS) is None and did_you_mean(word, SETTINGS) == ""
    assert nearest("clinets", SETTINGS) == "clients"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[data]\nclinets = 3", ["clinets", "[data]", "did you mean clients?"]),
        ("[data]\nepsilom = 3", ["epsilom in [data]; did you mean epsilon?"]),
        ("[data]\nxyzzy = 3", ["xyzzy in [data] (known: dataset, data_dir,"]),
        ("[dta]\nclients = 3", ["dta", "did you mean data?"]),
        ("[data]\nrounds = 3", ["rounds", "[rounds]", "[data]", "move it"]),
        ("clients = 3", ["clients", "under [data]"]),
        ("data = 3", ["data"]),
        ("[data\nclients = 3", ["not a TOML file", "; correct it"]),
        (
            '[data]\nclients = "3"',
            [
                "clients is '3'",
                "at least 1 and at most 10000000",
                "set --clients or clients in [data]",
            ],
        ),
        ("[data]\nclients = 2.0", ["clients is 2.0", "an integer"]),
        ("[data]\nclients = true", ["clients is True", "an integer"]),
        ("[run]\nquiet = 1", ["quiet is 1", "true or false"]),
        ("[data]\ndataset = []", ["dataset is []", "text"]),
        ("[privacy]\nepsilon = nan", ["epsilon is nan", "above 0"]),
        ("[privacy]\nepsilon = inf", ["epsilon is inf", "above 0"]),
        ('[privacy]\ndelta = "none"', ["delta is 'none'", "in [1e-300, 1)"]),
        ('[privacy]\nepsilon = "none"', ["epsilon", "noise_multiplier", "--noise-multiplier"]),
    ],
)
def test_faults_of_a_file_are_one_line(tmp_path, text, parts):
    with pytest.raises(ValueError) as caught:
        load(write(tmp_path, text), {})
    assert "\n" not in str(caught.value)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.toml cannot be read"):
        load(tmp_path / "nowhere.toml", {})


def test_some_amount_of_work_is_asked_for():
    with pytest.raises(
        ValueError, match="steps and epochs are both none: give --steps or --epochs"
    ):
        load(None, {"steps": None})


SHARES = ("share_budget", "distill_budget", "shared_weight")


@pytest.mark.parametrize(
    "name", [*SHARES, "agd_search_share", "dpsur_cap_share", "screening_cap_share"]
)
def test_a_share_leaves_something_for_the_rest(name):
    with pytest.raises(ValueError, match=rf"^{name} is 1\.0; it must be a number in"):
        load(None, {name: 1.0})


@pytest.mark.parametrize("name", [name for name in MECHANISM_NAMES if name != "none"])
def test_a_private_mechanism_has_noise(name):
    """Kills a refusal of 0 that knows one mechanism alone."""
    with pytest.raises(ValueError, match=f"noise_multiplier is 0, but {name} needs one above 0"):
        Privacy(mechanism=name, noise_multiplier=0.0)
    assert Privacy(mechanism="none", noise_multiplier=0.0).noise_multiplier == 0.0


def test_differences_are_names():
    a: Config = load(None, {})
    assert differences(a, a) == []
    assert differences(a, load(None, {"clients": 7, "seed": 3})) == ["clients", "seed"]


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load(None, {}).data.clients = 3


def test_a_delta_that_lets_one_record_be_published_is_said_or_refused():
    """One over the number of records, or of clients, is the first such. Kills a bound off by one, a
    check that is made without privacy, and strictness that is read and not used."""
    with pytest.warns(UserWarning, match=r"delta = 0\.01 is not below 1 / 100 records"):
        check_delta(load(None, {"delta": 0.01}), 100)
    clients = {"delta": 0.01, "unit": "client", "trust": "server", "clients": 100}
    with pytest.warns(UserWarning, match=r"delta = 0\.01 is not below 1 / 100 clients"):
        check_delta(load(None, clients), 1000)
    with pytest.raises(ValueError, match="lower --delta"):
        check_delta(load(None, {"delta": 0.01, "strict_delta": True}), 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_delta(load(None, {"delta": 0.01, "strict_delta": True}), 99)
        check_delta(load(None, {"delta": 0.01, "mechanism": "none"}), 100)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ({"evaluate_on": "validation"}, "validation_records"),
        ({"mechanism": "screening", "screening_data": "public"}, "public_records"),
    ],
)
def test_records_that_are_looked_at_must_be_there(given, lacks):
    """Kills one kind of held-out records that is taken for the other."""
    both = {"validation_records", "public_records"}
    check_parts(load(None, given | dict.fromkeys(both, 5)))
    with pytest.raises(ValueError, match=f"{lacks} is 0: give --{lacks.replace('_', '-')}"):
        check_parts(load(None, given | dict.fromkeys(both - {lacks}, 5)))
    check_parts(load(None, {"mechanism": "screening", "screening_data": "own"}))


def test_noise_that_vanishes_within_a_run_is_refused_by_its_name():
    """Else calibration finds noise of 0, which it calls by another name. Kills a bound that counts
    a decrease more than there are, or that is wrong by the unit."""
    check_parts(load(None, {"noise_decay": 100.0 / 9, "rounds": 10}))
    with pytest.raises(ValueError, match=r"noise_decay is 11\.2, which .* at most 11\.1$"):
        check_parts(load(None, {"noise_decay": 11.2, "rounds": 10}))
    check_parts(load(None, {"noise_decay": 1000.0, "rounds": 1}))


def test_a_release_alone_is_refused_for_a_client_too_large_for_an_exact_sum():
    sizes = np.array([5, 2**40])
    check_sizes(load(None, {}), sizes)
    check_sizes(load(None, {"release": True}), sizes[:1])
    with pytest.raises(ValueError):
        check_sizes(load(None, {"release": True}), sizes)


def test_a_table_that_is_a_value_is_told(tmp_path):
    (path := tmp_path / "a.toml").write_text("data = 3\n")
    with pytest.raises(
        ValueError, match=r"a\.toml: data is 3, but must be a table: write \[data\]"
    ):
        load(path, {})
