"""Frozen networks make features record by record; training starts from given parameters."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mechanisms.randomness import generator, seed_key
from sim import run
from sim.commands.guard import main_guard
from sim.config.settings import Data
from sim.features import loading as features
from sim.features.loading import load
from sim.models.initial import start_from
from sim.models.networks import build
from sim.sources import backbones
from sim.sources.backbones import MEAN, Backbone
from sim.sources.torchvision_compat import import_torchvision
from tests.vouched import vouch

CPU = torch.device("cpu")
MODULE = """
import torch
from torch import nn

def frozen(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(108, width), nn.BatchNorm1d(width), nn.Dropout())

class Mixing(nn.Module):
    def forward(self, x):
        return x.flatten(1) - x.flatten(1).mean(0) + 1

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=False)
    def forward(self, x):
        found = x.flatten(1) + (self.seen >= 3)
        self.seen += 1
        return found

class Unmixed(Mixing):
    def forward(self, x):
        return x.flatten(1)

class Drawing(nn.Module):
    def forward(self, x):
        return x.flatten(1) + torch.rand(1)

class Wrong(nn.Module):
    def forward(self, x):
        return x.mean()

class Infinite(nn.Module):
    def forward(self, x):
        return x.flatten(1) / 0

class Failing(nn.Module):
    def forward(self, x):
        raise KeyError("layer")

def compiled():
    return torch.jit.script(frozen().eval())

def constants():
    return nn.Sequential(torch.jit.freeze(compiled()))

def number():
    return 3
