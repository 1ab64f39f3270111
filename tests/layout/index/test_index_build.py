from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import TRANSACTION_MASK, TRANSACTION_ROLLBACK_TYPE
from rmqstore_spark.layout.index import format as index
from rmqstore_spark.layout.index.build import IndexFile, link_entries
from rmqstore_spark.layout.index.hashing import index_key_hash
from tests.support.stores.golden import RecordReport, load_meta, load_records

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _keys(record: RecordReport) -> list[str]:
    """What a record is indexed under, in RocketMQ's order."""
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK_TYPE:
        return []
    uniq = [record.properties["UNIQ_KEY"]] if "UNIQ_KEY" in record.properties else []
    return uniq + [key for key in record.properties.get("KEYS", "").split(" ") if key]


@pytest.mark.parametrize(
    "name",
    [
        "basic",
        "tiny",
        "batch",
        "live",
        "flags",
        "lmq",
        "ipv6",
        "multipath",
        "transactions",
        "delayed",
        "dledger",
        "extcq",
        "unclean",
        "v5basic",
        "v5v2topic",
    ],
)
def test_indexing_the_golden_records_again_gives_rocketmqs_files(
    golden: Callable[[str], Path], name: str, each_kernel: str
) -> None:
    meta = load_meta(golden(name))
    rows = [(r, key) for r in load_records(golden(name)) for key in _keys(r)]
    hashes = index_key_hash(pa.array([r.topic for r, _ in rows]), [key for _, key in rows])
    offsets = np.array([r.physical_offset for r, _ in rows])
    times = np.array([r.store_timestamp for r, _ in rows])

    files: list[IndexFile] = []
    done = 0
    while done < len(rows):
        after = files[-1].header if files else None
        files.append(IndexFile.create(meta.index_slots, meta.index_entries, after))
        while done < len(rows) and not files[-1].is_full:
            part = slice(done, done + 97)
            done += files[-1].insert(hashes[part], offsets[part], times[part])

    written = sorted((golden(name) / "store/index").iterdir())
    assert len(files) == len(written)
    for file, path in zip(files, written, strict=True):
        assert file.encode() == path.read_bytes()


def _put_key(file: IndexFile, key_hash: int, phy_offset: int, timestamp: int) -> bool:
    """One key, step by step, as docs/format.md and `IndexFile.putKey` have it."""
    header = dict(vars(file.header))
    number = max(header["index_count"], 1)
    if number >= len(file.entries):
        return False
    slot = key_hash % len(file.slots)
    previous = int(file.slots[slot])
    if previous < 0 or previous >= number:
        previous = 0
    begin = header["begin_timestamp"]
    seconds = 0 if begin <= 0 else min(max(timestamp - begin, 0) // 1000, 2**31 - 1)
    file.entries[number] = (key_hash, phy_offset, seconds, previous)
    file.slots[slot] = number
    if number == 1:
        header.update(begin_timestamp=timestamp, begin_phy_offset=phy_offset)
    header["hash_slot_count"] += previous == 0
    header.update(index_count=number + 1, end_timestamp=timestamp, end_phy_offset=phy_offset)
    file.header = index.IndexHeader(**header)
    return True


ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 12), st.integers(0, 2**31 - 1)),
        st.integers(0, 2**62),
        st.one_of(st.integers(0, 100_000), st.integers(0, 2**62)),
    ),
    max_size=60,
)


@both_kernels
@given(
    rows=ROWS,
    slots=st.integers(1, 7),
    entries=st.integers(1, 50),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    after=st.one_of(
        st.none(),
        st.builds(
            index.IndexHeader,
            end_timestamp=st.integers(0, 2**62),
            end_phy_offset=st.integers(0, 2**62),
            index_count=st.just(50),
        ),
    ),
)
def test_a_batch_has_the_content_of_one_by_one(
    rows: list[tuple[int, int, int]],
    slots: int,
    entries: int,
    cuts: list[int],
    after: index.IndexHeader | None,
    each_kernel: str,
) -> None:
    single = IndexFile.create(slots, entries, after)
    taken = sum(_put_key(single, *row) for row in rows)

    batched = IndexFile.create(slots, entries, after)
    hashes = np.array([row[0] for row in rows], np.int32)
    offsets = np.array([row[1] for row in rows], np.int64)
    times = np.array([row[2] for row in rows], np.int64)
    done = 0
    for size in [*cuts, len(rows), len(rows)]:
        part = slice(done, done + size)
        done += batched.insert(hashes[part], offsets[part], times[part])

    assert done == taken == min(len(rows), entries - 1)
    assert batched.encode() == single.encode()
    assert batched.is_full == (taken == entries - 1)


