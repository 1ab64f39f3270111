"""Messages as a batch has them, and the ids of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.broker.core.messages import split_batch
from rmqstore_spark.layout.spans import binary_array
from rmqstore_spark.produce.encoder import batch_entries
from rmqstore_spark.produce.uniq_key import RowKeys

MESSAGES = st.lists(
    st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=300),
        st.binary(max_size=300) | st.just(b"p" * 32_767),
    ),
    min_size=1,
    max_size=20,
)


@given(MESSAGES, st.data())
def test_a_broker_finds_the_messages_of_a_batch(
    messages: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    flags, bodies, properties = (list(column) for column in zip(*messages, strict=True))
    entries = batch_entries(
        np.array(flags, np.int32),
        pa.array([b"before", *bodies], pa.binary())[1:],
        pa.array([b"", *properties], pa.binary())[1:],
    )
    first = data.draw(st.integers(0, len(messages) - 1))
    last = data.draw(st.integers(first + 1, len(messages)))
    found = split_batch(b"".join(entries[first:last].to_pylist()), 1000)
    assert found.flags.tolist() == flags[first:last]
    assert binary_array(found.bodies).to_pylist() == bodies[first:last]
    assert binary_array(found.properties).to_pylist() == properties[first:last]


def test_the_id_of_a_row_depends_on_its_write_and_place_alone() -> None:
    whole = RowKeys("query/7/3").take(70_000).to_pylist()
    again = RowKeys("query/7/3")
    assert [*again.take(65_000).to_pylist(), *again.take(5000).to_pylist()] == whole
    other = RowKeys("query/7/4").take(70_000).to_pylist()
    assert len({*whole, *other}) == 140_000
    # As long as an id with an IPv6 address; the time in it is the first of its month.
    assert {len(key) for key in whole} == {56}
    assert {key[44:52] for key in whole} == {"00000000"}