"""


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An .npz of 12 + 4 images in colour of 6x6 pixels, beside a module ``nets``."""
    rng = generator(seed_key(0), "images")
    x, x_test = (rng.integers(0, 256, (n, 3, 6, 6), dtype=np.uint8) for n in (12, 4))
    labels = {"y": np.arange(12) % 3, "y_test": np.arange(4) % 3}
    np.savez(tmp_path / "images.npz", x=x, x_test=x_test, **labels)
    (tmp_path / "nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("nets", None)
    return tmp_path / "images.npz"


def settings(images: Path, network: str = "frozen", **more: object) -> Data:
    given = {"dataset": str(images), "data_dir": str(images.parent)}
    return Data(**given, features=f"nets:{network}", **more)


def kept(images: Path) -> list[Path]:
    return sorted((images.parent / "features").glob("*.npz"))


def change(images: Path, others: np.ndarray) -> None:
    """Other pixels for these training records."""
    arrays = dict(np.load(images))
    arrays["x"][others] = 255 - arrays["x"][others]
    np.savez(images, **arrays)


@pytest.mark.parametrize("network", ["frozen", "Mixing"])
def test_a_record_s_features_depend_on_that_record_alone(images: Path, network: str) -> None:
    """Even of a network that mixes what it sees together. Kills chunks, batch statistics, and
    dropout."""
    before = load(settings(images, network), CPU)
    change(images, np.arange(12) != 7)
    after = load(settings(images, network), CPU)
    same = (before.x == after.x).all(axis=1)
    assert same[7] and (network == "Mixing" or not same[np.arange(12) != 7].any())
    assert before.x.shape[0] == 12 and before.x_test.shape[0] == 4 and before.x.dtype == np.float32


def test_features_are_those_of_pixels_between_zero_and_one(images: Path) -> None:
    import nets

    pixels = np.load(images)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        network = nets.frozen(5).eval()
    found = load(settings(images, features_settings="width = 5"), CPU)
    for part in ("x", "x_test"):
        wanted = network(torch.from_numpy(pixels[part] / np.float32(255)))
        assert torch.allclose(torch.from_numpy(getattr(found, part)), wanted, atol=1e-6)
    grouped = load(settings(images, features_settings="width = 5", feature_groups=1), CPU)
    assert np.abs(grouped.x.mean(axis=1)).max() < 1e-5 < np.abs(found.x.mean(axis=1)).max()


def test_they_are_kept_until_records_code_settings_or_weights_change(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(**more: object) -> int:
        load(settings(images, **more), CPU)
        return len(kept(images))

    assert [again(), again(), again(feature_groups=2)] == [1, 1, 1]
    assert [again(features_settings="width = 4"), again(network="Mixing")] == [2, 3]
    assert again(network="Unmixed") == 4  # of the same module, and without weights as well
    change(images, np.arange(1))
    assert again() == 5
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda weight, **_: weight.data.fill_(0.5))
    assert [again(), again()] == [6, 6]
    (images.parent / "nets.py").write_text(MODULE + "\n# another version of the module")
    sys.modules.pop("nets")
    assert again() == 7


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("Counting", "changes its parameters or buffers from record to record"),
        ("Drawing", "makes other features of a record when it is called again"),
        ("Wrong", r"makes \(\) of one record, not numbers \[1, ...\]"),
        ("Infinite", "not finite"),
        ("Failing", r"cannot be run on a record of shape \(3, 6, 6\) \(KeyError: 'layer'\)"),
        ("compiled", "has a module of TorchScript, whose weights may be constants"),
        ("constants", "has a module of TorchScript, whose weights may be constants"),
        ("number", "makes a int: name a class or function that makes a torch.nn.Module"),
        ("MODULE", "has no 'MODULE'"),
        ("torch", "is a module: name a class"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_network_that_is_none_is_refused_and_nothing_is_kept(
    images: Path, network: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        load(settings(images, network), CPU)
    assert not (images.parent / "features").exists() or not kept(images)


def test_word_numbers_have_no_such_features(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = load(settings(images), CPU)
    monkeypatch.setattr(
        features.datasets, "load", lambda *_, **__: type(words)(**vars(words) | {"words": 9})
    )
    with pytest.raises(ValueError, match=r"takes numbers, and the records of .* are words"):
        load(settings(images), CPU)


def test_a_network_of_torchvision_is_read_from_a_file_without_its_last_layer(
    tmp_path: Path,
) -> None:
    models = importlib.import_module(f"{import_torchvision().__name__}.models")
    with torch.random.fork_rng(devices=[]):
        network = models.resnet18().eval()
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    ours = Backbone(
        "sim.sources.backbones:torchvision",
        f"network = 'resnet18', weights = '{tmp_path / 'a.safetensors'}', pixels = 40",
        CPU,
    )
    grey = torch.linspace(0, 1, 2 * 64).view(2, 1, 8, 8)
    scaled = nn.functional.interpolate(grey.repeat(1, 3, 1, 1), (40, 40), mode="bilinear")
    network.fc = nn.Identity()
    deviation = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    wanted = network((scaled - torch.tensor(MEAN)[:, None, None]) / deviation)
    assert torch.allclose(ours(grey), wanted, atol=1e-4) and wanted.shape == (2, 512)


@pytest.mark.parametrize(
    ("network", "content", "words"),
    [
        ("resnet999", {}, "has no network 'resnet999'"),
        ("squeezenet1_0", {}, "has no linear layer"),
        ("resnet18", {"a": torch.zeros(1)}, "is not of resnet18"),
        ("resnet18", b"PK", "is no .safetensors file"),
        ("resnet18", None, "is no file"),
    ],
)
def test_other_networks_and_files_are_refused(
    tmp_path: Path, network: str, content: dict | bytes | None, words: str
) -> None:
    path = tmp_path / "a.safetensors"
    if isinstance(content, dict):
        save_file(content, path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        backbones.torchvision(network, str(path))


# --- initial parameters
# --------------------------------------------------------------------------------------------


def model() -> nn.Module:
    return build("mlp", (1, 8, 8), 10, seed=1)


def written(path: Path, edit: Callable[[dict], object]) -> str:
    """A file of another model's tensors, edited."""
    tensors = {k: t.clone() for k, t in build("mlp", (1, 8, 8), 10, seed=2).state_dict().items()}
    edit(tensors)
    save_file(tensors, path / "model.safetensors")
    return str(path / "model.safetensors")


def test_training_starts_from_the_tensors_of_a_file_or_run(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = written(tmp_path, lambda tensors: None)
    with pytest.raises(ValueError, match="is not the directory of a finished run: resume the run"):
        start_from(model(), str(vouch(tmp_path)))
    for given in (path, str(vouch(tmp_path, finished=True))):
        ours = model()
        start_from(ours, given)
        assert {k: v.tolist() for k, v in ours.state_dict().items()} == {
            k: v.tolist() for k, v in load_file(path).items()
        }
    assert not recwarn


def test_buffers_start_from_a_file_too(tmp_path: Path) -> None:
    """The running mean of a frozen layer, for instance."""
    ours = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    other = {name: torch.full_like(one, 3) for name, one in ours.state_dict().items()}
    save_file(other, tmp_path / "model.safetensors")
    start_from(ours, str(tmp_path / "model.safetensors"))
    assert ours.state_dict()["1.running_mean"].tolist() == [3.0, 3.0]
    assert ours.state_dict()["1.num_batches_tracked"] == 3


def test_what_a_file_lacks_starts_as_without_it_and_is_named(tmp_path: Path) -> None:
    def edit(tensors: dict) -> None:
        tensors["3.bias"] = torch.zeros(7)
        del tensors["3.weight"]

    before, ours = model().state_dict(), model()
    with pytest.warns(UserWarning, match=r"lacks 3.weight \(10, 32\), 3.bias \(10,\): they start"):
        start_from(ours, path := written(tmp_path, edit))
    same = {name: torch.equal(tensor, before[name]) for name, tensor in ours.state_dict().items()}
    assert same == {"1.weight": False, "1.bias": False, "3.weight": True, "3.bias": True}
    assert torch.equal(ours.state_dict()["1.bias"], load_file(path)["1.bias"])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda tensors: [tensors.pop(name) for name in list(tensors)[:3]], None),
        (dict.clear, r"has no tensor of this model, whose first is 1.weight \(32, 64\)"),
        (lambda tensors: tensors["3.bias"].fill_(torch.nan), "3.bias is not finite"),
    ],
)
def test_a_file_of_another_model_is_refused(
    tmp_path: Path, edit: Callable[[dict], object], words: str | None
) -> None:
    path = written(tmp_path, edit)
    if words is None:
        with pytest.warns(UserWarning, match="lacks"):
            start_from(model(), path)
    else:
        with pytest.raises(ValueError, match=words):
            start_from(model(), path)


def test_a_run_starts_there_and_says_what_is_not_covered(
    tmp_path: Path, capsys: pytest.CaptureFixture, no_report: None
) -> None:
    """Without a step of its own: the model that is written is the one that it started from."""
    common = ("--clients=4", "--rounds=1", "--engine=inline", f"--out={tmp_path}", "--model=mlp")
    run.command([*common, "--name=public", "--mechanism=none", "--quiet"])
    run.command([*common, "--name=ours", "--lr=1e-30", f"--init-from={tmp_path / 'public'}"])
    assert "both costs add up" in " ".join(capsys.readouterr().out.split())
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("public", "ours"))
    assert all(torch.allclose(a[name], b[name], atol=1e-7) for name in a)
    status = main_guard(run.command, [*common, "--name=no", f"--init-from={tmp_path / 'absent'}"])
    assert status == 2 and "absent' does not exist: give a" in capsys.readouterr().err
    written = tmp_path / "public" / "model.safetensors"
    written.write_bytes(written.read_bytes()[:-1] + b"?")
    status = main_guard(run.command, [*common, "--name=no", f"--init-from={tmp_path / 'public'}"])
    assert status == 2 and "public/model.safetensors has been changed" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
