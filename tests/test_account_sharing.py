"""``python -m sim.account fedfed``: figures by hand, from the formulas of one release."""

import math
import re

import pytest
from scipy.special import ndtr

from mechanisms.accounting.accountant import ORDERS
from sim.config import caveats
from tests.test_account_command import ROOT, run

ALPHAS = (1.5, 2.0, 8.0)


def price(capsys, *flags):
    return run(capsys, "fedfed", "--orders", ",".join(map(str, ALPHAS)), *flags)


def gaussian(alpha, noise, views=1):
    return views * alpha / (2 * noise**2)


def converted(curve):
    """The smallest epsilon over the grid, as in docs/privacy.md."""
    return min(
        curve(a) + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in ORDERS
    )


@pytest.mark.parametrize("views", [1, 2, 5])
def test_every_view_of_a_shared_record_is_a_release(capsys, views):
    found = price(capsys, "--share-noise=3", f"--share-views={views}", "--public-labels")
    assert found["rdp_certified"] == pytest.approx(
        [gaussian(a, 3, views) for a in ALPHAS], rel=1e-12
    )
    assert found["epsilon_renyi"] == pytest.approx(
        converted(lambda a: gaussian(a, 3, views)), rel=1e-10
    )
    mean, loss = math.sqrt(views) / 3, found["epsilon_certified"]
    near, far = ndtr(mean / 2 - loss / mean), ndtr(-mean / 2 - loss / mean)
    assert 0.975e-5 < near - math.exp(loss) * far <= 0.995 * 1e-5  # Balle, Wang 2018, Theorem 8


def test_all_views_hang_on_one_coin(capsys):
    """Which costs more than coins of their own, as an average of squares is above the square of an
    average."""
    found = price(
        capsys, "--share-noise=1", "--share-views=2", "--share-rate=0.1", "--public-labels"
    )
    together = [math.log(0.9 + 0.1 * math.exp(a * (a - 1))) / (a - 1) for a in ALPHAS]
    apart = [2 * math.log(0.9 + 0.1 * math.exp(a * (a - 1) / 2)) / (a - 1) for a in ALPHAS]
    assert found["rdp_certified"] == pytest.approx(together, rel=1e-12)
    assert all(x > y for x, y in zip(together, apart, strict=True))


def test_labels_are_paid_for_once_whatever_the_views(capsys):
    features = price(capsys, "--share-noise=3", "--share-views=2", "--public-labels")
    both = price(capsys, "--share-noise=3", "--share-views=2", "--label-epsilon=0.9")
    labels = [min(0.9, a * 0.9**2 / 2) for a in ALPHAS]
    difference = [
        x - y for x, y in zip(both["rdp_certified"], features["rdp_certified"], strict=True)
    ]
    assert difference == pytest.approx(labels, rel=1e-12)


def test_labels_that_count_as_public_are_said_to_be_left_out(capsys):
    assert price(capsys, "--share-noise=3", "--public-labels")["caveats"] == [caveats.PUBLIC_LABELS]
    assert price(capsys, "--share-noise=3", "--label-epsilon=0.9")["caveats"] == []


def test_a_share_of_the_budget_gives_the_noise(capsys):
    found = run(
        capsys,
        "fedfed",
        "--epsilon=8",
        "--share-views=2",
        "--label-epsilon=2",
        "--share-budget=0.5",
    )
    assert 3.99 < found["epsilon_certified"] <= 4 == found["epsilon_target"] / 2
    flags = ["--share-views=2", "--label-epsilon=2", f"--share-noise={found['noise_multiplier']!r}"]
    assert run(capsys, "fedfed", *flags)["epsilon_certified"] == found["epsilon_certified"]


@pytest.mark.parametrize("pixels", [784, 3072])
def test_the_figures_of_the_original_in_the_documentation_are_the_commands(capsys, pixels):
    """Noise of 0.15 on each number of a record that is not clipped, whose norm is the root of their
    number at most."""
    text = re.sub(r"\s+", " ", (ROOT / "docs/privacy.md").read_text(encoding="utf-8"))
    noise = f"{0.15 / math.sqrt(pixels):.7f}"
    found = run(capsys, "fedfed", f"--share-noise={noise}", "--share-views=2", "--public-labels")
    assert (
        f"{math.ceil(found['epsilon_certified']):,}" in text and f"--share-noise {noise} " in text
    )
