"""Records written from columns, by both kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import MAGIC_V1, MAGIC_V2
from rmqstore_spark.layout.hosts import same_host
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.record.encode import (
    RECORD_COLUMNS,
    EncodedRecords,
    MessageFields,
    encode_alike,
    encode_messages,
    encode_records,
)
from rmqstore_spark.layout.spans import array_texts, join_texts
from tests.support.messages.strategies import HOSTS, RECORDS
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch


@given(
    messages=st.lists(RECORDS, max_size=12),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
    first=st.integers(0, 4),
    count=st.integers(0, 12),
)
def test_both_kernels_write_the_same_bytes(
    messages: list[RecordReport], magic: int, first: int, count: int
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    batch = record_batch(messages).slice(first, count)
    seen = []
    for module in (kernel._choose(), plain):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "active", module)
            found = encode_records(batch, magic=magic)
            seen.append((found.data.tobytes(), found.starts.tolist(), found.sizes.tolist()))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == sum(seen[0][2])
    alone = [encode_records(record_batch([m]), magic=magic).data.tobytes() for m in messages]
    assert seen[0][0] == b"".join(alone[first : first + count])


@given(messages=st.lists(RECORDS, min_size=1, max_size=12), store_host=HOSTS)
def test_a_few_messages_are_encoded_as_columns_are(
    messages: list[RecordReport], store_host: str
) -> None:
    given = [as_sent(each, store_host) for each in messages]
    found = encode_messages([fields_of(each) for each in given], store_host)
    assert_same(found, encode_records(record_batch(given)))


@given(messages=st.lists(RECORDS, min_size=1, max_size=12), store_host=HOSTS)
def test_messages_that_share_most_are_encoded_as_columns_are(
    messages: list[RecordReport], store_host: str
) -> None:
    first = as_sent(messages[0], store_host)
    given = [
        replace(first, flag=each.flag, body=each.body, properties_raw=each.properties_raw)
        for each in messages
    ]
    found = encode_alike(
        fields_of(first)._replace(flag=-1, body=b"-", properties=b"-"),
        np.array([each.flag for each in given], np.int32),
        array_texts(pa.array([each.body for each in given], pa.binary())),
        array_texts(pa.array([each.properties_raw for each in given], pa.binary())),
        store_host,
    )
    assert_same(found, encode_records(record_batch(given)))


def as_sent(message: RecordReport, store_host: str) -> RecordReport:
    """A message before the store knows it."""
    return replace(
        message, queue_offset=0, physical_offset=0, store_timestamp=0, store_host=store_host,
        prepared_transaction_offset=0,
    )  # fmt: skip


def fields_of(message: RecordReport) -> MessageFields:
    return MessageFields(
        message.topic.encode(), message.body, message.properties_raw, message.born_host,
        message.born_timestamp, message.queue_id, message.flag, message.sys_flag,
        message.reconsume_times,
    )  # fmt: skip


def assert_same(found: EncodedRecords, expected: EncodedRecords) -> None:
    assert found.data.tobytes() == expected.data.tobytes()
    assert found.starts.tolist() == expected.starts.tolist()
    assert found.sizes.tolist() == expected.sizes.tolist()


def one_row(**changes: Any) -> pa.RecordBatch:
    known = {"topic": "t", "bornHost": "1.2.3.4:1", "storeHost": "1.2.3.4:1", **changes}
    return pa.RecordBatch.from_pydict(
        {
            name: pa.array([known.get(name, b"" if kind == pa.binary() else 0)], kind)
            for name, kind in RECORD_COLUMNS.items()
        }
    )


@pytest.mark.parametrize("index", [pa.int8(), pa.int32(), pa.int64()])
def test_hosts_may_be_dictionary_encoded(index: pa.DataType, each_kernel: str) -> None:
    hosts = ["1.2.3.4:5", "[1:2:3:4:5:6:7:8]:9", "1.2.3.4:5"]
    plain_ones = pa.concat_batches([one_row(bornHost=host) for host in hosts])
    coded = pa.array(hosts).cast(pa.dictionary(index, pa.string()))
    at = list(RECORD_COLUMNS).index("bornHost")
    batch = plain_ones.set_column(at, "bornHost", coded)
    assert encode_records(batch).data.tobytes() == encode_records(plain_ones).data.tobytes()
    same = batch.set_column(at, "bornHost", same_host(hosts[1], 3))
    assert encode_records(same[1:2]).data.tobytes() == encode_records(batch[1:2]).data.tobytes()


def test_properties_too_long_for_the_format_are_refused(each_kernel: str) -> None:
    encode_records(one_row(properties=b"p" * 32_767))
    with pytest.raises(OptionError, match="Row 0: properties of 32768 bytes"):
        encode_records(one_row(properties=b"p" * 32_768))


@pytest.mark.parametrize("host", ["", "1.2.3.4", "1.2.3:4", "host:4", "1.2.3.4:x"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(OptionError, match=r"is not a host: use ip:port"):
        encode_records(one_row(bornHost=host))


def arguments(**changes: Any) -> list[Any]:
    """What `write_records` takes, for one record of two texts' bytes each."""
    text, ends = np.frombuffer(b"ab", np.uint8), np.array([0, 2], np.int32)
    known = {
        "magic": MAGIC_V1 & 0xFFFFFFFF, "ints": np.zeros((6, 1), np.int32),
        "longs": np.zeros((5, 1), np.int64), "hosts": np.zeros((1, 20), np.uint8),
        "wide": np.zeros(1, np.uint8), "body_offsets": ends, "body": text, "topic_offsets": ends,
        "topic": text, "properties_offsets": ends, "properties": text,
        "starts": np.empty(1, np.int64), "sizes": np.empty(1, np.int32),
        "out": np.empty(97, np.uint8),
    }  # fmt: skip
    assert changes.keys() <= known.keys()
    return list({**known, **changes}.values())


