from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.index import format as index
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.index.hashing import index_key_hash
from tests.support.messages.strategies import BYTES, INT32, INT64
from tests.support.stores.golden import KeyReport, load_meta, load_queues

INDEXED = [
    "basic",
    "tiny",
    "batch",
    "live",
    "lmq",
    "trimmed",
    "unclean-torn",
    "v5basic",
    "v5v2topic",
]
"""Golden stores whose index a broker took over unchanged."""

MAX_NUM = 32
"""No query of a broker answers more, whatever it asks for."""


def broken_slots(
    slots: index.Slots, entries: index.IndexEntries, next_entry: int
) -> npt.NDArray[np.int64]:
    """Return the slots that do not lead to an entry of their own chain.

    Args:
        slots: all slots of a file.
        entries: all its entries, entry 0 included.
        next_entry: the header's `next_entry`.
    """
    numbers = np.flatnonzero(slots)
    newest = slots[numbers].astype(np.int64)
    leads = (newest > 0) & (newest < min(next_entry, len(entries)))
    leads[leads] = entries["keyHash"][newest[leads]] % len(slots) == numbers[leads]
    return numbers[~leads]


def broken_entries(
    slots: int, entries: index.IndexEntries, next_entry: int
) -> npt.NDArray[np.int64]:
    """Return the entries whose `previous` is not an older entry of the same chain.

    Args:
        slots: number of slots in the file.
        entries: all entries, entry 0 included.
        next_entry: the header's `next_entry`.
    """
    numbers = np.arange(1, min(next_entry, len(entries)), dtype=np.int64)
    previous = entries["previous"][numbers].astype(np.int64)
    slot = entries["keyHash"] % slots
    leads = (previous > 0) & (previous < numbers)
    leads[leads] = slot[previous[leads]] == slot[numbers[leads]]
    return numbers[~leads & (previous != 0)]


def _files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "store/index").iterdir())]


def _look_up(data: bytes, slots: int, key_hash: int, max_num: int | None = None) -> list[int]:
    entries = index.decode_entries(data[index.entry_position(slots, 0) :])
    return index.chain(
        key_hash,
        slots,
        int(index.decode_slots(data, slots)[key_hash % slots]),
        index.IndexHeader.decode(data).next_entry,
        lambda first, count: entries[first : first + count],
        max_num=max_num,
    ).tolist()


@pytest.mark.parametrize("name", sorted({*INDEXED} - {"unclean-torn"}))
def test_headers_are_those_that_rocketmq_reports(golden: Callable[[str], Path], name: str) -> None:
    reports = load_queues(golden(name)).index_files
    assert reports
    for report in reports:
        path = golden(name) / "store/index" / report.file
        data = path.read_bytes()
        header = index.IndexHeader.decode(data)
        assert (path.name, *astuple(header)) == astuple(report)
        assert header.encode() == data[: index.HEADER_SIZE]


@pytest.mark.parametrize("name", INDEXED)
def test_keys_are_found_as_rocketmq_finds_them(golden: Callable[[str], Path], name: str) -> None:
    slots = load_meta(golden(name)).index_slots
    files = _files(golden(name))
    keys = load_queues(golden(name)).keys
    assert keys
    for key in keys:
        key_hash = int(index_key_hash(key.topic, [key.key])[0])
        found = [offset for data in reversed(files) for offset in _look_up(data, slots, key_hash)]
        _assert_answers(key, found[:MAX_NUM])
        newest: list[int] = []
        for data in reversed(files):
            newest += _look_up(data, slots, key_hash, MAX_NUM - len(newest))
        assert newest == found[:MAX_NUM]


def _assert_answers(key: KeyReport, newest_first: list[int]) -> None:
    if key.raw_index_offsets is not None:
        assert newest_first == list(key.raw_index_offsets)
    # equal offsets stand once for each key of the record with that hash
    assert sorted(newest_first) == list(key.physical_offsets)


