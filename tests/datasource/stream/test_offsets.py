from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.datasource.offsets import (
    Mark,
    QueueKey,
    as_start,
    decode_offsets,
    encode_offsets,
)
from rmqstore_spark.errors import RmqStoreError

KEYS = st.builds(
    QueueKey, st.sampled_from("ab"), st.sampled_from(["T", "T2", "%RETRY%g"]), st.integers(0, 12)
)
NUMBERS = st.integers(0, 2**63 - 1)
MARKS = st.builds(Mark, NUMBERS, st.integers(-1, 2**63 - 1), st.none() | NUMBERS)


@given(st.dictionaries(KEYS, MARKS))
def test_offsets_come_back_from_their_json(offsets: dict[QueueKey, Mark]) -> None:
    text = json.dumps(encode_offsets(offsets))
    assert decode_offsets(json.loads(text)) == offsets


@given(st.lists(st.tuples(KEYS, MARKS), unique_by=lambda pair: pair[0]), st.randoms())
def test_the_order_is_fixed(pairs: list[tuple[QueueKey, Mark]], random: object) -> None:
    forwards = json.dumps(encode_offsets(dict(pairs)))
    assert json.dumps(encode_offsets(dict(reversed(pairs)))) == forwards
    # Also over the way back from the checkpoint, where ids of queues are texts: 10 after 9.
    assert json.dumps(encode_offsets(decode_offsets(json.loads(forwards)))) == forwards


def test_the_form() -> None:
    offsets = {QueueKey("b", "T", 10): Mark(7, 90, 0), QueueKey("b", "T", 9): Mark(23, 4567)}
    assert json.dumps(encode_offsets(offsets)) == (
        '{"version": 1, "queues": {"b": {"T": "9:23@4567 10:0..7@90"}}}'
    )


def test_a_thousand_queues_stay_small() -> None:
    offsets = {QueueKey("b", "T", q): Mark(123_456, 123_456_789_012) for q in range(1000)}
    assert len(json.dumps(encode_offsets(offsets))) < 25_000


def test_the_begin_lasts_until_something_of_the_queue_was_read() -> None:
    read, unread, older = (QueueKey("b", "T", n) for n in range(3))
    end = {read: Mark(9, 180, 5), unread: Mark(5, 100, 5), older: Mark(7, 70)}
    assert as_start(end) == {read: Mark(9, 180), unread: Mark(5, 100, 5), older: Mark(7, 70)}


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 2, "queues": {}},
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
