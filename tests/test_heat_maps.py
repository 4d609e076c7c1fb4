"""Heat maps: the maths against closed forms and finite differences, the picture against its parts,
and the command on trained runs."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sim
from sim.commands.guard import main_guard
from sim.data import dataset as datasets
from sim.drawing.overlays import overlays
from sim.drawing.plot import svg
from sim.library.heat_maps import FILE, NOTE, first_of_classes, write_heat_maps
from sim.library.result import Result
from sim.models.class_maps import class_maps
from sim.phases import statistics
from sim.report import command
from sim.showing import wording
from tests import unequal
from tests.folders import contents

pytestmark = pytest.mark.usefixtures("no_report")
RNG = np.random.default_rng(5)


class Small(nn.Sequential):
    """Two convolutions on images of 8x8, the last of which has 3x3 pixels."""

    def __init__(self, classes: int = 10, channels: int = 1):
        super().__init__(
            *(nn.Conv2d(channels, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
            *(nn.Conv2d(3, 4, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, classes)),
        )


class Backwards(nn.Module):
    """Makes its last convolution first, and calls it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.early = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(1, 2, 3, padding=1)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        once = self.late(self.early(x).tanh())
        return self.head(self.late(once.tanh()).tanh().mean(dim=(2, 3)))


def images(count: int, channels: int = 1, side: int = 8) -> torch.Tensor:
    shape = (count, channels, side, side)
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape))


def enlarged(small: np.ndarray, side: int) -> np.ndarray:
    """Bilinear interpolation ``[h, h]`` to ``[side, side]``, pixel by pixel, edges repeated."""
    high = len(small)
    found = np.zeros((side, side))
    for i, j in np.ndindex(side, side):
        y, x = (min(max((at + 0.5) * high / side - 0.5, 0), high - 1) for at in (i, j))
        for a, b in np.ndindex(high, high):
            found[i, j] += max(0, 1 - abs(y - a)) * max(0, 1 - abs(x - b)) * small[a, b]
    return found


def by_differences(front, back, x: torch.Tensor, label: int) -> np.ndarray:
    """One record's map ``[H, W]``: alpha_k from the score's change as all of A_k is raised."""
    step = 1e-5
    with torch.no_grad():
        activations = front(x[None])
        alpha = []
        for channel in range(activations.shape[1]):
            raised = torch.zeros_like(activations)
            raised[:, channel] = step
            up, down = (back(activations + sign * raised)[0, label] for sign in (1, -1))
            alpha.append(float(up - down) / (2 * step) / activations[0, 0].numel())
    small = np.maximum(np.tensordot(alpha, activations[0].numpy(), axes=1), 0)
    found = enlarged(small, x.shape[-1])
    return found / found.max() if found.max() > 0 else found


# --- the maps ------------------------------------------------------------------------------------


