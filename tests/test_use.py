"""Laws of settings that are not in use: refused where they are given, dropped where they are
implied, never written."""

import itertools
import tomllib
from pathlib import Path

import pytest

from sim.benching.kept import digest
from sim.benching.runs import config_of
from sim.commands.flags import parse, request, words
from sim.commands.guard import main_guard
from sim.config.configuration import IMPLIED, load, save
from sim.config.fields import SETTINGS, TABLES
from sim.config.names import FORMER
from sim.config.recipe import Cell
from sim.config.settings import EXECUTION_ONLY
from sim.config.use import USES, Need, in_use, refusal, unused, used_by_table
from sim.library import api
from tests.vouched import vouch

DEFAULT = load(None, {})
IDLE = sorted(set(unused(DEFAULT)) - IMPLIED.keys())
"""Of those that imply what uses them, none is refused."""
TEXTS = {int: "3", float: "0.25", str: "text"}


def enabling(name: str, way: int = 0) -> dict:
    """The settings under which one is in use."""
    return {need.setting: need.values[0] for need in USES.get(name, ((),))[way]}


def given(name: str) -> dict:
    """A value of a setting that is not its default."""
    setting = SETTINGS[name]
    if setting.choices:
        return {name: next(choice for choice in setting.choices if choice != setting.info.default)}
    if setting.kind is bool:
        return {name: not setting.info.default}
    return {name: setting.from_text(TEXTS[setting.kind])}


def flag(name: str) -> list[str]:
    (value,) = given(name).values()
    switch = {True: SETTINGS[name].flag, False: SETTINGS[name].flag.replace("--", "--no-")}
    return [switch[value]] if isinstance(value, bool) else [SETTINGS[name].flag, str(value)]


def needs_of(name: str) -> set[str]:
    return {need.words for way in USES[name] for need in way}


def test_the_issue_s_example(capsys):
    assert main_guard(lambda argv: print(parse(argv, "run", "")), ["--dpsur-beta", "3"]) == 2
    assert capsys.readouterr().err == (
        "error: dpsur_beta is 3.0, which mechanism = dpsgd does not use, but --mechanism dpsur "
        "does: give that, or leave dpsur_beta out\n"
    )


def test_half_of_all_settings_are_not_in_use_by_default():
    assert len(IDLE) > 50
    for name in (
        "dpsur_beta",
        "share_budget",
        "proximal_mu",
        "server_tau",
        "word_vectors",
        "activation",
    ):
        assert name in IDLE


@pytest.mark.parametrize("name", IDLE)
def test_what_is_not_in_use_is_refused_as_a_flag_by_name_and_in_a_file(name, tmp_path):
    """At its default, too, where somebody gives it; not where a file of an earlier version has
    it."""
    doors = [
        lambda: parse(flag(name), "run", ""),
        lambda: load(None, given(name)),
        lambda: load(None, {name: SETTINGS[name].info.default}),
        lambda: load(_file(tmp_path, given(name)), {}),
        lambda: api.train(**given(name)),
    ]
    for door in doors:
        with pytest.raises(ValueError) as caught:
            door()
        said = str(caught.value)
        assert said.startswith(f"{name} is ") and "\n" not in said and "does not use" in said
        assert any(each in said for each in needs_of(name)), said
    assert load(_file(tmp_path, {name: SETTINGS[name].info.default}), {}) == DEFAULT


