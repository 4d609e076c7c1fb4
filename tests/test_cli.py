"""The command line: every flag in both forms, and one clear line for every fault."""

import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

from sim.commands import guard
from sim.commands.account import OWN
from sim.commands.flags import Request, parse, request
from sim.commands.guard import main_guard
from sim.commands.parser import build_parser, help_text
from sim.commands.topics import COMMON, TOPICS
from sim.config.configuration import load, save
from sim.config.fields import OWN_NAME, SETTINGS
from sim.config.names import SYNONYMS
from sim.config.presets import PRESETS
from sim.config.use import USES
from tests.vouched import vouch

NAMES = """
    clients dirichlet partition dataset data-dir model mechanism strategy epsilon delta
    noise-multiplier clip-norm sample-rate rounds steps epochs fraction lr momentum seed groups
    workers engine device out name quiet
"""


def ask(*argv: str) -> Request:
    return parse(argv, "prog", "What it does.")


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    save(load(None, {"partition": "iid", "workers": 2, "groups": 2}), folder / "config.toml")
    return vouch(folder)


def test_names_that_scripts_rely_on():
    assert {f"--{name}" for name in NAMES.split()} <= {s.flag for s in SETTINGS.values()}
    assert {"--config", "--resume"} <= flags_of(help_text("prog", ""))


@pytest.mark.parametrize(
    "setting", [one for one in SETTINGS.values() if one.choices], ids=lambda s: s.name
)
def test_the_help_of_a_flag_has_all_that_it_takes(setting):
    """Kills a flag that hides that it takes an object of the user's own."""
    values = [*setting.choices, *([OWN_NAME] if ":" in setting.expected else [])]
    assert f"{setting.flag} {{{','.join(values)}}}" in help_text("prog", "", topic="all")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.name)
def test_both_forms_of_a_flag(setting):
    needs = {SETTINGS[need.setting]: need.values[0] for need in USES.get(setting.name, ((),))[0]}
    used = [
        f"{other.flag}={other.unset if value is None else value}"
        for other, value in needs.items()
        if value is not False
    ]
    if setting.kind is bool:
        off = setting.flag.replace("--", "--no-")
        assert [ask(*used, flag).config.value(setting.name) for flag in (setting.flag, off)] == [
            True,
            False,
        ]
        return
    texts = {int: "3", float: "0.25", str: setting.choices[-1] if setting.choices else "text"}
    spaced, joined = (
        ask(*used, *flag)
        for flag in (
            (setting.flag, texts[setting.kind]),
            (f"{setting.flag}={texts[setting.kind]}",),
        )
    )
    assert spaced == joined
    assert str(spaced.config.value(setting.name)) == texts[setting.kind]
    assert setting.name in spaced.given


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("--name=none", "none"),
        ("--name=", None),
        ("--ray-address=", None),
        ("--mechanism=none", "none"),
    ],
)
def test_a_text_is_unset_by_an_empty_one(word, value):
    request = ask(word)
    assert [request.config.value(name) for name in request.given] == [value]


def flags_of(text: str) -> set[str]:
    """The flags that a help lists, each at the beginning of a line."""
    return set(re.findall(r"^  (?:-h [^-]*)?(--[a-z0-9-]+)", text, re.M))


def shown(capsys, *argv: str, **others) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(argv, "prog", "What it does.", **others)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_of_all_has_every_flag_with_its_default(capsys):
    text = shown(capsys, "--help", "all", own=OWN)
    settings = {setting.flag for setting in SETTINGS.values()}
    assert settings | {*OWN, "--config", "--resume"} <= flags_of(text)
    text = " ".join(text.split())
    assert "(default: 100)" in text and "(default: off)" in text and "[privacy]" in text


@pytest.mark.parametrize(
    "others", [{}, {"central": True}, {"own": OWN}], ids=["run", "central", "account"]
)
def test_help_has_what_everybody_needs_and_how_to_see_the_rest(capsys, others):
    text = shown(capsys, "--clients", "3", "--help", **others)
    assert 30 <= len(flags_of(text) - {*OWN}) <= 50
    assert {
        "--config",
        "--resume",
        "--help",
        "--mechanism",
        "--epsilon",
        "--rounds",
        "--lr",
    } <= flags_of(text)
    assert flags_of(text) >= set(others.get("own", ()))
    assert all(
        f" {topic}" in " ".join(text.partition("More flags: --help TOPIC")[2].split())
        for topic in TOPICS
    )
    assert text == shown(capsys, "-h", **others)
    assert "What it does." in text.splitlines() and text.startswith("usage: prog [--flag value")


