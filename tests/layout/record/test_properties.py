"""Properties, taken apart by both kernels and put together again."""

from __future__ import annotations

import re
import time
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.record.properties import (
    MAP_TYPE,
    encode_properties,
    find_properties,
    split_keys,
    split_properties,
)
from rmqstore_spark.layout.spans import array_spans, string_array
from tests.support.messages.spans import decode_properties
from tests.support.messages.strategies import PROPERTIES

fixture_per_test = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

RAW = st.lists(
    st.sampled_from([b"\x01", b"\x02", b" ", b"a", b"b", b"TAGS", b"\xff", b"\xe6"])
).map(b"".join)
"""Bytes that are mostly separators: every odd shape of a property comes up."""


def java_properties(raw: bytes) -> dict[str, str]:
    """`MessageDecoder.string2messageProperties`, one character at a time."""
    found: dict[str, str] = {}
    for piece in raw.split(b"\x02"):
        name, mark, value = piece.partition(b"\x01")
        if mark and name and value:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


@pytest.mark.threat("The compiled kernel stays within its buffers")
@fixture_per_test
@given(rows=st.lists(RAW, max_size=8))
def test_any_bytes_decode_as_java_reads_them(rows: list[bytes], each_kernel: str) -> None:
    maps = decode_properties(array_spans(pa.array(rows, pa.binary())))
    maps.validate(full=True)
    assert [dict(m) for m in maps.to_pylist()] == [java_properties(raw) for raw in rows]
    spans = array_spans(pa.array(rows, pa.binary()))
    for found in (
        find_properties(spans, ("TAGS", "a")),
        split_properties(spans, ("TAGS", "a"))[1],
    ):
        for name, values in found.items():
            assert string_array(values).to_pylist() == [
                java_properties(raw).get(name) for raw in rows
            ]


@pytest.mark.parametrize("count", [23, 24, 25, 400, 8_000])
def test_a_name_given_again_takes_the_last_value_and_the_first_place(
    count: int, each_kernel: str
) -> None:
    names = [str(k % (count - 3)) for k in range(count)]
    raw = "\x02".join(f"{name}\x01{k % 10}" for k, name in enumerate(names)).encode()[:32_767]
    (pairs,) = decode_properties(array_spans(pa.array([raw], pa.binary()))).to_pylist()
    expected = java_properties(raw)
    assert pairs == list(expected.items())


@cache
def crafted_and_common(count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Names of four letters: that FNV-1a, with a table of 2^14 places, puts together, and any."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "u1")
    names = np.stack(np.meshgrid(*[letters] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    h = np.full(len(names), 2166136261, np.uint32)
    for k in range(4):
        h = (h ^ names[:, k]) * np.uint32(16777619)
    place = (h ^ (h >> 15)) & (2**14 - 1)
    any_of_them = np.random.default_rng(1).choice(len(names), count, replace=False)
    return names[place < 9][:count], names[any_of_them]


@pytest.mark.threat("Loops end")
def test_names_that_share_a_common_hash_cost_no_more(each_kernel: str) -> None:
    count = 4_000
    crafted, common = crafted_and_common(count)

    def seconds(chosen: npt.NDArray[np.uint8]) -> float:
        raw = b"\x02".join(name.tobytes() + b"\x01v" for name in chosen)
        spans = array_spans(pa.array([raw] * 4, pa.binary()))
        times = []
        for _ in range(5):
            start = time.thread_time()
            assert len(decode_properties(spans)[0]) == count
            times.append(time.thread_time() - start)
        return min(times)

    assert seconds(crafted) < 3 * seconds(common)


@given(maps=st.lists(PROPERTIES, max_size=8))
def test_maps_survive_the_way_there_and_back(maps: list[dict[str, str]]) -> None:
    column = pa.array([list(m.items()) for m in maps], MAP_TYPE)
    encoded = encode_properties(column)
    assert all(not raw.as_py().endswith(b"\x02") for raw in encoded)
    assert decode_properties(array_spans(encoded)).equals(column)


def test_nulls_are_left_out_of_what_is_encoded() -> None:
    column = pa.array([[("a", "1"), ("b", None), ("c", "3")], None, []], MAP_TYPE)
    assert encode_properties(column.fill_null([])).to_pylist() == [b"a\x011\x02c\x013", b"", b""]


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("a\x01b", "v", "name"),
        ("a\x02b", "v", "name"),
        ("\x01", "v", "name"),
        ("", "v", "name"),
        ("a", "v\x02b\x01w", "value"),
        ("a", "", "value"),
    ],
)
def test_what_would_not_be_read_back_is_refused(name: str, value: str, what: str) -> None:
    raw = f"{name}\x01{value}".encode()
    assert java_properties(raw) != {name: value}
    column = pa.array([[("x", "\x01")], [("b", "1"), (name, value)], [("c", "3")]], MAP_TYPE)
    with pytest.raises(OptionError, match=f"Row 1: the {what} of property {re.escape(repr(name))}"):
        encode_properties(column)
    with pytest.raises(OptionError, match="Row 0"):
        encode_properties(column[1:])
    # What is not asked for, or is null, harms nobody.
    assert encode_properties(column[2:]).to_pylist() == [b"c\x013"]
    assert encode_properties(pa.array([[(name, None)]], MAP_TYPE)).to_pylist() == [b""]


def test_the_byte_1_may_stand_in_a_value() -> None:
    column = pa.array([[("a", "\x01b\x01")]], MAP_TYPE)
    encoded = encode_properties(column)
    assert java_properties(encoded[0].as_py()) == {"a": "\x01b\x01"}
    assert decode_properties(array_spans(encoded)).equals(column)


@fixture_per_test
@given(rows=st.lists(st.one_of(st.none(), st.text(" ab鍵", max_size=12)), max_size=8))
def test_keys_are_cut_at_runs_of_spaces(rows: list[str | None], each_kernel: str) -> None:
    column = pa.array([None if r is None else r.encode() for r in rows], pa.binary())
    keys = split_keys(array_spans(column))
    keys.validate(full=True)
    expected = [None if r is None else [k for k in r.split(" ") if k] for r in rows]
    assert keys.to_pylist() == expected


@fixture_per_test
@given(rows=st.lists(st.binary(max_size=12), max_size=8))
def test_what_is_no_utf8_is_repaired_as_python_and_java_do(
    rows: list[bytes], each_kernel: str
) -> None:
    data = np.frombuffer(b"".join(rows), np.uint8)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    out, new_offsets = np.empty(3 * len(data), np.uint8), np.empty_like(offsets)
    used = kernel.active.repair_utf8(offsets, data, new_offsets, out)
    texts = [out[a:b].tobytes() for a, b in pairwise(new_offsets.tolist())]
    assert texts == [raw.decode("utf-8", "replace").encode() for raw in rows]
    assert used == sum(map(len, texts))
