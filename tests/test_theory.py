"""Every number in docs/theory is computed by the code, and what its pages prove holds in it."""

import itertools
import json
import math
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from string import Formatter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from mechanisms import grid
from mechanisms.accounting import (
    acceptance,
    accountant,
    allotment,
    choosing,
    loss_distribution,
    profile,
    sampled_gaussian,
    smoothing,
    tested_step,
    visible,
    worst_pair,
)
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.curves import rdp
from mechanisms.accounting.events import (
    DpsurStep,
    Event,
    NoisyNormSum,
    SampledGaussian,
    ScreenedStep,
)
from mechanisms.accounting.selective import selective
from tests.test_budgets import true_delta
from tests.test_readme import ROOT

sys.path.append(str(ROOT / "docs/theory"))
import figures

DELTA, MNIST = figures.DELTA, figures.MNIST
AUDIT = json.loads((ROOT / "benchmarks/results/dpsur_audit.json").read_text())["examples"]
FAR = (0.02, 4.0, 0.001, 0.5, -2.0)
"""Where an accepted step of DPSUR costs many times what is claimed."""


def cost(event: Event, order: float, column: str = "certified") -> float:
    """Divergence of one application."""
    return float(rdp(event, (order,), column)[0])


def claimed(order: float, *setting: float) -> float:
    """Divergence of an accepted step as DPSUR's paper claims it."""
    return float(accountant.rdp(figures.claimed(1, setting), [order], "published")[0])


def attained() -> tuple[float, float]:
    """An accepted step at order 8: as claimed, and by a worst test."""
    test = Acceptance.of_noisy_loss(0.005, 1.0, -1.0)
    worst = figures.worst_test(0.02, 1.0, test, 8.0, public=False)
    return claimed(8.0, 0.02, 1.0, 0.005, 1.0, -1.0), worst.divergence


def far() -> float:
    """A worst test's divergence over the claim."""
    rate, noise, *test = FAR
    worst = figures.worst_test(rate, noise, Acceptance.of_noisy_loss(*test), 2.0, public=False)
    return worst.divergence / claimed(2.0, *FAR)


def two_outcomes() -> tuple[float, float]:
    """Ratio and epsilon of accepted outcomes with probability 2/3 and 1/3 before."""
    one, other = (p / 10 / (p / 10 + 1 - p) for p in (Fraction(2, 3), Fraction(1, 3)))
    return float(one / other), math.log(one / other)


def trials(accounting: str, orders: bool) -> float:
    """2,000 trials at DPSUR's settings for MNIST."""
    grid_ = accountant.ORDERS if orders else None
    step = DpsurStep(*MNIST, accounting)
    return accountant.epsilon({step: 2_000}, DELTA, orders=grid_).epsilon


def accepted_steps() -> tuple[float, ...]:
    """1,584 accepted steps at these settings: certified, by Renyi orders, and as claimed."""
    charges = {DpsurStep(*MNIST, "selective"): 1_584}
    claimed = accountant.epsilon(figures.claimed(1_584), DELTA, "published")
    by_order = accountant.by_renyi(charges, DELTA)
    return accountant.epsilon(charges, DELTA).epsilon, by_order.epsilon, claimed.epsilon


def stages() -> list[float]:
    """Divergence at order 8 of 100 clipped screening steps in 1, 10 and 100 stages."""
    return [
        sum(
            100 / n * cost(ScreenedStep(0.1, 2.0, 0.1, math.exp(-0.5 * k / n), "clipped"), 8.0)
            for k in range(1, n + 1)
        )
        for n in (1, 10, 100)
    ]


def noise_of(orders: tuple[float, ...], ratio: float) -> float:
    """Of 80 steps of DPIS with rate 0.1 if K is always ``ratio`` N C, at epsilon 1."""
    least, most = 3.0, 5.0
    for _ in range(30):
        noise = (least + most) / 2
        step = SampledGaussian(0.1 / ratio, noise / ratio)
        over = accountant.epsilon({step: 80}, DELTA, orders=orders).epsilon > 1.0
        least, most = (noise, most) if over else (least, noise)
    return most


