"""Client ids as ranges: writing and reading are inverse, nothing else is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.accounting.ranges import MAX_CLIENTS, format_ranges, parse_ranges

IDS = st.sets(
    st.integers(min_value=0, max_value=60) | st.integers(min_value=0, max_value=MAX_CLIENTS - 1),
    max_size=60,
)


@given(IDS)
def test_reading_gives_what_was_written(ids):
    assert parse_ranges(format_ranges(list(ids))).tolist() == sorted(ids)


@given(st.integers(min_value=0, max_value=10**6), st.integers(min_value=2, max_value=10**5))
def test_neighbours_become_one_range(first, length):
    assert format_ranges(np.arange(first, first + length)) == f"{first}-{first + length - 1}"


def test_the_form():
    assert format_ranges([105, 3, 2, 1, 0, 7, 9]) == "0-3,7,9,105"
    assert format_ranges([]) == ""


@pytest.mark.parametrize(
    "text", ["1-", "-1", "a", "1,,2", "5-3", "3,1", "0-4,4", "1,1", " 1", "1\n", "1" * 8, "٣"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="ranges = "):
        parse_ranges(text)
