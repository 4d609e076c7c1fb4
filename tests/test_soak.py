"""A long run takes no more memory than a short one, and its files grow by its lines alone.

pytest -m slow -n 0 -s tests/test_soak.py
"""

import itertools

import pytest

from tests.faults.soak import GROWING, slope, soaked


@pytest.mark.slow
def test_memory_and_files_of_two_thousand_rounds_grow_by_their_lines_alone():
    """The server keeps each round's record and prices, and a ledger each release's name and
    clients: some thousand bytes a round. Arrays of a round that are not let go take more."""
    result = soaked(2000)
    looks = result["looks"]
    print(slope(looks), looks[-1])
    last, middle = looks[-1], looks[len(looks) // 2]
    assert last["round"] == 2000 and len(looks) == 20
    for name in ("files", "descriptors"):
        assert last[name] == middle[name], name
    assert abs(last["bytes of other files"] - middle["bytes of other files"]) < 1000
    for name in GROWING:
        ends = [one[name] for one in looks]
        steps = [b - a for a, b in itertools.pairwise(ends)]
        assert max(steps) < 1.05 * min(steps), f"{name} grows faster than by lines of one length"
    assert slope(looks) < 20_000
