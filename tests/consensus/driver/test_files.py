"""The files of a member, against those of RocketMQ's own, and with damage."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.consensus.actions import Save
from rmqstore_spark.consensus.driver.disk.entry_log import EntryLog
from rmqstore_spark.consensus.driver.disk.recovery import recover
from rmqstore_spark.consensus.driver.disk.state_files import StateFiles
from rmqstore_spark.consensus.driver.proposals import placed
from rmqstore_spark.consensus.messages import LedgerEntry
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE, parse_committed_index
from tests.consensus.driver.members import record

SEGMENT = 1 << 20


@pytest.fixture
def theirs(golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """The folder of a member that RocketMQ wrote."""
    folder = tmp_path / "theirs"
    shutil.copytree(golden("dledger") / "store" / "dledger-n0", folder)
    return folder


def opened(folder: Path, committed: int = -1) -> tuple[EntryLog, list[tuple[int, int]]]:
    log = EntryLog(str(folder), SEGMENT)
    return log, recover(log, committed, had_entries=False)


def entries(log: EntryLog, count: int, term: int = 1, size: int = 100) -> list[LedgerEntry]:
    """New entries for a log, each a record of about `size` bytes."""
    made: list[LedgerEntry] = []
    last, end = log.last, log.end
    for number in range(count):
        body = record("x" * size, number)
        position = log.next_position(ENTRY_HEADER_SIZE + len(body))
        body = placed(body, position + ENTRY_HEADER_SIZE)
        entry = LedgerEntry(log.last + 1, term, position, ENTRY_HEADER_SIZE + len(body), body)
        log.last, log.end = entry.index, position + entry.size
        made.append(entry)
    log.last, log.end = last, end
    return made


def data_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "data").iterdir())}


def test_what_rocketmq_wrote_is_read_and_written_again_byte_for_byte(
    theirs: Path, tmp_path: Path
) -> None:
    log, terms = opened(theirs, committed=1550)
    assert (log.begin, log.last, terms) == (0, 1550, [(0, 0)])
    before = data_of(theirs)
    ours = EntryLog(str(tmp_path / "ours"), SEGMENT)
    for first in range(0, 1551, 100):
        ours.write(log.read(first, min(first + 99, 1550)))
    assert data_of(tmp_path / "ours") == before == data_of(theirs)
    index = (theirs / "index" / f"{0:020d}").read_bytes()[: 1551 * 32]
    assert (tmp_path / "ours" / "index" / f"{0:020d}").read_bytes()[: 1551 * 32] == index


def test_term_and_commit_index_are_those_of_rocketmq(theirs: Path) -> None:
    state = StateFiles(str(theirs))
    assert state.saved == Save(0, "n0", is_voter=True)
    assert state.saved_commit == 1550
    state.write_term(Save(7, None, is_voter=True))
    assert (theirs / "currterm").read_text() == "voteLeader=\ncurrTerm=7\n"
    for save in (Save(8, "n2", is_voter=False), Save(9, "n1", is_voter=True)):
        state.write_term(save)
        assert state.saved == save == StateFiles(str(theirs)).saved
    for there in (True, False):
        state.note_entries(there=there)
        found = StateFiles(str(theirs))
        assert (found.saved, found.has_entries) == (save, there)


@pytest.mark.parametrize("text", ["", "currTerm=\n", "voteLeader=n0\n", "currTerm=-3\n", "\0" * 40])
def test_a_damaged_term_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "currterm").write_text(text)
    with pytest.raises(CorruptStoreError, match="currTerm"):
        StateFiles(str(tmp_path))


def test_the_commit_index_is_noted_in_place_and_saved(tmp_path: Path) -> None:
    state = StateFiles(str(tmp_path))
    path = tmp_path / "checkpoint"
    state.note_committed(lambda: (-1, -1))
    sizes = {path.stat().st_size}
    file = path.stat().st_ino
    for committed in (0, 7, 6, 1_000_000):
        state.note_committed(lambda committed=committed: (committed, committed + 1))  # type: ignore[misc]
        sizes.add(path.stat().st_size)
    assert path.stat().st_ino == file
    assert len(sizes) == 1
    assert parse_committed_index(path.read_text()) == 1_000_000
    state.save_committed(lambda: (1_000_001, 1_000_001))
    assert state.saved_commit == StateFiles(str(tmp_path)).saved_commit == 1_000_001
    state.forget_committed()
    state.close()
    assert StateFiles(str(tmp_path)).saved_commit == -1


def test_the_index_is_flushed_when_a_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[str] = set()
    flush = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        flushed.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name)
        flush(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    log = EntryLog(str(tmp_path), SEGMENT)
    for count, folders in ((10, {"data", "index"}), (10, {"data"}), (1400, {"data", "index"})):
        log.write(entries(log, count, 1, 1000))
        log.take_unflushed().flush()
        assert flushed == folders
        flushed.clear()
    log.take_unflushed_index().flush()
    assert flushed == set()
    log.close()


def test_entries_roll_to_the_next_segment_and_are_found_again(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path), SEGMENT)
    for term in (1, 1, 4):
        log.write(entries(log, 700, term, 1000))
    log.take_unflushed().flush()
    assert len(data_of(tmp_path)) == 3
    found, terms = opened(tmp_path)
    assert (found.begin, found.last, found.end) == (0, 2099, log.end)
    assert terms == [(0, 1), (1400, 4)]
    assert found.read(0, 2099) == log.read(0, 2099)
    assert log.within(0, 2099, 10_000) == 7
    assert log.within(5, 5, 1) == 5


@pytest.mark.parametrize("part", [600, 5000, 1 << 16])
def test_entries_are_found_wherever_a_part_ends(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.consensus.driver.disk.recovery._PART", part)
    log = EntryLog(str(tmp_path), SEGMENT)
    log.last, log.begin, log.end = 2, 3, 7001
    for number in range(800):
        log.write(entries(log, 1, number // 300, 50 + 10 * number % 9000))
    assert len(log.data.starts) > 2
    shutil.rmtree(tmp_path / "index")
    found, terms = opened(tmp_path)
    assert (found.begin, found.last, found.end) == (3, 802, log.end)
    assert terms == [(3, 0), (303, 1), (603, 2)]
    assert found.read(3, 802) == log.read(3, 802)


def test_what_is_cut_reads_as_zeros(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, 2000, 1, 1000))
    log.cut(300)
    (only,) = data_of(tmp_path).values()
    assert len(only) == SEGMENT
    assert not any(only[log.end :])
    log.write(entries(log, 10, 2))
    found, terms = opened(tmp_path)
    assert (found.last, terms) == (310, [(0, 1), (301, 2)])


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (3, b"\x07"),  # magic
        (7, b"\x00"),  # size
        (15, b"\x09"),  # index
        (31, b"\x01"),  # position
        (ENTRY_HEADER_SIZE + 8, b"\xff\xff"),  # CRC of the message's body
        (ENTRY_HEADER_SIZE, b"\0" * 200),  # a body that has not reached the disk
    ],
)
def test_a_damaged_entry_ends_the_log(tmp_path: Path, at: int, what: bytes) -> None:
    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, 30, 1, 300))
    position = log.unit(20).position
    log.data.write(position + at, what)
    with pytest.raises(CorruptStoreError, match="entries up to 20 are committed"):
        opened(tmp_path, committed=20)
    found, _ = opened(tmp_path, committed=19)
    assert (found.last, found.end) == (19, position)
    (only,) = data_of(tmp_path).values()
    assert not any(only[position:])


def test_a_write_of_which_a_sector_is_lost_is_cut(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path / "whole"), SEGMENT)
    log.write(entries(log, 3, 1))
    position = log.next_position(6000)
    made = record("y" * 1500, properties=b"key\x01" + b"z" * 4000 + b"\x02")
    body = placed(made, position + ENTRY_HEADER_SIZE)
    log.write((LedgerEntry(3, 1, position, ENTRY_HEADER_SIZE + len(body), body),))
    for sector in range(position // 512, log.end // 512 + 1):
        shutil.copytree(tmp_path / "whole", tmp_path / "torn")
        with (tmp_path / "torn" / "data" / f"{0:020d}").open("r+b") as file:
            file.seek(max(sector * 512, position))
            file.write(bytes(min(sector * 512 + 512, log.end) - max(sector * 512, position)))
        found, _ = opened(tmp_path / "torn", committed=2)
        assert found.last == 2
        shutil.rmtree(tmp_path / "torn")


def test_a_topic_of_which_a_sector_is_lost_is_cut(tmp_path: Path) -> None:
    """A message without properties ends with its topic, which no CRC covers."""
    made = record("y" * 100, topic="orders", properties=b"")
    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, 1))
    within = ENTRY_HEADER_SIZE + made.index(b"orders") + 2
    before = ENTRY_HEADER_SIZE + len(record(""))
    fill = -(log.end + before + within) % 512
    log.write(entries(log, 1, size=fill))
    position = log.end
    assert (position + within) % 512 == 0
    body = placed(made, position + ENTRY_HEADER_SIZE)
    log.write((LedgerEntry(2, 1, position, ENTRY_HEADER_SIZE + len(body), body),))
    log.data.write(position + within, bytes(512))
    found, _ = opened(tmp_path, committed=1)
    assert (found.last, found.end) == (1, position)


def test_zeros_in_what_is_committed_stay(tmp_path: Path) -> None:
    """A leader of RocketMQ's takes them."""
    log = EntryLog(str(tmp_path), SEGMENT)
    position = log.next_position(2000)
    made = record("y", properties=b"key\x01" + bytes(1500) + b"\x02")
    body = placed(made, position + ENTRY_HEADER_SIZE)
    log.write((LedgerEntry(0, 1, position, ENTRY_HEADER_SIZE + len(body), body),))
    assert opened(tmp_path, committed=0)[0].read(0, 0)[0].body == body
    assert opened(tmp_path, committed=-1)[0].is_empty


