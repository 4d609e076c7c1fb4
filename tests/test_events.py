"""Events: values survive JSON exactly, nothing invalid exists."""

import dataclasses
import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.accounting.curves import curve
from mechanisms.accounting.events import KINDS, Event, SampledGaussian, from_dict, to_dict

RATES = st.floats(min_value=0.0, max_value=1.0, exclude_min=True)
NOISES = st.floats(min_value=0.0, allow_infinity=False, exclude_min=True)


@given(RATES, NOISES)
def test_an_event_survives_json_exactly(rate, noise):
    event = SampledGaussian(rate, noise)
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_equal_parameters_are_one_key_whether_int_or_float():
    assert {SampledGaussian(1, 2): 3}[SampledGaussian(1.0, 2.0)] == 3
    assert to_dict(SampledGaussian(1, 2)) == {
        "kind": "sampled_gaussian",
        "sample_rate": 1.0,
        "noise_multiplier": 2.0,
    }


FIELDS = {
    "sampled_gaussian": "sample_rate=rate noise_multiplier=positive",
    "fixed_batch_gaussian": "batch_size=count records=count noise_multiplier=positive",
    "gaussian": "noise_multiplier=positive",
    "paper_claim": "sample_rate=rate noise_multiplier=positive",
    "classic_claim": "sample_rate=rate noise_multiplier=positive",
    "unprotected": "sample_rate=rate",
    "unproved": "release=text",
    "importance_sampled_gaussian": (
        "batch_size=positive clip_norm=positive norm_sum=positive records=positive "
        "noise_multiplier=positive"
    ),
    "noisy_norm_sum": "sample_rate=rate noise_multiplier=positive",
    "heterogeneous_gaussian": "sample_rate=rate noise_multiplier=positive smallest_scale=share",
    "visible_choice": "share_rate=rate noise_multiplier=positive",
    "partial_pass": "share_rate=rate noise_multiplier=positive",
    "randomized_response": "epsilon=positive",
    "public_labels": "",
    "summed_shares": "failure=share",
    "dpsur_step": (
        "sample_rate=rate noise_multiplier=positive validation_rate=rate "
        "validation_noise=positive beta=number accounting=visible"
    ),
    "screened_step": (
        "sample_rate=rate noise_multiplier=positive test_rate=rate lowest_acceptance=share "
        "accounting=clipped"
    ),
    "trial_cap": "lowest_acceptance=share most_rejections=count",
    "allotment": "order=order rdp=positive shares=count",
    "covered": "event=event order=order",
    "gaussian_allotment": "noise_multiplier=positive shares=count",
}
"""The fields of each kind, and what each may be; of some words, one of them."""
RELATED = {"importance_sampled_gaussian", "fixed_batch_gaussian"}
"""Fields of which bound each other."""
OVER, MAX, TINY = math.nextafter(1.0, 2.0), sys.float_info.max, math.ulp(0.0)
NO_NUMBER = (math.nan, math.inf, -math.inf, "0.5", None, True)
RANGES = {  # an example, what may be, what may not
    "rate": (0.5, (TINY, 1.0), (0.0, -0.1, OVER, *NO_NUMBER)),
    "share": (0.5, (0.0, 1.0), (-TINY, OVER, *NO_NUMBER)),
    "positive": (1.0, (TINY, MAX), (0.0, -1.0, *NO_NUMBER)),
    "order": (4.0, (OVER, MAX), (1.0, 0.5, *NO_NUMBER)),
    "count": (3.0, (1.0, 2), (0.0, 1.5, -1.0, *NO_NUMBER)),
    "number": (0.5, (-MAX, 0.0, MAX), NO_NUMBER),
    "text": ("weights", ("x",), ("", " ", 3, None)),
    "event": (SampledGaussian(0.5, 1.0), (), (None, 3.0, {"kind": "sampled_gaussian"})),
}


def fields_of(kind: str) -> dict[str, str]:
    return dict(one.split("=") for one in FIELDS[kind].split())


def test_ledgers_that_are_on_disk_can_be_read_for_ever():
    """Kinds and fields as they have been written since each kind exists."""
    found = {kind: [f.name for f in dataclasses.fields(cls)] for kind, cls in KINDS.items()}
    assert found == {kind: list(fields_of(kind)) for kind in FIELDS}


@pytest.mark.parametrize("kind", FIELDS)
def test_what_is_outside_the_bounds_of_a_field_is_refused_by_name(kind):
    """Of every field, at both ends. Kills a probability above 1, which makes a step look free."""
    of = fields_of(kind)
    valid = KINDS[kind](*(RANGES[one][0] if one in RANGES else one for one in of.values()))
    for name, one in of.items():
        _, taken, refused = RANGES.get(one, (one, (), ("", "unheard of", 3, None)))
        for value in () if kind in RELATED else taken:
            assert getattr(dataclasses.replace(valid, **{name: value}), name) == value
        for value in refused:
            with pytest.raises(ValueError, match=rf"^{kind}: {name} = .* must be "):
                dataclasses.replace(valid, **{name: value})


def test_events_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SampledGaussian(0.1, 1.0).sample_rate = 0.2


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "sampled_gausian", "sample_rate": 0.1, "noise_multiplier": 1.0},
        {"kind": ["sampled_gaussian"], "sample_rate": 0.1, "noise_multiplier": 1.0},
        {"kind": "sampled_gaussian", "sample_rate": 0.1},
        {"kind": "sampled_gaussian", "sample_rate": 0.1, "noise_multiplier": 1.0, "count": 2},
        {"kind": "sampled_gaussian", "sample_rate": 2, "noise_multiplier": 1.0},
    ],
)
def test_a_damaged_record_is_refused(record):
    with pytest.raises(ValueError, match="must be"):
        from_dict(record)


def test_every_kind_has_its_own_name_and_a_curve():
    for kind, cls in KINDS.items():
        assert cls.kind == kind
        assert curve.dispatch(cls) is not curve.dispatch(Event)
