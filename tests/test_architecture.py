"""The architecture's rules, over the syntax trees of the packages; each rule is shown to find a
breach."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG, is_long

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "mechanisms": {"mechanisms"},
    "client": {"mechanisms", "client"},
    "strategies": {"mechanisms", "strategies"},
    "server": {"mechanisms", "client", "strategies", "server"},
    "sim": {"mechanisms", "client", "strategies", "server", "sim"},
}
"""Imports go one way: mechanisms <- client, strategies <- server <- sim."""
OURS = {*MAY_IMPORT, "tests", "benchmarks"}

STAGES = (
    *("config", "commands", "drawing", "showing", "comparing", "serving", "tracking", "verifying"),
    *("sources", "data", "features", "models", "job", "phases", "engines", "auditing", "benching"),
    *("attacking", "library"),
)
"""The folders of `sim`: each imports itself and those before it. The commands import all."""

FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, FULLEST_FOLDER = 320, 60, 12
RIM = {"client/mod.py", *(f"sim/engines/{file}.py" for file in ("cluster", "ray_grid", "worker"))}
"""Beside the apps, the only files that know Ray or Flower."""

NUMPY_RANDOM = {"Generator", "Philox", "SeedSequence", "BitGenerator", "bit_generator"}
_DRAWS = """
    rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like
    randint_like normal_ uniform_ bernoulli_ exponential_ random_ log_normal_ cauchy_ geometric_
    trunc_normal_
"""
DRAWS = set(_DRAWS.split())
GLOBAL_STATE = {"manual_seed", "seed", "default_generator", "set_rng_state", "fork_rng"}
DOCUMENTED = {
    ("sim/phases/generator.py", "torch.random.fork_rng"),
    ("strategies/app.py", "random"),
    *(
        (f"sim/{file}.py", name)
        for file in ("models/networks", "models/own", "sources/backbones")
        for name in (
            "torch.default_generator",
            "torch.default_generator.manual_seed",
            "torch.random.fork_rng",
        )
    ),
}
"""A user's model class draws its initial weights from PyTorch's generator, and layers draw some as
they are made, which are drawn anew; Flower's strategies pick nodes by Python's, which decides
nothing. The generator is given back as it was."""

Rule = Callable[[str, ast.Module], Iterator[str]]


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every import with the full names that it may load, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, "." * node.level + (node.module or "")


def one_way(file: str, tree: ast.Module) -> Iterator[str]:
    allowed = MAY_IMPORT[file.partition("/")[0]]
    for node, name in imported(tree):
        top = name.partition(".")[0]
        if name.startswith(".") or (top in OURS and top not in allowed):
            yield f"{node.lineno}: imports {name}"


def accounting_alone(file: str, tree: ast.Module) -> Iterator[str]:
    """Whoever reads the accounting need read nothing else."""
    for node, name in imported(tree):
        known = name.startswith("mechanisms.accounting") or name in (
            "mechanisms.durable",
            "mechanisms.journal",
        )
        if (
            file.startswith("mechanisms/accounting/")
            and name.partition(".")[0] in OURS
            and not known
        ):
            yield f"{node.lineno}: imports {name}"


def second_path_alone(file: str, tree: ast.Module) -> Iterator[str]:
    """What verifies the accountant shares nothing with it but the events' fields."""
    arithmetic = file.startswith("sim/verifying/") and not file.endswith("/session.py")
    for node, name in imported(tree):
        ours = arithmetic and name.partition(".")[0] in OURS
        events = name == "mechanisms.accounting" and [a.name for a in node.names] == ["events"]
        if ours and not (events or name.startswith("sim.verifying")):
            yield f"{node.lineno}: imports {name}"


def by_stage(file: str, tree: ast.Module) -> Iterator[str]:
    """No folder of `sim` knows one that comes later, nor the commands."""
    own = file.split("/")[1] if file.startswith("sim/") and file.count("/") > 1 else None
    for node, name in imported(tree):
        if own is None or name.partition(".")[0] != "sim":
            continue
        names = [name.split(".")[1]] if "." in name else [alias.name for alias in node.names]
        known = STAGES[: STAGES.index(own) + 1]
        yield from (f"{node.lineno}: imports sim.{one}" for one in names if one not in known)


