"""A block of records that its writer has not published: the log ends before it, for everyone."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import CorruptRecordError, CorruptStoreError
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.fields import STORE_TIMESTAMP_AT
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.growth import LogGrowth
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.plan import plan_scan, read_split
from rmqstore_spark.verify import verify
from tests.support.messages.batches import small_segments
from tests.support.messages.traffic import FIRST_TIME, Traffic
from tests.support.stores.storebuilder import StoreBuilder

PUBLISHED = 40
SEGMENT = 4096
BLOCK_TIME = FIRST_TIME + 50_000


class Half:
    """A store with a block in its log that spans several files, its first magic code still zero."""

    def __init__(self, path: Path) -> None:
        self.path = path
        builder = StoreBuilder(path, segment_size=SEGMENT, index=(50, 400), abort=True)
        (first,) = Traffic(PUBLISHED, {"orders": 2}).batches()
        self.last = int(builder.append(first)["physicalOffset"][-1].as_py())
        builder.flush()
        self.flushed = builder.last_timestamp
        shutil.copytree(path, path.parent / "before")
        (second,) = Traffic(60, {"orders": 2}, first_time=BLOCK_TIME).batches()
        stored = builder.append(second)
        self.begin = int(stored["physicalOffset"][0].as_py())
        builder.flush()
        # Only the log has the block yet.
        for name in ("consumequeue", "index"):
            shutil.rmtree(path / name)
            shutil.move(path.parent / "before" / name, path / name)
        self.write(self.begin + 4, b"\0\0\0\0")
        self.checkpoint(self.flushed)

    def write(self, offset: int, data: bytes) -> None:
        """Change bytes of the log."""
        with open(self.path / "commitlog" / f"{offset // SEGMENT * SEGMENT:020}", "r+b") as file:
            file.seek(offset % SEGMENT)
            file.write(data)

    def checkpoint(self, time: int) -> None:
        """Let everything up to a time count as flushed."""
        (self.path / "checkpoint").write_bytes(Checkpoint(time, time, time).encode())

    def scanned(self) -> int:
        """How many rows a scan gives, file by file as Spark's tasks read them."""
        with Store.open(self.path) as store:
            one = sum(batch.num_rows for batch in store.scan())
            splits = plan_scan(store)
            assert one == sum(
                b.num_rows for s in splits for b in read_split(store, s, ReadOptions())
            )
            return one


@pytest.fixture
def half(tmp_path: Path) -> Half:
    return Half(tmp_path / "store")


@pytest.fixture(params=["killed", "live", "closed"])
def state(request: pytest.FixtureRequest, half: Half) -> Iterator[str]:
    if request.param == "closed":
        (half.path / "abort").unlink()
    with open(half.path / "lock", "r+b") as lock:
        if request.param == "live":
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        yield request.param


def without_queues(half: Half) -> None:
    shutil.rmtree(half.path / "consumequeue")


@pytest.mark.parametrize("lose", [None, without_queues])
def test_a_scan_ends_before_an_unpublished_block(
    half: Half, state: str, lose: Callable[[Half], None] | None
) -> None:
    if lose:
        lose(half)
    if state == "closed":  # a broker that recovered has removed the files behind the log's end
        for file in (half.path / "commitlog").iterdir():
            if int(file.name) > half.begin:
                file.unlink()
    assert half.scanned() == PUBLISHED


def test_queues_and_keys_end_before_it(half: Half, state: str) -> None:
    with Store.open(half.path) as store:
        assert sum(q.max_offset for q in store.queues()) == PUBLISHED
        number = f"order-{45:010}"  # one of both parts
        found = query_by_key(store, "orders", number)
        assert found.num_rows == 0


def test_the_tip_does_not_walk_into_it(half: Half) -> None:
    with Store.open(half.path) as store:
        tip = LogGrowth(store)
        tip.moved()
        tip.dispatched(half.begin)
        tip.moved()
        assert not tip.moved()
        half.write(half.begin + 4, b"\xda\xa3\x20\xa7")
        assert tip.moved()


def test_verify_says_where_the_log_ends_and_why(half: Half) -> None:
    with Store.open(half.path) as store:
        report = verify(store)
    assert report.errors == 0
    tail = report.torn_tail
    assert tail is not None
    assert tail.physical_offset == half.begin
    assert tail.cause == "an unpublished block begins here"


@pytest.mark.parametrize("before", [FIRST_TIME, BLOCK_TIME + 1000])
def test_a_magic_code_lost_after_it_was_flushed_is_damage(half: Half, before: int) -> None:
    """Also if the clock went back: the block tells its time, that of a record before does not."""
    half.write(half.last + STORE_TIMESTAMP_AT, before.to_bytes(8, "big"))
    half.checkpoint(BLOCK_TIME + 60)
    with pytest.raises(CorruptStoreError, match="an unpublished block begins here"):
        StoreWriter.open(half.path, small_segments(mappedFileSizeCommitLog=str(SEGMENT)))
    with Store.open(half.path) as store:
        assert store.log_end() > half.begin
        with pytest.raises(CorruptRecordError, match=f"at offset {half.begin % SEGMENT}"):
            list(store.scan())
        dropped = ReadOptions(mode="DROPMALFORMED")
        assert sum(b.num_rows for b in store.scan(options=dropped)) == PUBLISHED + 59


def test_a_magic_code_lost_below_what_queues_name_is_damage(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path / "store", segment_size=SEGMENT) as builder:
        (batch,) = Traffic(60).batches()
        stored = builder.append(batch)
    at = int(stored["physicalOffset"][30].as_py())
    file = tmp_path / "store" / "commitlog" / f"{at // SEGMENT * SEGMENT:020}"
    with open(file, "r+b") as log:
        os.pwrite(log.fileno(), b"\0\0\0\0", at % SEGMENT + 4)
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(CorruptRecordError, match=f"at offset {at % SEGMENT}"):
            list(store.scan())
        dropped = ReadOptions(mode="DROPMALFORMED")
        assert sum(b.num_rows for b in store.scan(options=dropped)) == 59
        lost = [p for p in verify(store).problems if p.kind == "record"]
        assert [(p.offset, "magic code is 0" in p.text) for p in lost] == [(at % SEGMENT, True)]


@pytest.mark.fault
def test_a_block_of_which_the_head_never_reached_the_disk_is_cut_too(half: Half) -> None:
    """Pages reach a disk in any order: whole records of the block can follow its lost head."""
    half.write(half.begin, bytes(min(512, SEGMENT - half.begin % SEGMENT)))
    with Store.open(half.path) as store:
        assert store.log_end() == half.begin
    assert half.scanned() == PUBLISHED