def named_order() -> tuple[float, ...]:
    """Noise at the best order if K is small, at the order that was named, and as planned."""
    orders = tuple(float(order) for order in range(8, 33))
    planned = noise_of(orders, 1.0)
    named = accountant.epsilon({SampledGaussian(0.1, planned): 80}, DELTA, orders=orders).order
    assert named is not None
    return noise_of(orders, 0.3), noise_of((named,), 0.3), planned


def stopped() -> tuple[float, ...]:
    """Epsilon of 20 Gaussian steps, and delta of whoever stops by the smallest figure shown."""
    smallest = figures.so_far(2.6878, 20)[1]
    return smallest[-1], true_delta(2.6878, smallest)


def shown_after(noise: float, counts: set[int]) -> tuple[float, ...]:
    """True delta of whoever may stop after these numbers of Gaussian steps, each of which shows the
    certified epsilon of its charges."""
    figures_ = [
        accountant.epsilon({SampledGaussian(1.0, noise): n}, DELTA).epsilon
        if n in counts
        else math.inf
        for n in range(1, max(counts) + 1)
    ]
    return (true_delta(noise, figures_),)


def norm_sum() -> tuple[float, ...]:
    """DPIS' sum of norms at order 8: as claimed, as it is, and their quotient."""
    event = NoisyNormSum(1024 / 60_000, 1_200.0)
    values = cost(event, 8.0, "published"), cost(event, 8.0)
    return *values, values[1] / values[0]


def screened() -> tuple[float, ...]:
    """Proposition 21 for ten rejections, by search: delta at epsilon 8, and epsilon at 1e-5."""
    share = np.logspace(-6, 0, 100_001)[:-1]
    # delta is exceeded for some share as long as e^epsilon share^11 is below share - delta
    least = np.log(np.maximum(share - DELTA, 1e-300)) - 11 * np.log(share)
    return float((share - math.exp(8.0) * share**11).max()), float(least.max())


def mean_of_steps() -> tuple[float, float]:
    """100 Gaussian steps with noise 10: by DP-Hero's Theorem 5, and the mean alone."""
    rho = 1 / (2 * 10.0**2)
    claim = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    least, most = 0.0, 10.0
    while most - least > 1e-6:
        epsilon = (least + most) / 2
        delta = norm.cdf(0.5 - epsilon) - math.exp(epsilon) * norm.cdf(-0.5 - epsilon)
        least, most = (epsilon, most) if delta > DELTA else (least, epsilon)
    return claim, most


def audited() -> tuple[float, ...]:
    """Of both explicit runs: accepted steps and the least true epsilon; the claim is rounded."""
    rows = [(one["steps"], one["at_steps"].index(one["steps"]), one) for one in AUDIT]
    assert [round(one["published"][at], 2) for _, at, one in rows] == [3.0, 3.0]
    return tuple(x for steps, at, one in rows for x in (steps, one["true_at_least"][at]))


def best_of_several() -> tuple[float, ...]:
    """A run, the best of 10 and of 100 on average, these by Renyi's bound, and ten runs."""
    charges, orders = {SampledGaussian(0.01, 1.4161): 1_000}, np.array(accountant.ORDERS)
    curve = accountant.rdp(charges, orders, "certified")

    def renyi(mean: float) -> float:
        added = 2 * ((1 - 1 / orders) * curve + math.log(mean) / orders).min()
        total = curve + added + math.log(mean) / (orders - 1)
        return accountant.convert(total, orders, DELTA).epsilon

    def alone(delta: float) -> float:
        return accountant.epsilon(charges, delta).epsilon

    found = [choosing.epsilon_of_best(alone, DELTA, mean) for mean in (1.0, 10.0, 100.0)]
    ten = accountant.epsilon({event: 10 * n for event, n in charges.items()}, DELTA).epsilon
    return *found, renyi(10.0), renyi(100.0), ten


class Claim(NamedTuple):
    """Words of a page with numbers to be filled in, and what computes them."""

    page: str
    words: str
    numbers: Callable[[], tuple[float, ...] | list[float]]