def test_of_a_linear_head_the_map_is_known():
    """With kernels of one pixel nothing is enlarged: A = w x + b, and d y / d A is the head."""
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(3 * 25, 4)).double()
    x, classes = images(20, channels=2, side=5), torch.arange(20) % 4
    kernel, bias, head = (
        tensor.detach().numpy() for tensor in (*model[0].parameters(), model[2].weight)
    )
    maps = class_maps(model, x, classes).numpy()
    assert maps.shape == (20, 5, 5) and (maps.max(axis=(1, 2)) == 1).sum() > 10
    for own, record, label in zip(maps, x.numpy(), classes, strict=True):
        activations = np.tensordot(kernel[:, :, 0, 0], record, axes=1) + bias[:, None, None]
        alpha = head[label].reshape(3, 25).mean(axis=1)
        expected = np.maximum((alpha[:, None, None] * activations).sum(axis=0), 0)
        assert np.allclose(own, expected / (expected.max() or 1), atol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_map_is_what_finite_differences_say(frozen):
    """Kills another layer, activations after their overwriting ReLU, another enlargement, and
    weights that must not be frozen."""
    model = Small().double().eval()
    front = nn.Sequential(*list(model)[:4]).requires_grad_(not frozen)
    x, classes = images(20), torch.arange(20) % 10
    maps = class_maps(model, x, classes).numpy()
    back = nn.Sequential(nn.ReLU(), *list(model)[5:])
    for own, record, label in zip(maps, x, classes.tolist(), strict=True):
        assert np.allclose(own, by_differences(front, back, record, label), atol=1e-6)
    assert (maps.max(axis=(1, 2)) == 1).sum() > 5


def test_the_last_convolution_is_the_one_that_is_called_last():
    model = Backwards().double()
    x, classes = images(9), torch.arange(9) % 3

    def front(given):
        return model.late(model.late(model.early(given).tanh()).tanh())

    def back(activations):
        return model.head(activations.tanh().mean(dim=(2, 3)))

    for own, record, label in zip(class_maps(model, x, classes), x, classes.tolist(), strict=True):
        assert np.allclose(own, by_differences(front, back, record, label), atol=1e-6)


def test_where_nothing_is_there_is_no_heat():
    """A convolution without bias is 0 on an empty half, whatever the head makes of it."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(256, 2)
    ).double()
    x = images(8)
    x[:, :, :, :4] = 0
    maps = class_maps(model, x, torch.arange(8) % 2)
    assert (maps[:, :, :3] == 0).all() and (maps[:, :, 3:].amax(dim=(1, 2)) == 1).all()


def test_maps_say_where_and_not_how_much():
    """In 0 .. 1, whatever the scale of the scores; 0 where all speaks against the class."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), nn.Linear(64, 2)).double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[2].weight[0], model[2].weight[1] = 0.5, -0.5
    x, zeros = images(3).abs(), torch.zeros(3, dtype=torch.int64)
    maps = class_maps(model, x, zeros)
    assert torch.allclose(maps, x[:, 0] / x[:, 0].amax(dim=(1, 2), keepdim=True))
    assert (class_maps(model, x, zeros + 1) == 0).all()
    with torch.no_grad():
        model[2].weight *= 1e-6
    assert torch.allclose(class_maps(model, x, zeros), maps)


def test_a_record_has_its_map_alone_or_among_others_and_the_model_stays_as_it_is():
    model = Small().double().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, classes = images(5), torch.arange(5)
    with torch.no_grad():
        maps = class_maps(model, x, classes)
    assert not maps.requires_grad
    for at in range(5):
        assert torch.allclose(class_maps(model, x[at : at + 1], classes[at : at + 1])[0], maps[at])
    assert all(not module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], own) for name, own in model.state_dict().items())


