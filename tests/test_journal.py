"""Lines that verify themselves: whatever happens to a file, it is refused or nothing of it is
lost."""

import fcntl
import threading
import warnings

import pytest

from mechanisms.journal import Journal, Place, last_place, records, start, whole

LINES = [{"release": "round 1", "count": 3}, {"release": "round 2", "count": 77}, {"release": "é"}]


def written(path, lines=LINES):
    journal = Journal(path, lambda _: None)
    for line in lines:
        journal.append([line])
    journal.close()
    return path.read_bytes()


def read(path):
    return [record for _, record in records(path, whole(path.read_bytes()), dict)]


def reopened(path):
    """What a process that goes on finds; and what is in the file after it has."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Journal(path, found.append).close()
    assert read(path) == found
    return found


def test_lines_come_back_in_their_places(tmp_path):
    data, path = written(tmp_path / "a.jsonl"), tmp_path / "a.jsonl"
    assert reopened(path) == LINES and path.read_bytes() == data
    found = [place for place, _ in records(path, data, dict)]
    assert [place.number for place in found] == [1, 2, 3] and last_place(path) == found[-1]
    assert len({place.chain for place in found}) == 3
    more = Journal(path, lambda _: None)
    more.append(LINES)
    assert last_place(path).number == 6 and read(path) == LINES * 2


def test_no_flipped_bit_passes(tmp_path):
    """Anywhere: of the last end of line too, which then counts as a line without one."""
    path = tmp_path / "a.jsonl"
    data = written(path)
    for at in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            if at == len(data) - 1:
                assert reopened(path) == LINES and path.read_bytes() == data
            else:
                with pytest.raises(ValueError, match=r"a\.jsonl, line [123] is damaged"):
                    Journal(path, lambda _: None)


DAMAGES = {
    "the first line is missing": lambda lines: lines[1:],
    "one between is missing": lambda lines: [lines[0], lines[2]],
    "two have changed places": lambda lines: [lines[0], lines[2], lines[1]],
    "one stands there twice": lambda lines: [*lines, lines[2]],
    "an empty one": lambda lines: [lines[0], b"\n", *lines[1:]],
    "two are glued": lambda lines: [lines[0][:-1], *lines[1:]],
    "one of another file": lambda lines: [lines[0].replace(b"1", b"2"), *lines[1:]],
    "one without a checksum": lambda lines: [b'{"release": "round 1"}\n', *lines[1:]],
    "nested too deep": lambda lines: [b"[" * 10**5 + lines[0], *lines[1:]],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_missing_reordered_and_foreign_lines_are_refused(tmp_path, damage):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(damage(written(path).splitlines(keepends=True))))
    with pytest.raises(ValueError, match=r"a\.jsonl, line \d is damaged"):
        read(path)


def test_the_file_of_another_name_is_refused(tmp_path):
    written(tmp_path / "group-0000.jsonl")
    (tmp_path / "group-0000.jsonl").rename(tmp_path / "group-0001.jsonl")
    with pytest.raises(ValueError, match=r"group-0001\.jsonl, line 1 is damaged"):
        read(tmp_path / "group-0001.jsonl")


def test_a_tear_at_any_byte_costs_the_last_line_at_most_and_the_file_goes_on(tmp_path):
    path = tmp_path / "a.jsonl"
    data = written(path)
    second = data.index(b"\n", data.index(b"\n") + 1) + 1
    for cut in range(second + 1, len(data)):
        for rest in (b"", b"\0" * (len(data) - cut), b"\0" * 9 + b"\n"):
            path.write_bytes(data[:cut] + rest)
            kept = LINES if cut == len(data) - 1 and not rest.endswith(b"\n") else LINES[:2]
            assert reopened(path) == kept
            written(path, [{"release": "later"}])
            assert read(path) == [*kept, {"release": "later"}]


def test_zeros_anywhere_in_the_last_append_cost_no_earlier_line(tmp_path):
    """A sector in the midst of many lines may not have reached the disk while later ones have: what
    comes before it counts, and the file goes on. In an append that others follow it is damage."""
    path, many = tmp_path / "a.jsonl", [{"release": "round 3", "client": k} for k in range(12)]
    before = written(path)
    journal = Journal(path, lambda _: None)
    journal.append(many[:7])
    journal.close()
    Journal(path, lambda _: None).append(many[7:])  # what a crash had left of the append is gone on
    data = path.read_bytes()
    Journal(path, lambda _: None).append([one | {"release": "round 4"} for one in many])
    longer = path.read_bytes()
    for at in range(len(before), len(data) - 1, 5):
        lost = b"\0" * min(64, len(data) - at)
        path.write_bytes(data[:at] + lost + data[at + 64 :])
        kept = [*LINES, *many[: data[:at].count(b"\n") - len(LINES)]]
        assert reopened(path) == kept
        written(path, [{"release": "later"}])
        assert read(path) == [*kept, {"release": "later"}]
        path.write_bytes(longer[:at] + lost + longer[at + len(lost) :])
        with pytest.raises(ValueError, match=r"a\.jsonl, line \d+ is damaged"):
            Journal(path, lambda _: None)
    one = data[: len(before) + 64] + b"\0\0" + data[len(before) + 66 :]
    path.write_bytes(one.replace(b'"number": 13', b"13"))
    with pytest.raises(ValueError, match=r"a\.jsonl, line \d+ is damaged"):
        Journal(path, lambda _: None)


def test_the_place_is_known_even_behind_a_torn_line(tmp_path):
    path = tmp_path / "a.jsonl"
    data = written(path)
    place = last_place(path)
    path.write_bytes(data + data[:20])
    assert last_place(path) == place
    path.write_bytes(b"")
    assert last_place(path) == start(path) == Place(0, "a.jsonl")


def test_a_file_belongs_to_the_process_that_appended_last(tmp_path):
    """The other one does not know what was charged; nor does it cut off what it does not know."""
    path = tmp_path / "a.jsonl"
    first, second = Journal(path, lambda _: None), Journal(path, lambda _: None)
    second.append(LINES)
    data = path.read_bytes()
    with pytest.raises(ValueError, match=r"a\.jsonl was changed by another process"):
        first.append(LINES)
    assert path.read_bytes() == data
    second.append(LINES)
    assert read(path) == LINES * 2


def test_nobody_reads_a_file_while_another_process_appends(tmp_path):
    """What is half written would be taken for torn, and cut off."""
    path, found = tmp_path / "a.jsonl", []
    data = written(path)
    path.write_bytes(data[:-9])
    with open(path, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        reader = threading.Thread(target=lambda: Journal(path, found.append).close())
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
        path.write_bytes(data)
    reader.join()
    assert found == LINES and path.read_bytes() == data


def test_nobody_appends_while_another_process_does(tmp_path):
    journal = Journal(tmp_path / "a.jsonl", lambda _: None)
    with open(journal.path, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer = threading.Thread(target=lambda: journal.append(LINES))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive() and journal.path.read_bytes() == b""
    writer.join()
    assert read(journal.path) == LINES


def test_two_that_append_exclude_each_other(tmp_path):
    journal = Journal(tmp_path / "a.jsonl", lambda _: None)
    with journal._locked(), open(journal.path, "r+b") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_it_is_its_owners_alone(tmp_path):
    written(tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("gone", ["removed", "replaced", "a link"])
def test_nothing_is_written_where_nobody_would_read_it(tmp_path, gone):
    """Editors and sync clients replace files: later charges went to a file without a name."""
    journal, copy = Journal(tmp_path / "a.jsonl", lambda _: None), tmp_path / "copy"
    journal.append(LINES[:1])
    copy.write_bytes(journal.path.read_bytes())
    if gone == "replaced":
        copy.rename(journal.path)
    else:
        journal.path.unlink()
    if gone == "a link":
        journal.path.symlink_to(copy)
    with pytest.raises(ValueError, match=r"a\.jsonl was removed or replaced .*: restore it"):
        journal.append(LINES[1:])