def ints(field: int, value: int) -> Any:
    table = np.zeros((6, 1), np.int32)
    table[field] = value
    return table


def offsets(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"out": np.empty(96, np.uint8)}, "too small"),
        ({"wide": np.ones(1, np.uint8)}, "too small"),
        ({"wide": np.ones(2, np.uint8)}, "differ in number"),
        ({"topic_offsets": offsets(0, 1, 2)}, "differ in number"),
        ({"ints": ints(4, 1)}, "what no record can"),
        ({"ints": ints(5, -1)}, "what no record can"),
        ({"body_offsets": offsets(-1, 2)}, "what no record can"),
        ({"body_offsets": offsets(0, 3)}, "what no record can"),
        ({"body_offsets": offsets(2, 0)}, "what no record can"),
        ({"topic_offsets": offsets(-(2**31), 2**31 - 1)}, "what no record can"),
        ({"properties_offsets": offsets(1, 3)}, "what no record can"),
        ({"topic_offsets": offsets(0, 128), "topic": np.empty(128, np.uint8)}, "what no record"),
        (
            {"properties_offsets": offsets(0, 32_768), "properties": np.empty(32_768, np.uint8)},
            "what no record can",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], cause: str, each_kernel: str
) -> None:
    assert kernel.active.write_records(*arguments()) == 97
    with pytest.raises(ValueError, match=cause):
        kernel.active.write_records(*arguments(**changes))


@given(
    leads=st.lists(
        st.sampled_from(["", "a", "\x02KEYS\x01", "a lead of more than 16 bytes"]),
        min_size=1,
        max_size=8,
    ),
    data=st.data(),
)
def test_texts_are_joined_after_their_leads(leads: list[str], data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(
            st.tuples(*[st.one_of(st.none(), st.binary(max_size=40))] * len(leads)), max_size=6
        )
    )
    first = data.draw(st.integers(0, len(rows)))
    columns = [pa.array([row[k] for row in rows], pa.binary())[first:] for k in range(len(leads))]
    expected = [
        b"".join(lead.encode() + text for lead, text in zip(leads, row, strict=True) if text)
        for row in rows[first:]
    ]
    for module in (kernel._choose(), plain):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "active", module)
            assert join_texts(leads, columns).to_pylist() == expected


def join_arguments(**changes: Any) -> list[Any]:
    """What `join_texts` takes, for two columns of one text each."""
    known = {
        "leads": b"<>", "lead_ends": offsets(1, 2),
        "offsets": np.array([[0, 2], [0, 1]], np.int32),
        "data": (np.frombuffer(b"ab", np.uint8), np.frombuffer(b"c", np.uint8)),
        "out_offsets": np.empty(2, np.int32), "out": np.empty(5, np.uint8),
    }  # fmt: skip
    assert changes.keys() <= known.keys()
    return list({**known, **changes}.values())


@pytest.mark.threat("The compiled kernel stays within its buffers")
@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"out": np.empty(4, np.uint8)}, "too small"),
        ({"out_offsets": np.empty(3, np.int32)}, "too small"),
        ({"out_offsets": np.empty(0, np.int32)}, "too small"),
        ({"lead_ends": offsets(1)}, "differ in number"),
        ({"lead_ends": offsets(*range(9)), "data": (np.empty(0, np.uint8),) * 9}, "in number"),
        ({"lead_ends": offsets(1, 3)}, "outside its buffer"),
        ({"lead_ends": offsets(2, 1)}, "outside its buffer"),
        ({"lead_ends": offsets(-1, 1)}, "outside its buffer"),
        ({"offsets": np.array([[0, 3], [0, 1]], np.int32)}, "outside its buffer"),
        ({"offsets": np.array([[-1, 1], [0, 1]], np.int32)}, "outside its buffer"),
        ({"offsets": np.array([[0, 2], [1, 0]], np.int32)}, "outside its buffer"),
    ],
)
def test_texts_that_cannot_be_joined_are_refused(
    changes: dict[str, Any], cause: str, each_kernel: str
) -> None:
    assert kernel.active.join_texts(*join_arguments()) == 5
    with pytest.raises(ValueError, match=cause):
        kernel.active.join_texts(*join_arguments(**changes))