def test_models_without_maps_are_refused():
    x, classes = images(2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="no Conv2d layer"):
        class_maps(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double(), x, classes)
    mixing = nn.Sequential(nn.Flatten(0, 1), nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(ValueError, match="a map for each record"):
        class_maps(mixing.double(), x, classes)
    diverged = Small().double()
    with torch.no_grad():
        diverged[0].weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        class_maps(diverged, x, classes)


def test_records_are_the_first_of_each_class_then_the_second():
    labels = np.array([2, 2, 0, 5, 0, 2, 0])
    assert first_of_classes(labels, 7).tolist() == [2, 0, 3, 4, 1, 6, 5]
    assert first_of_classes(labels, 2).tolist() == [2, 0]
    many = RNG.integers(0, 4, 50)
    ranks = [(int((many[:n] == own).sum()), int(own)) for n, own in enumerate(many)]
    assert first_of_classes(many, 20).tolist() == sorted(range(50), key=ranks.__getitem__)[:20]


# --- the picture ---------------------------------------------------------------------------------


def test_every_map_lies_over_its_record_in_the_column_of_its_run():
    """Images in 0 .. 1 as they are, colours last; a title is text, whatever is in it."""
    shown, maps = RNG.random((2, 3, 4, 5)), RNG.random((2, 2, 4, 5))
    columns = [("a$b$ <1>", maps[0], ["p", "q"]), ("second", maps[1], ["r", "s"])]
    figure = overlays(shown, ["first", "last"], columns, "what to know")
    grid = np.array(figure.axes).reshape(2, 3)
    for row, record, own in zip(grid, shown, maps.transpose(1, 0, 2, 3), strict=True):
        for axes, heat in zip(row, (None, *own), strict=True):
            assert np.array_equal(axes.images[0].get_array(), record.transpose(1, 2, 0))
            assert len(axes.images) == (1 if heat is None else 2)
            assert heat is None or np.array_equal(axes.images[1].get_array(), heat)
    assert [[axes.get_xlabel() for axes in row] for row in grid] == [
        ["first", "p", "r"],
        ["last", "q", "s"],
    ]
    assert [axes.get_title() for axes in grid[0]] == ["record", "a$b$ <1>", "second"]
    picture = svg(figure).decode()
    assert ">a$b$ &lt;1&gt;</text>" in picture and "what to know" in picture
    wide = overlays(40 * shown[:, :1] - 20, ["", ""], columns, "").axes[0].images[0].get_array()
    scaled = 40 * shown[0, 0] - 20
    low, high = (40 * limit - 20 for limit in (shown[:, 0].min(), shown[:, 0].max()))
    assert np.allclose(wide, (scaled - low) / (high - low))


# --- the command ---------------------------------------------------------------------------------

SMALL = {"clients": 2, "rounds": 2, "steps": 2, "model": f"{__name__}:Small"}
FLAT = {"dataset": "digits", "clients": 2, "rounds": 1, "model": "linear"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder of runs on digits: private with scaled channels, without privacy, and linear."""
    out = tmp_path_factory.mktemp("runs")
    sim.train(dataset="digits", **SMALL, standardize="private", out=out, name="private")
    sim.train(dataset="digits", **SMALL, mechanism="none", out=out, name="open")
    sim.train(**FLAT, out=out, name="flat")
    return out


def expected(folders: list[Path], count: int) -> bytes:
    """The picture from its parts."""
    data, plain = (datasets.load("digits", normalise=n) for n in (True, False))
    chosen = [int(np.flatnonzero(data.y_test == own)[0]) for own in range(count)]
    columns = []
    for folder in folders:
        x, model, result = data.x_test[chosen], Result(folder).model(), Result(folder)
        if (folder / statistics.FILE).exists():
            _, known = statistics.read(folder / statistics.FILE)
            x = (x - known["mean"]) / known["scale"]
        x = torch.from_numpy(x)
        spent = f"certified epsilon {wording.epsilon(result.epsilon)}"
        title = f"{folder.name}\n" + (spent if result.config.private else "without privacy")
        found = [f"predicted {own}" for own in model(x).argmax(dim=1).tolist()]
        columns.append((title, class_maps(model, x, torch.arange(count)).numpy(), found))
    captions = [f"class {own}, no. {at}" for own, at in enumerate(chosen)]
    return svg(overlays(plain.x_test[chosen], captions, columns, NOTE))


def test_the_command_draws_the_records_and_the_maps_of_their_own_classes(runs, tmp_path, capsys):
    """Kills another class, other records, runs that change places, pixels as the model takes them,
    and channels that are not scaled. Nothing else is written, and the picture loads nothing."""
    folders, before = [runs / "private", runs / "open"], contents(runs)
    words = [*map(str, folders), "--heat-maps", "4"]
    assert main_guard(command, words) == 0
    picture = folders[0] / FILE
    assert capsys.readouterr().out.strip() == str(picture)
    assert picture.stat().st_mode & 0o777 == 0o600
    text = picture.read_text()
    shown = re.sub(r"\s+", " ", " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text)))
    for part in ("private", "epsilon 8", "open", "without privacy", "class 3, no.", "predicted"):
        assert part in shown
    assert "they are not protected" in shown
    assert picture.read_bytes() == expected(folders, 4)
    other = tmp_path / "other.svg"
    assert main_guard(command, [*words, "--out", str(other)]) == 0
    assert other.read_bytes() == picture.read_bytes()
    picture.unlink()
    assert contents(runs) == before


def test_a_single_run_has_a_picture_of_one_column(runs, tmp_path):
    path = write_heat_maps([runs / "open"], 12, tmp_path / "one.svg")
    text = path.read_text()
    assert text.count("predicted") == 12 and "class 1, no. " in text and "private" not in text


def npz(folder: Path, name: str, x: np.ndarray, y: np.ndarray, **more: int) -> str:
    np.savez(folder / name, x=x, y=y, x_test=x[:5], y_test=y[:5], **more)
    return str(folder / name)


def handmade(folder: Path, **settings) -> str:
    return str(unequal.run_directory(folder, **settings))


@pytest.fixture
def refused(runs, tmp_path) -> dict[str, str]:
    """Directories of runs without heat maps, by name; and one with."""
    y, square = np.arange(20) % 3, RNG.random((20, 1, 4, 4))
    of = {
        "table": npz(tmp_path, "table.npz", RNG.random((20, 6)), y),
        "words": npz(tmp_path, "words.npz", RNG.integers(0, 9, (20, 6)), y, words=9),
        "four": npz(tmp_path, "four.npz", RNG.random((20, 4, 4, 4)), y),
        "numbers": npz(tmp_path, "numbers.npz", square, RNG.random(20)),
    }
    loss = {"numbers": {"loss": "squared-error"}}
    made = {
        name: handmade(tmp_path / name, dataset=path, **loss.get(name, {}))
        for name, path in of.items()
    }
    made["half"] = handmade(tmp_path / "half", finished=False)
    made["features"] = handmade(tmp_path / "features", dataset="mnist", features="scattering")
    made["own"] = handmade(tmp_path / "own", personal_layers="3")
    return made | {name: str(runs / name) for name in ("open", "flat")}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["open", "--heat-maps=0"], "--heat-maps is 0: give a number of records in 1 .. 100"),
        (["open", "--heat-maps=101"], "--heat-maps is 101: give a number of records in 1 .. 100"),
        (["open", "--heat-maps=x"], "argument --heat-maps: invalid int value: 'x'"),
        (["missing", "--heat-maps=2", "--serve=0"], "--serve is 0, and --heat-maps is 2"),
        (["open", "open", "--heat-maps=2"], "is given twice"),
        (["flat", "--heat-maps=2"], "model is linear in {flat}: Sequential has no Conv2d layer"),
        (["open", "flat", "--heat-maps=2"], "model is linear in {flat}"),
        (["half", "--heat-maps=2"], "{half} is not finished"),
        (["open", "table", "--heat-maps=2"], "but digits in the first run"),
        (["table", "--heat-maps=2"], "whose records have shape (6,)"),
        (["words", "--heat-maps=2"], "whose records have shape (6,)"),
        (["four", "--heat-maps=2"], "whose records have shape (4, 4, 4)"),
        (["numbers", "--heat-maps=2"], "loss is squared-error in {numbers}"),
        (["features", "--heat-maps=2"], "features is scattering in {features}"),
        (["own", "--heat-maps=2"], "personal_layers is 3 in {own}"),
    ],
)
def test_what_has_no_heat_maps_is_refused_in_one_line_and_nothing_is_written(
    refused, runs, tmp_path, capsys, words, named
):
    before = contents(runs) | contents(tmp_path)
    assert main_guard(command, [refused.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert named.format(**refused) in said and said.count("\n") == 1
    assert contents(runs) | contents(tmp_path) == before


def test_there_are_no_more_rows_than_records(tmp_path, capsys):
    path = npz(tmp_path, "few.npz", RNG.random((20, 1, 8, 8)), np.arange(20) % 3)
    folder = sim.train(dataset=path, **SMALL | {"rounds": 1}, out=tmp_path, name="few").folder
    assert main_guard(command, [str(folder), "--heat-maps=6"]) == 2
    assert "few.npz has 5 test records: give at most as many" in capsys.readouterr().err
    assert main_guard(command, [str(folder), "--heat-maps=5"]) == 0
