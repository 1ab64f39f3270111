"""Both kernels on entries of a group: which are sound, and what is written of them."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqstore_spark.consensus.driver.proposals import placed, term_record
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.buffers import octets
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.record.format import check_crcs, decode_records
from tests.support.stores.dledger import encode_entry_headers, encode_index_units

LONGS = 1 << 63
SOUND = term_record(3, "n0", 1_700_000_000_000)
MODULES = pytest.mark.parametrize("module", [kernel._choose(), plain], ids=["active", "plain"])
PLACES = st.sampled_from([0, 48, 1 << 40, LONGS - 1, LONGS, 1 << 70, -1, -LONGS, -LONGS - 1])
"""Positions of records; no record can state some of them."""
NUMBERS = st.integers(-2, 3) | st.sampled_from([LONGS - 2, LONGS - 1, LONGS, -LONGS, -LONGS - 1])


def outcome(call: Any, *given_to: Any) -> Any:
    """What a function returns, or the error that it raises."""
    try:
        return call(*given_to)
    except (TypeError, ValueError) as error:
        return type(error)


@st.composite
def records(draw: st.DrawFn) -> tuple[bytes, int]:
    """A record and a position for it; most are damaged, or state another place."""
    position = draw(PLACES)
    record = bytearray(SOUND)
    if -LONGS <= position < LONGS:
        record[:] = placed(SOUND, position)
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2)
    ):
        record[at % len(record)] = value
    cut = draw(st.sampled_from([len(record)] * 6 + [0, 1, 90, len(record) - 1]))
    more = draw(st.sampled_from([b""] * 6 + [b"\0", b"__CRC32#\x010123456789\x02"]))
    return bytes(record[:cut]) + more, position


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(st.lists(records(), max_size=5))
@example([(placed(SOUND, 48), 48), (placed(SOUND, LONGS - 1), LONGS - 1), (SOUND, 1 << 70)])
@example([])
def test_both_kernels_find_the_same_records_sound(given_records: list[tuple[bytes, int]]) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    bodies = [record for record, _ in given_records]
    positions = [position for _, position in given_records]
    found = {module.sound_records(bodies, positions) for module in (kernel._choose(), plain)}
    assert len(found) == 1
    sound = 0
    for body, position in given_records:
        if not body:
            break
        columns = decode_records(octets(body), octets(bytes(8)).view("i8"), _lengths(body))
        read = check_crcs(columns, bodies=True)
        if read.status[0] or read.store_size[0] != len(body) or read.physical_offset[0] != position:
            break
        sound += 1
    assert found == {sound}


def _lengths(body: bytes) -> Any:
    return octets(struct.pack("=i", len(body))).view("i4")


@MODULES
def test_a_record_that_is_damaged_or_elsewhere_is_not_sound(module: ModuleType) -> None:
    places = [48, 500, 1 << 40]
    whole = [placed(SOUND, place) for place in places]
    assert module.sound_records(whole, places) == 3
    assert module.sound_records(whole, [48, 501, 1 << 40]) == 1
    assert module.sound_records([whole[0], whole[1][:-1], whole[2]], places) == 1
    assert module.sound_records([whole[0], b"", whole[2]], places) == 1
    body = whole[2].replace(b"term 3", b"term 4")
    assert body != whole[2]
    assert module.sound_records([*whole[:2], body], places) == 2
    assert module.sound_records([], []) == 0
    with pytest.raises(ValueError, match="differ in number"):
        module.sound_records(whole, places[:2])
    with pytest.raises(TypeError, match="not bytes"):
        module.sound_records([whole[0], memoryview(whole[1]), whole[2]], places)


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 0, 1, -1]), NUMBERS, st.sampled_from([0, 0, 0, 0, 8]),
        st.sampled_from([0, 0, 0, 0, 0, 1, 1 << 31]), st.binary(max_size=9),
    ),
    max_size=5,
)  # fmt: skip
"""Of each entry: how far from the next index, term, and how far from the end of the one before; how
much its size is wrong; and its record."""


@pytest.mark.threat("The compiled kernel stays within its buffers")
@given(NUMBERS, NUMBERS, ENTRIES, st.integers(-1, 5))
@example(7, 100, [(0, 1, 0, 0, b"one"), (0, 2, 0, 0, b"two"), (0, 2, 8, 0, b"three")], 0)
@example(LONGS - 1, LONGS - 49, [(0, 1, 0, 0, b""), (-LONGS, 1, 0, 0, b"")], 0)
@example(0, LONGS - 48, [(0, 1, 0, 0, b"")], 0)
def test_both_kernels_write_the_same_entries(
    index: int, end: int, steps: list[tuple[int, int, int, int, bytes]], first: int
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    entries = []
    for skip, term, gap, wrong, record in steps:
        size = 48 + len(record)
        entries.append((index + skip, term, end + gap, size + wrong, record))
        index, end = index + 1, end + gap + size
    seen = [
        outcome(module.write_entries, tuple(entries), first) for module in (kernel._choose(), plain)
    ]
    assert seen[0] == seen[1]


@MODULES
@given(
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=5),
    st.integers(0, 1 << 40), st.integers(0, 1 << 40),
)  # fmt: skip
def test_entries_are_written_as_a_broker_writes_them(
    module: ModuleType, given_entries: list[tuple[int, bytes]], index: int, position: int
) -> None:
    entries, at = [], position
    for number, (term, record) in enumerate(given_entries):
        entries.append((index + number, term, at, 48 + len(record), record))
        at += 48 + len(record)
    far = (index + len(entries), 9, at + 8, 48, b"")  # it is behind a blank
    indexes, terms, positions, sizes, bodies = zip(*entries, strict=True)
    heads = encode_entry_headers(indexes, terms, positions, [len(body) for body in bodies])
    data = b"".join(heads[48 * row : 48 * row + 48] + body for row, body in enumerate(bodies))
    units = encode_index_units(positions, sizes, indexes, terms)
    assert module.write_entries((*entries, far), 0) == (len(entries), data, units)
    assert module.write_entries((*entries, far), len(entries))[0] == 1


@MODULES
def test_what_is_no_entry_is_not_written(module: ModuleType) -> None:
    good = (1, 1, 0, 49, b"x")
    for bad in (good[:4], list(good), (1, 1, 0, 50, b"x"), (1, 1, 0, 49, "x"), (1.0, *good[1:])):
        with pytest.raises(ValueError, match="an entry is not"):
            module.write_entries((bad,), 0)
    for first in (-1, 1):
        with pytest.raises(ValueError, match="no such entry"):
            module.write_entries((good,), first)
