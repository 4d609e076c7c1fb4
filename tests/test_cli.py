"""The command line: every flag in both forms, and one clear line for every fault."""

import subprocess
import sys
import warnings

import pytest

from sim.config.configuration import load, save
from sim.config.fields import SETTINGS
from sim.config.flags import Request, build_parser, main_guard, parse

NAMES = """
    clients dirichlet partition dataset data-dir model mechanism strategy epsilon delta noise-multiplier clip-norm
    sample-rate rounds steps epochs fraction lr momentum seed groups workers engine device out name quiet
"""


def ask(*argv: str) -> Request:
    return parse(argv, "prog", "What it does.")


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    save(load(None, {"partition": "iid", "workers": 2, "groups": 2}), folder / "config.toml")
    return folder


def test_names_that_scripts_rely_on():
    assert {f"--{name}" for name in NAMES.split()} <= {s.flag for s in SETTINGS.values()}
    assert {"--config", "--resume"} <= set(build_parser("prog", "").format_help().replace(",", " ").split())


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.name)
def test_both_forms_of_a_flag(setting):
    if setting.kind is bool:
        off = setting.flag.replace("--", "--no-")
        assert [ask(flag).config.value(setting.name) for flag in (setting.flag, off)] == [True, False]
        return
    texts = {int: "3", float: "0.25", str: setting.choices[-1] if setting.choices else "text"}
    spaced, joined = ask(setting.flag, texts[setting.kind]), ask(f"{setting.flag}={texts[setting.kind]}")
    assert spaced == joined
    assert str(spaced.config.value(setting.name)) == texts[setting.kind]
    assert spaced.given == {setting.name}


@pytest.mark.parametrize(
    ("word", "value"),
    [("--name=none", "none"), ("--name=", None), ("--ray-address=", None), ("--mechanism=none", "none")],
)
def test_a_text_is_unset_by_an_empty_one(word, value):
    request = ask(word)
    assert [request.config.value(name) for name in request.given] == [value]


def test_help_has_every_flag_with_its_default():
    text = " ".join(build_parser("prog", "").format_help().split())
    assert all(f"{setting.flag} " in text or f"{setting.flag}," in text for setting in SETTINGS.values())
    assert "(default: 100)" in text and "(default: off)" in text and "[privacy]" in text


@pytest.mark.parametrize(("central", "words"), [(True, "default: 256; mnist: 1024"), (False, "default: none)")])
def test_help_has_the_defaults_of_one_client_or_of_many(central, words):
    said = " ".join(build_parser("prog", "", central).format_help().split())
    assert words in said.partition("--batch-size INT ")[2].partition("--clipping")[0]


def test_help_loads_nothing_heavy():
    heavy = "('torch', 'numpy', 'scipy', 'flwr', 'ray', 'matplotlib', 'sklearn')"
    code = f"import sys, sim.config.flags, sim.run; print([m for m in {heavy} if m in sys.modules])"
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
    ("--clients 0", ["clients is 0", "an integer of at least 1", "--clients"]),
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
    ("--delta 0", ["delta is 0.0", "(0, 1)"]),
    ("--delta 1", ["delta is 1.0", "(0, 1)"]),
    ("--sample-rate 0", ["sample_rate is 0.0", "(0, 1]", "--sample-rate"]),
    ("--sample-rate 2", ["sample_rate is 2.0", "(0, 1]"]),
    ("--noise-multiplier 0", ["noise_multiplier is 0", "--mechanism none"]),
    ("--noise-multiplier -1", ["noise_multiplier is -1.0", "at least 0"]),
    ("--clip-norm 0", ["clip_norm is 0.0", "at least 1e-06"]),
    ("--clip-norm 1e-7", ["clip_norm is 1e-07", "at least 1e-06"]),
    ("--rounds -3", ["rounds is -3", "at least 1"]),
    ("--rounds 0", ["rounds is 0", "at least 1"]),
    ("--steps 0", ["steps is 0", "at least 1"]),
    ("--epochs 0", ["epochs is 0.0", "above 0"]),
    ("--steps 2 --epochs 2", ["steps is 2", "epochs is 2", "drop one"]),
    ("--lr 0", ["lr is 0.0", "above 0"]),
    ("--momentum 1", ["momentum is 1.0", "[0, 1)"]),
    ("--seed -1", ["seed is -1", "[0, "]),
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
    ("--resume nowhere", ["nowhere is no run directory"]),
    ("--resume nowhere --config x.toml", ["--config", "--resume", "drop one"]),
]


@pytest.mark.parametrize(("line", "parts"), FAULTS, ids=[line for line, _ in FAULTS])
def test_a_fault_is_one_line_and_code_2(capsys, line, parts):
    assert main_guard(lambda argv: print(ask(*argv)), line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert [part for part in parts if part not in err] == []


def test_the_guard_lets_success_and_bugs_through():
    assert main_guard(lambda argv: None, []) == 0
    with pytest.raises(KeyError):
        main_guard(lambda argv: {}["bug"], [])


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
    assert (config.run.workers, config.run.engine, config.run.quiet, config.run.groups) == (5, "inline", True, 2)


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
