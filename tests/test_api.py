"""Training from Python: the command's bits and words, the caller's process as before, and a run
that can be opened."""

import contextlib
import ctypes
import inspect
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import sim
from mechanisms.accounting.events import Gaussian
from mechanisms.accounting.group import check_records
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.default_arithmetic import default_arithmetic
from server import manifest, orders, sealed_json
from server.store import Store
from sim import account, audit, central, run
from sim.commands import audit as audit_flags
from sim.commands.guard import main_guard
from sim.config.configuration import load
from sim.job.environment import SETTINGS as VARIABLES
from sim.library import api
from sim.library.caller import borrowed_process
from sim.showing import wording
from tests import unequal
from tests.folders import model
from tests.vouched import fix_orders

ROOT = Path(__file__).parent.parent
SMALL = {"clients": 6, "rounds": 2, "chunk_clients": 3}
pytestmark = pytest.mark.usefixtures("no_report")


class Net(nn.Module):
    """Found by name, as a class of a user's module is; says what it sees of the process as it is
    built."""

    seen: dict = {}  # noqa: RUF012

    class Inner(nn.Linear):
        def __init__(self, input_shape, classes):
            super().__init__(input_shape[0], classes)

    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)
        self.register_buffer("offset", torch.arange(classes))
        Net.seen = process() | {"environment": {name: os.environ.get(name) for name in VARIABLES}}

    def forward(self, x):
        return self.layer(x) + self.offset


class Broken(nn.Module):
    """Ctrl-C at a bad moment."""

    def __init__(self, classes):
        super().__init__()
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def arrays() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 8)).astype(np.float32), rng.integers(0, 3, 300)
    return x, y, x[:60] + 1, y[:60]


@pytest.fixture
def records(arrays, tmp_path) -> str:
    path = tmp_path / "records.npz"
    np.savez(path, **dict(zip(("x", "y", "x_test", "y_test"), arrays, strict=True)))
    return str(path)


def flags(settings: dict) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


# --- the same run --------------------------------------------------------------------------------


def child(module: str, settings: dict, out: Path) -> bytes:
    """The model of a command in a process of its own."""
    words = [
        sys.executable,
        "-m",
        module,
        "--quiet",
        f"--out={out}",
        "--name=child",
        *flags(settings),
    ]
    subprocess.run(words, check=True, cwd=ROOT)
    return model(out / "child")


@contextlib.contextmanager
def unusual():
    """A caller who has changed all that there is to change, and back."""
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(2)
    before, np_before = signal.signal(signal.SIGTERM, signal.SIG_IGN), np.seterr(all="raise")
    with threadpool_limits(2), torch.no_grad():
        yield
    signal.signal(signal.SIGTERM, before)
    np.seterr(**np_before)
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)


def test_the_model_is_the_commands_bit_for_bit_whatever_the_caller_has_set(tmp_path, records):
    settings = SMALL | {
        "dataset": records,
        "model": "mlp",
        "sample_rate": 0.4,
        "steps": 3,
        "momentum": 0.5,
    }
    with unusual(), torch.inference_mode(), torch.autocast("cpu"):
        result = sim.train(**settings, out=tmp_path / "out")
    assert model(result.folder) == child("sim.run", settings | {"engine": "inline"}, tmp_path)


def test_small_numbers_are_no_zeros_in_a_program_that_flushes_them():
    """Which PyTorch can be told, but not asked: runs had other bits."""
    small = torch.tensor([1e-40])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes none")
    try:
        with default_arithmetic():
            inside = float(small / 2)
        outside = float(small / 2)
    finally:
        torch.set_flush_denormal(False)
    assert inside > 0.0 == outside
    with default_arithmetic():
        pass
    assert small / 2 > 0.0


def test_one_client_on_all_records_is_the_commands_too(tmp_path, records):
    result = sim.train_central(dataset=records, rounds=2, out=tmp_path, name="api")
    argv = [f"--dataset={records}", "--rounds=2", f"--out={tmp_path}", "--name=command", "--quiet"]
    assert main_guard(central.command, argv) == 0
    assert model(result.folder) == model(tmp_path / "command")


