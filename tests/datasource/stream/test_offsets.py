from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.datasource.offsets import (
    Mark,
    QueueKey,
    StoresOf,
    as_start,
    decode_offsets,
    decode_stores,
    encode_offsets,
)
from rmqstore_spark.errors import RmqStoreError

KEYS = st.builds(
    QueueKey, st.sampled_from("ab"), st.sampled_from(["T", "T2", "%RETRY%g"]), st.integers(0, 12)
)
NUMBERS = st.integers(0, 2**63 - 1)
PRINTS = st.just("") | st.from_regex(r"[0-9a-f]{12}", fullmatch=True)
MARKS = st.builds(Mark, NUMBERS, st.integers(-1, 2**63 - 1), st.none() | NUMBERS, PRINTS)
STORES = st.builds(
    StoresOf, st.dictionaries(st.sampled_from("ab"), st.text("0123456789abcdef", min_size=32)),
    st.frozensets(st.sampled_from("ab")),
)  # fmt: skip


@given(st.dictionaries(KEYS, MARKS), STORES)
def test_offsets_come_back_from_their_json(offsets: dict[QueueKey, Mark], stores: StoresOf) -> None:
    stored = json.loads(json.dumps(encode_offsets(offsets, stores)))
    assert decode_offsets(stored) == offsets
    assert decode_stores(stored) == stores


@given(st.lists(st.tuples(KEYS, MARKS), unique_by=lambda pair: pair[0]), st.randoms())
def test_the_order_is_fixed(pairs: list[tuple[QueueKey, Mark]], random: object) -> None:
    forwards = json.dumps(encode_offsets(dict(pairs)))
    assert json.dumps(encode_offsets(dict(reversed(pairs)))) == forwards
    # Also over the way back from the checkpoint, where ids of queues are texts: 10 after 9.
    assert json.dumps(encode_offsets(decode_offsets(json.loads(forwards)))) == forwards


def test_the_form() -> None:
    offsets = {
        QueueKey("b", "T", 10): Mark(7, 90, 0),
        QueueKey("b", "T", 9): Mark(23, 4567, fingerprint="0123456789ab"),
    }
    stores = StoresOf({"b": "c0ffee"}, frozenset({"a"}))
    assert json.dumps(encode_offsets(offsets, stores)) == (
        '{"version": 2, "stores": {"b": "c0ffee"}, "leftOut": ["a"], '
        '"queues": {"b": {"T": "9:23@4567#0123456789ab 10:0..7@90"}}}'
    )


def test_offsets_of_version_1() -> None:
    stored = {"version": 1, "queues": {"b": {"T": "9:23@4567 10:0..7@-1"}}}
    assert decode_offsets(stored) == {
        QueueKey("b", "T", 9): Mark(23, 4567),
        QueueKey("b", "T", 10): Mark(7, -1, 0),
    }
    assert decode_stores(stored) == StoresOf()


def test_a_thousand_queues_stay_small() -> None:
    mark = Mark(123_456, 123_456_789_012, fingerprint="0123456789ab")
    offsets = {QueueKey("b", "T", q): mark for q in range(1000)}
    assert len(json.dumps(encode_offsets(offsets))) < 38_000


def test_the_begin_lasts_until_something_of_the_queue_was_read() -> None:
    read, unread, older = (QueueKey("b", "T", n) for n in range(3))
    end = {read: Mark(9, 180, 5), unread: Mark(5, 100, 5), older: Mark(7, 70)}
    assert as_start(end) == {read: Mark(9, 180), unread: Mark(5, 100, 5), older: Mark(7, 70)}


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 3, "queues": {}},
        {"version": 0, "queues": {}},
        {"version": 2},
        {"version": 2, "queues": {"b": {"T": "0:1@2#xyz"}}},
        {"version": 2, "queues": {"b": {"T": "0:1@2#"}}},
        {"version": 1},
        {"version": 1, "queues": []},
        {"version": 1, "queues": {"b": {"T": ""}}},
        {"version": 1, "queues": {"b": {"T": "x:1@2"}}},
        {"version": 1, "queues": {"b": {"T": "0:1"}}},
        {"version": 1, "queues": {"b": {"T": "0:-1@2"}}},
        {"version": 1, "queues": {"b": {"T": "0:1@2,1:1@2"}}},
        {"version": 1, "queues": {"b": {"T": {"0": [1, 2]}}}},
        {"version": 1, "queues": {"b": {"T": None}}},
    ],
)
def test_offsets_of_another_making_are_refused(stored: dict[str, object]) -> None:
    with pytest.raises(RmqStoreError, match="checkpoint"):
        decode_offsets(stored)


@pytest.mark.parametrize(
    "more", [{"stores": []}, {"stores": {"b": 1}}, {"leftOut": {}}, {"leftOut": [1]}]
)
def test_stores_of_another_making_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(RmqStoreError, match="checkpoint"):
        decode_stores({"version": 2, "queues": {}, **more})
