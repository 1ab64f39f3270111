from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from tests.support.messages.strategies import BYTES, INT32, INT64
from tests.support.stores.golden import load_entries

ENTRIES = st.lists(st.tuples(INT64, INT32, INT64), max_size=20)


def _queue_bytes(folder: Path) -> tuple[int, bytes]:
    """Byte offset of a queue's first file, and the bytes of all its files."""
    files = sorted(folder.iterdir())
    return int(files[0].name), b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize(
    "name", ["basic", "tiny", "batch", "extcq", "ipv6", "lmq", "trimmed", "v5basic"]
)
def test_entries_are_those_that_rocketmq_lists(golden: Callable[[str], Path], name: str) -> None:
    store = golden(name)
    listed = load_entries(store)
    assert listed
    for (topic, queue_id), expected in listed.items():
        start, data = _queue_bytes(store / "store/consumequeue" / topic / str(queue_id))
        entries = CONSUME_QUEUE.decode(data)[expected[0].offset - start // CONSUME_QUEUE.size :]
        written = [n < len(expected) for n in range(len(entries))]
        assert CONSUME_QUEUE.is_written(entries).tolist() == written
        entries = entries[: len(expected)]
        assert entries["physicalOffset"].tolist() == [e.physical_offset for e in expected]
        assert entries["size"].tolist() == [e.size for e in expected]
        assert entries["tagsCode"].tolist() == [e.tags_code for e in expected]
        assert CONSUME_QUEUE.is_message(entries).all()


@given(ENTRIES)
def test_round_trip(rows: list[tuple[int, int, int]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    data = CONSUME_QUEUE.encode(*columns).tobytes()
    assert len(data) == len(rows) * CONSUME_QUEUE.size
    assert CONSUME_QUEUE.decode(data).tolist() == rows


def test_layout_is_big_endian() -> None:
    assert CONSUME_QUEUE.encode([1], [2], [-1]).tobytes().hex() == f"{1:016x}{2:08x}{'f' * 16}"


@pytest.mark.threat("Data is never executed")
@given(BYTES)
def test_any_bytes_decode_to_whole_entries(data: bytes) -> None:
    entries = CONSUME_QUEUE.decode(data)
    assert len(entries) == len(data) // CONSUME_QUEUE.size
    assert entries.tobytes() == data[: len(entries) * CONSUME_QUEUE.size]
    live = CONSUME_QUEUE.is_message(entries)
    assert not (live & CONSUME_QUEUE.is_filler(entries)).any()


def test_fillers_unwritten_and_damaged_entries_are_no_messages() -> None:
    data = [
        CONSUME_QUEUE.fillers(2),
        CONSUME_QUEUE.encode(
            [0, 100, 0, 0, -1, 5], [2**31 - 1, 2**31 - 1, 7, 0, 9, -9], [1, 0, 0, 0, 0, 0]
        ),
    ]
    entries = CONSUME_QUEUE.decode(b"".join(part.tobytes() for part in data))
    alone = [CONSUME_QUEUE.entry(entry.tobytes()) for entry in entries]
    assert [entry.is_filler for entry in alone] == CONSUME_QUEUE.is_filler(entries).tolist()
    assert [entry.is_written for entry in alone] == CONSUME_QUEUE.is_written(entries).tolist()
    assert [entry.names_record for entry in alone] == CONSUME_QUEUE.is_message(entries).tolist()
    assert CONSUME_QUEUE.is_filler(entries).tolist() == [True, True] + [False] * 6
    # a record of 2 GiB - 1 is not believable, but it is not a filler either
    assert CONSUME_QUEUE.is_message(entries).tolist() == [False] * 2 + [True] * 3 + [False] * 3
    assert CONSUME_QUEUE.is_written(entries).tolist() == [True] * 5 + [False] * 3


def test_a_void_entry_is_that_of_a_record_and_no_message() -> None:
    entries = CONSUME_QUEUE.encode([7, 8, 0], [100, 100, 2**31 - 1], [-1, 2**63 - 1, 2**63 - 1])
    assert CONSUME_QUEUE.is_void(entries).tolist() == [False, True, True]
    assert CONSUME_QUEUE.is_message(entries).tolist() == [True, False, False]
    assert not CONSUME_QUEUE.is_filler(entries).any()
    assert not CONSUME_QUEUE.split(entries.tobytes())[1]
    assert all(CONSUME_QUEUE.entry(entry.tobytes()).names_record for entry in entries)


def test_a_filler_is_written_as_rocketmq_writes_it() -> None:
    assert CONSUME_QUEUE.fillers(3).tobytes() == 3 * struct.pack(">qiq", 0, 2147483647, 0)


@given(ENTRIES, st.integers(0, 19))
def test_columns_are_those_of_the_entries(rows: list[tuple[int, int, int]], rest: int) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    entries = CONSUME_QUEUE.encode(*columns)
    split, all_live = CONSUME_QUEUE.split(entries.tobytes() + bytes(rest))
    assert (split.offsets == entries["physicalOffset"]).all()
    assert (split.sizes == entries["size"]).all()
    assert (split.codes == entries["tagsCode"]).all()
    assert len(split) == len(rows)
    assert all_live == CONSUME_QUEUE.is_message(entries).all()


def test_a_byte_lies_in_a_slot() -> None:
    places = [0, 1, 19, 20, 21]
    assert [CONSUME_QUEUE.slot(at) for at in places] == [0, 0, 0, 1, 1]
    assert [CONSUME_QUEUE.slot_from(at) for at in places] == [0, 1, 1, 1, 2]