def test_an_audit_is_the_commands(tmp_path, records):
    settings = {"dataset": records, "clients": 2, "rounds": 2, "model": "mlp", "epsilon": 4.0}
    found = sim.audit_run(canaries=40, confidence=0.9, **settings, out=tmp_path, name="api").audit
    argv = [
        "--canaries=40",
        "--confidence=0.9",
        *flags(settings),
        f"--out={tmp_path}",
        "--name=command",
        "--quiet",
    ]
    assert main_guard(audit.command, argv) == 0
    other = sealed_json.loads((tmp_path / "command" / "audit.json").read_bytes())
    of_it = {"run_dir": "", "run": ""}
    assert found.to_json() | of_it == other | of_it
    default = inspect.signature(sim.audit_run).parameters["confidence"].default
    assert default == audit_flags.parse([], "").confidence == 0.95
    assert sim.audit_run(black_box=True, **settings, out=tmp_path).audit.view == "black-box"


def test_the_call_goes_over_the_file_and_texts_are_as_in_a_file(tmp_path, records):
    path = tmp_path / "given.toml"
    path.write_text(
        f'[data]\ndataset = "{records}"\nclients = 5\nmodel = "linear"\n[rounds]\nrounds = 7\n'
    )
    config = sim.train(
        config=path, rounds=np.int64(1), epsilon=2, workers="none", out=tmp_path / "out"
    ).config
    assert [config.value(n) for n in ("clients", "rounds", "epsilon", "workers")] == [
        5,
        1,
        2.0,
        None,
    ]
    assert (config.run.engine, config.run.quiet) == ("inline", True)


def test_a_papers_settings_lie_below_the_calls(tmp_path):
    given = {"dataset": "digits", "model": "linear", "clients": 5, "rounds": 1}
    config = sim.train(preset="dphero-fedfed-mnist", **given, out=tmp_path).config
    assert (config.privacy.mechanism, config.strategy.strategy) == ("dphero", "fedfed")
    assert [config.value(name) for name in given] == list(given.values())


def test_a_file_says_which_engine_and_a_loud_run_prints(tmp_path, records, capsys):
    path = tmp_path / "given.toml"
    path.write_text('[run]\nquiet = false\nengine = "inline"\n')
    sim.train(config=path, dataset=records, **SMALL, out=tmp_path / "out")
    assert "certified epsilon" in capsys.readouterr().out


# --- the same words ------------------------------------------------------------------------------

FAULTS = [
    {"clients": 0},
    {"epsilon": -1.0},
    {"mechanism": "dpsdg"},
    {"partition": "iid", "dirichlet": 0.5},
    {"steps": 2, "epochs": 2.0},
    {"sample_rate": 0.5, "batch_size": 4},
    {"name": "a/b"},
    {"resume": "nowhere"},
    {"config": "nowhere.toml"},
    {"resume": "nowhere", "config": "x.toml"},
    {"preset": "dpsur"},
    {"dataset": "nowhere.npz"},
    {"dataset": "mnisst"},
    {"model": "no_such_module:Net"},
    {"model": "lenet", "features": "pixels"},
    {"out": "/proc/runs"},
    {"mechanism": "screening", "screening_data": "public"},
    {"noise_decay": 6.0, "rounds": 18},
    {"clients": 1, "partition": "iid", "validation_records": 1436},
]


