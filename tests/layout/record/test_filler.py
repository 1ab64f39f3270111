"""Records that fill up room in the log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.layout.constants import FILLER_TOPIC, TRANSACTION_ROLLBACK_TYPE
from rmqstore_spark.layout.record.filler import MIN_FILLER, fillers, without_fillers
from rmqstore_spark.layout.record.format import check_crcs, decode_records, walk_records
from rmqstore_spark.layout.spans import U1, string_array

MIB = 1 << 20


def room(begin: int, size: int, time: int) -> U1:
    """The bytes of the room after it was filled up."""
    found = np.zeros(size, np.uint8)
    for at, data in fillers(begin, begin + size, time):
        found[at - begin : at - begin + len(data)] = np.frombuffer(data, np.uint8)
    return found


@given(
    begin=st.integers(0, 1 << 50),
    size=st.one_of(
        st.integers(MIN_FILLER, 3 * MIN_FILLER),
        st.integers(MIB - MIN_FILLER, MIB + 2 * MIN_FILLER),
        st.integers(MIN_FILLER, 3 * MIB),
    ),
    time=st.integers(0, 1 << 50),
)
def test_any_room_becomes_a_chain_of_whole_records(begin: int, size: int, time: int) -> None:
    data = room(begin, size, time)
    walk = walk_records(data, 0, size, begin)
    assert walk.at == size
    ends = np.append(walk.positions[1:], size)
    records = decode_records(data, walk.positions, (ends - walk.positions).astype(np.int32))
    records = check_crcs(records, bodies=True)
    assert not records.status.any()
    assert records.physical_offset.tolist() == (walk.positions + begin).tolist()
    assert set(records.store_timestamp.tolist()) == {time}
    assert set(records.sys_flag.tolist()) == {TRANSACTION_ROLLBACK_TYPE}
    assert set(string_array(records.topic).to_pylist()) == {FILLER_TOPIC}
    rows = without_fillers(records)
    assert rows is not None
    assert not len(rows)


def test_nothing_needs_nothing_and_too_little_is_refused() -> None:
    assert list(fillers(70, 70, 1)) == []
    with pytest.raises(ValueError, match=f"{MIN_FILLER - 1} bytes at 70 are too few"):
        list(fillers(70, 70 + MIN_FILLER - 1, 1))