def engines_at_the_rim(file: str, tree: ast.Module) -> Iterator[str]:
    for node, name in imported(tree):
        if name.partition(".")[0] in ("flwr", "ray") and not (
            file.endswith("/app.py") or file in RIM
        ):
            yield f"{node.lineno}: imports {name}"


def short(file: str, tree: ast.Module) -> Iterator[str]:
    longest = max((node.end_lineno or 0 for node in tree.body), default=0)
    if longest > LONGEST_FILE:
        yield f"{longest} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"{node.lineno}: {node.name} has {length} lines"


def no_assert(file: str, tree: ast.Module) -> Iterator[str]:
    yield from (f"{node.lineno}: assert" for node in ast.walk(tree) if isinstance(node, ast.Assert))


WRITES = {
    *("write_text", "write_bytes", "touch", "mkdir", "rename", "symlink_to", "hardlink_to"),
    *("makedirs", "link", "symlink", "ftruncate", "truncate", "fsync"),
    *("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory", "save_file"),
}
"""Functions and methods that write, by their last name; of `open` and `replace` it depends."""
WRITERS = {"mechanisms/durable.py", "mechanisms/journal.py"}
NO_FILE_OF_OURS = {
    ("sim/commands/guard.py", "os.open(os.devnull, os.O_WRONLY)"),
}


def durable_writes(file: str, tree: ast.Module) -> Iterator[str]:
    """Whatever is written survives a crash, as two files alone write."""
    if file in WRITERS:
        return
    filled = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
        and ast.unparse(item.context_expr).startswith("durable.writing(")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (file, ast.unparse(node)) not in NO_FILE_OF_OURS:
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            if (
                (name in ("open", "ZipFile") and not _only_reads(owner, node))
                or called == "os.replace"
                or (owner == "shutil" and name != "rmtree")
                or (name == "replace" and owner and len(node.args) + len(node.keywords) == 1)
                or (name in WRITES and owner != "durable")
                or (name.startswith("savez") and ast.unparse(node.args[0]) not in filled)
            ):
                yield f"{node.lineno}: {ast.unparse(node)}"


def _only_reads(owner: str, call: ast.Call) -> bool:
    """Whether a call of ``open``, or of a method of that name, makes and changes no file."""
    if owner == "os":
        return False
    modes = [k.value for k in call.keywords if k.arg == "mode"]
    modes += call.args[1:2] if owner in ("", "io") else []
    modes += [
        one
        for one in call.args
        if isinstance(one, ast.Constant) and re.fullmatch(r"[rwaxbt+]{1,3}", str(one.value))
    ]
    return all(isinstance(mode, ast.Constant) and mode.value in ("r", "rb") for mode in modes)


def no_pickle(file: str, tree: ast.Module) -> Iterator[str]:
    """A damaged pickle can end the process, a foreign one can do anything."""
    for node, name in imported(tree):
        if name.partition(".")[0] in ("pickle", "cPickle", "dill", "joblib", "shelve", "marshal"):
            yield f"{node.lineno}: imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            reads = (owner, name) in (("np", "load"), ("np.lib.format", "read_array"))
            plain = any(ast.unparse(k) == "allow_pickle=False" for k in node.keywords)
            if (owner, name) == ("torch", "load") or (reads and not plain):
                yield f"{node.lineno}: {ast.unparse(node)}"