@pytest.mark.parametrize("settings", FAULTS, ids=str)
def test_a_fault_is_said_in_the_words_of_the_command(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    engine = {} if "resume" in settings else {"engine": "inline"}
    assert main_guard(run.command, flags(settings | engine)) == 2
    with pytest.raises(ValueError) as fault:
        sim.train(**settings)
    assert capsys.readouterr().err == f"error: {' '.join(str(fault.value).split())}\n"


def test_arrays_in_a_folder_whose_name_no_file_can_hold_are_refused(tmp_path, monkeypatch):
    """Its path stands in `config.toml`: half a run directory was left, and a codec's error."""
    (tmp_path / "\udcff").mkdir()
    monkeypatch.chdir(tmp_path / "\udcff")
    with pytest.raises(
        ValueError, match=r"^out = .*out cannot be created .*: give --out a writable"
    ):
        sim.train(dataset=(np.eye(6), np.arange(6) % 2), out="out", clients=1)
    assert not list(Path("out").iterdir())


@pytest.mark.parametrize("out", ["a\0b", "\udcff"])
def test_a_folder_that_cannot_be_named_is_refused_by_its_setting(tmp_path, monkeypatch, out):
    """The first was an error without a name; the second was made, then refused by another file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^out = .* cannot be created .*: give --out a writable"):
        sim.train(clients=2, rounds=1, out=out)
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match="unknown setting clinets; did you mean clients"):
        sim.train(clinets=5)
    with pytest.raises(ValueError, match="unknown setting resum; did you mean resume"):
        sim.train(resum="x")
    with pytest.raises(ValueError, match="clients is None; it must be an integer"):
        sim.train(clients=None)
    with pytest.raises(
        ValueError, match="clients is 5, but one client that holds all records has no choice"
    ):
        sim.train_central(clients=5)
    with pytest.raises(ValueError, match="resume is 5: give a path"):
        sim.train(resume=5)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = sim.trian


# --- the caller's process ------------------------------------------------------------------------


def of_a_new_thread() -> int:
    """PyTorch's threads there, which are those that were set last anywhere."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(torch.get_num_threads).result()


def process() -> dict:
    """All that a run could have changed in the process."""
    return {
        "threads": torch.get_num_threads(),
        "threads of new threads": of_a_new_thread(),
        "pools": sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info()),
        "variables": dict(os.environ),
        "cudnn": [
            getattr(torch.backends.cudnn, name)
            for name in ("deterministic", "benchmark", "allow_tf32")
        ],
        "products": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "kernels": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "warnings": (warnings.formatwarning, list(warnings.filters)),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "hook": sys.excepthook,
        "errors": np.geterr(),
        "draws": torch.get_rng_state().tolist(),
        "path": list(sys.path),
    }


@pytest.mark.parametrize(
    ("name", "ends"),
    [("Net", None), ("Broken", KeyboardInterrupt), ("Nothing", ValueError)],
    ids=str,
)
def test_the_process_is_as_before_however_a_run_ends(tmp_path, records, monkeypatch, name, ends):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with unusual():
        before = process()
        with pytest.raises(ends) if ends else contextlib.nullcontext():
            sim.train(dataset=records, model=f"{__name__}:{name}", **SMALL, out=tmp_path)
        assert process() == before


