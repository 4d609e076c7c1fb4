"""Records: what is written as JSON comes back, and no guarantee is never taken for a small
epsilon."""

import json
import math

import pytest

from server.records import (
    RoundRecord,
    RunInfo,
    Summary,
    finite,
    largest,
    middle,
    read_rounds,
    total_seconds,
)

INF, NAN = math.inf, math.nan
ROUND = RoundRecord(3, 0.5, 1.25, 2.0, 1.0, 3.0, 4, 5, 8.0, 6.0, {"norm": 0.5})
SUMMARY = Summary(
    accuracy=0.5,
    loss=1.25,
    epsilon_certified=(1.0, 2.0),
    epsilon_published=(0.5, 0.25),
    epsilon_renyi=0.75,
    delta=1e-5,
    order=7.0,
    noise_multiplier=(1.5, 2.5),
    events=(3, 4),
    retired=1,
    rounds=6,
    seconds=9.0,
    run_dir="runs/run",
    release=True,
    note="a note",
    budget="published",
    evaluated_on="validation",
    caveats=("one", "two"),
)


@pytest.mark.parametrize("record", [ROUND, SUMMARY, RunInfo(5, 2, 7, "runs/run", 3)])
def test_a_record_comes_back_from_its_json(record):
    assert (
        type(record).from_json(json.loads(json.dumps(record.to_json(), allow_nan=False))) == record
    )


def test_what_a_later_version_adds_is_passed_over_and_what_an_earlier_one_lacked_has_its_default():
    written = ROUND.to_json()
    assert RoundRecord.from_json(written | {"colour": "red"}) == ROUND
    del written["metrics"]
    assert RoundRecord.from_json(written).metrics == {}


@pytest.mark.parametrize("number", [INF, -INF, NAN])
def test_numbers_that_are_not_finite_become_none_at_any_depth(number):
    value = {"a": number, "b": [1.0, number, (number, {"c": number})], "d": 2}
    assert finite(value) == {"a": None, "b": [1.0, None, [None, {"c": None}]], "d": 2}


@pytest.mark.parametrize("nothing", [None, INF, NAN])
def test_one_client_without_a_guarantee_leaves_none_for_all(nothing):
    assert largest([1.0, nothing, 3.0]) is None
    assert middle([1.0, nothing, nothing]) is None
    assert middle([5.0, nothing, 1.0]) == 5.0, "no guarantee is more than any epsilon"


def test_the_largest_and_the_middle_of_proved_epsilons():
    assert (
        largest([1.0, 9.0, 2.0]) == 9.0
        and middle([1.0, 9.0, 2.0]) == 2.0
        and middle([1.0, 2.0]) == 1.5
    )
    assert largest([]) is None and middle([]) is None


def test_the_time_of_a_run_is_that_of_all_its_rounds_or_unknown():
    other = RoundRecord.from_json(ROUND.to_json() | {"seconds": 0.5})
    untimed = RoundRecord.from_json(ROUND.to_json() | {"seconds": None})
    assert total_seconds([ROUND, other]) == 8.5 and total_seconds([ROUND, untimed]) is None


def test_a_last_record_that_is_cut_at_any_byte_is_left_out(tmp_path):
    """Also after its last field's bracket, behind which only the record's own is missing."""
    path = tmp_path / "rounds.jsonl"
    line = json.dumps(RoundRecord.from_json(ROUND.to_json() | {"metrics": {}}).to_json()).encode()
    for cut in range(len(line) + 2):
        path.write_bytes((line + b"\n" + line + b"\n")[: len(line) + 1 + cut])
        assert len(read_rounds(path)) == (2 if cut >= len(line) else 1)
    for torn in (line[:9] + b"\0\0" + line[11:] + b"\n", b"\0\0\n"):
        path.write_bytes(line + b"\n" + torn)
        assert len(read_rounds(path)) == 1
    path.write_bytes(line[:-1] + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=r"rounds\.jsonl is damaged"):
        read_rounds(path)
