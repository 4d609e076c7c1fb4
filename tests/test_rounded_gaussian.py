"""Release noise is round(2^28 Z), Z normal, exactly: every decision by itself, and the law of many
draws."""

import decimal
from collections.abc import Iterator
from itertools import repeat

import numpy as np
import pytest

from mechanisms.rounded_gaussian import MARGIN, SCALE_BITS, U_BITS, V_BITS, X_BITS, rounded_gaussian
from tests.rounded_normal import FALSE_ALARM, UNIT, spoilers, tail_p_values, tally

ALL_EXACT = 2.0**17
"""A margin that no decision in floats can meet."""
ZEROS, ONES = 0, 2**64 - 1
K = np.arange(60)
THRESHOLDS = np.cumsum(np.exp(-K * K / 2)) / np.exp(-K * K / 2).sum()
"""T_1, T_2, ... in float64."""
FIRST_V = [0, *(int(t * 2**V_BITS) + 1 for t in THRESHOLDS[:4])]
"""For k = 0 ... 4, a prefix of v that says k."""


def word(k: int, u: int, x: int, negative: int = 0, v: int | None = None) -> int:
    v = FIRST_V[k] if v is None else v
    return v << (U_BITS + X_BITS + 1) | u << (X_BITS + 1) | x << 1 | negative


def accepted(
    words: list[int], further: Iterator[int] | None = None, margin: float = MARGIN
) -> list[int]:
    """The draws that these candidates give. Single words are further digits; a mark of draws ends
    the list."""
    mark = 987_654_321
    given = np.array(
        [*words, *repeat(word(0, 0, 2 * (mark % UNIT), 1), 2 * len(words) + 100)], dtype=np.uint64
    )
    at = 0

    def feed(n: int) -> np.ndarray:
        nonlocal at
        if n == 1:
            return np.array([next(further)], dtype=np.uint64)
        at += n
        return np.resize(given[at - n : at], n)

    draws = drawn(feed, len(words), margin)
    return draws[draws != -(mark % UNIT)].tolist()