UNFLUSHED = 6  # segments: a leader writes up to 64 MiB before the first flush is over


def half_flushed(folder: Path) -> tuple[EntryLog, int]:
    """A log of which the first two segments are flushed; returns it and the last entry there."""
    log = EntryLog(str(folder), SEGMENT)
    log.write(entries(log, UNFLUSHED * 900, 1, 1000))
    assert len(log.data.starts) == UNFLUSHED
    headers = log.data.read(2 * SEGMENT, ENTRY_HEADER_SIZE)
    log.close()
    return log, int.from_bytes(headers[8:16], "big") - 1


def lose(folder: Path, start: int) -> None:
    (folder / "data" / f"{start:020d}").write_bytes(bytes(SEGMENT))


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize(
    "lost", [[2, 3, 4, 5], [2], [2, 4], [5]], ids=["all", "the first", "some", "the last"]
)
def test_segments_of_which_nothing_reached_the_disk(
    tmp_path: Path, lost: list[int], is_saved: bool
) -> None:
    _, last = half_flushed(tmp_path)
    for number in lost:
        lose(tmp_path, number * SEGMENT)
    found, terms = opened(tmp_path, committed=last if is_saved else -1)
    end = found.read(found.last, found.last)[0]
    assert terms == [(0, 1)]
    assert found.end == end.position + end.size
    assert len(found.data.starts) == lost[0]
    assert found.end > lost[0] * SEGMENT - 2000
    assert (found.last == last) == (lost[0] == 2)
    assert opened(tmp_path, committed=last)[0].last == found.last


