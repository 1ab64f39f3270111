from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rmqstore_spark.base.types import CommitRequest
from rmqstore_spark.wire.codec import AtMost, Between, MessageError, decode, encode
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.reading import FileEntry, ListReply, OpenReply, OpenRequest

MOST = 1 << 20


@dataclass(frozen=True)
class Inner:
    some_number: Annotated[int, Between(-5, 5)]


@dataclass(frozen=True)
class Outer:
    text: Annotated[str, AtMost(4)]
    truth: bool
    word: Literal["a", "b"]
    inner: Inner
    many: tuple[Inner, ...]
    by_name: Mapping[str, Inner]
    perhaps: int | None = None
    number: int = 0
    plain: str = ""
    numbers: tuple[int, ...] = ()


GOOD: dict[str, Any] = {
    "text": "abcd",
    "truth": True,
    "word": "a",
    "inner": {"someNumber": -5},
    "many": [{"someNumber": 1}, {"someNumber": 2}],
    "byName": {"x": {"someNumber": 3}},
}


def read(**changed: Any) -> Outer:
    raw = {key: value for key, value in {**GOOD, **changed}.items() if value != "absent"}
    return decode(Outer, json.dumps(raw).encode(), most=4 * MOST)


def test_what_is_written_is_read() -> None:
    message = read(perhaps=7)
    assert message.inner == Inner(-5)
    assert message.many == (Inner(1), Inner(2))
    assert message.by_name == {"x": Inner(3)}
    assert decode(Outer, encode(message), most=MOST) == message
    assert read().perhaps is None


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "abcde"},
        {"text": 1},
        {"text": None},
        {"text": "absent"},
        {"truth": 1},
        {"truth": "true"},
        {"word": "c"},
        {"word": 1},
        {"inner": {}},
        {"inner": []},
        {"inner": {"someNumber": 6}},
        {"inner": {"someNumber": 1.0}},
        {"inner": {"someNumber": True}},
        {"inner": {"someNumber": 1, "other": 2}},
        {"inner": {"some_number": 1}},
        {"many": {}},
        {"many": [1]},
        {"byName": []},
        {"byName": {"x": 1}},
        {"perhaps": -1},
        {"perhaps": 1 << 63},
        {"perhaps": "7"},
        {"perhaps": 1e2},
        {"perhaps": False},
        {"perhaps": 1 << 70},
        {"number": -1},
        {"number": 1 << 63},
        {"number": None},
        {"plain": "x" * 4097},
        {"plain": ["x"]},
        {"numbers": "12"},
        {"numbers": [1, None]},
        {"numbers": [1] * 1_000_001},
        {"byName": {"x" * 4097: {"someNumber": 1}}},
        {"many": [{"someNumber": 1}, {"someNumber": 1, "other": 2}]},
        {"unknown": 1},
        {"unknown": None},
    ],
    ids=lambda changed: str(changed)[:60],
)
def test_what_is_not_as_declared_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        read(**changed)


@pytest.mark.parametrize(
    "data",
    [b"[]", b"1", b"null", b'"x"', b"{", b"\xff", b"{}x", b'{"topics":NaN}', b'{"topics":Infinity}',
     b'{"topics":null,"topics":null}', b"[" * 100_000, b"9" * 100_000],
    ids=lambda data: str(data[:20]),
)  # fmt: skip
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(OpenRequest, data, most=MOST)


@pytest.mark.parametrize(
    "field",
    [
        b'"text":"a"',
        b'"inner":{"someNumber":1,"someNumber":1}',
        b'"many":[{"someNumber":1,"someNumber":2}]',
        b'"byName":{"x":{"someNumber":1},"x":{"someNumber":2}}',
        b'"perhaps":NaN',
        b'"perhaps":-Infinity',
        b'"perhaps":1.0',
        b'"perhaps":01',
        b'"perhaps":' + b"9" * 5000,
        b'"plain":"\xff"',
        b'"plain":"\xc0\xaf"',
        b'"plain":"\xed\xa0\x80"',
        b'"plain":"\n"',
        b'"plain":' + b"[" * 100_000,
        b'"numbers":[1,]',
        b'"perhaps":1}{',
    ],
    ids=lambda data: str(data[:50]),
)
def test_fields_that_json_or_utf_8_forbid(field: bytes) -> None:
    data = json.dumps(GOOD).encode()
    assert decode(Outer, data, most=MOST) == read()
    with pytest.raises(MessageError):
        decode(Outer, data[:-1] + b"," + field + b"}", most=MOST)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_only_utf_8_is_read(encoding: str) -> None:
    with pytest.raises(MessageError):
        decode(Outer, json.dumps(GOOD).encode(encoding), most=MOST)


def test_names_of_files_that_are_not_utf_8_travel() -> None:
    name = os.fsdecode(b"config/\xff.json")
    listed = ListReply((FileEntry(name, 1, False, 2),))
    assert decode(ListReply, encode(listed), most=MOST) == listed


def test_length_is_looked_at_first() -> None:
    with pytest.raises(MessageError, match="2000001 bytes"):
        decode(OpenRequest, b"[" * 2_000_001, most=2_000_000)


def test_nothing_at_all_is_a_message_without_fields() -> None:
    assert decode(OpenRequest, b"", most=MOST) == OpenRequest()
    with pytest.raises(MessageError, match="lacks"):
        decode(StreamCommand, b"", most=MOST)


@pytest.mark.threat("What the process receives")
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for kind in (OpenRequest, CommitRequest, OpenReply, StreamCommand):
        try:
            decode(kind, data, most=MOST)
        except MessageError:
            continue


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["writer", "stages", "kind", "name", "number", "stageId", "rows"]),
            inner,
            max_size=4,
        )
    ),
)


@pytest.mark.threat("What the process receives")
@given(_JSON)
def test_any_json_is_read_or_refused(value: Any) -> None:
    with contextlib.suppress(MessageError):
        decode(CommitRequest, json.dumps(value).encode(), most=MOST)
