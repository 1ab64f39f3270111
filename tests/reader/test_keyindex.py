"""Look-ups by key are complete, whatever the index does or does not hold."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import (
    CorruptRecordError,
)
from rmqstore_spark.files.configfiles import Told
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.index.format import HEADER_SIZE, IndexHeader, entry_position
from rmqstore_spark.layout.index.hashing import index_key_hash
from rmqstore_spark.reader import Store
from rmqstore_spark.reader import key_index as index_module
from rmqstore_spark.reader.lookup import query_by_key, query_by_msg_id
from rmqstore_spark.reader.options import ReadOptions
from tests.support.sampling import one_in
from tests.support.stores.golden import RecordReport, load_meta, load_records
from tests.support.stores.keys import (
    PLACE,
    asked,
    assert_complete,
    every_key,
    has_key,
    indexed,
    keyed,
    places,
    popular,
    reopened,
    with_key,
)
from tests.support.stores.records import log_files
from tests.support.stores.storebuilder import StoreBuilder, Traffic, build_store

Golden = Callable[[str], Path]
OpenStore = Callable[[str], Store]
Copy = Callable[[str], Path]

F_OFD_SETLK = 37
BODIES = ReadOptions(columns=("body",))


# --- stretches without an index -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "dledger", "unclean", "trimmed", "v5basic"])
def test_lost_index_files_are_made_up_for(name: str, copy: Copy) -> None:
    folder = copy(name)
    records, keys = load_records(folder), asked(folder)
    files = sorted((folder / "store" / "index").iterdir())
    held = {path: path.read_bytes() for path in files}
    count = len(files)
    for lost in {1, 2, 2 ** (count - 1), 5, 2**count - 2, 2**count - 1}:
        for number, path in enumerate(files):
            path.unlink(missing_ok=True)
            if not lost >> number & 1:
                path.write_bytes(held[path])
        with reopened(folder) as store:
            assert_complete(store, records, keys)
    shutil.rmtree(folder / "store" / "index")
    with reopened(folder) as store:
        assert_complete(store, records, keys)


@pytest.mark.parametrize("name", ["transactions", "lmq", "multipath", "flags", "batch"])
def test_without_an_index_the_log_is_read(name: str, copy: Copy) -> None:
    folder = copy(name)
    shutil.rmtree(folder / "store" / "index")
    records = load_records(folder)
    assert name != "transactions" or any(not indexed(r) for r in records)
    with reopened(folder) as store:
        assert_complete(store, records, every_key(records)[:: 1 + len(records) // 30])


@pytest.mark.parametrize("lost", [None, 0, 1, 2, 3, 4])
def test_a_record_whose_keys_fill_several_index_files(tmp_path: Path, lost: int | None) -> None:
    keys = ["a b", " ".join(f"k{n}" for n in range(20)), "k3 b", "c"]
    with StoreBuilder(tmp_path / "store", segment_size=1 << 16, index=(5, 8)) as builder:
        stored = builder.append(keyed(keys))
    files = sorted((tmp_path / "store" / "index").iterdir())
    assert len(files) == 4
    if lost is not None:
        for path in files[lost : lost + 1] or files[:-1]:
            path.unlink()
    rows = list(zip(stored["physicalOffset"].to_pylist(), keys, strict=True))
    with Store.open(tmp_path / "store") as store:
        for key in {*" ".join(keys).split(" "), "none"}:
            found = places(query_by_key(store, "T", key, options=PLACE))
            assert found == [place for place, text in rows if key in text.split(" ")]


def test_messages_behind_the_newest_index_file(tmp_path: Path) -> None:
    # A broker with messageIndexEnable=false continues with a store that has an index.
    path = tmp_path / "store"
    with StoreBuilder(path, segment_size=1 << 16, index=(50, 100)) as builder:
        builder.append(keyed(["before"] * 30))
        builder.flush()
        held = {p: p.read_bytes() for p in (path / "index").iterdir()}
        builder.append(keyed(["after", "before"] * 30))
    for file in (path / "index").iterdir():
        file.unlink()
    for file, data in held.items():
        file.write_bytes(data)
    with Store.open(path) as store:
        assert query_by_key(store, "T", "before").num_rows == 60
        assert query_by_key(store, "T", "after").num_rows == 30


def test_unvouched_index_files_do_not_count_in_a_killed_store(copy: Copy) -> None:
    folder = copy("unclean")
    records = load_records(folder)
    keys = every_key(records)[::20]
    # A crash can leave an index file with pages that were never written: here most of its slots.
    vouched = Checkpoint.decode((folder / "store" / "checkpoint").read_bytes()).index_msg_timestamp
    slots = load_meta(folder).index_slots
    unvouched = []
    for path in (folder / "store" / "index").iterdir():
        file = IndexFile.decode(path.read_bytes(), slots)
        if file.header.end_timestamp > vouched:
            ends = file.entries["keyHash"][[1, file.header.index_count - 1]] % slots
            file.slots[np.setdiff1d(np.arange(slots), ends)] = 0
            path.write_bytes(file.encode())
            unvouched.append(path)
    assert len(unvouched) == 1
    with reopened(folder) as store:
        assert_complete(store, records, keys)


def test_the_zeros_behind_a_log_are_not_read(tmp_path: Path) -> None:
    build_store(tmp_path / "store", Traffic(100), segment_size=64 << 20, index=(50, 1000))
    with Store.open(tmp_path / "store") as store:
        files = Counting(store)
        assert query_by_key(store, "orders", "order-0000000050").num_rows == 1
        assert sum(files.read_bytes.values()) < 1 << 20


def test_each_step_of_a_search_by_time_reads_one_entry_and_one_record(tmp_path: Path) -> None:
    build_store(tmp_path / "store", Traffic(2000))
    with Store.open(tmp_path / "store") as store:
        files = Counting(store)
        queue = max(store.queues(), key=lambda queue: queue.max_offset)
        count = queue.max_offset - queue.min_offset
        assert count > 100
        first = queue.offset_at(0)
        for timestamp in (0, 1 << 62):
            files.calls = 0
            found = queue.offset_at(timestamp)
            assert 0 < files.calls <= 2 * count.bit_length()
            assert found == (first if not timestamp else None)


# --- damaged index files --------------------------------------------------------------------------


def _forget(caplog: pytest.LogCaptureFixture) -> None:
    """Let the process tell of damage that it has told of."""
    caplog.clear()
    index_module._told = Told()


@pytest.mark.fault
def test_cut_index_files_are_made_up_for(copy: Copy) -> None:
    folder = copy("tiny")
    records, keys = load_records(folder), asked(folder)[:1]
    path = sorted((folder / "store" / "index").iterdir())[1]
    data = path.read_bytes()
    for size in one_in(3, range(len(data))):
        path.write_bytes(data[:size])
        with reopened(folder) as store:
            assert_complete(store, records, keys)


@pytest.mark.fault
@pytest.mark.parametrize("field", ["begin_phy_offset", "end_phy_offset", "begin_timestamp",
                                   "end_timestamp", "index_count"])  # fmt: skip
def test_headers_that_lie_are_found_out(
    copy: Copy, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy("tiny")
    records, keys = load_records(folder), asked(folder)
    files = sorted((folder / "store" / "index").iterdir())
    headers = [IndexHeader.decode(path.read_bytes()) for path in files]
    for path, header in zip(files, headers, strict=True):
        data = path.read_bytes()
        value = getattr(header, field)
        others = {getattr(other, field) for other in headers}
        for lie in {value + 1, value - 1, -value, 0, 2**31 - 1, -(2**31), *others} - {value}:
            changed = IndexHeader(**{**vars(header), field: lie}).encode()
            path.write_bytes(changed + data[HEADER_SIZE:])
            _forget(caplog)
            with reopened(folder) as store:
                assert_complete(store, records, keys)
            silent = lie <= 1 if field == "index_count" else lie < 0 and field == "end_phy_offset"
            assert silent or str(path) in caplog.text
        path.write_bytes(data)


@pytest.fixture(scope="module")
def tiny_copy(tmp_path_factory: pytest.TempPathFactory, golden: Golden) -> Path:
    folder = tmp_path_factory.mktemp("changed") / "tiny"
    shutil.copytree(golden("tiny"), folder)
    return folder


@pytest.mark.threat("Damage never becomes a wrong row")
@pytest.mark.fault
@given(st.data())
def test_hostile_index_files_give_no_wrong_row(tiny_copy: Path, data: st.DataObject) -> None:
    folder = tiny_copy
    records = load_records(folder)
    path = data.draw(st.sampled_from(sorted((folder / "store" / "index").iterdir())))
    held = path.read_bytes()
    changed = bytearray(held)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(held) - 4))
        value = data.draw(st.binary(min_size=1, max_size=4) | st.just(bytes(4)))
        changed[at : at + len(value)] = value
    path.write_bytes(changed)
    try:
        with reopened(folder) as store:
            for topic, key in asked(folder):
                found = places(query_by_key(store, topic, key, options=PLACE))
                # A key that an index has lost cannot be missed; no other way may one be lost.
                assert set(found) <= set(with_key(records, topic, key))
                assert found == sorted(set(found))
    finally:
        path.write_bytes(held)


@pytest.mark.fault
def test_chains_that_lead_astray_are_found_out(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy("tiny")
    records = load_records(folder)
    path = sorted((folder / "store" / "index").iterdir())[1]
    held = path.read_bytes()
    first, last = (getattr(IndexHeader.decode(held), f"{e}_phy_offset") for e in ("begin", "end"))
    hashes = IndexFile.decode(held, 7).entries["keyHash"]
    # A key in a chain of its own, which the look at the file's first and last entry leaves alone.
    for topic, key in every_key(records):
        key_hash = int(index_key_hash(topic, [key])[0])
        mine = np.flatnonzero(hashes == key_hash).tolist()
        if len(mine) > 2 and key_hash % 7 not in (hashes[1] % 7, hashes[-1] % 7):
            break
    else:
        raise AssertionError("no such key")
    one_by_one = ReadOptions(columns=PLACE.columns, batch_bytes=1)
    lies = [(mine[0], "phyOffset", last)]  # the newest of all, in the oldest's place
    lies += [
        (entry, "phyOffset", lie)
        for entry in mine
        for lie in (first - 1, first + 1, last + 1, -5, 2**62)
    ]
    lies += [(entry, "previous", lie) for entry in mine for lie in (entry, 15, 99)]
    lies += [(key_hash % 7, "slot", lie) for lie in (-1, 99, 2**31 - 1, -(2**31))]
    for number, field, value in lies:
        file = IndexFile.decode(held, 7)
        if field == "slot":
            file.slots[number] = value
        else:
            file.entries[field][number] = value
        path.write_bytes(file.encode())
        _forget(caplog)
        with reopened(folder) as store:
            assert_complete(store, records, [(topic, key)])
            assert_complete(store, records, [(topic, key)], one_by_one)
        assert str(path) in caplog.text


def test_what_else_lies_in_the_index_folder_is_skipped(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy("tiny")
    index = folder / "store" / "index"
    first = min(index.iterdir())
    (index / "README").write_text("no index")
    (index / "20200101000000000").mkdir()
    (index / "20200101000000001").write_bytes(b"")
    (index / "20200101000000002").write_bytes(bytes(388))
    shutil.copy(first, index / "20990101000000000")  # the same twice
    (index / "20990101000000001").symlink_to(index / "20990101000000001")
    with reopened(folder) as store:
        assert_complete(store, load_records(folder), asked(folder))
    assert "README: the name is not a time" in caplog.text
    assert "20200101000000001" in caplog.text


def break_record(folder: Path, record: RecordReport) -> None:
    """Wipe out the magic code of a record."""
    start, log, _ = max(f for f in log_files(folder) if f[0] <= record.physical_offset)
    with log.open("r+b") as file:
        file.seek(record.physical_offset - start + 4)
        file.write(bytes(4))


@pytest.mark.fault
@pytest.mark.parametrize("lost", [0, 2])
def test_damaged_records(copy: Copy, lost: int) -> None:
    folder = copy("tiny")
    records = load_records(folder)
    topic, key = popular(folder)
    for path in sorted((folder / "store" / "index").iterdir())[:lost]:
        path.unlink()
    broken = next(r for r in records if r.physical_offset > 0 and has_key(r, key))
    break_record(folder, broken)
    others = [r for r in records if r is not broken]
    for size in (1, 1 << 20):
        drop = ReadOptions(columns=PLACE.columns, mode="DROPMALFORMED", batch_bytes=size)
        with reopened(folder) as store:
            with pytest.raises(CorruptRecordError, match="no whole record"):
                query_by_key(store, topic, key)
            assert_complete(store, others, every_key(records), drop)


# --- what a look-up costs -------------------------------------------------------------------------


class Counting(LocalFiles):
    """Counts what is read of each file of a store."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.read_bytes: dict[str, int] = {}
        self.calls = 0
        store.directory.files = self
        store.log.plain._files = self

    def _count(self, path: str, size: int) -> None:
        self.read_bytes[path] = self.read_bytes.get(path, 0) + size
        self.calls += 1

    def read(self, path: str, offset: int, length: int) -> bytes:
        data = super().read(path, offset, length)
        self._count(path, len(data))
        return data

    def read_into(self, path: str, offset: int, out: Any) -> int:
        done = super().read_into(path, offset, out)
        self._count(path, done)
        return done

    def read_spans(self, path: str, offsets: Any, lengths: Any, out: Any) -> int:
        self._count(path, int(lengths.sum()))
        return super().read_spans(path, offsets, lengths, out)


