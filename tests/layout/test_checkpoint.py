from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.checkpoint import CHECKPOINT_SIZE, Checkpoint
from tests.support.messages.strategies import BYTES, INT64
from tests.support.stores.golden import load_queues


@pytest.mark.parametrize("name", ["basic", "live", "delayed", "ha-slave", "v5basic", "v5v2topic"])
def test_fields_are_those_that_rocketmq_reports(golden: Callable[[str], Path], name: str) -> None:
    report = load_queues(golden(name)).raw["checkpoint"]
    data = (golden(name) / "store/checkpoint").read_bytes()
    checkpoint = Checkpoint.decode(data)
    assert checkpoint.physic_msg_timestamp == report["physicMsgTimestamp"]
    assert checkpoint.logics_msg_timestamp == report["logicsMsgTimestamp"]
    assert checkpoint.index_msg_timestamp == report["indexMsgTimestamp"]
    assert checkpoint.encode() == data


@given(st.builds(Checkpoint, INT64, INT64, INT64, INT64, INT64))
def test_round_trip(checkpoint: Checkpoint) -> None:
    assert len(checkpoint.encode()) == CHECKPOINT_SIZE
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


@given(BYTES)
def test_any_bytes_decode_or_are_refused_with_their_file(data: bytes) -> None:
    if len(data) < 24:
        with pytest.raises(CorruptStoreError, match=f"not {len(data)} in f"):
            Checkpoint.decode(data, file="f")
    else:
        assert Checkpoint.decode(data).encode()[:40].startswith(data[:40])


def test_a_file_with_the_fields_of_4_alone_is_enough() -> None:
    assert Checkpoint.decode(bytes(23) + b"\1") == Checkpoint(0, 0, 1)
