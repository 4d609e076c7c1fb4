"""What clients keep from round to round, in memory and after a crash."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from client.client_state import ClientState, own_parameters
from mechanisms.cohort import LocalState

NAMES = ("clip_norm",)


def state(value: float, clients: int) -> LocalState:
    rows = torch.full((clients, 3), value) + torch.arange(clients)[:, None]
    return LocalState(
        rows, (10 * rows, -rows), rows[:, 0], {"clip_norm": rows[:, 0] / 2, "other": rows[:, 0]}
    )


def played(folder, rounds: int) -> ClientState:
    """Clients 4 and 7 took part in every round, client 9 in the first only."""
    client_state = ClientState(folder, NAMES)
    for n in range(1, rounds + 1):
        with client_state.round(n):
            if n == 1:
                keep(client_state, [9], state(100.0, 1))
            keep(client_state, [4, 7], state(float(n), 2))
    return client_state


def keep(client_state: ClientState, clients: list[int], end: LocalState) -> None:
    """A local round that ends so, whatever it began with."""
    assert client_state.keep(np.array(clients), lambda resume: end) is end


def begun(
    client_state: ClientState, clients: list[int], round_: int, fresh: LocalState
) -> LocalState:
    """What clients begin a round with; the round breaks off then."""
    found = []

    def trained(resume) -> LocalState:
        found.append(resume(fresh))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), client_state.round(round_):
        client_state.keep(np.array(clients), trained)
    return found[0]


def check(client_state: ClientState, after: int, round_: int) -> None:
    fresh = replace(state(-1.0, 4), optimizer=(torch.zeros(4, 3), torch.ones(4, 3)))
    got = begun(client_state, [9, 4, 5, 7], round_, fresh)
    kept = state(float(after), 2)
    assert torch.equal(got.optimizer[0][1], kept.optimizer[0][0]) and torch.equal(
        got.optimizer[0][3], kept.optimizer[0][1]
    )
    assert torch.equal(got.optimizer[1][1], kept.optimizer[1][0]), (
        "each state of the optimizer stays its own"
    )
    assert got.optimizer[0][0][0] == 1000.0, "kept from an earlier round"
    assert all(torch.equal(got.optimizer[n][2], fresh.optimizer[n][2]) for n in range(2)), (
        "never took part"
    )
    assert got.memory["clip_norm"].tolist() == [
        50.0,
        after / 2,
        fresh.memory["clip_norm"][2],
        (after + 1) / 2,
    ]
    assert torch.equal(got.params, fresh.params) and torch.equal(
        got.memory["other"], fresh.memory["other"]
    )


def test_rounds_go_on_from_what_was_kept(tmp_path):
    client_state = played(tmp_path, 5)
    check(client_state, after=5, round_=6)


def test_a_new_process_goes_on_where_the_old_one_was(tmp_path):
    played(tmp_path, 5)
    client_state = ClientState(tmp_path, NAMES)
    check(client_state, after=5, round_=6)


def test_a_replayed_round_starts_from_the_round_before_it(tmp_path):
    """Kills a resume that reads the newest file: the crash came after the file and before the
    checkpoint."""
    client_state = played(tmp_path, 5)
    for fresh in (client_state, ClientState(tmp_path, NAMES)):
        check(fresh, after=4, round_=5)


def test_a_round_that_broke_off_leaves_nothing(tmp_path):
    """Kills a replay in the same process that starts from the rows of its first attempt."""
    client_state = played(tmp_path, 5)
    with pytest.raises(KeyboardInterrupt), client_state.round(6):
        keep(client_state, [4, 7], state(77.0, 2))
        raise KeyboardInterrupt
    assert not (tmp_path / "round-000006.safetensors").exists()
    check(client_state, after=5, round_=6)


def test_what_is_kept_does_not_change_with_the_memory_of_the_round(tmp_path):
    """The next chunk of clients may be computed where the one before it was."""
    client_state, end = ClientState(tmp_path, NAMES), state(5.0, 2)
    with client_state.round(1):
        keep(client_state, [4, 7], end)
        for tensor in (*end.optimizer, end.memory["clip_norm"]):
            tensor.fill_(-77.0)
    got, kept = begun(client_state, [4, 7], 2, state(0.0, 2)), state(5.0, 2)
    assert torch.equal(got.optimizer[0], kept.optimizer[0])
    assert torch.equal(got.memory["clip_norm"], kept.memory["clip_norm"])


def test_old_files_are_removed(tmp_path):
    played(tmp_path, 9)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_server_that_goes_on_from_an_older_copy_finds_what_was_kept_since(tmp_path):
    """A node keeps its files to itself. Later ones were the newest: those of each round that came
    were removed when it ended, and every round began afresh."""
    played(tmp_path, 8)
    for n in range(1, 6):
        again = ClientState(tmp_path, NAMES)  # a node's process answers one message
        with again.round(n):
            keep(again, [4, 9], state(float(-n), 2))
    got = begun(ClientState(tmp_path, NAMES), [4, 9], 6, state(0.0, 2))
    assert got.memory["clip_norm"].tolist() == [-2.5, -2.0]


def test_the_first_round_is_fresh(tmp_path):
    client_state, fresh = ClientState(tmp_path, NAMES), state(1.0, 2)
    assert begun(client_state, [0, 1], 1, fresh) is fresh


def test_a_state_of_which_a_bit_is_flipped_is_refused(tmp_path):
    """No checkpoint knows the one that a crash has left, and a release goes on from it."""
    client_state = ClientState(tmp_path, NAMES)
    with client_state.round(1):
        client_state.keep(np.arange(2), lambda resume: state(1.0, 2))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for at in (len(whole) - 1, 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        refused = pytest.raises(ValueError, match=r"round-000001\.safetensors is damaged .*restore")
        with refused, ClientState(tmp_path, NAMES).round(2):
            pass


@pytest.mark.parametrize("other", ["run", "round"])
def test_a_state_of_another_run_or_round_is_refused(tmp_path, other):
    """A copy beside those that a checkpoint knows, newer than all of them, was gone on from."""
    with (client_state := ClientState(tmp_path, NAMES, run="1")).round(1):
        client_state.keep(np.arange(2), lambda resume: state(1.0, 2))
    (path,) = tmp_path.iterdir()
    run = "1" if other == "round" else "2"
    if other == "round":
        path = path.rename(tmp_path / "round-000002.safetensors")
    refused = pytest.raises(ValueError, match=f"{path.name} is of another {other}: restore")
    with refused, ClientState(tmp_path, NAMES, run=run).round(3):
        pass
    with pytest.raises(ValueError, match=f"is of another {other}"):
        own_parameters(tmp_path, run)
