"""A run dies at every one of its file operations, and is resumed: nothing is lost, nothing is drawn
without a charge.

The runs are the real command's, with the engine that works in this process, tiny models, and no
report.
"""

import pytest

from tests.crash_worlds import DEFAULT, KINDS, NEW, facts, once, twice, worlds_in
from tests.crashing import Killed, killed, tree_of


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    with worlds_in(tmp_path_factory.mktemp("worlds")) as found:
        yield found


CRASHES = {"simulation": 40, "adaptive simulation": 40, "release": None} | dict.fromkeys(NEW, 15)
"""How many are tried, by kind; all of a release."""


@pytest.mark.parametrize("kind", CRASHES)
def test_a_run_that_dies_at_any_of_its_operations_is_resumed(worlds, kind):
    """`test_a_run_that_dies_twice_at_any_of_its_operations_is_resumed` tries all of all kinds."""
    once(worlds[kind], CRASHES[kind])


def test_a_release_that_dies_again_while_it_goes_on_is_resumed(worlds):
    twice(worlds["release"], firsts=8, seconds=4)


def test_a_resumed_run_flushes_what_it_finds_before_it_asks_anyone(worlds):
    """A killed process may have named a checkpoint and not flushed the name: the power may fail in
    the next one."""
    world = worlds["adaptive simulation"]
    whole = world.go()
    named = [
        n for n, (_, what) in enumerate(whole.operations, 1) if what[-1:] == ("round-000001.json",)
    ]
    crash = killed(whole.start, whole.operations, named[0])
    resumed = world.go(crash)
    before = [name for name, _ in resumed.operations].index("mark")
    disk = resumed.start.copy()
    assert not disk.tree(False, False).keys() >= crash.tree.keys()
    disk.do(*resumed.operations[:before])
    assert disk.tree(False, False).keys() >= crash.tree.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_dies_twice_at_any_of_its_operations_is_resumed(worlds, kind):
    once(worlds[kind])
    twice(worlds[kind], firsts=10**6, seconds=8)


# --- the harness
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DEFAULT)
def test_what_was_noted_lays_out_what_is_there(worlds, kind):
    """A change of a file that nobody notes would be a crash point that nobody tries."""
    whole = worlds[kind].go()
    last = killed(whole.start, whole.operations, len(whole.operations))
    assert last.tree == tree_of(worlds[kind].root)
    kept = [
        path
        for path in last.tree
        if path.startswith("runs/run/clients/group-") and "/round-" in path
    ]
    assert len(kept) >= 4, "what clients keep is on the disk"
    assert last.disk.tree(False, False).items() >= last.tree.items(), (
        "a finished run does not survive a power loss"
    )


def test_a_program_that_dies_leaves_what_is_laid_out(worlds):
    world = worlds["adaptive simulation"]
    whole = world.go()
    for done in range(5, len(whole.operations), 17):
        with pytest.raises(Killed):
            world.go(dies_at=done)
        left, laid = (
            facts(tree_of(world.root)),
            facts(killed(whole.start, whole.operations, done).tree),
        )
        assert left == laid and len(left) > 1


def test_short_writes_change_nothing(worlds):
    """A call may write less than it was given, as where a disk is nearly full."""
    world = worlds["adaptive simulation"]
    whole, uncut = world.go(), facts(tree_of(world.root))
    short = world.go(longest=50)
    assert facts(tree_of(world.root)) == uncut and len(short.operations) > len(whole.operations)
