"""Features as an option of the data: computed record by record, kept on disk, normalised by
group."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from mechanisms.kernels import fix_kernels
from sim.config.configuration import load as configured
from sim.config.presets import PRESETS
from sim.config.settings import Data
from sim.data import dataset as datasets
from sim.features import loading as features
from sim.features import whitening
from sim.features.loading import grouped, load
from sim.features.pixels import deskewed
from sim.features.scattering import scatter
from sim.features.whitening import dead_leaves, moments, whiten
from sim.models.networks import build

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An .npz of images in colour, 20 for training and 5 for the test."""
    rng = np.random.default_rng(0)
    x, x_test = (rng.integers(0, 256, (n, 3, 12, 10), dtype=np.uint8) for n in (20, 5))
    np.savez(
        tmp_path / "images.npz", x=x, y=np.arange(20) % 3, x_test=x_test, y_test=np.arange(5) % 3
    )
    return tmp_path / "images.npz"


def settings(images: Path, **more: object) -> Data:
    return Data(dataset=str(images), data_dir=str(images.parent), features="scattering", **more)


def scattered(images: torch.Tensor) -> torch.Tensor:
    """Each image by itself."""
    return torch.cat([scatter(one) for one in images.split(1)])


def kept(images: Path) -> list[Path]:
    return sorted(p for p in (images.parent / "features").iterdir() if p.name != "lock")


def never(*_: object) -> None:
    raise AssertionError("features were computed again")


def test_pixels_are_the_data_set_as_it_is() -> None:
    plain, asked = datasets.load("digits"), load(Data(), CPU)
    assert np.array_equal(plain.x, asked.x) and np.array_equal(plain.x_test, asked.x_test)


def test_features_are_computed_of_pixels_between_zero_and_one(images: Path) -> None:
    pixels, found = datasets.load(str(images)), load(settings(images), CPU)
    assert (
        found.x.shape == (20, 243, 3, 2)
        and found.x_test.shape == (5, 243, 3, 2)
        and found.x.dtype == np.float32
    )
    assert np.array_equal(found.x, scattered(torch.from_numpy(pixels.x)))
    assert np.array_equal(found.x_test, scattered(torch.from_numpy(pixels.x_test)))
    assert np.array_equal(found.y, pixels.y) and np.array_equal(found.y_test, pixels.y_test)


def test_colours_are_normalised_by_imagenet_s_and_flips_averaged_if_asked(images: Path) -> None:
    """As Tramer and Boneh's code prepares CIFAR-10; each choice has a file of its own."""
    x = torch.from_numpy(datasets.load(str(images)).x)
    colours = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
        [0.229, 0.224, 0.225]
    )[:, None, None]
    by_imagenet = load(settings(images, feature_pixels="imagenet"), CPU)
    assert np.array_equal(by_imagenet.x, scattered(colours))
    both = load(settings(images, feature_pixels="imagenet", feature_flips=True), CPU)
    assert np.array_equal(both.x, (scattered(colours) + scattered(colours.flip(3))) / 2)
    opponent = load(settings(images, feature_pixels="opponent"), CPU)
    r, g, b = colours.unbind(1)
    axes = [(r + g + b) / 3**0.5, 3 * (r - b) / 2**0.5, 3 * (r - 2 * g + b) / 6**0.5]
    assert np.allclose(opponent.x, scattered(torch.stack(axes, dim=1)), atol=1e-5)
    flipped = load(settings(images, feature_flips=True), CPU)
    assert np.array_equal(flipped.x, (scattered(x) + scattered(x.flip(3))) / 2)
    load(settings(images), CPU)
    assert len(kept(images)) == 5


def test_images_are_set_upright_before_anything_else(images: Path) -> None:
    x = torch.from_numpy(datasets.load(str(images)).x)
    plain = load(settings(images, feature_flips=True), CPU).x
    found = load(settings(images, feature_flips=True, feature_deskew=True), CPU).x
    upright = deskewed(x)
    assert np.allclose(found, (scattered(upright) + scattered(upright.flip(3))) / 2, atol=1e-6)
    assert not np.allclose(found, plain, atol=0.01) and len(kept(images)) == 2


def test_a_mirror_image_has_the_same_features_with_flips(images: Path) -> None:
    before = load(settings(images, feature_flips=True), CPU)
    arrays = dict(np.load(images))
    np.savez(images, **{**arrays, "x": arrays["x"][..., ::-1]})
    assert np.array_equal(before.x, load(settings(images, feature_flips=True), CPU).x)


