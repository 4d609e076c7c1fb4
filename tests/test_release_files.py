"""A release's directory holds what is public and what was charged: each file is expected, and no
record shows in it.

Two data sets that differ in one record are the law: whatever is not behind noise must be the same
for both.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from sim.commands.guard import main_guard
from sim.run import command

COMMON = (
    "--dataset data.npz --model linear --partition iid --clients 4 --groups 1 --rounds 2 "
    "--engine inline --quiet --sample-rate 0.3 --out runs --name run"
)
DPSUR = (
    "--mechanism dpsur --noise-multiplier 5 --dpsur-validation-noise 8 --steps 2 "
    "--dpsur-accounting selective"
)
SCREENING = (
    "--mechanism screening --noise-multiplier 5 --screening-data own --screening-clip 0.5 "
    "--screening-stages 2 --steps 2"
)
RUNS = {
    "dpsgd": "",
    "dpsur": DPSUR,
    "screening": SCREENING,
    "dpis": "--mechanism dpis",
    "kept state": "--keep-state --momentum 0.5",
    "standardized": "--standardize private",
    "prototypes": "--strategy fedfed",
    "distilled": "--strategy fedfed --shared-source distilled --share-budget 0.5 "
    "--distill-rounds 2",
}
NOISY = {"accuracy", "loss", "seconds", "seconds_training", "metrics"}
"""Of rounds and summaries: scores on the test part, times, and what a mechanism has released."""

NAMES = {"params", "taken", "state.velocity", "clients", "total", "clip_norm", "mean", "scale"}
"""Of the tensors of a release with hidden rejections."""

ALWAYS = {
    "config.toml",
    "inputs.json",
    "inputs.key",
    "lock",
    "manifest.json",
    "orders.json",
    "partition.npz",
    "ledger/group-0000.jsonl",
    "rounds.jsonl",
    "model.safetensors",
    "model_card.md",
    "summary.json",
    "report.html",
}


def phase(folder: str, first: int, last: int) -> set[str]:
    """The files that a phase of these rounds leaves, of which the newest two are kept."""
    rounds = range(max(first, last - 1), last + 1)
    states = {
        f"{folder}checkpoints/round-{n:06d}.{end}"
        for n in rounds
        for end in ("json", "safetensors")
    }
    return states | {
        f"{folder}uploads/round-{last:06d}-group-0000.safetensors",
        f"{folder}rounds.jsonl",
    }


BESIDE = {
    "kept state": {f"clients/group-0000/round-{n:06d}.safetensors" for n in (1, 2)},
    "standardized": phase("statistics/", -1, -1) | {"statistics.safetensors"},
    "prototypes": phase("share/", 0, 0) | {"shared.safetensors"},
    "distilled": phase("distill/", -2, -1) | phase("share/", 0, 0) | {"shared.safetensors"},
}


@pytest.fixture
def release(tmp_path, monkeypatch):
    """A function that makes a run of a small data set, in a folder of its own; one record can be
    another."""

    def run(name: str, flags: str, other: bool = False) -> Path:
        rng, folder = np.random.default_rng(0), tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        x, y = rng.normal(size=(120, 6)), np.arange(120) % 3
        x_test, y_test = x[:9].copy(), y[:9].copy()
        if other:
            x[50], y[50] = 3.0, (y[50] + 1) % 3
        np.savez("data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
        assert main_guard(command, [*COMMON.split(), *flags.split()]) == 0
        return folder / "runs" / "run"

    return run


def contents(folder: Path) -> dict[str, Path]:
    return {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }


def tensors(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, "np") as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}


def facts(path: Path) -> object:
    """What a file says that is not behind noise, no time and no score."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        planned = [
            line for line in lines if line.get("event", {}).get("kind") != "covered"
        ]  # by released sums
        named = [line | {"release": line.get("release", "").rsplit("-", 2)[0]} for line in planned]
        hidden = {*NOISY, "first", "number", "chain"}  # they follow from earlier lines' draws
        return [
            {name: value for name, value in line.items() if name not in hidden} for line in named
        ]
    if path.name == "summary.json":
        return {
            name: value
            for name, value in json.loads(path.read_text()).items()
            # digests of other files, of the ledger's names of releases, and of itself
            if name not in {*NOISY, "files", "ledger", "sha256"}
        }
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as file:
            uploaded = (file.metadata() or {}).get("upload", "")
        shapes = {name: (array.shape, array.dtype.name) for name, array in tensors(path).items()}
        plain = [
            tensors(path)[name].tolist()
            for name in ("clients", "taken", "shared.client")
            if name in shapes
        ]
        return shapes, plain, re.sub(r"[\d.]+e?-?\d*, ", "", uploaded)
    if path.name == "report.html":
        page = path.read_text()
        noisy = re.findall(
            r"<section><h2>(?:Model|Mechanism|What clients share)</h2>.*?</section>",
            page,
            re.DOTALL,
        )
        tile = re.findall(r'<div class="tile main">.*?</div></div>', page)[0]
        for part in (*noisy, tile):
            page = page.replace(part, "")
        return re.sub(r" in [\d.]+ s, finished", "", page)
    if path.name == "model_card.md":
        return re.sub(r"\| accuracy \| [\d.]+ ", "", path.read_text())
    if path.name == "inputs.json":
        return sorted(json.loads(path.read_text())), json.loads(path.read_text())["device"]
    if path.name == "manifest.json":
        entries = json.loads(path.read_text())
        del entries["sha256"], entries["files"]["inputs.json"]
        return entries
    if path.name == "orders.json":
        return json.loads(path.read_text())["orders"]
    if path.name == "inputs.key":
        return path.stat().st_size, path.stat().st_mode
    return None if path.parent.name == "checkpoints" else path.read_bytes()


