from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.queues import extension as ext
from tests.support.messages.strategies import BYTES, INT64
from tests.support.stores.golden import EntryReport, load_entries


@pytest.fixture(scope="module")
def queues(golden: Callable[[str], Path]) -> list[tuple[list[EntryReport], bytes]]:
    """The entries of each queue of `extcq`, and the bytes of its extension files."""
    folder = golden("extcq") / "store" / "consumequeue_ext"
    return [
        (entries, _all_bytes(folder / topic / str(queue_id)))
        for (topic, queue_id), entries in load_entries(golden("extcq")).items()
    ]


def _all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_units_are_those_that_rocketmq_reads(
    queues: list[tuple[list[EntryReport], bytes]],
) -> None:
    assert queues
    for entries, data in queues:
        tags_codes = np.array([entry.tags_code for entry in entries])
        assert ext.is_ext_address(tags_codes).all()
        offsets = ext.ext_offset(tags_codes)
        heads, valid = ext.decode_units(data, offsets)
        assert valid.all()
        assert heads["tagsCode"].tolist() == [entry.ext_tags_code for entry in entries]
        assert heads["storeTimestamp"].tolist() == [entry.ext_store_time for entry in entries]
        assert heads["size"].tolist() == [entry.ext_size for entry in entries]
        for entry, offset in zip(entries, offsets.tolist(), strict=True):
            unit = ext.decode_unit(data, offset)
            assert unit.bit_map == (entry.ext_bit_map or b"")
            assert unit.size == entry.ext_size


def test_units_are_written_as_rocketmq_writes_them(
    queues: list[tuple[list[EntryReport], bytes]],
) -> None:
    for entries, data in queues:
        # what lies in the first file: the first unit of the second starts at its first byte
        first = [e for e in entries if e.tags_code < ext.ext_address(np.array([4096]))[0]]
        assert 0 < len(first) < len(entries)
        written, offsets = ext.encode_units(
            np.array([entry.ext_tags_code for entry in first]),
            np.array([entry.ext_store_time for entry in first]),
            pa.array([entry.ext_bit_map for entry in first], pa.binary()),
        )
        assert ext.ext_address(offsets[:-1]).tolist() == [entry.tags_code for entry in first]
        assert data.startswith(written + ext.END_OF_FILE)


UNITS = st.lists(st.tuples(INT64, INT64, st.one_of(st.none(), BYTES)), max_size=20)


@given(UNITS)
def test_round_trip(units: list[tuple[int, int, bytes | None]]) -> None:
    tags_codes, times, bit_maps = zip(*units, strict=True) if units else ((), (), ())
    data, offsets = ext.encode_units(
        np.array(tags_codes, np.int64), np.array(times, np.int64), pa.array(bit_maps, pa.binary())
    )
    heads, valid = ext.decode_units(data, offsets[:-1])
    assert valid.all()
    assert len(data) == offsets[-1]
    assert heads["tagsCode"].tolist() == list(tags_codes)
    assert [ext.decode_unit(data, offset) for offset in offsets[:-1].tolist()] == [
        ext.ExtUnit(tags_code, time, bit_map or b"") for tags_code, time, bit_map in units
    ]


def test_sliced_columns_are_encoded_from_their_slice() -> None:
    bit_maps = pa.array([b"left out", b"ab", None, b"left out"])
    data, offsets = ext.encode_units([1, 2], [3, 4], bit_maps[1:3])
    assert offsets.tolist() == [0, 22, 42]
    assert ext.decode_unit(data, 0) == ext.ExtUnit(1, 3, b"ab")
    assert ext.decode_unit(data, 22) == ext.ExtUnit(2, 4, b"")


def test_a_bit_map_that_does_not_fit_is_refused() -> None:
    ext.encode_units([1], [1], pa.array([b"x" * 32_747]))
    with pytest.raises(ValueError, match="32748 bytes"):
        ext.encode_units([1], [1], pa.array([b"x" * 32_748]))


@given(st.integers(0, 2**63 - 2**31 - 1))
def test_addresses(offset: int) -> None:
    address = ext.ext_address(np.array([offset]))
    assert address.tolist() == [offset - 2**63]
    assert ext.is_ext_address(address).all()
    assert ext.ext_offset(address).tolist() == [offset]


def test_no_hash_code_is_taken_for_an_address() -> None:
    codes = np.array([0, -1, -(2**31), 2**31 - 1, 1_700_000_000_000, -(2**31) - 1])
    assert ext.is_ext_address(codes).tolist() == [False, False, False, False, False, True]


@pytest.mark.threat("Data is never executed")
@given(BYTES, st.lists(INT64 | st.integers(-2, 300), max_size=10))
def test_any_bytes_decode_to_units_or_to_none(data: bytes, offsets: list[int]) -> None:
    heads, valid = ext.decode_units(data, np.array(offsets, np.int64))
    for head, ok, offset in zip(heads, valid.tolist(), offsets, strict=True):
        if ok:
            unit = ext.decode_unit(data, offset, file="f")
            assert head["size"] == unit.size
            assert offset + unit.size <= len(data)
        else:
            assert head.tobytes() == bytes(20)
            with pytest.raises(CorruptStoreError, match=f"in f at offset {offset}"):
                ext.decode_unit(data, offset, file="f")


@pytest.mark.parametrize("cut", range(28))
def test_a_unit_cut_short_is_none(cut: int) -> None:
    data, _ = ext.encode_units([5], [6], pa.array([b"12345678"]))
    assert ext.decode_units(data[:cut], np.array([0]))[1].tolist() == [False]


def test_the_end_mark_is_no_unit() -> None:
    data = ext.END_OF_FILE + bytes(100)
    assert ext.decode_units(data, np.array([0]))[1].tolist() == [False]