def _file(folder: Path, values: dict) -> Path:
    path = folder / "given.toml"
    tables = {}
    for name, value in values.items():
        setting = SETTINGS[name]
        text = setting.unset if value is None else value
        shown = (
            str(text).lower()
            if isinstance(text, bool)
            else f'"{text}"'
            if isinstance(text, str)
            else str(text)
        )
        tables.setdefault(setting.table, []).append(f"{name} = {shown}")
    path.write_text("\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items()))
    return path


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_in_use_in_each_of_its_ways(name):
    for way in range(len(USES.get(name, ((),)))):
        values = enabling(name, way)
        config = load(None, values)
        assert in_use(name, config.value), values
        assert load(None, values | {name: config.value(name)}) == config


RAY = ("ray_address", "cpus_per_worker", "gpus_per_worker")
OF_DPSGD = (
    "epsilon budgets budget noise_multiplier clip_norm strict_delta sampling clipping "
    "clip_quantile noise_decay"
)
OF_BUILT_IN = "server_lr server_momentum"
OF_LOCAL_TRUST = "optimizer momentum keep_state personal_layers weighting buffer attackers"
OF_DPSUR = (
    "dpsur_accounting dpsur_validation_rate dpsur_validation_noise dpsur_loss_clip dpsur_beta"
)
OF_SCREENING = "screening_data screening_q0 screening_stages"
OF_SHARING = "shared_source shared_weight shared_batch distill_rounds"
NOISY, NETWORK = "share_noise share_clip", "distill_lr distill_latent distill_penalty"
PRIVATE_NETWORK, SINGLY = "share_budget distill_budget distill_clip", "share_rate share_views"
CHOSEN: list[tuple[dict, str, str]] = [
    ({"mechanism": "none"}, "", OF_DPSGD),
    ({"mechanism": "dpsgd"}, "", ""),
    ({"trust": "server"}, "unit", f"sampling clip_quantile {OF_LOCAL_TRUST}"),
    (
        {"trust": "aggregate"},
        "unit honest aggregate_bits",
        f"sampling clip_quantile noise_decay {OF_LOCAL_TRUST}",
    ),
    (
        {"trust": "server", "unit": "client"},
        "unit noise_bands",
        "keep_state personal_layers weighting buffer attackers",
    ),
    ({"mechanism": "dpsur", "dpsur_accounting": "visible"}, OF_DPSUR, ""),
    ({"mechanism": "dpsur", "dpsur_accounting": "every-trial"}, OF_DPSUR, ""),
    ({"mechanism": "dpsur", "dpsur_accounting": "selective"}, f"{OF_DPSUR} dpsur_cap_share", ""),
    (
        {"mechanism": "dpis"},
        "dpis_sampling dpis_clip dpis_slack dpis_floor dpis_first_phase dpis_norm_rate "
        "dpis_norm_share",
        "clipping clip_quantile noise_decay",
    ),
    (
        {"mechanism": "dpis", "dpis_sampling": "uniform"},
        "dpis_sampling dpis_clip",
        "clipping clip_quantile noise_decay",
    ),
    (
        {"mechanism": "dpis", "dpis_sampling": "uniform", "dpis_clip": 1.0},
        "dpis_sampling dpis_clip dpis_norm_rate dpis_norm_share",
        "clipping clip_quantile noise_decay",
    ),
    ({"mechanism": "dphero"}, "hero_clipping hero_floor hero_refresh", ""),
    (
        {"mechanism": "screening", "screening_data": "public"},
        f"{OF_SCREENING} screening_gain forced_after",
        "",
    ),
    (
        {"mechanism": "screening", "screening_data": "public", "screening_q0": 0.5},
        f"{OF_SCREENING} forced_after",
        "",
    ),
    (
        {"mechanism": "screening", "screening_data": "own", "screening_clip": None},
        f"{OF_SCREENING} screening_gain screening_rate screening_clip forced_after allow_unproved",
        "",
    ),
    (
        {"mechanism": "screening", "screening_data": "own", "screening_clip": 0.1},
        f"{OF_SCREENING} screening_gain screening_rate screening_clip screening_cap_share",
        "",
    ),
    (
        {"mechanism": "dpagd"},
        "agd_search_share agd_candidates agd_largest agd_window agd_stretch agd_loss_clip "
        "agd_change_clip agd_growth agd_raises",
        "clip_quantile noise_decay",
    ),
    ({"strategy": "fednova"}, "", ""),
    ({"strategy": "fedprox"}, "proximal_mu", ""),
    ({"strategy": "mrmtl"}, "proximal_mu", OF_BUILT_IN),
    ({"evaluation": "clients"}, "client_holdout", ""),
    ({"evaluation": "released"}, "client_holdout score_noise", ""),
    ({"strategy": "fedadagrad"}, "server_tau", ""),
    ({"strategy": "fedadam"}, "server_beta2 server_tau", ""),
    ({"strategy": "fedyogi"}, "server_beta2 server_tau", ""),
    ({"shared_source": "none"}, "shared_source", ""),
    ({"shared_source": "public"}, "shared_source shared_weight shared_batch", ""),
    ({"shared_source": "prototypes"}, f"{OF_SHARING} {NOISY} share_budget prototype_features", ""),
    (
        {"shared_source": "prototypes", "share_noise": 2.0},
        f"{OF_SHARING} {NOISY} prototype_features",
        "",
    ),
    (
        {"shared_source": "prototypes", "share_noise": 2.0, "prototype_features": "distilled"},
        f"{OF_SHARING} {NOISY} {NETWORK} {PRIVATE_NETWORK} prototype_features",
        "",
    ),
    (
        {"shared_source": "distilled", "public_labels": False},
        f"{OF_SHARING} {NOISY} {NETWORK} {PRIVATE_NETWORK} {SINGLY} label_epsilon public_labels",
        "",
    ),
    (
        {"shared_source": "distilled", "public_labels": True},
        f"{OF_SHARING} {NOISY} {NETWORK} {PRIVATE_NETWORK} {SINGLY} public_labels",
        "",
    ),
    (
        {"shared_source": "prototypes", "mechanism": "none"},
        f"{OF_SHARING} prototype_features",
        OF_DPSGD,
    ),
    (
        {"shared_source": "distilled", "mechanism": "none"},
        f"{OF_SHARING} {NETWORK} {SINGLY}",
        OF_DPSGD,
    ),
    (
        {"features": "scattering"},
        "feature_pixels feature_deskew feature_flips feature_scales feature_whitening "
        "feature_groups",
        "",
    ),
    ({"features": "own:function"}, "feature_groups features_settings", ""),
    ({"model": "cnn"}, "activation", ""),
    ({"model": "own:Net"}, "", ""),
    ({"mechanism": "own:NAME"}, "mechanism_settings", ""),
    ({"strategy": "own:function"}, "strategy_settings", OF_BUILT_IN),
    ({"partition": "own:function"}, "partition_settings", "dirichlet"),
    ({"dataset": "imdb", "model": "linear"}, "word_vectors train_embedding", ""),
    ({"partition": "iid"}, "", "dirichlet"),
    ({"partition": "shards"}, "shards_per_client", "dirichlet"),
    ({"partition": "quantity"}, "", ""),
    ({"partition": "given"}, "", "dirichlet min_records"),
    ({"dataset": "t.csv"}, "label_column columns categories", ""),
    (
        {"dataset": "t.Parquet", "partition": "given"},
        "label_column client_column columns categories",
        "dirichlet min_records",
    ),
    ({"dataset": "hf:owner/name"}, "label_column", ""),
    ({"engine": "inline"}, "", "ray_address cpus_per_worker gpus_per_worker"),
    ({"standardize": "private"}, "standardize_noise standardize_clip", ""),
    ({"standardize": "private", "mechanism": "none"}, "", OF_DPSGD),
]
"""What is chosen, what has an effect then that has none by default, and what has none then, besides
``sampling``, which no mechanism but dpsgd uses."""


@pytest.mark.parametrize(("chosen", "more", "fewer"), CHOSEN, ids=lambda part: str(part)[:60])
def test_what_is_chosen_decides_what_is_in_use(chosen, more, fewer):
    """Setting by setting, as the documentation of mechanisms and strategies describes them. Kills
    a mechanism, a strategy or a source too many or too few in the table, and one taken for another.
    """
    if "shared_source" in chosen:
        chosen = {"strategy": "fedfed"} | chosen
    config = load(None, chosen, lenient=SETTINGS)
    usual = {name for name in USES if in_use(name, DEFAULT.value)}
    assert usual == {
        *OF_DPSGD.split(),
        "dirichlet",
        "min_records",
        *RAY,
        *OF_LOCAL_TRUST.split(),
        *OF_BUILT_IN.split(),
    }
    used = {name for name in USES if in_use(name, config.value)}
    ours = set() if chosen.get("mechanism", "dpsgd") == "dpsgd" else {"sampling"}
    assert used - usual == set(more.split()) and usual - used == set(fewer.split()) | ours


def test_a_mechanism_s_own_table_is_used_by_it_alone():
    for mechanism in SETTINGS["mechanism"].choices:
        for name in TABLES[mechanism].model_fields if mechanism in TABLES else ():
            needs = [need for way in USES[name] for need in way if need.setting == "mechanism"]
            assert len(needs) == len(USES[name]) and {need.values for need in needs} == {
                (mechanism,)
            }


@pytest.mark.parametrize("name", USES)
def test_no_need_of_a_way_can_be_left_out(name):
    """Each condition stands in the table because the others do not imply it."""
    for way in USES[name]:
        values = {need.setting: need.values[0] for need in way}
        for need in way:
            least = DEFAULT.value(need.setting)
            without = {key: value for key, value in values.items() if key != need.setting}
            if need.holds(least):
                continue
            idle = load(None, without, lenient=SETTINGS)
            assert name in set(unused(idle)) or len(USES[name]) > 1


@pytest.mark.parametrize("name", USES)
def test_a_way_names_the_needs_of_its_needs(name):
    """So a setting that is itself not in use, and is dropped, decides nothing."""
    for way in USES[name]:
        for need in way:
            ways = USES.get(need.setting, ((),))
            assert any(
                all(any(_implies(own, theirs) for own in way) for theirs in other) for other in ways
            ), need


def _implies(one: Need, other: Need) -> bool:
    return one.setting == other.setting and all(other.holds(value) for value in one.values)


SHARING = {"strategy": "fedfed"}
NOT_IN_USE = {
    "dpsur_cap_share": {"mechanism": "dpsur", "dpsur_accounting": "visible"},
    "epsilon": {"mechanism": "none"},
    "budgets": {"mechanism": "none"},
    "clip_norm": {"mechanism": "none"},
    "clipping": {"mechanism": "dpis"},
    "sampling": {"mechanism": "dphero"},
    "noise_decay": {"mechanism": "dpagd"},
    "clip_quantile": {"mechanism": "dpis"},
    "standardize_noise": {"standardize": "private", "mechanism": "none"},
    "dpis_norm_rate": {"mechanism": "dpis", "dpis_sampling": "uniform"},
    "dpis_floor": {"mechanism": "dpis", "dpis_sampling": "uniform", "dpis_clip": 1.0},
    "screening_gain": {"mechanism": "screening", "screening_q0": 0.1},
    "screening_clip": {"mechanism": "screening", "screening_data": "public"},
    "screening_cap_share": {"mechanism": "screening", "screening_clip": None},
    "forced_after": {"mechanism": "screening"},
    "server_beta2": {"strategy": "fedadagrad"},
    "server_tau": {"strategy": "fedprox"},
    "proximal_mu": {"strategy": "fednova"},
    "share_budget": SHARING | {"share_noise": 2.0},
    "share_noise": SHARING | {"mechanism": "none"},
    "share_clip": SHARING | {"shared_source": "public"},
    "share_views": SHARING,
    "label_epsilon": SHARING | {"shared_source": "distilled", "public_labels": True},
    "public_labels": SHARING | {"shared_source": "distilled", "mechanism": "none"},
    "shared_weight": SHARING | {"shared_source": "none"},
    "prototype_features": SHARING | {"shared_source": "distilled"},
    "distill_lr": SHARING | {"prototype_features": "fixed"},
    "distill_clip": SHARING | {"shared_source": "distilled", "mechanism": "none"},
    "distill_rounds": SHARING | {"shared_source": "public"},
    "activation": {"model": "my_model:Net"},
    "feature_groups": {"features": "pixels"},
    "feature_pixels": {"features": "own:function"},
    "feature_flips": {"features": "own:function"},
    "feature_scales": {"features": "own:function"},
    "feature_deskew": {"features": "own:function"},
    "feature_whitening": {"features": "own:function"},
    "gpus_per_worker": {"engine": "inline"},
    "min_records": {"partition": "given"},
    "client_column": {"dataset": "t.npz"},
    "columns": {"dataset": "hf:owner/name"},
}


@pytest.mark.parametrize(("name", "chosen"), NOT_IN_USE.items(), ids=NOT_IN_USE)
def test_a_setting_s_own_condition_counts(name, chosen):
    """What would use it is chosen in part only."""
    with pytest.raises(ValueError, match=f"^{name} is .* does not use, but "):
        load(None, chosen | given(name))
    load(None, chosen)


CHOICES = list(itertools.product(SETTINGS["mechanism"].choices, SETTINGS["strategy"].choices))


@pytest.mark.parametrize(("mechanism", "strategy"), CHOICES)
def test_a_saved_configuration_has_what_is_in_use_and_loads_equal(tmp_path, mechanism, strategy):
    chosen = {"mechanism": mechanism, "strategy": strategy}
    own = [
        name
        for name in SETTINGS
        if name not in ("epochs", "batch_size", "model", "name", "noise_multiplier")
    ]
    free = [name for name in own if name not in chosen and in_use(name, load(None, chosen).value)]
    rich = {
        name: value
        for each in free
        for name, value in given(each).items()
        if SETTINGS[name].kind is float
    }
    rich = {name: value for name, value in rich.items() if name != "sample_rate"} | chosen
    for config in (load(None, chosen), load(None, rich, lenient=SETTINGS)):
        save(config, tmp_path / "config.toml")
        assert load(tmp_path / "config.toml", {}) == config
        written = tomllib.loads((tmp_path / "config.toml").read_text())
        assert {table: list(entries) for table, entries in written.items()} == used_by_table(config)
        assert ("dpsur" in written, "fedfed" in written) == (
            mechanism == "dpsur",
            strategy == "fedfed",
        )


def test_a_preset_of_a_paper_gives_way_to_the_mechanism_that_is_chosen():
    config = load(None, {"mechanism": "dpsgd"}, central=True, paper="dpsur-pvldb-mnist")
    assert config.dpsur == TABLES["dpsur"]() and config.data.dataset == "mnist"


def test_a_data_set_s_defaults_are_no_fault_of_the_user(tmp_path):
    """With one client the clip norm has a default of its own, which a run without privacy has no
    use for."""
    assert load(None, {"mechanism": "none"}, central=True).privacy.clip_norm == 1.0
    path = _file(tmp_path, {"mechanism": "none", "clip_norm": 0.1, "epsilon": 8.0})
    assert load(path, {}) == load(None, {"mechanism": "none"})


def test_a_row_drops_what_it_shares_and_refuses_what_is_its_own():
    shared = Cell("A", "1", {"mechanism": "dpsgd", "dpsur_beta": 3.0})
    assert config_of(shared, {"budget": "published"}, central=False).dpsur.dpsur_beta == -1.0
    own = Cell("A", "1", shared.settings, own=frozenset({"dpsur_beta"}))
    with pytest.raises(
        ValueError, match=r"A, 1: dpsur_beta is 3\.0, which mechanism = dpsgd does not use"
    ):
        config_of(own, {}, central=False)
    assert config_of(own, {"dpsur_beta": 2.0}, central=False).dpsur.dpsur_beta == -1.0


@pytest.fixture
def earlier(tmp_path) -> Path:
    """The run directory of an earlier version: all settings, by their names then."""
    folder, then = tmp_path / "run", {now: name for name, now in FORMER.items()}
    folder.mkdir()
    _file(
        folder,
        {name: DEFAULT.value(name) for name in SETTINGS} | {"dpsur_beta": 3.0, "engine": "inline"},
    )
    text = (folder / "given.toml").read_text()
    for now, name in then.items():
        text = text.replace(f"{now} =", f"{name} =")
    (folder / "config.toml").write_text(
        text.replace("cpus_per_worker = 1.0", "cpus_per_worker = 2.0")
    )
    return vouch(folder)


def test_a_run_of_an_earlier_version_is_resumed(earlier):
    config = parse(["--resume", str(earlier)], "run", "").config
    assert config == load(None, {"engine": "inline"})
    text = (earlier / "config.toml").read_text()
    (earlier / "config.toml").write_text(text.replace('mechanism = "dpsgd"', 'mechanism = "dpsur"'))
    vouch(earlier)
    assert parse(["--resume", str(earlier)], "run", "").config.dpsur.dpsur_beta == 3.0


def test_a_resumed_run_is_given_nothing_that_it_does_not_use(earlier):
    with pytest.raises(
        ValueError, match=r"dpis_clip is 0\.5, which mechanism = dpsgd does not use"
    ):
        parse(["--resume", str(earlier), "--dpis-clip", "0.5"], "run", "")


def test_what_a_resumed_run_may_change_is_what_affects_no_result(earlier):
    """Each other setting is refused, whatever its table. Kills one too many that is taken for a
    matter of the machine alone, as the chunks or the device would be."""
    free = {
        "workers",
        "engine",
        "ray_address",
        "cpus_per_worker",
        "gpus_per_worker",
        "track",
        "quiet",
    }
    text = (earlier / "config.toml").read_text().replace('engine = "inline"', 'engine = "ray"')
    (earlier / "config.toml").write_text(text)
    vouch(earlier)
    always = [name for name in SETTINGS if name not in USES and name not in free]
    assert free == EXECUTION_ONLY and len(always) > 30
    for name in always:
        with pytest.raises(ValueError, match=r"a resumed run keeps its|must|contradict|is 0"):
            request(given(name), resume=str(earlier))


@pytest.mark.parametrize(("name", "now"), FORMER.items())
def test_a_former_name_is_refused_with_the_new_one(tmp_path, name, now):
    old = f"--{name.replace('_', '-')}"
    with pytest.raises(ValueError, match=f"^{old} is called {SETTINGS[now].flag} now"):
        parse(["--mechanism", "dpsur", old, "0.5"], "run", "")
    with pytest.raises(ValueError, match=f"unknown setting {name}: it is called {now} now"):
        api.train(mechanism="dpsur", **{name: 0.5})
    path = _file(tmp_path, {"mechanism": "dpsur"} | given(now))
    path.write_text(path.read_text().replace(now, name))
    with pytest.raises(ValueError, match=rf"{name} in \[dpsur\] is called {now} now: rename it"):
        load(path, {})


@pytest.mark.parametrize(("name", "now"), FORMER.items())
def test_a_former_name_at_its_default_is_read_in_its_own_table_alone(tmp_path, name, now):
    """In another table it never was a setting. Kills a former name that counts anywhere."""
    path, harmless = _file(tmp_path, {now: SETTINGS[now].info.default}), {"mechanism": "dpsur"}
    own = path.read_text().replace(f"{now} =", f"{name} =")
    path.write_text(own)
    assert load(path, harmless) == load(None, harmless)
    path.write_text(own.replace("[dpsur]", "[privacy]"))
    with pytest.raises(ValueError, match=rf"{name} in \[privacy\] is called {now} now"):
        load(path, harmless)


def test_a_command_line_says_what_is_in_use():
    config = load(None, {"engine": "inline", "name": None, "workers": None, "quiet": True})
    said = words(config, {"engine", "workers", "cpus_per_worker", "quiet", "name", "release"})
    assert said == ["--no-release", "--engine=inline", "--workers=none", "--name=", "--quiet"]
    assert parse(said, "run", "").config == config


def test_a_refusal_names_no_way_that_asks_for_more_than_another():
    chosen = SHARING | {"shared_source": "distilled", "mechanism": "none"}
    said = refusal("distill_clip", load(None, chosen))
    assert "does not use, but a --mechanism other than none does: give that" in said


def test_a_refusal_names_every_way():
    said = refusal("dpis_norm_rate", load(None, {"mechanism": "dpis", "dpis_sampling": "uniform"}))
    assert "--dpis-sampling importance, or --dpis-clip does" in said
    said = refusal("public_labels", DEFAULT)
    assert said.startswith(
        "public_labels is off, which strategy = fedavg does not use, but --strategy fedfed with --"
    )


def test_results_of_earlier_versions_count():
    """Their digests are over the settings' names of that time, here those of the default
    configuration."""
    assert digest(DEFAULT) == "d967f8ed1d66abd2"
    assert digest(load(None, {"device": "cuda"})) != digest(
        load(None, {"device": "cuda", "tf32": True})
    )