def test_a_slot_left_over_by_a_crash_counts_as_unused(each_kernel: str) -> None:
    for leftover in (-1, 3, 99):
        file = IndexFile.create(1, 10)
        file.insert(np.array([4], np.int32), np.array([10]), np.array([1]))
        file.slots[0] = leftover
        file.insert(np.array([5], np.int32), np.array([20]), np.array([2]))
        assert file.entries["previous"][2] == 0
        assert file.header.hash_slot_count == 2
        assert file.slots[0] == 2


def test_files_round_trip_and_go_on_where_they_stopped(each_kernel: str) -> None:
    file = IndexFile.create(3, 6)
    file.insert(np.array([1, 4], np.int32), np.array([0, 100]), np.array([5_000, 7_500]))
    again = IndexFile.decode(file.encode(), 3)
    for part in (file, again):
        part.insert(np.array([7], np.int32), np.array([200]), np.array([9_999]))
    assert again.encode() == file.encode()
    assert file.entries["timeDiff"].tolist() == [0, 0, 2, 4, 0, 0]
    assert file.entries["previous"].tolist() == [0, 0, 1, 2, 0, 0]


def test_a_file_in_memory_that_can_be_written_is_changed_in_place(each_kernel: str) -> None:
    data = bytearray(IndexFile.create(3, 6).encode())
    IndexFile.decode(data, 3).insert(np.array([1], np.int32), np.array([8]), np.array([5]))
    assert index.decode_slots(data, 3).tolist() == [0, 1, 0]


def test_a_file_of_another_size_is_refused_with_its_name() -> None:
    with pytest.raises(CorruptStoreError, match="cannot have 4 slots in f"):
        IndexFile.decode(IndexFile.create(3, 6).encode(), 4, file="f")


@pytest.mark.threat("Data is never executed")
@given(st.binary(max_size=200), st.integers(-2, 40))
def test_any_bytes_are_a_file_or_refused(data: bytes, slots: int) -> None:
    try:
        file = IndexFile.decode(data, slots)
    except CorruptStoreError:
        return
    assert file.encode() == data
    count = file.insert(np.array([1, 2], np.int32), np.array([1, 2]), np.array([1, 2]))
    assert 0 <= count <= 2


@both_kernels
@given(rows=ROWS, slots=st.integers(1, 7), room=st.integers(0, 50))
def test_entries_can_be_made_without_the_file(
    rows: list[tuple[int, int, int]], slots: int, room: int, each_kernel: str
) -> None:
    whole = IndexFile.create(slots, room)
    columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.empty(0)] * 3
    taken = whole.insert(*columns)
    table = np.zeros(slots, index.SLOT_DTYPE)
    entries, header = link_entries(index.IndexHeader(), table, room, *columns)
    assert (len(entries), header, table.tolist()) == (taken, whole.header, whole.slots.tolist())
    assert entries.tobytes() == whole.entries[1 : taken + 1].tobytes()


@pytest.mark.parametrize("negative", [-1, -7, -(2**31)])
def test_a_hash_that_no_key_has_stays_inside(negative: int, each_kernel: str) -> None:
    slots = np.zeros(5, index.SLOT_DTYPE)
    one = np.ones(1, np.int64)
    link_entries(index.IndexHeader(), slots, 9, np.array([negative], np.int32), one, one)
    assert slots[negative % 5] == 1


@pytest.mark.parametrize(
    ("slots", "start", "times", "room"),
    [
        (0, 1, 2, 40),
        (3, 0, 2, 40),
        (3, 2**31 - 2, 2, 40),
        (3, 1, 1, 40),
        (3, 1, 2, 20),
        (3, 1, 2, 39),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    slots: int, start: int, times: int, room: int, each_kernel: str
) -> None:
    with pytest.raises(ValueError, match=r"the arrays differ in number|there are no slots"):
        kernel.active.link_keys(
            np.zeros(slots, index.SLOT_DTYPE), start, np.zeros(2, np.int32), np.zeros(2, np.int64),
            np.zeros(times, np.int64), 0, np.zeros(room, np.uint8),
        )  # fmt: skip