def test_every_flag_is_in_the_help_of_a_topic_and_the_common_ones_are_in_use():
    """What everybody sees works by default, but for what a partition or a strategy of another name
    needs, or one of the user's own does not."""
    assert (
        set().union(*(names for topic, names in TOPICS.items() if topic != "all"))
        == set(SETTINGS)
        == TOPICS["all"]
    )
    assert set(SETTINGS) > COMMON and not COMMON & (
        USES.keys() - {"dirichlet", "shards_per_client"} - PRIVACY - LOCAL_TRUST - BUILT_IN
    )


BUILT_IN = {"server_lr", "server_momentum"}
LOCAL_TRUST = {"optimizer", "momentum", "weighting"}
PRIVACY = {"epsilon", "delta", "budget", "noise_multiplier", "clip_norm", "clipping"}


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("dpsur", [s.flag for s in SETTINGS.values() if s.table == "dpsur"]),
        ("dpis", [s.flag for s in SETTINGS.values() if s.table == "dpis"]),
        ("fedfed", [s.flag for s in SETTINGS.values() if s.table == "fedfed"]),
        ("ray", ["--ray-address", "--cpus-per-worker", "--gpus-per-worker"]),
        ("fedadagrad", ["--server-tau"]),
        ("fedyogi", ["--server-beta2", "--server-tau"]),
        ("fedprox", ["--proximal-mu"]),
        ("imdb", ["--word-vectors", "--train-embedding"]),
    ],
)
def test_help_of_a_part_has_its_own_flags(capsys, topic, expected):
    assert (
        flags_of(shown(capsys, "--help", topic))
        == set(expected)
        == flags_of(shown(capsys, f"--help={topic}"))
        == flags_of(shown(capsys, f"--help={topic}", "dphero"))
    )
    assert flags_of(shown(capsys, "--help")) == flags_of(shown(capsys, "--help", "--seed", topic))


@pytest.mark.parametrize(
    ("topic", "central", "parts"),
    [
        ("dpsurr", False, ["--help dpsurr", "did you mean dpsur?", "fedprox"]),
        ("fedfed", True, ["one client", "sim.run"]),
    ],
)
def test_a_topic_that_is_none_is_one_line(capsys, topic, central, parts):
    assert main_guard(lambda argv: parse(argv, "prog", "", central=central), ["--help", topic]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and all(part in err for part in parts)


def test_a_synonym_is_no_flag_and_means_one():
    flags = {s.flag[2:] for s in SETTINGS.values()} | {"config", "resume", "preset"}
    assert set(SYNONYMS.values()) <= flags and not flags & SYNONYMS.keys()
    assert len(SYNONYMS) > 100


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        *((f"--{word}", f"--{flag}") for word, flag in SYNONYMS.items()),
        *(
            (f"--{setting.name}", setting.flag)
            for setting in SETTINGS.values()
            if "_" in setting.name
        ),
        ("--Learning_Rate", "--lr"),
        ("--max_grad_norm=1", "--clip-norm"),
    ],
)
def test_what_the_field_says_is_understood_but_not_obeyed(word, flag):
    with pytest.raises(
        ValueError, match=f"^unknown flag {word.partition('=')[0]}; did you mean {flag}\\?$"
    ):
        ask(word, "3")
    with pytest.raises(ValueError, match=f"did you mean {flag}"):
        parse([word], "prog", "", central=True)


@pytest.mark.parametrize(
    ("central", "words"), [(True, "default: 256; mnist: 1024"), (False, "default: none)")]
)
def test_help_has_the_defaults_of_one_client_or_of_many(central, words):
    said = " ".join(help_text("prog", "", central).split())
    assert words in said.partition("--batch-size INT ")[2].partition("--clipping")[0]