def test_a_run_sees_a_process_as_a_command_makes_it(tmp_path, records, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    with unusual():
        sim.train(dataset=records, model=Net, **SMALL, out=tmp_path)
    seen = Net.seen
    assert (seen["threads"], {number for _, number in seen["pools"]}) == (1, {1})
    assert seen["cudnn"] == [False, False, True] and seen["precision"] == "highest"
    assert seen["kernels"] == (False, False, True)
    assert (seen["dtype"], seen["gradients"], seen["errors"]["under"]) == (
        torch.float32,
        True,
        "ignore",
    )
    assert (
        seen["environment"]["OMP_NUM_THREADS"] == "1"
        and seen["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"
    )


def test_what_a_run_changes_in_the_process_is_put_back():
    """As Ray does, and the commands; a run of the inline engine changes none of these."""
    before = process()
    with pytest.raises(KeyError), borrowed_process():
        os.environ["OMP_NUM_THREADS"], os.environ["ADDED"] = "7", "1"
        os.environ.pop("PATH")
        warnings.formatwarning = sys.excepthook = print
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        torch.set_num_threads(2)
        raise KeyError
    assert process() == before


def test_a_handler_that_is_replaced_without_pythons_knowledge_is_put_back():
    """As Ray does: a program's own was lost, and Python said that it was there."""
    heard: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
    try:
        with borrowed_process():
            ctypes.CDLL(None).signal(signal.SIGURG, None)
        os.kill(os.getpid(), signal.SIGURG)
    finally:
        signal.signal(signal.SIGURG, before)
    assert heard == [signal.SIGURG]


def test_a_run_computes_on_its_own_device_whatever_the_callers_default_is():
    """And the caller's is there again afterwards. Meta tensors have no values at all."""
    torch.set_default_device("meta")
    try:
        with borrowed_process():
            assert torch.zeros(1).device.type == torch.get_default_device().type == "cpu"
        assert torch.zeros(1).device.type == "meta"
    finally:
        torch.set_default_device(None)


def test_threads_train_one_after_the_other():
    """Else the second would take the first one's process for the caller's, and leave that
    behind."""
    before, entered = process(), threading.Event()

    def enter() -> None:  # all that a run does before its work, and in milliseconds
        with borrowed_process():
            entered.set()

    thread = threading.Thread(target=enter)
    with borrowed_process():
        thread.start()
        assert not entered.wait(2)
    thread.join()
    assert entered.is_set() and process() == before


def test_with_rays_workers_a_program_has_the_same_bits_and_its_process_back(tmp_path, records):
    settings = SMALL | {"dataset": records, "model": Net, "groups": 2, "out": tmp_path}
    before = process()
    of_ray = sim.train(**settings, engine="ray", workers=1)
    after = process()
    assert model(of_ray.folder) == model(sim.train(**settings).folder)
    for name in ("pools", "warnings", "path"):  # which Ray adds to as it is loaded
        del before[name], after[name]
    assert after == before


def test_a_ray_of_the_callers_is_left_alone(tmp_path, records, monkeypatch):
    import ray

    ended = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    with pytest.raises(ValueError, match="Ray is running in this process already"):
        sim.train(dataset=records, engine="ray", out=tmp_path)
    assert ended == []


def test_nothing_is_printed(tmp_path, arrays, capfd):
    result = sim.train(dataset=arrays, model=Net, **SMALL, out=tmp_path)
    assert ": finished, " in repr(result) and result.model() and result.report().is_file()
    assert capfd.readouterr() == ("", "")


def test_a_report_is_drawn_of_the_run_as_it_is(tmp_path):
    """A page from before the run went on, or of another run, was handed out."""
    folder = unequal.run_directory(tmp_path / "run")
    (folder / "report.html").write_text("of another run")
    assert "Privacy spent" in sim.Result(folder).report().read_text()


# --- arrays --------------------------------------------------------------------------------------


def test_a_run_of_arrays_is_a_run_of_their_file(tmp_path, arrays, records):
    settings = SMALL | {"model": "mlp"}
    of_arrays = sim.train(dataset=arrays, **settings, out=tmp_path / "a")
    of_tensors = sim.train(
        dataset=[torch.as_tensor(a) for a in arrays], **settings, out=tmp_path / "a", name="t"
    )
    of_file = sim.train(dataset=records, **settings, out=tmp_path / "b")
    assert model(of_arrays.folder) == model(of_tensors.folder) == model(of_file.folder)
    (kept,) = (tmp_path / "a" / "datasets").glob("*.npz")
    assert of_arrays.config.data.dataset == of_tensors.config.data.dataset == str(kept)
    argv = ["--config", str(of_arrays.folder / "config.toml"), f"--out={tmp_path}", "--name=again"]
    assert main_guard(run.command, argv) == 0
    assert model(tmp_path / "again") == model(of_arrays.folder)


def test_the_name_of_arrays_tells_nothing_and_their_file_is_their_owners(tmp_path, arrays):
    """A plain digest in config.toml would confirm a guess of the last record."""
    names = set()
    for out in (tmp_path / "a", tmp_path / "b"):
        path = Path(sim.train(dataset=arrays, **SMALL, out=out).config.data.dataset)
        names.add(path.name)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert {file.suffix for file in path.parent.iterdir()} == {".npz", ".key"}
    assert len(names) == 2


def test_two_arrays_have_a_test_part_held_out_and_other_arrays_another_file(tmp_path, arrays):
    results = [sim.train(dataset=arrays[:2], **SMALL, out=tmp_path, name="two")]
    results += [sim.train(dataset=arrays, **SMALL, out=tmp_path, name="four")]
    results += [sim.train(dataset=(arrays[0], 2 - arrays[1]), **SMALL, out=tmp_path, name="other")]
    assert len({result.config.data.dataset for result in results}) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x,), "dataset is a tuple of 1: give"),
        (lambda x, y: x, "dataset is a ndarray: give a name, a path, or arrays"),
        (lambda x, y: (x, y + 0.5), "dataset: y has dtype float64"),
        (lambda x, y: (x, y[1:]), "dataset: x holds 300 records, y 299 labels"),
        (lambda x, y: (x * np.nan, y), "dataset: x.* not finite"),
        (lambda x, y: ([[1, 2], [3]], y), "dataset: x is no array of numbers"),
        (lambda x, y: (x, y, x[:, 1:], y), "dataset: x_test has records of shape"),
    ],
)
def test_faulty_arrays_are_refused_before_anything_is_kept(tmp_path, arrays, change, words):
    with pytest.raises(ValueError, match=words):
        sim.train(dataset=change(*arrays[:2]), out=tmp_path / "out")
    assert not (tmp_path / "out" / "datasets").exists()