def named_randomness(file: str, tree: ast.Module) -> Iterator[str]:
    """Neither global generators, nor draws without a generator, nor the modules that have only a
    global one."""
    for node, name in imported(tree):
        if (file, name) in DOCUMENTED:
            continue
        if name == "random" or name.startswith("numpy.random") or name.startswith("torch.random"):
            yield f"{node.lineno}: imports {name}"
    with_generator = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(k.arg == "generator" for k in node.keywords):
            with_generator.add(node.func)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or (file, ast.unparse(node)) in DOCUMENTED:
            continue
        owner = ast.unparse(node.value)
        if owner in ("np.random", "numpy.random") and node.attr not in NUMPY_RANDOM:
            yield f"{node.lineno}: {ast.unparse(node)}"
        in_torch = owner in (
            "torch",
            "torch.nn.init",
            "nn.init",
            "torch.random",
            "torch.cuda",
        ) or node.attr.endswith("_")
        if in_torch and node.attr in DRAWS and node not in with_generator:
            yield f"{node.lineno}: {ast.unparse(node)} without a generator"
        if (
            node.attr in GLOBAL_STATE
            and owner.partition(".")[0] == "torch"
            and "Generator" not in owner
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


BREACHES: dict[Rule, list[tuple[str, str]]] = {
    one_way: [
        ("mechanisms/a.py", "from client.node import Node"),
        ("client/a.py", "def f():\n    import strategies.fedavg"),
        ("strategies/a.py", "import server"),
        ("server/a.py", "from sim import job"),
        ("sim/a.py", "import tests.small"),
        ("sim/a.py", "from . import job"),
    ],
    accounting_alone: [
        ("mechanisms/accounting/a.py", "from mechanisms import plan"),
        ("mechanisms/accounting/a.py", "def f():\n    from mechanisms.dpsgd import step"),
    ],
    second_path_alone: [
        ("sim/verifying/a.py", "from mechanisms.accounting import accountant, events"),
        ("sim/verifying/a.py", "from mechanisms.accounting.curves import rdp"),
        ("sim/verifying/a.py", "def f():\n    from sim.showing import ledger"),
    ],
    by_stage: [
        ("sim/config/a.py", "from sim.data.words import Words"),
        ("sim/phases/a.py", "def f():\n    from sim import engines"),
        ("sim/engines/a.py", "import sim.run"),
    ],
    engines_at_the_rim: [
        ("server/loop.py", "import flwr.app"),
        ("sim/engines/session.py", "def f():\n    from ray import get"),
    ],
    short: [("sim/a.py", "x = 1\n" * 321), ("sim/a.py", "def f():\n" + "    x = 1\n" * 60)],
    no_assert: [("sim/a.py", "def f(x):\n    assert x")],
    durable_writes: [
        ("sim/a.py", "open(path, 'w')"),
        ("sim/a.py", "path.open(mode='ab')"),
        ("sim/a.py", "path.open('w')"),
        ("sim/a.py", "gzip.open(path, 'wb')"),
        ("sim/a.py", "zipfile.ZipFile(path, 'w')"),
        ("sim/a.py", "open(path, mode)"),
        ("sim/a.py", "os.open(path, flags)"),
        ("client/a.py", "path.write_text('x')"),
        ("server/a.py", "os.replace(part, path)"),
        ("server/a.py", "part.replace(path)"),
        ("sim/a.py", "part.rename(path)"),
        ("sim/a.py", "folder.mkdir()"),
        ("sim/a.py", "shutil.copy(a, b)"),
        ("sim/a.py", "np.savez(path, x=x)"),
        ("sim/a.py", "with open(path, 'rb') as file:\n    np.savez(file, x=x)"),
    ],
    no_pickle: [
        ("sim/a.py", "import pickle"),
        ("sim/a.py", "def f():\n    from pickle import loads"),
        ("sim/a.py", "np.load(path)"),
        ("sim/a.py", "np.load(path, allow_pickle=True)"),
        ("sim/a.py", "np.lib.format.read_array(file)"),
        ("sim/a.py", "torch.load(path, weights_only=True)"),
    ],
    named_randomness: [
        ("sim/models/networks.py", "import random"),
        ("sim/a.py", "from random import choice"),
        ("sim/a.py", "import numpy as np\nnp.random.seed(0)"),
        ("sim/a.py", "import numpy as np\nnp.random.default_rng()"),
        ("sim/a.py", "import torch\ntorch.manual_seed(0)"),
        ("sim/a.py", "import torch\ntorch.randn(3)"),
        ("sim/a.py", "import torch\ntorch.empty(3).normal_()"),
        ("sim/a.py", "from torch import nn\nnn.init.normal_(w)"),
        ("sim/a.py", "import torch\ntorch.default_generator.manual_seed(0)"),
    ],
}


@pytest.mark.parametrize("rule", BREACHES, ids=lambda rule: rule.__name__)
def test_no_file_breaks_the_rule(rule):
    found = {str(path.relative_to(ROOT)): list(rule(*parsed(path))) for path in FILES}
    assert (
        len(found) > 40 and {file: breaches for file, breaches in found.items() if breaches} == {}
    )


@pytest.mark.parametrize(
    ("rule", "file", "code"),
    [(rule, *breach) for rule, breaches in BREACHES.items() for breach in breaches],
)
def test_the_rule_finds_a_breach(rule, file, code):
    assert list(rule(file, ast.parse(code)))


def test_folders_can_be_taken_in_at_a_glance():
    """And every folder of `sim` has its place in the order."""
    counts = Counter(path.parent for path in FILES if path.is_relative_to(ROOT / "sim"))
    assert max(counts.values()) <= FULLEST_FOLDER
    assert {(*path.relative_to(ROOT).parts, "")[1] for path in counts} == {"", *STAGES}


def test_what_is_allowed_is_no_breach():
    code = (
        "import torch, numpy as np\ng = torch.Generator().manual_seed(0)\nx = "
        "torch.randn(3, generator=g)\n"
    )
    code += "x.normal_(generator=g)\ny = np.random.Generator(np.random.Philox(key=1)).normal()\n"
    assert [
        *named_randomness("sim/a.py", ast.parse(code)),
        *one_way("sim/a.py", ast.parse("import server")),
    ] == []


@functools.cache
def parsed(path: Path) -> tuple[str, ast.Module]:
    return path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def loaded_by(*modules: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after importing these."""
    names = "{name.partition('.')[0] for name in sys.modules}"
    code = f"import sys, {', '.join(modules)}; print(*{names})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_a_run_without_the_ray_engine_loads_neither_flower_nor_ray():
    assert not loaded_by("sim.engines.session", "sim.phases.build", "sim.report") & {"flwr", "ray"}


NEEDED = {
    "torch": "training",
    "torchgen": "torch",
    "numpy": "data and sums",
    "pydantic": "settings",
    "pydantic_core": "pydantic",
    "annotated_types": "pydantic",
    "typing_extensions": "pydantic",
    "typing_inspection": "pydantic",
    "scipy": "its functions of the gamma and normal laws, by which noise is calibrated",
    "charset_normalizer": "scipy, which loads all of NumPy",
    "safetensors": "models and uploads on disk",
    "tomli_w": "the run's config.toml",
    "threadpoolctl": "one thread for BLAS",
    "rich": "the live line",
}
"""What a run loads by the end of its first round, and what for."""
FIRST_ROUND = """
import os, sys
before = {*sys.modules, *sys.stdlib_module_names}
from server.store import Store
def first(store, record):
    print(*(name for name in sys.modules if name not in before), flush=True)
    os._exit(0)
Store.append = first
from sim.run import command
command(sys.argv[1:])
"""
LIBRARY = re.compile(r"_?cython|_cyutility|_sysconfigdata|__mp_main__|.*__mypyc")
"""Modules that compiled libraries make at run time."""


def test_a_run_loads_what_its_first_round_needs(tmp_path):
    """Of scipy one part alone, as each of the others takes a tenth of a second or more."""
    flags = ["--quiet", "--rounds=2", f"--out={tmp_path}"]
    words = [sys.executable, "-c", FIRST_ROUND, *flags]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name for name in done.stdout.split() if not LIBRARY.match(name)}
    tops = {name.partition(".")[0] for name in loaded} - {*sys.stdlib_module_names}
    assert tops - MAY_IMPORT.keys() - NEEDED.keys() == set()
    public = {name.split(".")[1] for name in loaded if re.fullmatch(r"scipy\.[a-z]+", name)}
    assert public == {"special", "version"}


def test_accounting_loads_no_torch():
    accounting = [
        f"mechanisms.accounting.{path.stem}"
        for path in (ROOT / "mechanisms/accounting").glob("*.py")
    ]
    assert len(accounting) > 15
    assert not loaded_by(*accounting, "mechanisms.plan", "sim.account") & {"torch", "flwr", "ray"}


def test_the_server_and_its_strategies_do_not_know_the_simulator():
    assert "sim" not in loaded_by(
        "server.loop", "server.app", "client.node", "client.app", "strategies.fedavg"
    )


def test_the_fast_tests_use_every_package_and_long_ones_are_files():
    files = set((ROOT / "tests").glob("test_*.py"))
    long = {path for path in files if is_long(path)}
    assert len(long) == len(LONG.split())
    code = "".join(path.read_text() for path in files - long)
    assert all(
        re.search(rf"^(from|import) {package}\b", code, re.MULTILINE) for package in MAY_IMPORT
    )
