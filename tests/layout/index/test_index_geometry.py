from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.index import format as index
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.index.geometry import infer_slots, slots_match
from tests.support.stores.golden import GOLDEN_NAMES, load_meta


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


def _reader_of_moments(first: bytes, then: bytes) -> Callable[[int, int], bytes]:
    """Reads once from `first`, which is the header then, and all else from `then`."""
    moments = iter([first])
    return lambda offset, length: next(moments, then)[offset : offset + length]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_slots_of_every_golden_index_are_found(
    golden: Callable[[str], Path], name: str
) -> None:
    slots = load_meta(golden(name)).index_slots
    for path in sorted((golden(name) / "store").glob("index/*")):
        data = path.read_bytes()
        holds_keys = index.IndexHeader.decode(data).index_count > 1
        assert infer_slots(len(data), _reader(data)) == (slots if holds_keys else None)


@pytest.mark.parametrize("name", ["basic", "tiny", "v5basic"])
def test_no_other_number_of_slots_matches(golden: Callable[[str], Path], name: str) -> None:
    slots = load_meta(golden(name)).index_slots
    for path in sorted((golden(name) / "store").glob("index/*")):
        data = path.read_bytes()
        header = index.IndexHeader.decode(data)
        matching = [
            n for n in range(1, len(data) // 4) if slots_match(len(data), header, n, _reader(data))
        ]
        assert matching == [slots]


@given(
    st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(0, 2**40)), min_size=1, max_size=40),
    st.integers(1, 300),
    st.integers(0, 200),
)
def test_the_slots_of_any_file_with_keys_are_found(
    rows: list[tuple[int, int]], slots: int, room: int
) -> None:
    file = IndexFile.create(slots, len(rows) + 1 + room)
    hashes, offsets = (np.array(column) for column in zip(*rows, strict=True))
    file.insert(hashes.astype(np.int32), offsets, np.full(len(rows), 1_700_000_000_000))
    data = file.encode()
    assert infer_slots(len(data), _reader(data)) == slots


@given(
    st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 9)), min_size=2, max_size=60),
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(0, 100),
)
def test_entries_that_the_header_does_not_count_yet(
    rows: list[tuple[int, int]], slots: int, counted: int, room: int
) -> None:
    """A writer inserts the keys of a record, and counts them later."""
    hashes = np.array([one for one, _ in rows], np.int32)
    offsets = np.cumsum([step for _, step in rows])
    times = np.full(len(rows), 1_700_000_000_000)
    counted = min(counted, len(rows))
    file = IndexFile.create(slots, len(rows) + 1 + room)
    file.insert(hashes[:counted], offsets[:counted], times[:counted])
    first = file.encode()
    file.insert(hashes[counted:], offsets[counted:], times[counted:])
    entries = index.entry_position(slots, 0)
    data = first[:entries] + file.encode()[entries:]
    assert infer_slots(len(data), _reader(data)) == slots


def test_a_file_of_a_brokers_default_size_costs_a_few_small_reads() -> None:
    reads: list[int] = []
    header = index.IndexHeader(0, 0, 640, 640, 1, 2)
    size = 420_000_040
    key_hash = 123_456_789
    entry = index.entry_position(index.DEFAULT_SLOTS, 1)
    slot = index.slot_position(key_hash % index.DEFAULT_SLOTS)
    written = np.zeros(1, index.ENTRY_DTYPE)
    written[0] = (key_hash, 640, 0, 0)
    parts = {0: header.encode(), entry: written.tobytes(), slot: (1).to_bytes(4, "big")}

    def read(offset: int, length: int) -> bytes:
        reads.append(length)
        data = bytearray(length)
        for start, part in parts.items():
            if offset <= start < offset + length:
                data[start - offset : start - offset + len(part)] = part
        return bytes(data)

    assert infer_slots(size, read) == index.DEFAULT_SLOTS
    assert sum(reads) < 200


def test_a_key_that_is_put_in_meanwhile_does_no_harm() -> None:
    file = IndexFile.create(7, 20)
    versions = []
    for number in range(1, 6):
        file.insert(np.array([5 * number], np.int32), np.array([number * 100]), np.array([number]))
        versions.append(file.encode())
    for before in range(4):
        read = _reader_of_moments(versions[before], versions[before + 1])
        assert infer_slots(len(versions[0]), read) == 7


@pytest.mark.parametrize("size", [0, 39, 40, 44, 45, 60, 64])
def test_files_without_keys_tell_nothing(size: int) -> None:
    assert infer_slots(size, _reader(bytes(size))) is None


@given(st.binary(max_size=400))
def test_any_bytes_give_slots_that_fit_or_none(data: bytes) -> None:
    slots = infer_slots(len(data), _reader(data))
    if slots is not None:
        assert index.geometry(len(data), slots) > 1


@given(st.integers(0, 2**31 - 1), st.data())
def test_a_damaged_file_gives_the_right_slots_or_none(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    file = IndexFile.create(17, 40)
    file.insert(
        rng.integers(1, 2**31, 20, np.int32), np.sort(rng.integers(1, 2**40, 20)), np.arange(20) + 1
    )
    damaged = bytearray(file.encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    assert infer_slots(len(damaged), _reader(bytes(damaged))) in (17, None)