@pytest.mark.parametrize("again", [True, False])
def test_a_run_of_arrays_goes_on_where_it_was_in_any_folder(tmp_path, arrays, monkeypatch, again):
    monkeypatch.chdir(tmp_path)
    whole = sim.train(dataset=arrays, **SMALL, out="runs", name="whole")
    with stopped_after(1), pytest.raises(KeyboardInterrupt):
        sim.train(dataset=arrays, **SMALL, out="runs", name="part")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    part = sim.Result(tmp_path / "runs" / "part")
    assert not part.finished and len(part.rounds) == 1
    assert model(
        sim.train(resume=part.folder, **({"dataset": arrays} if again else {})).folder
    ) == model(whole.folder)


@contextlib.contextmanager
def stopped_after(rounds: int):
    """Ctrl-C after so many rounds."""
    save = Store.save

    def saved(self, checkpoint):
        save(self, checkpoint)
        if checkpoint.round == rounds:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save", saved)
        yield


# --- classes -------------------------------------------------------------------------------------


def test_a_class_goes_by_its_name(tmp_path, records):
    settings = SMALL | {"dataset": records, "out": tmp_path}
    results = [
        sim.train(**settings, model=kind, name=n)
        for n, kind in (("a", Net), ("b", f"{__name__}:Net"))
    ]
    assert [r.config.data.model for r in results] == [f"{__name__}:Net"] * 2
    assert model(results[0].folder) == model(results[1].folder)
    nested = sim.train(**settings, model=Net.Inner)
    assert isinstance(nested.model(), Net.Inner)


def test_a_class_that_no_name_leads_to_is_refused():
    class Local(nn.Module):
        pass

    other = type("Net", (nn.Module,), {"__module__": __name__})
    lost = type("Net", (nn.Module,), {"__module__": "no_such_module"})
    for kind in (Local, other, lost):
        with pytest.raises(
            ValueError, match=r"cannot be found as .*: define the class at the top level"
        ):
            sim.train(model=kind)
    with pytest.raises(ValueError, match="dict is no torch"):
        sim.train(model=dict)


SCRIPT = """
    import sys
    import numpy as np
    from torch import nn
    import sim
    from sim.engines import session

    session.write_report = lambda folder: folder  # which takes it most of its time

    class Net(nn.Module):
        def __init__(self, input_shape, classes):
            super().__init__()
            self.layer = nn.Linear(input_shape[0], classes)

        def forward(self, x):
            return self.layer(x)

    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    wanted = {"model": Net, "dataset": (x, y), "clients": 2, "min_records": 2}
    wanted |= {"out": "runs", "name": "one"}
    if sys.argv[1] == "start":
        sim.train(rounds=2, engine="inline", **wanted)
        sim.train(engine="ray", **wanted)
    else:
        result = sim.train(resume="runs/one")
        assert type(result.model()) is Net and len(result.rounds) == 2
"""


def test_a_class_of_a_notebook_or_a_script_works_there_and_elsewhere_the_error_says_so(
    tmp_path, capsys
):
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCRIPT))

    def script(word: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "mine.py", word]
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True)

    assert "which the workers of engine = ray cannot import" in script("start").stderr
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "runs" / "one" / name).unlink()
    (done := script("resume")).check_returncode()
    assert done.stdout == ""
    assert (
        main_guard(run.command, ["--resume", str(tmp_path / "runs" / "one"), "--engine=inline"])
        == 2
    )
    assert "it was defined in a notebook or a script" in capsys.readouterr().err