def test_scales_are_those_of_means_of_pixels_side_by_side_and_each_is_normalised(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 3, 16, 19), dtype=np.uint8)
    np.savez(
        tmp_path / "images.npz", x=pixels, y=np.arange(6) % 3, x_test=pixels[:2], y_test=[0, 1]
    )
    found = load(settings(tmp_path / "images.npz", feature_groups=9, feature_scales=2), CPU)
    x = torch.from_numpy(datasets.load(str(tmp_path / "images.npz")).x)
    half = (
        x[:, :, ::2, :18:2] + x[:, :, 1::2, :18:2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]
    ) / 4
    parts = [grouped(scatter(one).numpy(), 9).reshape(6, -1) for one in (x, half)]
    assert found.x.shape == (6, 243 * (4 * 4 + 2 * 2))
    assert np.allclose(found.x, np.concatenate(parts, axis=1), atol=1e-5)
    assert np.array_equal(found.x_test, found.x[:2])


def test_whitening_is_by_the_moments_of_dead_leaves_with_the_same_features(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their moments are kept: one small file for all records of a shape, one for each grouping."""
    monkeypatch.setattr(whitening, "IMAGES", (16, 64))
    asked = settings(images, feature_flips=True, feature_groups=9, feature_whitening=True)
    leaves = torch.from_numpy(dead_leaves((3, 12, 10)))

    def prepared(x: torch.Tensor) -> np.ndarray:
        return grouped(((scattered(x) + scattered(x.flip(3))) / 2).numpy(), 9)

    found = moments(np.concatenate([prepared(some) for some in leaves.split(16)]))
    first, pixels = load(asked, CPU), datasets.load(str(images))
    for got, x in ((first.x, pixels.x), (first.x_test, pixels.x_test)):
        assert np.allclose(got, whiten(prepared(torch.from_numpy(x)), *found), atol=1e-3)
    assert len(kept(images)) == 2
    load(asked.model_copy(update={"feature_groups": 27}), CPU)
    load(asked.model_copy(update={"feature_flips": False}), CPU)
    assert len(kept(images)) == 5
    monkeypatch.setattr(features, "_computed", never)
    assert np.array_equal(first.x, load(asked, CPU).x)


def test_each_scale_is_whitened_by_leaves_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "IMAGES", (16, 64))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 16, 16), dtype=np.uint8)
    path = tmp_path / "images.npz"
    np.savez(path, x=pixels, y=np.arange(6) % 3, x_test=pixels[:2], y_test=[0, 1])
    both = load(settings(path, feature_scales=2, feature_whitening=True), CPU).x
    one = load(settings(path, feature_whitening=True), CPU).x
    assert np.array_equal(both[:, : 243 * 16], one.reshape(6, -1))
    assert len(kept(path)) == 4


def test_the_coarsest_scale_has_enough_pixels(images: Path) -> None:
    with pytest.raises(ValueError, match=r"feature_scales .* \(3, 12, 10\) to 1/2 .* 8x8"):
        load(settings(images, feature_scales=2), CPU)
    assert not (images.parent / "features").exists()


def test_gray_images_have_no_colours_to_normalise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"imagenet, .* \(1, 8, 8\) .* --feature-pixels unit"):
        load(
            Data(features="scattering", feature_pixels="imagenet", data_dir=str(tmp_path)),
            CPU,
        )
    assert not (tmp_path / "features").exists()


def test_digits_are_between_zero_and_one_too(tmp_path: Path) -> None:
    scans = datasets.load("digits", normalise=False)
    assert scans.x.min() == 0 and scans.x.max() == 1
    assert np.allclose(2 * scans.x - 1, datasets.load("digits").x, atol=1e-6)
    found = load(Data(features="scattering", data_dir=str(tmp_path)), CPU)
    assert found.x.shape == (1437, 81, 2, 2)
    assert np.array_equal(found.x_test, scattered(torch.from_numpy(scans.x_test)))


def test_a_record_s_features_do_not_depend_on_other_records(images: Path) -> None:
    """Every record but one is replaced: the features of that one stay, bit for bit."""
    before = load(settings(images, feature_groups=9), CPU)
    arrays = dict(np.load(images))
    others = np.arange(20) != 17
    arrays["x"][others] = np.random.default_rng(1).integers(
        0, 256, arrays["x"][others].shape, dtype=np.uint8
    )
    np.savez(images, **arrays)
    after = load(settings(images, feature_groups=9), CPU)
    assert np.array_equal(before.x[17], after.x[17])
    assert (before.x != after.x).any(axis=(1, 2, 3)).tolist() == others.tolist()


def test_a_record_s_features_do_not_depend_on_its_place_among_others(images: Path) -> None:
    """Bit for bit: a record that is added moves others and changes none."""
    asked = settings(
        images,
        **{"feature_deskew": True, "feature_flips": True, "feature_pixels": "opponent"},
        **{"feature_groups": 27, "feature_whitening": True},
    )
    before, arrays = load(asked, CPU), dict(np.load(images))
    order = np.random.default_rng(1).permutation(20)[:17]
    np.savez(images, **{**arrays, "x": arrays["x"][order], "y": arrays["y"][order]})
    assert np.array_equal(load(asked, CPU).x, before.x[order])


def test_records_are_transformed_one_at_a_time(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills batches of them, whose last bits tell of others on some chips alone."""
    seen = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return scatter(x)

    monkeypatch.setattr(features, "scatter", watched)
    assert len(load(settings(images, feature_flips=True), CPU).x) == 20
    assert set(seen) == {1}


def test_only_their_owner_may_read_features(images: Path, tmp_path: Path) -> None:
    load(settings(images), CPU)
    load(settings(images), CPU, tmp_path / "own")
    (one,), (other,) = kept(images), (tmp_path / "own").glob("*.npz")
    assert {one.stat().st_mode & 0o777, other.stat().st_mode & 0o777} == {0o600}


def test_computed_features_are_kept_and_read(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(settings(images), CPU)
    assert len(kept(images)) == 1
    monkeypatch.setattr(features, "_computed", never)
    second = load(settings(images), CPU)
    assert np.array_equal(first.x, second.x) and np.array_equal(first.x_test, second.x_test)
    by_group = load(settings(images, feature_groups=27), CPU)
    assert np.array_equal(by_group.x, grouped(first.x.copy(), 27))
    assert np.array_equal(by_group.x_test, grouped(first.x_test.copy(), 27))
    assert len(kept(images)) == 1


@pytest.mark.parametrize("change", ["a pixel", "the version", "a test record"])
def test_other_records_or_another_version_have_a_file_of_their_own(
    change: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(settings(images), CPU)
    arrays = dict(np.load(images))
    if change == "the version":
        monkeypatch.setattr(features, "VERSION", features.VERSION + 1)
    else:
        arrays["x" if change == "a pixel" else "x_test"][-1, 0, 3, 3] ^= 128
        np.savez(images, **arrays)
    second = load(settings(images), CPU)
    assert len(kept(images)) == 2
    assert np.array_equal(first.x, second.x) == (change != "a pixel")
    assert np.array_equal(first.x_test, second.x_test) == (change != "a test record")


def test_the_same_bytes_of_another_shape_have_features_of_their_own(images: Path) -> None:
    """Images on their side. Kills a digest of the numbers alone."""
    first, arrays = load(settings(images), CPU), dict(np.load(images))
    for name in ("x", "x_test"):
        arrays[name] = arrays[name].reshape(-1, 3, 10, 12)
    np.savez(images, **arrays)
    second = load(settings(images), CPU)
    assert first.x.shape[2:] == (3, 2) and second.x.shape[2:] == (2, 3)
    assert second.x_test.shape[2:] == (2, 3) and len(kept(images)) == 2


def test_features_have_all_digits_whatever_a_run_allows(
    images: Path, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs with and without TF32 read the same files."""
    places, seen = (torch.backends.cuda.matmul, torch.backends.cudnn), []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append([place.allow_tf32 for place in places])
        return scatter(x)

    monkeypatch.setattr(features, "scatter", noted)
    fix_kernels(tf32=True)
    load(settings(images), CPU)
    assert [False, False] in seen and [True, True] not in seen


def test_each_kind_of_device_keeps_features_of_its_own(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ in their last bits, and a resumed run must see those that it began with."""

    def computed(part: np.ndarray, transform: features._Transform) -> np.ndarray:
        return np.full((len(part), 2), number, np.float32)

    monkeypatch.setattr(features, "_computed", computed)
    for number, kind in enumerate(("cpu", "cuda", "cpu", "cuda")):
        assert (load(settings(images), torch.device(kind)).x == number % 2).all()
    assert len(kept(images)) == 2


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "a bit in the features": lambda content: flipped(content, len(content) // 3),
    "a bit in the last features": lambda content: flipped(content, len(content) - 300),
    "other bytes": lambda content: bytes(len(content)),
}


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_computed_anew(damage: str, images: Path) -> None:
    first = load(settings(images), CPU)
    (path,) = kept(images)
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    second = load(settings(images), CPU)
    assert np.array_equal(first.x, second.x) and np.array_equal(first.x_test, second.x_test)
    assert kept(images) == [path] and len(path.read_bytes()) == len(whole)
    assert np.array_equal(np.load(path)["x"], first.x)


class Touch:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_file_of_objects_is_computed_anew_and_runs_nothing(images: Path, tmp_path: Path) -> None:
    """Whoever can write into the folder of data sets must not run code here."""
    first = load(settings(images), CPU)
    (path,) = kept(images)
    np.savez(path, x=np.array([Touch(tmp_path / "ran")], dtype=object), x_test=first.x_test)
    assert np.array_equal(load(settings(images), CPU).x, first.x)
    assert not (tmp_path / "ran").exists()


def test_a_write_that_fails_leaves_nothing_and_stops_nothing(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (images.parent / "features").mkdir()
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="No space left"):
        patch.setattr(os, "fsync", full)
        first = load(settings(images), CPU)
    assert kept(images) == []
    assert np.array_equal(first.x, load(settings(images), CPU).x) and len(kept(images)) == 1


def test_features_are_found_in_a_folder_that_cannot_be_written(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of the superuser are always writable, so that opening for writing is refused here."""
    first = load(settings(images), CPU)
    plain_open = open

    def read_only(path: object, mode: str = "r", *rest: object, **named: object) -> object:
        if "w" in mode:
            raise PermissionError(13, "Permission denied")
        return plain_open(path, mode, *rest, **named)

    monkeypatch.setattr("builtins.open", read_only)
    monkeypatch.setattr(features, "_computed", never)
    assert np.array_equal(load(settings(images), CPU).x, first.x)


def test_features_that_cannot_be_kept_say_why(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the folder cannot be made it is missing: that was given as the reason."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.warns(UserWarning, match=r"features cannot be kept in .* \(Permission denied\)"):
        load(settings(images), CPU)


def test_one_of_two_at_a_time_computes_and_the_other_reads(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, compute, found = [], features._computed, []

    def counted(*arguments: object) -> np.ndarray:
        computed.append(threading.get_ident())
        return compute(*arguments)

    monkeypatch.setattr(features, "_computed", counted)
    threads = [
        threading.Thread(target=lambda: found.append(load(settings(images), CPU).x))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(computed) == 2 and len(set(computed)) == 1, "one process computes, both parts"
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("groups", [1, 3, 27, 81])
def test_each_group_of_each_record_has_mean_zero_and_variance_one(groups: int) -> None:
    x = np.random.default_rng(groups).gamma(2, 3, (5, 81, 3, 4)).astype(np.float32)
    normal = grouped(x.copy(), groups).reshape(5, groups, -1)
    np.testing.assert_allclose(normal.mean(2), 0, atol=1e-5)
    np.testing.assert_allclose(normal.var(2), 1, atol=1e-3)
    members = x.reshape(5, groups, -1)
    np.testing.assert_allclose(
        normal,
        (members - members.mean(2, keepdims=True)) / members.std(2, keepdims=True),
        atol=1e-4,
    )


def test_an_empty_image_stays_zero_and_no_groups_change_nothing() -> None:
    assert not grouped(np.zeros((2, 81, 2, 2), np.float32), 27).any()
    x = np.random.default_rng(0).normal(size=(2, 81, 2, 2)).astype(np.float32)
    assert np.array_equal(grouped(x.copy(), 0), x)


def test_groups_are_of_as_many_channels_each(images: Path) -> None:
    with pytest.raises(
        ValueError, match=r"feature_groups is 26, .* 243 channels .* --feature-groups 27"
    ):
        load(settings(images, feature_groups=26), CPU)
    assert not (images.parent / "features").exists()


def test_groups_without_features_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"feature_groups is 27, .* features is pixels: give other --features"
    ):
        load(Data(feature_groups=27), CPU)


def test_records_that_are_no_images_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", x=np.ones((10, 5)), y=np.arange(10) % 2)
    with pytest.raises(
        ValueError,
        match=r"records of shape \(5,\) have no scattering features: .* --features pixels",
    ):
        load(settings(tmp_path / "flat.npz"), CPU)
    assert not (tmp_path / "features").exists()


@pytest.mark.parametrize("dataset", [*PRESETS, "mine.npz"])
def test_features_change_the_model_and_the_user_changes_it_again(dataset: str) -> None:
    """Their defaults fit the features, and give way to a flag as a data set's own."""
    config = configured(None, {"dataset": dataset, "features": "scattering"})
    assert config.data.model == "linear" and config.data.feature_groups == 27
    model = build(config.data.model, (243, 8, 8), 10, 0)
    assert (
        model(torch.zeros(2, 243, 8, 8)).shape == (2, 10) and 243 % config.data.feature_groups == 0
    )
    own = configured(
        None, {"dataset": dataset, "features": "scattering", "model": "mlp", "feature_groups": 0}
    )
    assert own.data.model == "mlp" and own.data.feature_groups == 0
    assert configured(None, {"dataset": dataset, "features": "pixels"}) == configured(
        None, {"dataset": dataset}
    )