CLAIMS = [
    Claim("claims", r"$\log 2$, that is {:.3f}.", lambda: (math.log(2.0),)),
    Claim("claims", "a ratio of {:.1f}: epsilon {:.3f}.", two_outcomes),
    Claim(
        "claims",
        r"At $q_t = 0.02$, $s_t = 1$, $q_v = 0.005$, $s_v = 1$, $\beta = -1$ and order 8 the claim "
        "is {:.4f} for an accepted step. The worst test reaches {:.4f}",
        attained,
    ),
    Claim(
        "claims",
        r"At $q_t = {}$, $s_t = {:g}$, $q_v = {}$, $s_v = {}$, $\beta = {:g}$ and order 2 a test "
        "reaches {:.0f} times the claim",
        lambda: (*FAR, far()),
    ),
    Claim(
        "claims",
        "at a claim of 3.00 after {} accepted steps the true epsilon is at least {:.2f}, and at "
        "another setting, after {} steps, at least {:.2f}",
        audited,
    ),
    Claim(
        "claims",
        r"($q_t = {}$, $s_t = {}$, $q_v = {}$, $s_v = {}$, $\beta = {:g}$, $\delta = 10^{{-5}}$)",
        lambda: MNIST,
    ),
    Claim(
        "claims",
        "with a probability of {:.3f} to {:.3f}",
        lambda: tuple(vars(Acceptance.of_noisy_loss(*MNIST[2:])).values())[:2],
    ),
    Claim(
        "claims",
        "in the middle of its range, {:.3f}.",
        lambda: (sum(list(vars(Acceptance.of_noisy_loss(*MNIST[2:])).values())[:2]) / 2,),
    ),
    *(
        Claim(
            "claims",
            f"| 2,000 trials, `{name}` | each trial | {{:.3f}} | {{:.3f}} |",
            lambda name=name: (trials(name, False), trials(name, True)),
        )
        for name in ("visible", "every-trial")
    ),
    Claim(
        "claims",
        "| 1,584 accepted steps, `selective` | each accepted step | {:.3f} | {:.3f} | "
        "| the same, as claimed | each accepted step | | {:.3f} |",
        accepted_steps,
    ),
    Claim(
        "claims",
        r"At $\varepsilon = 8$ delta is at least {:.2f}; at $\delta = 10^{{-5}}$ epsilon is at "
        "least {:.1f}, for one step",
        screened,
    ),
    Claim(
        "claims",
        "$s_K = 0.02 N$ and $p = 1024 / N$ the claim at order 8 is {:.1e}, and {:.1e} is true, "
        "{:,.0f} times as much",
        norm_sum,
    ),
    Claim(
        "claims",
        r"epsilon {:.2f} at $\delta = 10^{{-5}}$; the mean alone has {:.2f}.",
        mean_of_steps,
    ),
    Claim(
        "stages",
        "For 100 steps with $q = 0.1$, $s = 2$, $q_v = 0.1$ and $c \\tau_T = 0.5$, the divergences "
        "at order 8 add up to {:.3f} in one stage, {:.3f} in ten and {:.3f} without stages",
        stages,
    ),
    Claim(
        "allotments",
        r"For 20 Gaussian steps with noise 2.6878, which cost {:.2f} by Renyi orders at $\delta = "
        r"10^{{-5}}$, let each step show the smallest figure over the orders. The best rule for "
        "stopping brings the true delta of what is shown at the stop to {:.1e}",
        stopped,
    ),
    Claim(
        "allotments",
        "would bring the true delta of the best rule for stopping to {:.1e}",
        lambda: shown_after(3.0, {1, 2, 3, 23}),
    ),
    Claim(
        "allotments",
        "the 20 steps above would have a true delta of {:.1e} with one repetition",
        lambda: shown_after(2.6878, {20, 21}),
    ),
    Claim(
        "allotments",
        "0.3 of its bound in 80 steps of rate 0.1 at epsilon 1, the noise that meets epsilon is "
        "{:.3f} at the best order for it and {:.3f} at the order that was named, where {:.3f} was "
        "planned",
        named_order,
    ),
    Claim(
        "choosing",
        r"$\mathrm{{SGM}}(0.01, 1.4161)$ and $\delta = 10^{{-5}}$, where one run costs {:.3f}, the "
        "best of 10 runs on average costs {:.2f} and of 100 runs {:.2f}. By Renyi divergences "
        "(Papernot, Steinke 2022, for the same numbers of runs) it is {:.2f} and "
        "{:.2f}, and ten runs one after the other cost {:.2f}.",
        best_of_several,
    ),
    Claim(
        "grid",
        r"$\sigma$ is {:.1e} for 26,010 numbers at $s = 3$",
        lambda: (grid.slack(26_010, 3.0),),
    ),
    Claim(
        "numerics",
        "| probabilities of acceptance, $x$ deviations below the middle | {:g} $(1 + x^2)$ of",
        lambda: (acceptance.ROUNDING,),
    ),
    Claim("numerics", "| {:g} of the logarithm of the moment", lambda: (worst_pair.MARGIN,)),
    Claim("numerics", "| {:g} of the divergence at most", lambda: (visible.CLOSE,)),
    Claim("numerics", "| {:g} of it and of", lambda: (accountant.ROUNDING,)),
    Claim("numerics", "sums of costs | {:g} of them", lambda: (allotment.ROUNDING,)),
    Claim("numerics", "| {:g} of the terms whose", lambda: (profile.ROUNDING,)),
    Claim("numerics", "| {:g} of their terms", lambda: (tested_step.CANCELLED,)),
    Claim("numerics", "| {:g} of each inequality", lambda: (smoothing.MARGIN,)),
    Claim("numerics", "looked at | {:g} at most", lambda: (smoothing.CERTAIN,)),
    Claim(
        "tested-steps",
        "Where less than $10^{{{:.0f}}}$ is left",
        lambda: (math.log10(smoothing.CERTAIN),),
    ),
    Claim("numerics", "| {:g} of delta", lambda: (loss_distribution.CUT,)),
    Claim("numerics", "| {:g} on each side", lambda: (loss_distribution.OUTSIDE,)),
]
PAGES = sorted(path.stem for path in (ROOT / "docs/theory").glob("*.md"))
REFERENCE = re.compile(r"(?:Theorems?|sections?|arXiv) \d[\d., ]*")