@pytest.mark.parametrize("kind", RUNS)
def test_a_release_has_the_expected_files_and_what_is_not_noisy_in_them_does_not_depend_on_a_record(
    release, kind
):
    """Kills numbers of labels, a digest without a key, and a file that nobody has thought about."""
    one, two = (release(name, f"--release {RUNS[kind]}", other=name == "b") for name in "ab")
    assert (
        set(contents(one))
        == set(contents(two))
        == ALWAYS | phase("", 1, 2) | BESIDE.get(kind, set())
    )
    for name, path in contents(one).items():
        assert facts(path) == facts(contents(two)[name]), name
    assert np.load(one / "partition.npz").files == ["sizes"]
    digests = [json.loads((folder / "inputs.json").read_text())["records"] for folder in (one, two)]
    assert (
        digests[0] != digests[1]
        and (one / "inputs.key").read_bytes() != (two / "inputs.key").read_bytes()
    )


@pytest.mark.parametrize(
    ("page", "heading"),
    [("privacy.md", "## The files of a release"), ("reference/run-directory.md", "# The run")],
)
def test_pages_on_files_name_all_of_a_release(page, heading):
    """Kills a file that is written and declared nowhere."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    table = text.split(heading)[1]
    tops = {
        name.partition("/") for name in ALWAYS | phase("", 1, 2) | set().union(*BESIDE.values())
    }
    assert {top + slash for top, slash, _ in tops} <= set(re.findall(r"`([\w./]+)`", table))


def test_of_a_simulation_the_same_comparison_finds_the_labels(release):
    """The comparison is able to fail: a simulation's files are for the one who has the records
    anyway."""
    one, two = (contents(release(name, "", other=name == "b")) for name in "ab")
    differ = {name for name, path in one.items() if facts(path) != facts(two[name])}
    assert {"partition.npz", "manifest.json", "partition.svg", "report.html"} == differ


@pytest.mark.parametrize("flags", [DPSUR, SCREENING, f"{DPSUR} --keep-state --standardize private"])
def test_where_rejections_are_hidden_nothing_tells_how_many_there_were(release, flags):
    """Neither rates nor times: in no phase, no upload, no checkpoint, not in what clients keep."""
    files = contents(release("a", f"--release {flags}"))
    records = [
        line
        for name, path in files.items()
        if name.endswith("rounds.jsonl")
        for line in path.open()
    ]
    for record in map(json.loads, [*records, files["summary.json"].read_text()]):
        assert record["seconds"] is record.get("seconds_training") is None and not record.get(
            "metrics"
        )
    for name, path in files.items():
        if path.suffix == ".safetensors":
            assert set(tensors(path)) <= NAMES or name == "model.safetensors"
        if "/checkpoints/" in f"/{name}" and path.suffix == ".safetensors":
            assert len(set(tensors(path)["taken"].tolist())) == 1
        if "uploads/" in name:
            with safe_open(path, "np") as file:
                assert (
                    set(file.metadata()) == {"upload", "model", "run", "ledger", "content"}
                    and json.loads(file.metadata()["upload"])[2] == {}
                )
    page = files["report.html"].read_text()
    assert "<h2>Mechanism</h2>" not in page and re.search(r"2 of 2 rounds, finished", page)
