"""Extension units of a ConsumeQueue, as RocketMQ wrote and reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from tests.support.messages.strategies import BYTES
from tests.support.stores.golden import load_entries

HEAD = struct.Struct(">hqqh")


def test_units_are_those_that_rocketmq_reads(golden: Callable[[str], Path]) -> None:
    store = golden("extcq") / "store"
    queues = load_entries(golden("extcq"))
    assert queues
    for (topic, queue_id), entries in queues.items():
        files = sorted((store / "consumequeue_ext" / topic / str(queue_id)).iterdir())
        data = np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
        codes = np.array([entry.tags_code for entry in entries])
        assert CONSUME_QUEUE.in_units(codes).all()
        heads, whole = CONSUME_QUEUE.unit_heads(data, CONSUME_QUEUE.unit_offsets(codes))
        assert whole.all()
        assert heads["tagsCode"].tolist() == [entry.ext_tags_code for entry in entries]
        assert heads["storeTimestamp"].tolist() == [entry.ext_store_time for entry in entries]
        assert heads["size"].tolist() == [entry.ext_size for entry in entries]


@given(st.integers(0, 2**63 - 2**31 - 1))
def test_addresses(offset: int) -> None:
    address = np.array([offset - 2**63])
    assert CONSUME_QUEUE.in_units(address).all()
    assert CONSUME_QUEUE.unit_offsets(address).tolist() == [offset]


def test_no_hash_code_is_taken_for_an_address() -> None:
    codes = np.array([0, -1, -(2**31), 2**31 - 1, 1_700_000_000_000, -(2**31) - 1])
    assert CONSUME_QUEUE.in_units(codes).tolist() == [False, False, False, False, False, True]


@pytest.mark.threat("Data is never executed")
@given(BYTES)
def test_any_bytes_are_units_or_none(data: bytes) -> None:
    at = np.arange(max(0, len(data) - HEAD.size + 1))
    heads, whole = CONSUME_QUEUE.unit_heads(np.frombuffer(data, np.uint8), at)
    for offset, head, is_whole in zip(at.tolist(), heads.tolist(), whole.tolist(), strict=True):
        assert head == HEAD.unpack_from(data, offset)
        assert is_whole == (head[0] == HEAD.size + head[3])


def test_the_end_mark_is_no_unit() -> None:
    data = np.frombuffer(b"\xff\xff" + bytes(100), np.uint8)
    assert CONSUME_QUEUE.unit_heads(data, np.array([0]))[1].tolist() == [False]
