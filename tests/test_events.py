"""Events: values survive JSON exactly, nothing invalid exists."""

import dataclasses
import json
import math

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


def test_ledgers_that_are_on_disk_can_be_read_for_ever():
    """Kinds and fields as they have been written since each kind exists."""
    assert {kind: " ".join(f.name for f in dataclasses.fields(c)) for kind, c in KINDS.items()} == {
        "sampled_gaussian": "sample_rate noise_multiplier",
        "fixed_batch_gaussian": "batch_size records noise_multiplier",
        "gaussian": "noise_multiplier",
        "paper_claim": "sample_rate noise_multiplier",
        "classic_claim": "sample_rate noise_multiplier",
        "unprotected": "sample_rate",
        "unproved": "release",
        "importance_sampled_gaussian": "batch_size clip_norm norm_sum records noise_multiplier",
        "noisy_norm_sum": "sample_rate noise_multiplier",
        "heterogeneous_gaussian": "sample_rate noise_multiplier smallest_scale",
        "visible_choice": "share_rate noise_multiplier",
        "randomized_response": "epsilon",
        "public_labels": "",
        "dpsur_step": (
            "sample_rate noise_multiplier validation_rate validation_noise beta accounting"
        ),
        "screened_step": "sample_rate noise_multiplier test_rate lowest_acceptance accounting",
        "trial_cap": "lowest_acceptance most_rejections",
        "allotment": "order rdp shares",
        "covered": "event order",
        "gaussian_allotment": "noise_multiplier shares",
    }


def test_events_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SampledGaussian(0.1, 1.0).sample_rate = 0.2


@pytest.mark.parametrize(
    "rate",
    [0.0, -0.1, 1.0000001, math.nextafter(1.0, 2.0), float("nan"), float("inf"), "0.1", None, True],
)
def test_a_rate_outside_its_bounds_is_refused_by_name(rate):
    with pytest.raises(ValueError, match=r"sample_rate = .* must be"):
        SampledGaussian(rate, 1.0)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), "1", None, True])
def test_a_noise_multiplier_outside_its_bounds_is_refused_by_name(noise):
    with pytest.raises(ValueError, match=r"noise_multiplier = .* must be"):
        SampledGaussian(0.1, noise)


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