# --- results -------------------------------------------------------------------------------------


def test_a_result_is_what_the_files_of_the_run_say(tmp_path, records):
    result = sim.train(dataset=records, model="mlp", **SMALL, epsilon=3, out=tmp_path)
    summary = sealed_json.loads((result.folder / "summary.json").read_bytes())
    written = {"manifest.json", "model.safetensors", "model_card.md", "rounds.jsonl"}
    assert set(summary.pop("files")) == written
    assert summary.pop("ledger").keys() == {"group-0000.jsonl", "group-0001.jsonl"}
    assert result.finished and result.summary.to_json() == summary
    assert result.epsilon == max(summary["epsilon_certified"]) and 2.9 < result.epsilon <= 3
    assert result.accuracy == summary["accuracy"] == result.rounds[-1].accuracy
    assert [record.round for record in result.rounds] == [1, 2]
    assert str(sim.Result(str(result.folder))) == str(result) and result.audit is None


def test_epsilon_is_that_of_the_client_who_has_spent_most(tmp_path, records):
    """Clients of different sizes, at different rates, under noise that is given."""
    unequal = {"partition": "quantity", "batch_size": 5, "noise_multiplier": 2, "epsilon": None}
    result = sim.train(dataset=records, **SMALL, **unequal, out=tmp_path)
    assert (
        result.epsilon
        == max(result.summary.epsilon_certified)
        > min(result.summary.epsilon_certified)
    )


@pytest.mark.parametrize("finished", [True, False])
def test_the_model_is_the_last_one(tmp_path, arrays, finished):
    """Its accuracy is that of the last round's record."""
    with (
        contextlib.nullcontext() if finished else stopped_after(2),
        contextlib.suppress(KeyboardInterrupt),
    ):
        sim.train(
            dataset=arrays, model="mlp", clients=6, rounds=3, lr=5.0, out=tmp_path, name="one"
        )
    result = sim.Result(tmp_path / "one")
    with unusual():
        module = result.model()
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())
    right = module(torch.from_numpy(arrays[2])).argmax(dim=1) == torch.from_numpy(arrays[3])
    assert right.double().mean().item() == pytest.approx(result.accuracy) and not module.training
    assert result.finished is finished and result.accuracy == result.rounds[-1].accuracy
    if finished:  # its file is enough, as where checkpoints were thrown away
        shutil.rmtree(tmp_path / "one" / "checkpoints")
        again = result.model().state_dict()
        assert all(torch.equal(own, again[name]) for name, own in module.state_dict().items())


def test_epsilon_of_a_run_that_goes_on_counts_what_its_ledger_has(tmp_path, records, capsys):
    """Also a round that was begun and never finished, of which no record is written."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("server.loop._advance", interrupt)
        sim.train(dataset=records, **SMALL, noise_multiplier=2, out=tmp_path, name="one")
    result = sim.Result(tmp_path / "one")
    assert result.rounds == [] and result.accuracy is None and result.summary is None
    assert main_guard(account.command, ["--ledger", str(result.folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert result.epsilon == max(client["epsilon_certified"] for client in said["clients"]) > 0
    with pytest.raises(ValueError, match="no finished round"):
        result.model()
    (result.folder / "orders.json").unlink()
    with pytest.raises(ValueError, match="has no Renyi order"):
        _ = result.epsilon


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_epsilon_of_an_unfinished_run_is_the_largest_of_its_clients(tmp_path):
    """At each client's own order. Kills the smallest, and that of the first client."""
    folder = unequal.run_directory(tmp_path / "run", finished=False)
    fix_orders(folder, [{"orders": [8.0], "clients": "0,2-4"}, {"orders": [12.0], "clients": "1"}])
    for client, noise in enumerate((5.0, 2.1, 9.0)):
        with Ledger(folder / "ledger" / f"group{client}.jsonl") as ledger:
            ledger.charge("round-1", 1, [client], {Gaussian(noise): 1})
    paid = read(folder / "ledger")[1]
    own = orders.running(paid, 2e-6, (12.0,), 9.5).epsilon
    assert sim.Result(folder).epsilon == own
    shown = f"{own:.4g}"
    assert float(shown) < own  # to the nearest, it would be no guarantee
    figures = f"3 rounds, accuracy 0.4300, epsilon {wording.epsilon(own)}"
    assert repr(sim.Result(folder)) == f"Result({str(folder)!r}: not finished, {figures})"


