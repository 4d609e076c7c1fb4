"""The command ``dpfed``, what hides a package, the version, and the wheel: in folders of users."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import setuptools

import sim
import sim.commands.version as numbers
from sim.__main__ import COMMANDS, main
from sim.config.papers import RECIPES
from sim.hidden import LAST, PACKAGES, hiding, put_last

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DPFED = "import sys; sys.argv[0] = 'dpfed'; from sim.__main__ import script; sys.exit(script())"
RECORDS = (
    "import numpy as np; np.savez('mine.npz', x=np.arange(200.0).reshape(50, 4), y=np.arange(50) "
    "% 2)"
)
MODEL = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self, input_shape, classes):
        super().__init__(nn.Linear(input_shape[0], classes))
"""


def start(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """A program as a user starts it, who has the project on PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != LAST}
    environment |= {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def dpfed(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """The installed script; its own folder, not the current one, goes before the installed
    packages."""
    return start(folder, "-P", "-c", DPFED, *words)


# --- dpfed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_name_by_which_it_was_called(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith(f"usage: dpfed {name} ")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--clinets", "5"], 2), (["--clients", "0"], 2), (["--name", "a/b"], 2)],
    ids=str,
)
def test_a_fault_is_one_line_and_code_2(words, code, capsys):
    assert main(["run", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


def test_an_unknown_command_gets_the_nearest_one(capsys):
    assert main(["rnu"]) == 2
    assert (
        capsys.readouterr().err
        == "error: unknown command rnu; did you mean run? (dpfed --help lists all)\n"
    )


def test_help_and_version(capsys):
    assert main(["--version"]) == main(["--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"dpfed {sim.__version__}\n") and all(
        f"  {name} " in said for name in COMMANDS
    )
    assert main([]) == 2 and sim.__version__ == PROJECT["project"]["version"]


def test_the_account_is_asked_like_the_others(capsys):
    words = "account dpsgd --sample-rate=0.01 --noise-multiplier=1.1 --steps=10 --json"
    assert main(words.split()) == 0 and '"epsilon_certified"' in capsys.readouterr().out


def test_the_module_is_the_command(tmp_path):
    done = start(tmp_path, "-m", "sim", "report", "--help")
    assert done.stdout.startswith("usage: python -m sim report ") and done.returncode == 0


def test_nothing_heavy_is_loaded_before_it_is_used(tmp_path):
    code = (
        "import sys, sim, sim.__main__, sim.hidden; dir(sim), sim.__version__; print(*sys.modules)"
    )
    loaded = start(tmp_path, "-P", "-c", code).stdout.split()
    assert "sim" in loaded and not {"torch", "numpy", "pydantic", "flwr", "ray", "argparse"} & set(
        loaded
    )


# --- hidden packages -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("command", ["sim.run", "sim"])
@pytest.mark.parametrize("kind", ["module", "package", "folder"])
def test_what_hides_a_package_is_said_in_one_line(tmp_path, name, command, kind):
    if kind == "module":
        path = tmp_path / f"{name}.py"
        path.write_text("")
    else:
        path = tmp_path / name
        path.mkdir()
        if kind == "package":
            (path / "__init__.py").write_text("")
    done = start(tmp_path, "-m", command, "--help")
    if kind == "folder":  # a package that is found later goes before a folder of the same name
        assert done.returncode == 0
        return
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(
        f"error: {path} hides the package {name} of {ROOT}: rename it, or use"
    )


def test_a_program_gets_an_import_error(tmp_path):
    (tmp_path / "server.py").write_text("")
    done = start(tmp_path, "-c", "import sim")
    assert (
        done.returncode == 1
        and f"ImportError: {tmp_path / 'server.py'} hides the package server" in done.stderr
    )


def test_a_folder_that_an_editable_install_is_hidden_by_is_found(tmp_path, monkeypatch):
    """Such installs are looked for last of all, after folders that are no packages."""
    (tmp_path / "somewhere").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert hiding("somewhere", ROOT) == tmp_path / "somewhere"
    assert hiding("somewhere", tmp_path) is None and hiding("no_such_package", ROOT) is None


def test_the_current_folder_goes_last_once(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/here", "/lib"])
    put_last("/here")
    assert sys.path == ["/lib", "/here"]


def test_a_package_by_another_path_of_the_same_folder_hides_nothing(tmp_path, monkeypatch):
    """As where the checkout is reached by a link. Kills paths that are compared as they are
    written."""
    (tmp_path / "real" / "elsewhere").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.syspath_prepend(str(tmp_path / "link"))
    assert hiding("elsewhere", tmp_path / "real") is None


def test_another_project_s_version_is_not_ours(tmp_path, monkeypatch):
    """Installed packages may lie in a folder with the project file of somebody else."""
    project = tmp_path / "pyproject.toml"
    place = tmp_path / "sim" / "commands" / "version.py"
    monkeypatch.setattr(numbers, "__file__", str(place))
    monkeypatch.setattr(numbers.metadata, "version", lambda name: f"installed {name}")
    ours = numbers.DISTRIBUTION
    for name, found in (("other", f"installed {ours}"), (ours, "9.8.7")):
        project.write_text(f'[project]\nname = "{name}"\nversion = "9.8.7"\n')
        assert numbers.version() == found
    project.unlink()
    assert numbers.version() == f"installed {ours}"


def crowded(folder: Path) -> None:
    """A user's folder with a model of their own, records, and names that the project has, too."""
    for name in PACKAGES:
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    (folder / "my_model.py").write_text(MODEL)
    exec(RECORDS.replace("mine.npz", str(folder / "mine.npz")), {})


RUN = (
    "--dataset=mine.npz",
    "--clients=2",
    "--rounds=1",
    "--model=my_model:Net",
    "--name=one",
    "--quiet",
)


def test_dpfed_finds_the_users_model_and_nothing_hides_a_package(tmp_path):
    """Here, and in Ray's workers, which look in the current folder first."""
    crowded(tmp_path)
    done = dpfed(tmp_path, "run", *RUN, "--engine=ray", "--workers=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "runs" / "one" / "summary.json").is_file()


EDITABLE = """
import sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{root!r}]) if path is None and name in {names} else None

sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Finder)
"""
"""As setuptools installs a project that is being worked on."""


def test_the_current_folder_goes_after_an_editable_install(tmp_path):
    crowded(tmp_path)
    install = EDITABLE.format(root=str(ROOT), names=(*PACKAGES, "sim"))
    words = ("run", *RUN, "--engine=inline")
    done = start(tmp_path, "-P", "-c", install + DPFED, *words, PYTHONPATH="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    hidden = start(tmp_path, "-c", f"{install}import sim", PYTHONPATH="")
    assert f"hides the package mechanisms of {ROOT}" in hidden.stderr


# --- the wheel -----------------------------------------------------------------------------------


def test_the_wheel_has_all_packages():
    folders = setuptools.find_packages(
        str(ROOT), include=[f"{name}*" for name in (*PACKAGES, "sim")]
    )
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {*folders, "sim.recipes"}
    assert all((ROOT / name / "py.typed").is_file() for name in (*PACKAGES, "sim"))


def test_the_command_is_installed():
    module, _, name = PROJECT["project"]["scripts"]["dpfed"].partition(":")
    assert callable(getattr(sys.modules[module], name))


@pytest.mark.slow
def test_an_installed_wheel_works_in_an_empty_folder(tmp_path):
    source, wheels, target, folder = (
        tmp_path / name for name in ("source", "wheels", "target", "empty")
    )
    folder.mkdir()
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "benchmarks"),
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [
        *pip,
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(wheels),
    ]
    subprocess.run(build, check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)

    def installed(*words: str) -> str:
        variables = os.environ | {"PYTHONPATH": str(target)}
        done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = str(target / "bin" / "dpfed")
    assert installed(script, "--version") == f"dpfed {sim.__version__}\n"
    preset = (
        "--preset=dphero-fedfed-mnist",
        "--dataset=digits",
        "--model=linear",
        "--clients=5",
        "--rounds=1",
    )
    installed(script, "run", *preset, "--engine=inline", "--quiet", "--name=one")
    assert (folder / "runs" / "one" / "summary.json").is_file()
    crowded(folder)
    installed(script, "run", *RUN[:-2], "--engine=ray", "--workers=1", "--name=two", "--quiet")
    code = "import sim, sim.config.papers as papers; print(sim.__file__, papers.RECIPES)"
    found = installed(sys.executable, "-P", "-c", code)
    assert found.split() == [str(target / "sim" / name) for name in ("__init__.py", "recipes")]
    kept = {path.name for path in (target / "sim" / "recipes").rglob("*.toml")}
    assert kept == {path.name for path in RECIPES.rglob("*.toml")} and re.search(
        r"mnist", " ".join(kept)
    )
    assert len(list(target.rglob("py.typed"))) == len(PACKAGES) + 1
