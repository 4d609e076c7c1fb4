"""``python -m sim.account fedfed``: figures by hand, from the formulas of one release."""

import math
import re

import pytest

from mechanisms.accounting.accountant import ORDERS
from sim.config import caveats
from tests.test_account_command import ROOT, run

ALPHAS = (1.5, 2.0, 8.0)
ORIGINAL = ["--noise-std=0.15", "--views=2", "--public-labels"]
"""The setting of the original code, for records that are not clipped."""


def price(capsys, *flags):
    return run(capsys, "fedfed", "--orders", ",".join(map(str, ALPHAS)), *flags)


def gaussian(alpha, noise, views=1):
    return views * alpha / (2 * noise**2)


def converted(curve, delta=1e-5):
    """The smallest epsilon over the grid, as in docs/privacy.md."""
    return min(curve(a) + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in ORDERS)


@pytest.mark.parametrize("views", [1, 2, 5])
def test_every_view_of_a_shared_record_is_a_release(capsys, views):
    found = price(capsys, "--noise-multiplier=3", f"--views={views}", "--public-labels")
    assert found["rdp_certified"] == pytest.approx([gaussian(a, 3, views) for a in ALPHAS], rel=1e-12)
    assert found["epsilon_certified"] == pytest.approx(converted(lambda a: gaussian(a, 3, views)), rel=1e-12)
    assert (found["epsilon_published"], found["order_published"], found["rdp_published"]) == (None, None, None)


def test_all_views_hang_on_one_coin(capsys):
    """Which costs more than coins of their own, as an average of squares is above the square of an average."""
    found = price(capsys, "--noise-multiplier=1", "--views=2", "--share-rate=0.1", "--public-labels")
    together = [math.log(0.9 + 0.1 * math.exp(a * (a - 1))) / (a - 1) for a in ALPHAS]
    apart = [2 * math.log(0.9 + 0.1 * math.exp(a * (a - 1) / 2)) / (a - 1) for a in ALPHAS]
    assert found["rdp_certified"] == pytest.approx(together, rel=1e-12)
    assert all(x > y for x, y in zip(together, apart, strict=True))


def test_labels_are_paid_for_once_whatever_the_views(capsys):
    features = price(capsys, "--noise-multiplier=3", "--views=2", "--public-labels")
    both = price(capsys, "--noise-multiplier=3", "--views=2", "--label-epsilon=0.9", "--classes=4")
    labels = [min(0.9, a * 0.9**2 / 2) for a in ALPHAS]
    difference = [x - y for x, y in zip(both["rdp_certified"], features["rdp_certified"], strict=True)]
    assert difference == pytest.approx(labels, rel=1e-12)
    assert both["labels_kept"] == pytest.approx(math.exp(0.9) / (math.exp(0.9) + 3), rel=1e-12)
    assert "labels_kept" not in features


def test_labels_that_count_as_public_are_said_to_be_left_out(capsys):
    assert price(capsys, *ORIGINAL, "--pixels=784")["limits"] == [caveats.PUBLIC_LABELS]
    assert price(capsys, "--noise-multiplier=3", "--label-epsilon=0.9")["limits"] == []


@pytest.mark.parametrize(("pixels", "span", "norm"), [(784, 1, 28), (3072, 1, 55.42562584220407), (100, 2, 20)])
def test_without_a_clip_the_bound_is_the_largest_norm(capsys, pixels, span, norm):
    found = price(capsys, *ORIGINAL, f"--pixels={pixels}", f"--pixel-range={span}")
    assert found["norm_bound"] == pytest.approx(norm, rel=1e-12)
    assert found["noise_multiplier"] == pytest.approx(0.15 / norm, rel=1e-12)
    assert found["rdp_certified"] == pytest.approx([gaussian(a, 0.15 / norm, 2) for a in ALPHAS], rel=1e-12)


def test_a_budget_gives_the_noise_of_each_number(capsys):
    found = run(capsys, "fedfed", "--epsilon=8", "--pixels=784", "--views=2", "--label-epsilon=2")
    assert 7.99 < found["epsilon_certified"] <= 8
    assert found["noise_std"] == pytest.approx(28 * found["noise_multiplier"], rel=1e-12)
    flags = ["--pixels=784", "--views=2", "--label-epsilon=2", f"--noise-std={found['noise_std']!r}"]
    again = run(capsys, "fedfed", *flags)
    assert again["epsilon_certified"] == pytest.approx(found["epsilon_certified"], rel=1e-9)


def test_one_noise_image_for_a_batch_is_no_guarantee(capsys):
    found = run(capsys, "fedfed", "--noise-multiplier=100", "--public-labels", "--noise-draws=batch", "--orders=2")
    assert (found["epsilon_certified"], found["rdp_certified"], found["epsilon_published"]) == (None, [None], None)


@pytest.mark.parametrize("pixels", [784, 3072])
def test_the_figures_of_the_original_in_the_documentation_are_the_commands(capsys, pixels):
    text = re.sub(r"\s+", " ", (ROOT / "docs/privacy.md").read_text(encoding="utf-8"))
    found = run(capsys, "fedfed", *ORIGINAL, f"--pixels={pixels}")
    assert f"{math.ceil(found['epsilon_certified']):,}" in text
