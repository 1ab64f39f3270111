"""Bodies: JSON as fastjson writes it, and compressed."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.layout.fastjson import ObjectKey
from rmqstore_spark.remoting.codec.bodies import MAX_VALUES, dump_body, inflate, parse_body
from rmqstore_spark.remoting.codec.fields import Fields
from tests.support.recordings import RECORDINGS, frames

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_SCALAR = st.booleans() | st.integers(-(2**63), 2**63 - 1) | _TEXT
_KEY = st.dictionaries(_TEXT, st.integers(-(2**31), 2**31 - 1) | _TEXT, max_size=3).map(ObjectKey)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_TEXT, inner, max_size=3)
        | st.dictionaries(_KEY, inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_body_that_looks_like_json_is_read(name: str) -> None:
    for frame in frames(name):
        if frame.body.startswith(b"{"):
            found = parse_body(frame.body, object_keys=True)
            assert isinstance(found, dict)
            assert parse_body(dump_body(found), object_keys=True) == found


def test_recorded_answers_with_keys_that_are_objects() -> None:
    found = [
        parse_body(f.body, object_keys=True)
        for f in frames("mqadmin")
        if f.body.startswith(b'{"offsetTable":{{')
    ]
    assert found
    for key, offset in found[0]["offsetTable"].items():
        assert set(key) == {"brokerName", "queueId", "topic"}
        assert offset["minOffset"] <= offset["maxOffset"]


@settings(max_examples=60)
@given(_VALUE)
def test_a_body_comes_back_as_it_was(value: Any) -> None:
    assert parse_body(dump_body(value), object_keys=True) == value


def test_keys_that_are_numbers_are_texts_with_and_without_quotes() -> None:
    assert parse_body(b'{"a":{0:"x",-1:2}}') == parse_body(b'{"a":{"0":"x","-1":2}}')
    assert json.loads(dump_body({"a": {0: "x"}})) == {"a": {"0": "x"}}


def test_an_object_key_is_written_in_fastjsons_form() -> None:
    queue = ObjectKey(brokerName="b", queueId=0, topic="t")
    assert dump_body({"offsetTable": {queue: 7}, "left out": None}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:7}}'
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{]",
        b'{"a":1}x',
        b"[" * 10_000,
        b"{" * 10_000,
        b'{{{"a":1}:2}:3}',
        b'{{"a":{}}:1}',
        b'{{"a":null}:1}',
        b"{0:" * 2_000,
        b"[" + b"[]," * MAX_VALUES + b"[]]",
        b"{x:" + b" " * (5 << 20) + b"1}",
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="the body"):
        parse_body(body, object_keys=True)


def test_keys_that_are_objects_must_be_expected() -> None:
    # Their hashes can be made to collide: 130,000 such keys would take minutes.
    with pytest.raises(FrameError, match="not JSON"):
        parse_body(b'{{"a":1}:2}')
    assert parse_body(b'{{"a":1}:2}', object_keys=True) == {ObjectKey(a=1): 2}


@settings(max_examples=60)
@given(st.binary(max_size=100), st.integers(0, 100))
def test_a_compressed_body_is_at_most_as_long_as_allowed(data: bytes, most: int) -> None:
    if len(data) <= most:
        assert inflate(zlib.compress(data), max(most, 1)) == data
    elif most:
        with pytest.raises(FrameError, match="more than"):
            inflate(zlib.compress(data), most)


def test_a_compressed_body_that_is_cut_or_wrong_is_refused() -> None:
    whole = zlib.compress(b"some bytes" * 9)
    for at in range(len(whole)):
        with pytest.raises(FrameError):
            inflate(whole[:at], 1 << 20)
    with pytest.raises(FrameError):
        inflate(b"\x01" + whole, 1 << 20)
    with pytest.raises(FrameError, match="more than"):
        inflate(zlib.compress(bytes(8 << 20)), 1 << 20)


def test_fields_name_what_is_missing_or_wrong() -> None:
    fields = Fields(
        {"topic": "T", "brokerId": "-1", "compressed": "TRUE", "b": "1", "long": "x" * 300}
    )
    assert fields.name("topic") == "T"
    assert fields.flag("compressed")
    assert not fields.flag("b")
    assert fields.long("absent", 0, 9, default=5) == 5
    for wrong in (
        lambda: fields.name("cluster"),
        lambda: fields.name("long"),
        lambda: fields.long("brokerId", 0, 9),
        lambda: fields.long("topic", 0, 9),
        lambda: fields.long("cluster", 0, 9),
    ):
        with pytest.raises(RemotingError, match=r"cluster|long|brokerId|topic"):
            wrong()
