"""Stores that are being written, that were left unclean, and that expire under the reader."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.errors import CorruptRecordError, SegmentExpiredError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.support.processes.live_writer import LiveWriter
from tests.support.stores.golden import load_records
from tests.support.stores.records import log_files

Golden = Callable[[str], Path]
F_OFD_SETLK = 37
LOSE = ReadOptions(fail_on_data_loss=False)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LiveWriter]:
    """A writer that has a store open."""
    process = LiveWriter(tmp_path / "live" / "store", 20_000)
    process.write(10)
    yield process
    process.kill()


def count(store: Store) -> int:
    for queue in store.queues():
        queue.refresh()
    return sum(b.num_rows for q in store.queues() for b in store.read(q.topic, q.queue_id))


def test_a_reader_sees_what_was_written_since(writer: LiveWriter) -> None:
    with Store.open(writer.path) as store:
        assert store.is_being_written
        assert not store.is_closed_cleanly
        assert count(store) == 10
        for more in (1, 5, 700, 1, 2_000):
            total = writer.write(more)
            store.refresh()
            assert count(store) == total
            # Without a new listing the queues still follow into new files, of log and queue.
            total = writer.write(more)
            assert count(store) == total


@pytest.mark.threat("Files are opened for reading only and are not mapped")
def test_a_reader_beside_a_busy_writer_never_sees_half_a_message(writer: LiveWriter) -> None:
    with Store.open(writer.path) as store:
        seen, total = 0, 0
        for _ in range(12):
            writer.start(1_500)
            for _ in range(6):
                now = count(store)
                assert now >= seen
                seen = now
                scanned = [b["physicalOffset"].to_numpy() for b in store.scan()]
                offsets = np.concatenate(scanned)
                assert (np.diff(offsets) > 0).all()
                assert len(offsets) >= seen
            total = writer.finished()
        store.refresh()
        assert count(store) == total


def test_a_scan_of_a_store_that_is_written_ends_at_the_newest_dispatched_entry(
    writer: LiveWriter,
) -> None:
    writer.write(90)
    with Store.open(writer.path) as store:
        end = store.dispatched_end()
        # A record that is in the log, and not yet in its queue.
        file = min((writer.path / "commitlog").iterdir())
        data = bytearray(file.read_bytes())
        first = int.from_bytes(data[:4], "big")
        record = bytearray(data[:first])
        record[28:36] = end.to_bytes(8, "big")
        data[end : end + first] = record
        file.write_bytes(data)
        assert sum(b.num_rows for b in store.scan()) == 100
        writer.kill()
        # With its writer dead it is a whole record like the others.
        store.refresh()
        assert not store.is_being_written
        assert sum(b.num_rows for b in store.scan()) == 101


@pytest.mark.threat("Files are opened for reading only and are not mapped")
def test_asking_for_the_lock_does_not_take_or_drop_it(golden: Golden, tmp_path: Path) -> None:
    shutil.copytree(golden("unclean") / "store", tmp_path / "store")
    with open(tmp_path / "store" / "lock", "r+b") as lock:
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        fcntl.fcntl(lock, F_OFD_SETLK, whole)
        with Store.open(tmp_path / "store") as store:
            # A lock of this very process counts as well, and survives the question.
            assert store.is_being_written
            assert store.is_being_written
        other = (
            "import fcntl, sys; f = open(sys.argv[1], 'r+b'); "
            "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
        )
        asked = subprocess.run(
            [sys.executable, "-c", other, str(tmp_path / "store" / "lock")], capture_output=True
        )
        assert b"BlockingIOError" in asked.stderr


@pytest.mark.threat("Files are opened for reading only and are not mapped")
def test_reading_changes_no_byte_and_no_time(golden: Golden, tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    shutil.copytree(golden("unclean-crc") / "store", store_path)
    before = {
        p: (p.stat().st_mtime_ns, p.stat().st_size, p.is_file() and p.read_bytes())
        for p in store_path.rglob("*")
    }
    with Store.open(store_path) as store:
        assert count(store) == 1292
        assert sum(b.num_rows for b in store.scan()) == 1292
    after = {
        p: (p.stat().st_mtime_ns, p.stat().st_size, p.is_file() and p.read_bytes())
        for p in store_path.rglob("*")
    }
    assert after == before


def test_damage_below_the_flushed_mark_is_damage_and_not_the_end(
    golden: Golden, tmp_path: Path
) -> None:
    shutil.copytree(golden("unclean") / "store", tmp_path / "store")
    records = load_records(golden("unclean"))
    victim = next(r for r in records[700:] if len(r.body) > 10)
    start, file, _ = [f for f in log_files(golden("unclean")) if f[0] <= victim.physical_offset][-1]
    target = tmp_path / "store" / "commitlog" / file.name
    data = bytearray(target.read_bytes())
    at = victim.physical_offset - start
    data[data.index(victim.body, at)] ^= 1
    target.write_bytes(data)
    checkpoint = tmp_path / "store" / "checkpoint"
    # Known as flushed up to its end: the body went bad later, and what follows it is the log's.
    newest = records[-1].store_timestamp
    checkpoint.write_bytes(Checkpoint(newest, newest, newest).encode())
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(CorruptRecordError, match=f"{file.name} at offset {at}"):
            count(store)
        dropped = ReadOptions(mode="DROPMALFORMED")
        assert sum(b.num_rows for b in store.scan(options=dropped)) == len(records) - 1
    # Known as flushed only before it: the crash's own damage, and the end of the log.
    earlier = victim.store_timestamp - 1
    checkpoint.write_bytes(Checkpoint(earlier, earlier, earlier).encode())
    with Store.open(tmp_path / "store") as store:
        assert store.log_end() == victim.physical_offset
        intact = [r for r in records if r.physical_offset < victim.physical_offset]
        assert count(store) == len(intact)
        assert sum(b.num_rows for b in store.scan()) == len(intact)


@pytest.mark.threat("Files are opened for reading only and are not mapped")
def test_expiry_under_the_reader_is_an_error_or_a_skip(writer: LiveWriter) -> None:
    total = writer.write(3_000)
    with Store.open(writer.path) as store:
        assert count(store) == total
    log = sorted((writer.path / "commitlog").iterdir())
    with Store.open(writer.path) as store:
        ranges = [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()]
        store.close()  # a file that is open could still be read
        for file in log[:3]:
            file.unlink()
        topic, queue_id, start, end = ranges[0]
        with pytest.raises(SegmentExpiredError, match=r"failOnDataLoss=false") as raised:
            list(store.read(topic, queue_id, start, end))
        assert "commitlog" in raised.value.file
    with Store.open(writer.path) as store:
        kept = sum(
            batch.num_rows
            for topic, queue_id, start, end in ranges
            for batch in store.read(topic, queue_id, start, end, LOSE)
        )
        assert kept == count(store)
        assert 0 < kept < total
        assert min(q.min_offset for q in store.queues()) > 0


def test_stale_entries_behind_a_recovery_are_not_the_queues_own(
    golden: Golden, tmp_path: Path
) -> None:
    shutil.copytree(golden("basic") / "store", tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        queue = store.queue("TopicTest", 0)
        end, segment = queue.max_offset, queue.segments[len(queue.segments) - 1]
        other = store.queue("TopicTest", 1).entries(5, 6).tobytes()
    # What a broker that cut its log leaves: an entry whose place now holds another message.
    with open(segment.path, "r+b") as file:
        file.seek(end * 20 - segment.start)
        file.write(other)
    with Store.open(tmp_path / "store") as store:
        assert store.queue("TopicTest", 0).max_offset == end