@pytest.mark.parametrize("gone", [[2], [3], [2, 4]])
@pytest.mark.parametrize("is_empty", [True, False])
def test_names_that_did_not_reach_the_disk(
    tmp_path: Path, gone: list[int], is_empty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _, last = half_flushed(tmp_path)
    for number in gone:
        path = tmp_path / "data" / f"{number * SEGMENT:020d}"
        path.unlink()
        if is_empty:
            path.touch()
    found, _ = opened(tmp_path, committed=last)
    assert list(data_of(tmp_path)) == [f"{row * SEGMENT:020d}" for row in range(gone[0])]
    assert found.last >= last
    assert "is not whole, and is cut off" in caplog.text
    found.write(entries(found, 2000, 2, 1000))
    assert opened(tmp_path, committed=last)[0].last == found.last


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("gone", [1, 2])
def test_a_missing_file_with_committed_entries_stops_the_start(
    tmp_path: Path, gone: int, is_empty: bool
) -> None:
    _, last = half_flushed(tmp_path)
    path = tmp_path / "data" / f"{gone * SEGMENT:020d}"
    path.unlink()
    if is_empty:
        path.touch()
    before = data_of(tmp_path)
    with pytest.raises(CorruptStoreError, match="the file before this one is missing, or empty"):
        opened(tmp_path, committed=last + 1)
    assert data_of(tmp_path) == before


def test_a_missing_file_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is written again, but for what is committed in older segments."""
    monkeypatch.setattr("rmqstore_spark.consensus.driver.disk.entry_log.INDEX_FILE_SIZE", 1000 * 32)
    _, last = half_flushed(tmp_path)
    (tmp_path / "index" / f"{3 * 32_000:020d}").unlink()
    with pytest.raises(CorruptStoreError, match="the file of the index before this one"):
        opened(tmp_path, committed=3000)
    found, _ = opened(tmp_path, committed=last)
    assert (found.last, len(found.index.starts)) == (UNFLUSHED * 900 - 1, 6)
    assert found.read(2999, 3001)[2].index == 3001


def test_names_are_flushed_before_files_and_these_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []

    def note(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, 40 * 900, 1, 1000))
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    log.take_unflushed().flush()
    assert set(flushed[:2]) == {str(tmp_path / "data"), str(tmp_path / "index")}
    segments = [path for path in flushed if path.startswith(str(tmp_path / "data" / "0"))]
    assert segments == [str(tmp_path / "data" / f"{row * SEGMENT:020d}") for row in range(40)]


@pytest.mark.parametrize("begin", [0, 5 << 20])
def test_a_start_takes_little_memory_for_many_entries(tmp_path: Path, begin: int) -> None:
    size = 32 << 20
    log = EntryLog(str(tmp_path), size)
    log.last, log.begin, log.end = 6, 7, begin
    while log.end < size - (1 << 20):
        log.write(entries(log, 5000, 1, 100))
    log.close()
    tracemalloc.start()
    try:
        again = EntryLog(str(tmp_path), size)
        recover(again, -1, had_entries=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (again.begin, again.last, again.end) == (7, log.last, log.end)
    assert again.last > 80_000
    assert most < size // 2


@pytest.mark.parametrize("count", [20, 2000])
@pytest.mark.parametrize("size", [SEGMENT // 2, SEGMENT * 2])
def test_another_segment_size_stops_the_start(tmp_path: Path, count: int, size: int) -> None:
    """Also of a log that has one segment, which is never made shorter or longer."""
    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, count, 1, 1000))
    log.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CorruptStoreError, match="mappedFileSizeCommitLog"):
        EntryLog(str(tmp_path), size)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_start_flushes_all_that_a_killed_process_can_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader may push more than a few small segments before the first flush is over."""
    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, 12_000, 1, 1000))
    log.close()
    flushed: set[str] = set()
    monkeypatch.setattr(os, "fdatasync", lambda of: flushed.add(os.readlink(f"/proc/self/fd/{of}")))
    EntryLog(str(tmp_path), SEGMENT).close()
    segments = sorted(str(path) for path in (tmp_path / "data").iterdir())
    assert len(segments) > 4
    assert flushed.issuperset(segments)