def test_a_look_up_reads_little_of_an_index(tmp_path: Path) -> None:
    build_store(tmp_path / "store", Traffic(60_000), index=(10_000, 50_000))
    with Store.open(tmp_path / "store") as store:
        files = Counting(store)
        assert query_by_key(store, "orders", "order-0000012345").num_rows == 1
    indexes = [size for path, size in files.read_bytes.items() if "/index/" in path]
    assert len(indexes) == 3
    assert max(indexes) < 4096
    assert sum(files.read_bytes.values()) < 64 << 10


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[StoreBuilder]:
    """A store that another process seems to be writing."""
    builder = StoreBuilder(tmp_path / "store", segment_size=1 << 14, index=(50, 5000), abort=True)
    with (tmp_path / "store" / "lock").open("r+b") as lock:
        # Of the open file: a lock of the process would go when anything closes the same file.
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        fcntl.fcntl(lock, F_OFD_SETLK, whole)
        yield builder


def test_a_store_that_is_being_written(growing: StoreBuilder) -> None:
    keys = [f"k{n % 7}" for n in range(60)]
    for _ in range(20):
        growing.append(keyed(keys))
    growing.flush()
    with Store.open(growing.path) as store:
        assert store.is_being_written
        now = 20 * keys.count("k3")
        assert query_by_key(store, "T", "k3").num_rows == now
        for _ in range(10):
            growing.append(keyed(keys))
            growing.flush()
            # What came since it was opened is not seen, and does no harm.
            assert query_by_key(store, "T", "k3").num_rows == now
        files = Counting(store)
        assert query_by_key(store, "T", "no such key").num_rows == 0
        logs = [size for path, size in files.read_bytes.items() if "/commitlog/" in path]
        assert sum(logs) < growing.end_offset // 4
        store.refresh()
        for queue in store.queues():
            queue.refresh()
        assert query_by_key(store, "T", "k3").num_rows == 30 * keys.count("k3")