@pytest.mark.parametrize("name", INDEXED)
def test_nothing_is_broken_in_what_rocketmq_wrote(golden: Callable[[str], Path], name: str) -> None:
    meta = load_meta(golden(name))
    for data in _files(golden(name)):
        assert index.geometry(len(data), meta.index_slots) == meta.index_entries
        slots = index.decode_slots(data, meta.index_slots)
        entries = index.decode_entries(data[index.entry_position(meta.index_slots, 0) :])
        header = index.IndexHeader.decode(data)
        assert broken_slots(slots, entries, header.next_entry).tolist() == []
        assert broken_entries(len(slots), entries, header.next_entry).tolist() == []
        assert np.count_nonzero(slots) == header.hash_slot_count
        assert len(entries) == meta.index_entries


@given(st.builds(index.IndexHeader, INT64, INT64, INT64, INT64, INT32, INT32))
def test_headers_round_trip(header: index.IndexHeader) -> None:
    assert len(header.encode()) == index.HEADER_SIZE
    assert index.IndexHeader.decode(header.encode()) == header
    assert header.next_entry >= 1


@given(BYTES)
def test_any_bytes_decode_or_are_refused_with_their_file(data: bytes) -> None:
    if len(data) < index.HEADER_SIZE:
        with pytest.raises(CorruptStoreError, match="in f\\."):
            index.IndexHeader.decode(data, file="f")
    else:
        assert index.IndexHeader.decode(data).encode() == data[: index.HEADER_SIZE]
    assert len(index.decode_slots(data, 10)) == min(10, max(0, len(data) - 40) // 4)
    assert len(index.decode_entries(data)) == len(data) // index.ENTRY_SIZE


@pytest.mark.parametrize(("size", "slots"), [(0, 1), (40, 0), (64, 7), (43, 1), (1000, -5)])
def test_sizes_that_no_index_file_has(size: int, slots: int) -> None:
    with pytest.raises(CorruptStoreError, match=f"{size} bytes cannot have {slots} slots"):
        index.geometry(size, slots)


def test_the_geometry_of_a_brokers_default() -> None:
    assert index.geometry(420_000_040, index.DEFAULT_SLOTS) == index.DEFAULT_ENTRIES


# --- chains --------------------------------------------------------------------------------------

KEYS = st.lists(st.integers(0, 20), min_size=1, max_size=80)


def _built(hashes: list[int], slots: int) -> IndexFile:
    """A file whose n-th key has physical offset 100 * n."""
    file = IndexFile.create(slots, len(hashes) + 1)
    count = len(hashes)
    offsets = 100 * np.arange(1, count + 1)
    assert file.insert(np.array(hashes, np.int32), offsets, np.arange(count) + 1) == count
    return file


def _chain(file: IndexFile, key_hash: int, max_num: int | None = None) -> npt.NDArray[np.int64]:
    return index.chain(
        key_hash,
        len(file.slots),
        int(file.slots[key_hash % len(file.slots)]),
        file.header.next_entry,
        lambda first, count: file.entries[first : first + count],
        max_num=max_num,
        file="f",
    )


@given(KEYS, st.integers(1, 9), st.integers(0, 90))
def test_chains_give_every_entry_of_a_hash_and_no_other(
    hashes: list[int], slots: int, max_num: int
) -> None:
    file = _built(hashes, slots)
    for key_hash in range(22):
        expected = [100 * n for n, h in enumerate(hashes, 1) if h == key_hash][::-1]
        assert _chain(file, key_hash).tolist() == expected
        assert _chain(file, key_hash, max_num).tolist() == expected[:max_num]


def test_long_chains_cost_few_reads() -> None:
    hashes = np.zeros(100_000, np.int32)
    hashes[::3] = 7
    file = _built(hashes.tolist(), 7)
    reads: list[int] = []

    def read_entries(first: int, count: int) -> npt.NDArray[np.void]:
        reads.append(count)
        return file.entries[first : first + count]

    found = index.chain(7, 7, int(file.slots[0]), file.header.next_entry, read_entries)
    assert len(found) == np.count_nonzero(hashes == 7)
    assert len(reads) < 25
    assert sum(reads) < 2 * len(hashes)
    reads.clear()
    index.chain(7, 7, int(file.slots[0]), file.header.next_entry, read_entries, max_num=5)
    assert sum(reads) < 40


def test_entries_that_lie_far_apart_are_read_one_by_one() -> None:
    hashes = np.ones(100_000, np.int32)
    hashes[::1000] = 0
    hashes[-3:] = 0
    file = _built(hashes.tolist(), 2)
    reads: list[int] = []

    def read_entries(first: int, count: int) -> npt.NDArray[np.void]:
        reads.append(count)
        return file.entries[first : first + count]

    found = index.chain(0, 2, int(file.slots[0]), file.header.next_entry, read_entries)
    assert found.tolist() == (100 * (np.flatnonzero(hashes == 0) + 1))[::-1].tolist()
    assert sum(reads) < 2 * len(found)


@pytest.mark.threat("Loops end")
@given(
    KEYS,
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 81), st.sampled_from(["keyHash", "previous"]), INT32)),
    st.integers(-3, 90) | INT32,
)
def test_hostile_chains_end_in_offsets_or_in_an_error(
    hashes: list[int], slots: int, changes: list[tuple[int, str, int]], newest: int
) -> None:
    file = _built(hashes, slots)
    for number, field, value in changes:
        file.entries[field][number % len(file.entries)] = value
    file.slots[:] = newest
    for key_hash in range(22):
        try:
            found = _chain(file, key_hash).tolist()
        except CorruptStoreError:
            continue
        mine = file.entries["phyOffset"][file.entries["keyHash"] == key_hash].tolist()
        assert len(found) == len(set(found))
        assert set(found) <= set(mine)


