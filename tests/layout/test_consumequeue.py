from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout import consumequeue as cq
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
        entries = cq.decode_entries(data)[expected[0].offset - start // cq.ENTRY_SIZE :]
        assert cq.written_mask(entries).tolist() == [n < len(expected) for n in range(len(entries))]
        entries = entries[: len(expected)]
        assert entries["physicalOffset"].tolist() == [e.physical_offset for e in expected]
        assert entries["size"].tolist() == [e.size for e in expected]
        assert entries["tagsCode"].tolist() == [e.tags_code for e in expected]
        assert cq.live_mask(entries).all()


@given(ENTRIES)
def test_round_trip(rows: list[tuple[int, int, int]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    data = cq.encode_entries(*columns)
    assert len(data) == len(rows) * cq.ENTRY_SIZE
    assert cq.decode_entries(data).tolist() == rows


def test_layout_is_big_endian() -> None:
    assert cq.encode_entries([1], [2], [-1]).hex() == f"{1:016x}{2:08x}{'f' * 16}"


@pytest.mark.threat("Data is never executed")
@given(BYTES)
def test_any_bytes_decode_to_whole_entries(data: bytes) -> None:
    entries = cq.decode_entries(data)
    assert len(entries) == len(data) // cq.ENTRY_SIZE
    assert entries.tobytes() == data[: len(entries) * cq.ENTRY_SIZE]
    live = cq.live_mask(entries)
    assert not (live & cq.is_filler(entries)).any()


def test_fillers_unwritten_and_damaged_entries_are_no_messages() -> None:
    data = cq.filler_entries(2) + cq.encode_entries(
        [0, 100, 0, 0, -1, 5], [2**31 - 1, 2**31 - 1, 7, 0, 9, -9], [1, 0, 0, 0, 0, 0]
    )
    entries = cq.decode_entries(data)
    assert cq.is_filler(entries).tolist() == [True, True] + [False] * 6
    # a record of 2 GiB - 1 is not believable, but it is not a filler either
    assert cq.live_mask(entries).tolist() == [False, False, True, True, True, False, False, False]
    assert cq.written_mask(entries).tolist() == [True] * 5 + [False] * 3


def test_a_filler_is_written_as_rocketmq_writes_it() -> None:
    assert cq.filler_entries(3) == 3 * struct.pack(">qiq", 0, 2147483647, 0)