def text(page: str) -> str:
    """Its words, without the addresses of links and the numbers of other papers' theorems."""
    found = (ROOT / f"docs/theory/{page}.md").read_text(encoding="utf-8")
    return REFERENCE.sub("", re.sub(r"\s+", " ", re.sub(r"\]\([^)]*\)", "]", found)))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words[:30]}")
def test_the_numbers_of_a_page_are_what_the_code_computes(claim: Claim) -> None:
    assert claim.words.format(*claim.numbers()) in text(claim.page)


@pytest.mark.parametrize("page", PAGES)
def test_no_number_of_a_page_is_without_its_computation(page: str) -> None:
    rest = text(page)
    for claim in (one for one in CLAIMS if one.page == page):
        parts = [(re.escape(words), field) for words, field, *_ in Formatter().parse(claim.words)]
        words = "".join(words + (field is not None) * r"[-\d.,e]+" for words, field in parts)
        rest = re.sub(words, "", rest)
    assert not re.findall(r".{0,30}(?:\d\.\d|\de-\d).{0,30}", rest)


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(("setting", "order"), [((0.02, 1.0, 0.005, 1.0, -1.0), 8.0), (FAR, 2.0)])
def test_one_test_reaches_what_a_step_is_charged(
    setting: tuple[float, ...], order: float, public: bool
) -> None:
    """As Theorem 5 and Proposition 9 say; at the second setting, moving a hidden step's test uphill
    ends at half of it."""
    rate, noise, *given_ = setting
    test = Acceptance.of_noisy_loss(*given_)
    reached = figures.worst_test(rate, noise, test, order, public).divergence
    price = visible.visible if public else selective
    bound = price(rate, noise, test, [order])[0]
    assert bound * (1 - 2e-5) < reached <= bound