def test_an_index_is_read_whatever_its_writer_is_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It writes entries first, then slots, then the header, and a reader comes in between."""
    folder, slots, rows = tmp_path / "store", 50, range(120)
    config = StoreConfig(max_hash_slot_num=slots, max_index_num=500)
    with StoreWriter.open(folder, config) as writer:
        held = []
        for first in (0, 40, 80):
            part = rows[first : first + 40]
            columns = {
                "topic": ["T"] * len(part),
                "body": pa.array([b"%d" % n for n in part], pa.binary()),
                "properties": pa.array([b"KEYS\1key-%d\2" % (n % 7) for n in part], pa.binary()),
            }
            assert writer.put_batch(pa.RecordBatch.from_pydict(columns)).ok
            writer.flush()
            held += [path.read_bytes() for path in (folder / "index").iterdir()]
        (path,) = (folder / "index").iterdir()
        entries = entry_position(slots, 0)
        _forget(caplog)
        for before, now in pairwise(held):
            for begun in (before[:entries], before[:HEADER_SIZE] + now[HEADER_SIZE:entries]):
                path.write_bytes(begun + now[entries:])
                for key in range(7):
                    with Store.open(folder) as store:
                        found = query_by_key(store, "T", f"key-{key}", options=BODIES)
                        bodies = [int(body) for body in found["body"].to_pylist()]
                    assert sorted(bodies) == [n for n in rows if n % 7 == key]
        assert caplog.text == ""


def assert_told_once(folder: Path, caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Searches of a store that is opened again find everything, and the log has some words once."""
    records, keys = load_records(folder), asked(folder)[:3]
    _forget(caplog)
    for _ in range(4):
        with reopened(folder) as store:
            assert_complete(store, records, keys)
    assert caplog.text.count(words) == 1