@pytest.mark.parametrize("central", [False, True])
def test_a_default_that_the_help_tells_is_the_value_that_a_run_has(central):
    """With each data set, read back as a flag's text. Kills one that is rounded for its reader."""
    flags = build_parser("prog", "", central)._actions
    told = {a.dest: str(a.help).partition("(default: ")[2][:-1].split("; ") for a in flags}
    configs = {name: load(None, {"dataset": name}, central) for name in PRESETS}
    for setting in [one for one in SETTINGS.values() if one.name in told and one.name != "dataset"]:
        default, *others = told[setting.name]
        own = dict(other.split(": ") for other in others)
        for dataset, config in configs.items():
            said = own.get(dataset, default)
            known = {"''": None} | ({"on": True, "off": False} if setting.kind is bool else {})
            value = known[said] if said in known else setting.from_text(said)
            assert value == config.value(setting.name), (setting.name, dataset)


def test_help_loads_nothing_heavy():
    heavy = "('torch', 'numpy', 'scipy', 'flwr', 'ray', 'matplotlib', 'sklearn')"
    code = (
        f"import sys, sim.commands.flags, sim.run; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_flag_goes_over_the_file(tmp_path):
    path = tmp_path / "given.toml"
    path.write_text("[data]\nclients = 7\nmin_records = 3\n")
    data = ask("--clients=8", "--config", str(path)).config.data
    assert (data.clients, data.min_records) == (8, 3)


FAULTS = [
    ("--clinets 5", ["unknown flag --clinets", "did you mean --clients?"]),
    ("--client 5", ["unknown flag --client", "--clients"]),
    ("--clinets=5", ["unknown flag --clinets", "did you mean --clients?"]),
    ("5", ["unexpected argument '5'"]),
    ("--clients", ["--clients", "expected one argument"]),
    ("--clients --rounds 3", ["--clients", "expected one argument"]),
    ("--clients 0", ["clients is 0", "an integer of at least 1 and at most 10000000", "--clients"]),
    ("--clients ten", ["clients is 'ten'", "an integer"]),
    ("--clients none", ["clients is 'none'", "an integer"]),
    ("--fraction 0", ["fraction is 0.0", "(0, 1]"]),
    ("--fraction 1.5", ["fraction is 1.5", "(0, 1]"]),
    ("--dirichlet 0", ["dirichlet is 0.0", "above 0"]),
    ("--dirichlet -1e-3", ["dirichlet is -0.001", "above 0"]),
    ("--dirichlet inf", ["dirichlet is inf", "above 0"]),
    ("--epsilon 0", ["epsilon is 0.0", "above 0"]),
    ("--epsilon -1", ["epsilon is -1.0", "above 0"]),
    ("--epsilon nan", ["epsilon is nan", "above 0"]),
    ("--epsilon none", ["epsilon", "noise_multiplier", "--noise-multiplier"]),
    ("--delta 0", ["delta is 0.0", "[1e-300, 1)"]),
    ("--delta 1", ["delta is 1.0", "[1e-300, 1)"]),
    ("--sample-rate 0", ["sample_rate is 0.0", "(0, 1]", "--sample-rate"]),
    ("--sample-rate 2", ["sample_rate is 2.0", "(0, 1]"]),
    ("--noise-multiplier 0", ["noise_multiplier is 0", "--mechanism none"]),
    ("--noise-multiplier -1", ["noise_multiplier is -1.0", "at least 0"]),
    ("--clip-norm 0", ["clip_norm is 0.0", "a number in [1e-06, 1e+30]"]),
    ("--clip-norm 1e-7", ["clip_norm is 1e-07", "a number in [1e-06, 1e+30]"]),
    ("--rounds -3", ["rounds is -3", "at least 1"]),
    ("--rounds 0", ["rounds is 0", "at least 1"]),
    ("--steps 0", ["steps is 0", "at least 1"]),
    ("--epochs 0", ["epochs is 0.0", "(0, 1000000]"]),
    ("--steps 2 --epochs 2", ["steps is 2", "epochs is 2", "drop one"]),
    ("--lr 0", ["lr is 0.0", "above 0"]),
    ("--momentum 1", ["momentum is 1.0", "[0, 1)"]),
    ("--seed -1", ["seed is -1", "at least 0"]),
    ("--mechanism dpsdg", ["mechanism is 'dpsdg'", "did you mean dpsgd?"]),
    ("--strategy fedavgg", ["strategy is 'fedavgg'", "did you mean fedavg?"]),
    ("--engine rat", ["engine is 'rat'", "did you mean ray?"]),
    ("--device gpu", ["device is 'gpu'", "auto, cpu, cuda"]),
    ("--workers 0", ["workers is 0", "at least 1"]),
    ("--groups 0", ["groups is 0", "at least 1"]),
    ("--partition iid --dirichlet 0.5", ["--dirichlet 0.5", "--partition iid", "drop one"]),
    ("--dirichlet 1 --shards-per-client 2", ["--dirichlet", "--shards-per-client", "drop one"]),
    ("--name a/b", ["name is 'a/b'", "letters"]),
    ("--name ..", ["name is '..'", "letters"]),
    ("--config nowhere.toml", ["nowhere.toml", "cannot be read"]),
    ("--config=", ["--config is ''", "leave --config out"]),
    ("--resume nowhere", ["nowhere is no run directory"]),
    ("--preset linear-mnist", ["is for one client: use python -m sim.central"]),
    ("--resume nowhere --config x.toml", ["--config", "--resume", "drop one"]),
]


@pytest.mark.parametrize(("line", "parts"), FAULTS, ids=[line for line, _ in FAULTS])
def test_a_fault_is_one_line_and_code_2(capsys, line, parts):
    assert main_guard(lambda argv: print(ask(*argv)), line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert [part for part in parts if part not in err] == []


def test_a_switch_takes_no_value():
    """Kills one that swallows the word after it."""
    for switch in ("--json", "--quiet"):
        with pytest.raises(ValueError, match=r"^unexpected argument '5': .*a switch has none"):
            parse([switch, "5"], "prog", "", own=OWN)
        with pytest.raises(ValueError, match="a switch, which takes no value: '5'; prog --help"):
            parse([f"{switch}=5"], "prog", "", own=OWN)
    asked = parse(["--json", "--quiet", "--clients", "5"], "prog", "", own=OWN)
    assert asked.config.run.quiet and asked.config.data.clients == 5 and asked.own == {"json": True}


def test_in_development_mode_a_user_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(guard, "sys", SimpleNamespace(flags=SimpleNamespace(dev_mode=True)))
    with pytest.raises(ValueError, match="clients is 0"):
        main_guard(lambda argv: ask(*argv), ["--clients=0"])


def test_warnings_are_one_line(capsys):
    def command(argv):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = print_warning
            warnings.warn("delta is\nlarge", stacklevel=1)

    def print_warning(message, category, filename, lineno, file=None, line=None):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    assert main_guard(command, []) == 0
    assert capsys.readouterr().err == "warning: delta is large\n"


def test_a_resumed_run_keeps_its_configuration(run_dir):
    request = ask("--resume", str(run_dir), "--clients", "100", "--partition=iid")
    assert request.resume == run_dir
    assert request.config == load(run_dir / "config.toml", {})


def test_a_resumed_run_may_have_other_workers(run_dir):
    config = ask("--resume", str(run_dir), "--workers=5", "--engine", "inline", "--quiet").config
    assert (config.run.workers, config.run.engine, config.run.quiet, config.run.groups) == (
        5,
        "inline",
        True,
        2,
    )


def test_what_is_given_to_a_resumed_run_goes_before_a_library_s_defaults(run_dir):
    def asked(**given):
        return request(given, resume=str(run_dir), defaults={"workers": 7}).config.run.workers

    assert (asked(), asked(workers=3)) == (7, 3)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--clients=50", ["clients is 100", "50 was given", "leave --clients out"]),
        ("--dirichlet=0.5", ["partition is iid", "dirichlet was given"]),
        ("--epsilon=none --noise-multiplier=1", ["epsilon is 8.0", "not set was given"]),
        ("--epochs=2", ["epochs is not set", "2.0 was given"]),
        ("--groups=3", ["groups is 2", "3 was given"]),
        ("--chunk-clients=7", ["chunk_clients is", "7 was given"]),
        ("--seed=1 --workers=9", ["seed is 0", "1 was given"]),
    ],
)
def test_a_resumed_run_refuses_another_configuration(run_dir, line, parts):
    with pytest.raises(ValueError, match="a resumed run keeps its configuration") as caught:
        ask("--resume", str(run_dir), *line.split())
    assert [part for part in parts if part not in str(caught.value)] == []