@pytest.mark.parametrize("price", [selective, visible.visible, visible.every_trial])
def test_a_milder_test_never_costs_more(price: Callable) -> None:
    """Proposition 12(a)."""
    squares = [(0.3, 0.6, 0.01), (0.3, 0.6, 0.1), (0.3, 0.8, 0.1), (0.1, 0.8, 0.1), (0.1, 0.8, 0.9)]
    costs = [price(0.1, 2.0, Acceptance(*one), [1.5, 8.0]) for one in squares]
    assert all((a <= b).all() for a, b in itertools.pairwise(costs))


@settings(max_examples=25)
@given(
    st.floats(1e-3, 1.0),
    st.floats(0.5, 8.0),
    st.sampled_from([1.25, 1.5, 2.0, 3.5, 9.75, 32.0]),
)
def test_a_step_of_dpis_costs_most_at_the_largest_norm_sum(
    rate: float, noise: float, order: float
) -> None:
    """Proposition 17, at orders that are not whole, too; ratios of K to N C grow from `rate` to
    1."""
    ratios = rate ** np.linspace(1.0, 0.0, 9)
    logs = sampled_gaussian.log_excess(rate / ratios, noise / ratios, order)
    assert (np.diff(logs) >= -1e-9).all()


@settings(max_examples=20)
@given(st.floats(0.05, 1.0), st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4))
def test_hidden_coins_of_a_record_do_not_add_to_its_cost(rate: float, shares: list[float]) -> None:
    """Theorem 16 at order 3, by integration: a coin decides what the first output holds and, with
    that output, how often the record enters the second step."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    first, second = (np.exp(nodes / s - 0.5 / s**2) for s in (2.0, 1.5))
    low = nodes < 0.3
    unseen, seen = (rate * np.where(low, shares[k], shares[k + 2])[:, None] for k in (0, 1))
    ratio = 0.6 * (1 + unseen * (second - 1)) + 0.4 * first[:, None] * (1 + seen * (second - 1))
    whole = weights @ ratio**3 @ weights
    logs = [sampled_gaussian.log_excess([q], [s], 3.0)[0] for q, s in ((0.4, 2.0), (rate, 1.5))]
    assert whole <= np.prod(1 + np.exp(logs)) * (1 + 1e-9)


@settings(max_examples=100)
@given(st.integers(1, 2**28), st.floats(1e-9, 1.0))
def test_raised_noise_pays_for_the_grid_as_long_as_it_is_not_doubled(
    entries: int, share: float
) -> None:
    """Lemma 19, exactly, with a square root from above and the largest parts and roundings."""
    root = Fraction(math.isqrt(entries << 80) + 1, 2**40)
    multiplier = share * (1.0 - 2.0**-19 - float(root) * 2.0**-22) * 2.0**26 / float(root)
    s = Fraction(multiplier)
    raised = s * (1 + Fraction(grid.slack(entries, multiplier))) * (1 - Fraction(1, 2**22))
    moved = (1 + root / 2**22 + Fraction(1, 2**21)) / raised + root / 2**27
    assert s * moved <= 1


@pytest.mark.parametrize("entries", [1, 1_000, 2**28])
def test_noise_is_refused_where_lemma_19_ends(entries: int) -> None:
    root = math.sqrt(entries)
    edge = (1.0 - 2.0**-20 - root * 2.0**-22) * 2.0**26 / root
    assert grid.slack(entries, edge * 0.999) <= 1.0
    with pytest.raises(ValueError, match="lower --noise-multiplier"):
        grid.slack(entries, edge * 1.001)


@pytest.mark.slow
def test_the_figures_are_those_of_the_script(tmp_path: Path) -> None:
    figures.main(tmp_path)
    for name in figures.FIGURES:
        drawn, kept = (folder / f"{name}.svg" for folder in (tmp_path, figures.HERE))
        assert drawn.read_bytes() == kept.read_bytes()