def test_damage_is_told_of_once(copy: Copy, caplog: pytest.LogCaptureFixture) -> None:
    folder = copy("tiny")
    path = min((folder / "store" / "index").iterdir())
    path.write_bytes(bytes(8) + b"\xff" * 16 + path.read_bytes()[24:])
    assert_told_once(folder, caplog, "instead of an index file")


def test_another_file_in_the_index_is_told_of_once(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy("tiny")
    (folder / "store" / "index" / "README.txt").write_text("of an administrator")
    assert_told_once(folder, caplog, "README.txt: the name is not a time")


def test_a_search_in_a_store_with_many_queues_reads_those_of_its_topic(
    growing: StoreBuilder,
) -> None:
    topics = pa.array([f"Other{number}" for number in range(40)])
    growing.append(keyed(["other"] * 40).set_column(0, "topic", topics))
    growing.append(keyed(["k1"]))
    growing.append(keyed(["k1"]).set_column(0, "topic", topics[:1]))
    growing.flush()
    with Store.open(growing.path) as store:
        files = Counting(store)
        found = query_by_key(store, "T", "k1")
        assert found.num_rows == 1
        assert query_by_msg_id(store, found["msgId"][0].as_py()).num_rows == 1
        queues = {path.split("/")[-3] for path in files.read_bytes if "/consumequeue/" in path}
        assert queues == {"T"}