@pytest.mark.parametrize(
    ("number", "previous", "cause"),
    [
        (4, 4, "from entry 4 on to entry 4"),
        (4, 5, "from entry 4 on to entry 5"),
        (4, 2**31 - 1, "from entry 4 on to entry 2147483647"),
        (4, 1, "leads to entry 1, which is in another chain"),
        (2, 3, "from entry 2 on to entry 3"),
        (2, 1, "leads to entry 1, which is in another chain"),
    ],
)
def test_links_that_cannot_be_are_found(number: int, previous: int, cause: str) -> None:
    file = _built([2, 1, 1, 1], 2)
    file.entries["previous"][number] = previous
    assert broken_entries(2, file.entries, 5).tolist() == [number]
    with pytest.raises(CorruptStoreError, match=f"{cause} in f"):
        _chain(file, 1)


def test_a_link_is_not_needed_between_entries_read_at_once() -> None:
    file = _built([2, 1, 1, 1], 2)
    file.entries["previous"][3] = 3
    assert broken_entries(2, file.entries, 5).tolist() == [3]
    assert _chain(file, 1).tolist() == [400, 300, 200]


@pytest.mark.parametrize(
    ("value", "cause"), [(6, "leads to entry 6"), (3, "which is in another chain")]
)
def test_slots_that_cannot_be_are_found(value: int, cause: str) -> None:
    file = _built([2, 1, 2, 1], 2)
    assert broken_slots(file.slots, file.entries, 5).tolist() == []
    file.slots[1] = value
    assert broken_slots(file.slots, file.entries, 5).tolist() == [1]
    with pytest.raises(CorruptStoreError, match=cause):
        _chain(file, 1)


def test_negative_slots_and_links_end_a_chain_as_zero_does() -> None:
    file = _built([1, 1], 2)
    file.slots[0] = -1
    assert _chain(file, 0).tolist() == []
    assert broken_slots(file.slots, file.entries, 3).tolist() == [0]


def test_a_file_cut_short_is_an_error() -> None:
    file = _built([1, 1, 1], 1)
    with pytest.raises(CorruptStoreError, match="ends before its entry 3"):
        index.chain(1, 1, 3, 4, lambda _first, _count: file.entries[:0])


def test_a_slot_may_be_one_entry_ahead_of_the_header() -> None:
    file = _built([5, 5, 5], 4)
    found = index.chain(5, 4, 3, 3, lambda first, count: file.entries[first : first + count])
    assert found.tolist() == [300, 200, 100]
