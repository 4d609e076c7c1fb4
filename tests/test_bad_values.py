"""No number that is none, or far too large, gets past the command line."""

from typing import get_args

import pytest

from sim.config.fields import SETTINGS
from sim.run import command
from tests.refusing import refusal

BAD = ("nan", "word", "1,5", "1e400", "-1e300")
NUMBERS = [
    name
    for name, setting in SETTINGS.items()
    if {int, float} & {setting.info.annotation, *get_args(setting.info.annotation)}
]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bad_number_is_one_line_with_the_setting_and_leaves_nothing(tmp_path, capsys, name):
    flag = f"--{name.replace('_', '-')}"
    for bad in BAD:
        said = refusal(capsys, command, [f"{flag}={bad}", f"--out={tmp_path / 'runs'}"])
        assert flag in said or name in said, said
        assert not list(tmp_path.glob("**/*"))


def test_these_are_hundreds():
    assert len(NUMBERS) * len(BAD) >= 400 and "epsilon" in NUMBERS and "rounds" in NUMBERS