def drawn(words, size: int, margin: float) -> np.ndarray:
    """Draws with another margin of decisions in floats."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechanisms.rounded_gaussian.MARGIN", margin)
        return rounded_gaussian(words, size)


def raw(seed: int):
    return np.random.Philox(seed).random_raw


def bound(k: int, x: int) -> float:
    """exp(-x (2 k + x) / 2) in cells of u."""
    return float(np.exp(-(x / 2**X_BITS) * (k + x / 2 ** (X_BITS + 1)))) * 2**U_BITS


@pytest.mark.parametrize(("further", "side"), [(ZEROS, "right"), (ONES, "left")])
def test_every_prefix_gives_the_k_of_its_lowest_and_of_its_highest_number(further, side):
    """Both ends of all 2^18 cells, in order, over many blocks. Kills a table with any threshold off
    by one cell."""
    prefixes = np.arange(2**V_BITS - 1)  # digits that are all ones are never decided
    draws = accepted([word(0, 0, 0, v=int(v)) for v in prefixes], repeat(further))
    numbers = prefixes + (further == ONES)
    assert draws == (np.searchsorted(THRESHOLDS * 2**V_BITS, numbers, side) * UNIT).tolist()


@pytest.mark.parametrize("k", range(1, 6))
def test_a_prefix_on_a_threshold_is_decided_by_further_digits(k):
    threshold = THRESHOLDS[k - 1] * 2**V_BITS
    v = int(threshold)
    for step, expected in ((-(2.0**-30), k - 1), (2.0**-30, k)):
        digits = int((threshold - v + step) * 2**64)
        assert accepted([word(0, 0, 0, v=v)], iter([digits])) == [expected * UNIT]


def test_far_values_of_k_are_reached():
    """k has no largest value: v = 1 - 2^-m gives the k whose tail P(j >= k) is the last to be at
    least 2^-m."""
    tails = np.cumsum(np.exp(-K * K / 2)[::-1])[::-1] / np.exp(-K * K / 2).sum()
    for m in (20, 40, 60, 75, 81):
        words = [word(0, 0, 0, v=2**V_BITS - 1)]
        digits = 2**64 - 2 ** (64 + V_BITS - m)
        assert accepted(words, iter([digits])) == [int((tails >= 2.0**-m).sum() - 1) * UNIT]
    assert accepted(words, iter([ONES, ONES, ZEROS])) == [
        int((tails >= 2.0**-146).sum() - 1) * UNIT
    ]


@pytest.mark.parametrize("margin", [MARGIN, ALL_EXACT])
@pytest.mark.parametrize("k", range(5))
def test_coins_are_accepted_below_the_exponential(k, margin):
    """Kills another exponent, a bound that is one cell off, and `<` for `>`."""
    for x in (2**21 + 1, 2**25, 2**27, 2**28 + 12345, 2**X_BITS - 1):
        limit = bound(k, x)
        last = int(limit)
        coins = [c for c in (0, last - 1, last, last + 1, 2**U_BITS - 1) if 0 <= c < 2**U_BITS]
        for further, number in ((ZEROS, 0), (ONES, 1)):
            draws = accepted([word(k, c, x) for c in coins], repeat(further), margin)
            # with further digits of one, x is the next number of 29 digits
            assert len(draws) == sum(c + number <= bound(k, x + number) for c in coins)
        exact = [int((limit - last + step) * 2**64) for step in (-(2.0**-30), 2.0**-30)]
        assert accepted([word(k, last, x)], iter([exact[0], ZEROS]), margin)
        assert not accepted([word(k, last, x)], iter([exact[1], ZEROS]), margin)


def test_digits_of_x_that_floats_do_not_see_can_turn_a_decision():
    """u's cell lies below exp(-t) for the first number of x's cell, and not for the last. Kills a
    margin of nothing."""
    for top in (30_000, 20_000, 9_999):
        t = -np.log(top / 2**U_BITS)
        x = int((-4 + np.sqrt(16 + 2 * t)) * 2**X_BITS)
        assert bound(4, x) > top > bound(4, x + 1)
        candidate = [word(4, top - 1, x)]
        assert accepted(candidate, repeat(ZEROS)) and not accepted(candidate, repeat(ONES))


def test_draws_are_the_nearest_integers_with_their_sign():
    """|draw| is within 1/2 of 2^28 (k + x) for both ends of x's cell. Kills a floor, a lost sign
    and another scale."""
    stream = np.random.default_rng(1)
    assert SCALE_BITS == 28
    for k in range(5):
        x, negative = stream.integers(0, 2**X_BITS, 200), stream.integers(0, 2, 200)
        x[:4] = [2, 3, 2**X_BITS - 1, 2**X_BITS - 2]
        words = [word(k, 0, int(a), int(s)) for a, s in zip(x, negative, strict=True)]
        for margin in (MARGIN, ALL_EXACT):
            draws = np.array(accepted(words, None, margin))
            assert (np.sign(draws) == 1 - 2 * negative).all()
            twice = 2 * np.abs(draws) - (k * 2**X_BITS + x)
            assert twice.min() == 0 and twice.max() == 1


def test_floats_and_exact_arithmetic_give_the_same_draws():
    assert (rounded_gaussian(raw(2), 3000) == drawn(raw(2), 3000, ALL_EXACT)).all()


def test_floats_and_exact_arithmetic_agree_close_to_the_bound():
    stream = np.random.default_rng(3)
    ks, xs = stream.integers(0, 5, 300), stream.integers(0, 2**X_BITS, 300)
    coins = [int(bound(k, x)) + int(stream.integers(-1, 2)) for k, x in zip(ks, xs, strict=True)]
    words = [
        word(k, min(u, 2**U_BITS - 1), int(x))
        for k, u, x in zip(ks.tolist(), coins, xs, strict=True)
    ]
    digits = stream.integers(0, 2**64, 2000, dtype=np.uint64).tolist()
    draws = accepted(words, iter(digits))
    assert draws == accepted(words, iter(digits), ALL_EXACT) and 100 < len(draws) < 200


def test_the_callers_decimal_context_does_not_matter():
    with decimal.localcontext(decimal.Context(prec=1, rounding=decimal.ROUND_DOWN)):
        coarse = drawn(raw(2), 300, ALL_EXACT)
    assert (coarse == rounded_gaussian(raw(2), 300)).all()


def test_a_million_draws_have_the_law():
    """False alarm at most 1e-6, were the words drawn anew; they are fixed."""
    words = raw(4)
    draws = tally(lambda n: rounded_gaussian(words, n), 10**6)
    assert draws.alarms() == set() and draws.size == 10**6


@pytest.mark.parametrize("name", spoilers(None, 1.01, 4.0))
def test_a_million_draws_of_another_law_are_told_apart(name):
    """Negative controls. `float32` has gaps: its low bits are not uniform."""
    assert tally(spoilers(np.random.default_rng(5), 1.01, 4.0)[name], 10**6).alarms()


def tail_draws(a: int, size: int) -> np.ndarray:
    """Draws given v >= 1 - 2^-m, which holds for all k >= a: those beyond a are |Z| given |Z| > a.

    The first m digits of v are ones: 18 in the candidate's word, the others in the single word that
    continues it. Words that continue u and x begin with ones, too; one candidate in 2^16 needs any.
    """
    ones, source = {5: 18, 6: 26, 7: 36, 8: 46}[a], raw(a)

    def words(n: int) -> np.ndarray:
        fixed = V_BITS if n > 1 else ones - V_BITS
        return source(n) | np.uint64(2**64 - 2 ** (64 - fixed))

    found = np.empty(0, dtype=np.int64)
    while len(found) < size:
        draws = rounded_gaussian(words, size)
        found = np.concatenate([found, draws[np.abs(draws) > a * UNIT]])
    return found[:size]


def check_tail(a: int, size: int) -> dict[str, float]:
    """False alarm at most 1e-6 for each a. Controls: a sampler that stops 1/2 further out, or at
    6.76."""
    draws = tail_draws(a, size)
    p_values, magnitudes = tail_p_values(draws, a), np.abs(draws) / UNIT
    level = FALSE_ALARM / len(p_values)
    assert min(p_values.values()) >= level
    for cut in (a + 0.5, *([6.76] if a == 6 else [])):
        assert min(tail_p_values(draws[magnitudes < cut], a).values()) < level
    stretched = 1.02 * draws
    assert min(tail_p_values(stretched[np.abs(stretched) > 1.02 * a * UNIT], a).values()) < level
    return p_values


@pytest.mark.parametrize("a", [5, 6, 8])
def test_far_tails_have_the_law(a):
    check_tail(
        a, 4000 if a == 6 else 2000
    )  # enough for the controls, some 25 draws of which are missing


@pytest.mark.slow
@pytest.mark.parametrize("a", [5, 6, 7, 8])
def test_far_tails_of_many_draws_have_the_law(a):
    show(f"given |Z| > {a}, 30,000 draws", check_tail(a, 30_000))


@pytest.mark.slow
def test_a_hundred_million_draws_have_the_law():
    words = raw(6)
    draws = tally(lambda n: rounded_gaussian(words, n), 10**8)
    show("10^8 draws", draws.p_values())
    assert draws.alarms() == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", spoilers(None, 1.001, 4.9))
def test_a_hundred_million_draws_of_another_law_are_told_apart(name):
    draws = tally(spoilers(np.random.Generator(np.random.SFC64(7)), 1.001, 4.9)[name], 10**8)
    p_values = draws.p_values()
    show(
        f"{name}, 10^8 draws, rejected by",
        {name: p_values[name] for name in sorted(draws.alarms())},
    )
    assert draws.alarms()


def show(title: str, p_values: dict[str, float]) -> None:
    print(f"\n{title}: " + ", ".join(f"{name} {p:.3g}" for name, p in p_values.items()))


def test_nothing_to_draw():
    draws = rounded_gaussian(raw(0), 0)
    assert draws.shape == (0,) and draws.dtype == np.int64


def test_what_would_spoil_the_law_is_refused():
    with pytest.raises(ValueError, match="size must be at least 0; it is -1"):
        rounded_gaussian(raw(0), -1)
    for wrong in (
        lambda n: raw(0)(n).astype(np.int64),
        lambda n: raw(0)(n + 1),
        lambda n: np.zeros(n),
    ):
        with pytest.raises(ValueError, match="must give uint64"):
            rounded_gaussian(wrong, 5)