def test_without_privacy_epsilon_is_infinite(tmp_path, records):
    assert sim.train(dataset=records, mechanism="none", **SMALL, out=tmp_path).epsilon == float(
        "inf"
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sim.price(records=600, clients=2, orders=2), "orders = 2 must be a list"),
        (lambda: sim.audit_run(canaries=2.5), "canaries = 2.5 must be a whole number from 1 to"),
        (lambda: sim.audit_run(canaries="20"), "canaries = '20' must be a whole number from 1 to"),
        *((lambda n=n: check_records(n), f"group = {n!r} must be a") for n in ("a", None, 1.5, 0)),
    ],
)
def test_what_is_no_number_is_named_with_its_bounds(call, said, tmp_path, monkeypatch):
    """Nor is anything written. Kills a door that passes it on to arithmetic."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_settings_of_a_plug_in_are_written_as_a_file_has_them():
    """Numbers of NumPy too, and those that JSON has not. Kills JSON in the place of TOML."""
    given = {"a": np.float32(0.5), "b": True, "c": 'x"\n', "d": [1, 2.5], "e": math.inf}
    text = api._value("strategy_settings", given)
    assert tomllib.loads(f"all = {{ {text} }}")["all"] == given and "\n" not in text
    for value in (None, {"a": 1}, object()):
        with pytest.raises(ValueError, match=r"^strategy_settings: a = .* has no form in a file"):
            api._value("strategy_settings", {"a": value})


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no run directory"):
        sim.Result(tmp_path)


def test_a_resumed_run_takes_the_engine_of_the_call(tmp_path, records):
    folder = tmp_path / "one"
    argv = [
        f"--dataset={records}",
        *flags(SMALL),
        "--engine=inline",
        f"--out={tmp_path}",
        "--name=one",
        "--quiet",
    ]
    assert main_guard(run.command, argv) == 0
    path = folder / "config.toml"
    path.write_text(path.read_text().replace('engine = "inline"', 'engine = "ray"'))
    assert load(path, {}).run.engine == "ray"
    began = sealed_json.loads((folder / "manifest.json").read_bytes())
    began["files"]["config.toml"] = manifest.digest(path)
    (folder / "manifest.json").write_bytes(sealed_json.dumps(began))
    named = {"run": manifest.run_of(folder)}
    for path in [folder / "orders.json", *folder.glob("checkpoints/*.json")]:
        entries = sealed_json.loads(path.read_bytes()) | named
        if "files" in entries:
            entries["files"]["orders.json"] = manifest.digest(folder / "orders.json")
        path.write_bytes(sealed_json.dumps(entries))
    assert sim.train(resume=folder).finished


@pytest.mark.parametrize(
    "given", [{"records": [40, 50]}, {"records": 60, "orders": [2.0, 3.5]}, {}]
)
def test_a_price_is_that_of_the_command(given, capsys):
    common = {"clients": 2, "batch_size": 20, "rounds": 3, "epsilon": 2.0, "delta": 1e-4}
    found = sim.price(**given, **common)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in common.items()]
    for name, value in given.items():
        words.append(f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}")
    assert main_guard(account.command, [*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))


def test_a_price_is_of_the_preset_and_of_what_is_given_beside_it():
    """Kills a price without the preset, and a preset that goes over what is given."""
    found = sim.price(preset="dpsur-pvldb-mnist", central=True, records=60_000, epsilon=2.0)
    assert (found["mechanism"], found["dpsur_beta"], found["epsilon_target"]) == (
        "dpsur",
        -1.0,
        2.0,
    )
    assert found["sample_rate"] == pytest.approx(1024 / 60_000)


def test_a_price_of_wrong_sizes_is_refused_in_the_words_of_the_command():
    with pytest.raises(ValueError, match="--records has 2 numbers, the smallest 4, for 3 clients"):
        sim.price(clients=3, records=[4, 5])


@pytest.mark.parametrize("sizes", [600.5, "600", [600, None], [[600, 600]]])
def test_a_price_is_of_whole_numbers_of_records_of_any_kind(sizes):
    """Kills sizes of other programs' kinds refused, and parts of records cut off."""
    settings = {"clients": 2, "batch_size": 20, "epsilon": 2.0}
    alike = [600, np.int32(600), np.array(600), (600, 600), np.array([600, 600])]
    first, *others = (sim.price(records=one, **settings) for one in alike)
    assert all(other == first for other in others)
    with pytest.raises(ValueError, match=r"records = .*600.* must be whole numbers"):
        sim.price(records=sizes, **settings)


