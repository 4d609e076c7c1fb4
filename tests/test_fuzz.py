"""Whatever stands in a file or a message, it is read as it was written, or refused in one line."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests import fuzz_targets


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return dict(fuzz_targets.targets(tmp_path_factory.mktemp("fuzz")))


@pytest.mark.parametrize("name", fuzz_targets.MAKERS)
def test_what_is_parsed_is_the_same_value_or_one_line(targets, name):
    target = targets[name]

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(fuzz_targets.mutations(target.valid))
    def holds(data: bytes) -> None:
        fuzz_targets.law(target, data)

    holds()


@pytest.mark.parametrize("name", fuzz_targets.MAKERS)
def test_what_parsers_stumble_over_is_refused_in_one_line(targets, name):
    """Each of it, as the examples above are too few to try all."""
    target = targets[name]
    for token in fuzz_targets.TOKENS:
        fuzz_targets.law(target, token)
        fuzz_targets.law(target, token + target.valid)


@pytest.mark.parametrize("name", fuzz_targets.MAKERS)
def test_valid_bytes_are_read(targets, name):
    """Otherwise the law above would hold of a parser that refuses everything."""
    fuzz_targets.law(targets[name], targets[name].valid)
    assert targets[name].read(targets[name].valid) is not None