def test_a_log_that_begins_within_a_segment(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path), SEGMENT)
    position = 3 * SEGMENT + 5000
    body = placed(record("late"), position + ENTRY_HEADER_SIZE)
    entry = LedgerEntry(5000, 3, position, ENTRY_HEADER_SIZE + len(body), body)
    log.write((entry,))
    log.write(entries(log, 5, 3))
    found, terms = opened(tmp_path)
    assert (found.begin, found.last, terms) == (5000, 5005, [(5000, 3)])
    assert found.read(5000, 5000) == (entry,)


def test_the_first_segment_expires(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path), SEGMENT)
    log.write(entries(log, 700, 1, 1000))
    assert log.second_segment() is None
    log.write(entries(log, 1400, 2, 1000))
    begin = log.second_segment()
    assert begin is not None
    assert log.unit(begin).position == SEGMENT
    log.expire(begin)
    found, terms = opened(tmp_path)
    assert (found.begin, found.last) == (begin, 2099)
    assert terms[-1][1] == 2
    assert len(data_of(tmp_path)) == 2


def test_the_commit_index_in_the_file_does_not_go_back(tmp_path: Path) -> None:
    """It is looked up before the index is flushed, which takes its time, and saved afterwards."""
    state = StateFiles(str(tmp_path))
    state.note_committed(lambda: (10, 10))
    state.note_committed(lambda: (50, 60))
    state.save_committed(lambda: (11, 60))
    assert (state.saved_commit, StateFiles(str(tmp_path)).saved_commit) == (11, 50)
    state.save_committed(lambda: (55, 60))
    assert state.saved_commit == StateFiles(str(tmp_path)).saved_commit == 55
    state.close()