@pytest.mark.parametrize(
    "orders", [[1], [2, 1e9], [float("inf")], [None], ["2"], "2", [[2]], 2, [2j]]
)
def test_a_price_is_at_orders_that_the_command_takes(orders):
    """Kills a curve at an order of 1e9, a sum of as many terms, and orders that no JSON holds."""
    settings = {"records": 600, "clients": 2, "batch_size": 20, "epsilon": 2.0}
    assert json.dumps(sim.price(orders=np.array([2, 4], dtype=np.float32), **settings))
    with pytest.raises(ValueError, match=r"orders = .* must be a list of Renyi orders above 1"):
        sim.price(orders=orders, **settings)


@pytest.mark.parametrize(
    ("ask", "given", "said"),
    [
        (sim.audit_run, {"confidence": "0.9"}, "confidence = '0.9' must be in"),
        (sim.audit_run, {"confidence": None}, "confidence = None must be in"),
        (sim.audit_run, {"black_box": "no"}, "black_box is 'no': give True or False"),
        (sim.audit_run, {"resume": "x"}, "resume is 'x', but nothing is resumed"),
        (sim.audit_run, {"canaries": True}, "canaries is True: give a whole number"),
        (sim.train, {"preset": 3}, "preset is 3: give a name"),
        (sim.train, {"resume": 3}, "resume is 3: give a path"),
        (sim.train, {"config": b"x"}, "config is b'x': give a path"),
        (sim.Result, {"folder": 3}, "folder is 3: give a path"),
        (sim.Result, {"folder": None}, "folder is None: give a path"),
        (sim.to_group_norm, {"module": 3}, "module is 3: give a torch.nn.Module"),
        (sim.to_group_norm, {"module": torch.nn.Linear}, "Linear'>: give a torch.nn.Module"),
        (sim.price, {"central": "no"}, "central is 'no': give True or False"),
        (sim.price, {"resume": "x"}, "resume is 'x', but nothing is resumed"),
        (sim.price, {"records": 10**13}, "records = 10000000000000 must be whole numbers of at mo"),
    ],
)
def test_a_value_of_another_kind_is_refused_before_anything_is_trained(
    tmp_path, monkeypatch, ask, given, said
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        ask(**given)
    assert not any(Path("runs").glob("*"))


def test_a_confidence_of_numpy_is_a_number(tmp_path):
    """Kills a training that ends without its result, as JSON has no such number."""
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    settings = {"dataset": (x, y), "model": "linear", "clients": 1, "rounds": 1, "out": tmp_path}
    found = sim.audit_run(confidence=np.float32(0.5), canaries=4, **settings)
    assert found.audit is not None and found.audit.confidence == 0.5


def test_of_a_finished_run_the_figures_are_its_summary_s(tmp_path):
    """No two figures agree. Kills the first client or round, a last round that stands for the
    summary, and a client without a guarantee who counts as nothing."""
    done = sim.Result(unequal.run_directory(tmp_path / "done"))
    assert (done.epsilon, done.accuracy, done.finished) == (7.25, 0.4321, True)
    open_ = unequal.summary(epsilon_certified=(1.0, None, 3.0))
    found = sim.Result(unequal.run_directory(tmp_path / "open", closing=open_))
    assert found.epsilon == float("inf")
    none = unequal.run_directory(tmp_path / "none", mechanism="none", epsilon=None)
    assert sim.Result(none).epsilon == float("inf")
    going = sim.Result(unequal.run_directory(tmp_path / "going", finished=False))
    assert (going.accuracy, going.finished, len(going.rounds)) == (0.43, False, 3)
