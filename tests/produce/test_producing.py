from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import RowError
from rmqstore_spark.layout.record.properties import MAP_TYPE
from rmqstore_spark.produce.properties import join_keys, join_properties, property_of
from tests.support.messages.strategies import PROPERTIES

ID = "7F00000104D2" + "0" * 20
Properties = dict[str, str | None]


def maps(rows: Sequence[Properties | None]) -> pa.MapArray:
    return pa.array([None if row is None else list(row.items()) for row in rows], MAP_TYPE)


def joined(count: int, **columns: Any) -> list[str]:
    raw = join_properties(pa.array([ID] * count, pa.string()), **columns).to_pylist()
    prefix = f"UNIQ_KEY\x01{ID}".encode()
    assert all(text.startswith(prefix) for text in raw)
    return [text[len(prefix) :].decode() for text in raw]


def test_without_columns_only_the_id_is_left() -> None:
    assert joined(2) == ["", ""]
    assert joined(0, tags=pa.array([], pa.string())) == []


def test_every_column() -> None:
    assert joined(
        4,
        keys=pa.array(["a b", None, "", "c"]),
        tags=pa.array(["T", "U", None, ""]),
        maps=maps([{"x": "1", "y": "\x01"}, {}, None, {"z": None, "w": "2"}]),
    ) == [
        "\x02KEYS\x01a b\x02TAGS\x01T\x02x\x011\x02y\x01\x01",
        "\x02TAGS\x01U",
        "",
        "\x02KEYS\x01c\x02w\x012",
    ]


def test_what_belongs_to_a_delivery_is_left_out() -> None:
    given: Properties = {
        "DELAY": "3", "a": "1", "REAL_TOPIC": "t", "REAL_QID": "0", "INNER_MULTI_DISPATCH": "q",
        "INNER_MULTI_QUEUE_OFFSET": "7", "TRAN_MSG": "true", "__CRC32#": "1234567890",
        "WAIT": "true", "UNIQ_KEY": "old", "b": "2", "DELAYED": "no",
    }  # fmt: skip
    assert joined(1, maps=maps([given])) == ["\x02a\x011\x02b\x012\x02DELAYED\x01no"]


def test_a_column_decides_over_the_map() -> None:
    both = maps([{"TAGS": "old", "KEYS": "k", "a": "1"}, {"TAGS": "old"}])
    assert joined(2, maps=both) == ["\x02TAGS\x01old\x02KEYS\x01k\x02a\x011", "\x02TAGS\x01old"]
    assert joined(2, maps=both, tags=pa.array(["new", None])) == [
        "\x02TAGS\x01new\x02KEYS\x01k\x02a\x011",
        "",
    ]
    assert joined(2, maps=both, keys=pa.array([None, "n"])) == [
        "\x02TAGS\x01old\x02a\x011",
        "\x02KEYS\x01n\x02TAGS\x01old",
    ]


@given(st.lists(st.one_of(st.none(), PROPERTIES), max_size=8), st.integers(0, 3))
def test_any_maps_and_slices_of_them(rows: list[Properties | None], skipped: int) -> None:
    reserved = {"WAIT", "UNIQ_KEY"}
    column = maps(rows)[skipped:]
    expected = [
        "".join(f"\x02{n}\x01{v}" for n, v in (row or {}).items() if n not in reserved)
        for row in rows[skipped:]
    ]
    assert joined(len(column), maps=column) == expected


@pytest.mark.parametrize(
    ("make", "row", "words"),
    [
        (lambda: maps([{}, {"a": "1", "b": "x\x02y"}]), 1, "0x02 in its value"),
        (lambda: maps([None, {}, {"a\x01": "1"}]), 2, "0x01 or 0x02 in its name"),
        (lambda: maps([{"a\x02": "1"}]), 0, "0x01 or 0x02 in its name"),
        (lambda: maps([{"a": "1"}, {"b": ""}]), 1, "with an empty name or value"),
        (lambda: maps([{"": "1"}]), 0, "with an empty name or value"),
        (lambda: maps([{}, {"a": "é" * 16_384}]), 1, "32,812 bytes of properties"),
        (lambda: maps([{"x": "\x02"}, {}, {"b": ""}])[1:], 1, "with an empty name or value"),
    ],
)
def test_maps_that_no_record_can_hold(
    make: Callable[[], pa.MapArray], row: int, words: str
) -> None:
    column = make()
    with pytest.raises(RowError, match=words) as caught:
        joined(len(column), maps=column)
    assert caught.value.row == row


def test_texts_that_no_record_can_hold() -> None:
    with pytest.raises(RowError, match="0x02, the separator of properties, in TAGS"):
        joined(2, tags=pa.array(["a", "b\x02"]))
    with pytest.raises(RowError, match="0x02, the separator of properties, in KEYS") as caught:
        joined(3, keys=pa.array(["a", "\x02b", None]))
    assert caught.value.row == 1


def test_keys_are_joined() -> None:
    column = pa.array([["a", "b"], [], None, ["c", None], [None], ["", "é"]])
    assert join_keys(column).to_pylist() == ["a b", "", "", "c", "", " é"]
    assert join_keys(column[1:4]).to_pylist() == ["", "", "c"]
    with pytest.raises(RowError, match="has a key with a space") as caught:
        join_keys(pa.array([["a"], None, ["b", "c d"]]))
    assert caught.value.row == 2


def test_one_property() -> None:
    column = maps([{"a": "1", "KEYS": "k"}, None, {}, {"KEYS": None}])
    assert property_of(column, "KEYS").to_pylist() == ["k", None, None, None]
