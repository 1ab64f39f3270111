"""The digest of records: what it tells apart, and what it does not."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.base.types import is_digest, sum_of_digests
from rmqstore_spark.layout.record.block import Block, add_up, check_block, digest_text
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.produce.records import record_columns

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Row:
    """What a row gives a record; `properties` in any order."""

    topic: str
    body: bytes
    properties: frozenset[tuple[bytes, bytes]] = frozenset()
    flag: int = 0
    reconsume_times: int = 0


NAMES = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEYS", b"a", b"UNIQ_KE"])
VALUES = st.binary(min_size=1, max_size=30).map(lambda raw: raw.translate(None, b"\1\2") or b"v")
ROWS = st.builds(
    Row,
    topic=st.sampled_from(["orders", "bills", "o"]),
    body=st.binary(max_size=40),
    properties=st.dictionaries(NAMES, VALUES, max_size=3).map(lambda d: frozenset(d.items())),
    flag=st.sampled_from([0, 1, -1]),
    reconsume_times=st.sampled_from([0, 1]),
)


def attempt(rows: list[Row], number: int = 0) -> Block:
    """The rows as one attempt encodes them, with ids, hosts, times and queues of its own."""
    n = len(rows)
    unique = (b"UNIQ_KEY", b"%032d" % number)
    pairs = [sorted([unique, *row.properties], reverse=number % 2 == 1) for row in rows]
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": [row.topic for row in rows],
            "queueId": pa.array([number] * n, pa.int32()),
            "body": pa.array([row.body for row in rows], pa.binary()),
            "properties": [b"\2".join(b"\1".join(pair) for pair in each) for each in pairs],
            "bornTimestamp": [1_700_000_000_000 + number] * n,
            "bornHost": ["127.0.0.1:0" if number % 2 else "[2001:db8::1]:0"] * n,
            "flag": pa.array([row.flag for row in rows], pa.int32()),
            "reconsumeTimes": pa.array([row.reconsume_times for row in rows], pa.int32()),
        }
    )
    data = np.array(encode_records(record_columns(batch, 0, "0.0.0.0:0")).data)
    return check_block(
        data, max_body=1 << 20, store_host_v6=False, allowed_sys_flag=0, digested=True
    )


def digest(rows: list[Row], number: int = 0) -> str:
    return digest_text(add_up((0, 0), attempt(rows, number)))


@both_kernels
@given(rows=st.lists(ROWS, max_size=8), data=st.data())
def test_the_same_rows_have_the_same_digest_in_any_order_and_in_any_parts(
    rows: list[Row], data: st.DataObject, each_kernel: str
) -> None:
    mixed = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [digest(mixed[:cut], 1), digest(mixed[cut:], 2)]
    assert sum_of_digests(parts) == digest(rows, 3)
    sums = add_up(add_up((0, 0), attempt(mixed[:cut], 4)), attempt(mixed[cut:], 5))
    assert digest_text(sums) == digest(rows)


@both_kernels
@given(rows=st.lists(ROWS, max_size=8), others=st.lists(ROWS, max_size=8))
def test_other_rows_have_another_digest(
    rows: list[Row], others: list[Row], each_kernel: str
) -> None:
    assert (digest(rows) == digest(others)) == (Counter(rows) == Counter(others))


ROW = Row("orders", b"12345678abcdefgh", frozenset({(b"KEYS", b"k"), (b"a", b"b")}), 1, 2)


@pytest.mark.parametrize(
    "others",
    [
        [ROW],
        [ROW, ROW, ROW],
        [ROW, replace(ROW, body=b"abcdefgh12345678")],
        [ROW, replace(ROW, topic="order2")],
        [ROW, replace(ROW, properties=frozenset({(b"KEYS", b"k")}))],
        [ROW, replace(ROW, properties=frozenset({(b"KEYS", b"b"), (b"a", b"k")}))],
        [ROW, replace(ROW, properties=frozenset({(b"a", b"k"), (b"KEY", b"Sb")}))],
        [ROW, replace(ROW, flag=2)],
        [ROW, replace(ROW, reconsume_times=1)],
        [ROW, replace(ROW, flag=2, reconsume_times=1)],
        [replace(ROW, body=b"orders"), replace(ROW, topic="o" * 6)],
    ],
)
def test_what_makes_two_batches_different(others: list[Row], each_kernel: str) -> None:
    """XOR of the hashes would not see two equal rows; lengths alone would see few of these."""
    assert digest(others) != digest([ROW, ROW])
    assert digest([ROW, ROW]) != digest([])


def test_two_bodies_of_one_crc_are_two_bodies(each_kernel: str) -> None:
    """CRC-32 is linear: these differ by its polynomial, and bodyCRC cannot tell them apart."""
    first, second = b"\x00" * 12, bytes.fromhex("410671db0100000000000000")
    assert zlib.crc32(first) == zlib.crc32(second)
    assert digest([Row("orders", first)]) != digest([Row("orders", second)])


def test_what_is_a_digest() -> None:
    assert is_digest(digest([]))
    assert digest([]) == "0" * 32
    for wrong in ("0" * 31, "0" * 33, "G" * 32, "A" * 32, b"0" * 32, None, 0, "0" * 31 + "\n"):
        assert not is_digest(wrong)
    assert sum_of_digests(["f" * 32, "0" * 15 + "1" + "0" * 15 + "2"]) == "0" * 31 + "1"
