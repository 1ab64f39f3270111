"""CommitLog records, by the compiled kernel and by the reference: both must say the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import MAGIC_V1, MAGIC_V2
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.record.columns import COLUMNS, build_batch
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.record.format import (
    Records,
    crc_property_mismatch,
    decode_records,
    encode_blank,
    states_place,
    walk_records,
)
from rmqstore_spark.layout.spans import U1
from tests.support.messages.strategies import RECORDS
from tests.support.stores.golden import GOLDEN_NAMES, RecordReport, load_records
from tests.support.stores.records import log_files, record_batch, stored_bytes

both_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def decode_all(data: U1, base: int = 0, lead: int = 0) -> Records:
    walk = walk_records(data, 0, len(data), base, lead)
    return decode_records(data, walk.positions, (len(data) - walk.positions).astype(np.int32))


def rows_of(records: Records, columns: Iterator[str] | list[str]) -> list[dict[str, object]]:
    batch = build_batch(records, list(columns), broker="broker-a")
    batch.validate(full=True)
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_records_decode_to_what_rocketmq_lists(
    golden: Callable[[str], Path], name: str, each_kernel: str
) -> None:
    expected = {r.physical_offset: r for r in load_records(golden(name))}
    seen = 0
    for start, path, lead in log_files(golden(name)):
        data = np.fromfile(path, np.uint8)
        records = decode_all(data, start, lead)
        records = records.take(np.flatnonzero(records.status == 0))
        mismatch = records.body_crc_mismatch()
        for row, crc_bad in zip(rows_of(records, list(COLUMNS)), mismatch, strict=True):
            check_row(row, expected[int(str(row["physicalOffset"]))])
            assert crc_bad != expected[int(str(row["physicalOffset"]))].crc_ok
            seen += 1
    # What RocketMQ's own walk lists after a torn tail is not a whole record.
    assert seen >= sum(r.crc_ok for r in expected.values())


def check_row(row: dict[str, object], report: RecordReport) -> None:
    def millis(name: str) -> object:
        return pa.scalar(row[name], COLUMNS[name]).cast(pa.int64()).as_py() // 1000

    assert row["brokerName"] == "broker-a"
    assert row["topic"] == report.topic
    assert row["queueId"] == report.queue_id
    assert row["queueOffset"] == report.queue_offset
    assert row["msgId"] == report.msg_id
    assert row["uniqKey"] == report.properties.get("UNIQ_KEY")
    assert row["tags"] == report.properties.get("TAGS")
    assert row["keys"] == (
        report.properties["KEYS"].split() if "KEYS" in report.properties else None
    )
    assert row["body"] == report.body
    assert dict(row["properties"]) == report.properties  # type: ignore[call-overload]  # a map
    assert millis("bornTimestamp") == report.born_timestamp
    assert row["bornHost"] == report.born_host
    assert millis("storeTimestamp") == report.store_timestamp
    assert row["storeHost"] == report.store_host
    assert row["flag"] == report.flag
    assert row["sysFlag"] == report.sys_flag
    assert row["bodyCRC"] == report.body_crc
    assert row["reconsumeTimes"] == report.reconsume_times
    assert row["preparedTransactionOffset"] == report.prepared_transaction_offset
    assert row["storeSize"] == report.store_size


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_quick_look_knows_the_place_of_a_record(golden: Callable[[str], Path], name: str) -> None:
    raw = stored_bytes(golden(name))
    records = [r for r in load_records(golden(name)) if r.crc_ok]
    assert records
    for each in records:
        data, topic = raw(each), each.topic.encode()
        is_plain = data[4:8] == MAGIC_V1.to_bytes(4, "big", signed=True)
        assert states_place(data, topic, each.queue_id, each.queue_offset) == is_plain
        assert not states_place(data, topic, each.queue_id, each.queue_offset + 1)
        assert not states_place(data, topic, each.queue_id + 1, each.queue_offset)
        assert not states_place(data, topic + b"x", each.queue_id, each.queue_offset)
        assert not states_place(data, topic[:-1], each.queue_id, each.queue_offset)
        assert not states_place(data[:20], topic, each.queue_id, each.queue_offset)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_records_encode_to_their_bytes(
    golden: Callable[[str], Path], name: str, each_kernel: str
) -> None:
    raw = stored_bytes(golden(name))
    seen = 0
    for magic in (MAGIC_V1, MAGIC_V2):
        wanted = [
            r
            for r in load_records(golden(name))
            if r.crc_ok and raw(r)[4:8] == magic.to_bytes(4, "big", signed=True)
        ]
        if wanted:
            encoded = encode_records(record_batch(wanted), magic=magic)
            assert encoded.data.tobytes() == b"".join(raw(r) for r in wanted)
        seen += len(wanted)
    assert seen > 0


@both_kernels
@given(
    messages=st.lists(RECORDS, min_size=1, max_size=12), magic=st.sampled_from([MAGIC_V1, MAGIC_V2])
)
def test_encode_then_decode_gives_the_same_back(
    messages: list[RecordReport], magic: int, each_kernel: str
) -> None:
    encoded = encode_records(record_batch(messages), magic=magic)
    positions = encoded.starts
    records = decode_records(encoded.data, positions, encoded.sizes)
    assert records.status.tolist() == [0] * len(messages)
    assert not records.body_crc_mismatch().any()
    for row, message in zip(rows_of(records, list(COLUMNS)), messages, strict=True):
        assert row["topic"] == message.topic
        assert row["body"] == message.body
        assert (row["queueId"], row["queueOffset"]) == (message.queue_id, message.queue_offset)
        assert row["physicalOffset"] == message.physical_offset
        assert (row["bornHost"], row["storeHost"]) == (message.born_host, message.store_host)
        assert row["flag"] == message.flag
        assert row["bodyCRC"] == zlib.crc32(message.body) & 0x7FFFFFFF
        assert dict(row["properties"]) == message.properties  # type: ignore[call-overload]  # a map


@pytest.mark.threat("The compiled kernel stays within its buffers")
@both_kernels
@given(
    messages=st.lists(RECORDS, min_size=1, max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, 400),
)
def test_both_kernels_say_the_same_of_damaged_records(
    messages: list[RecordReport], damage: list[tuple[int, int]], cut: int
) -> None:
    if not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    encoded = encode_records(record_batch(messages))
    data = encoded.data.copy()
    for at, value in damage:
        data[at % len(data)] = value
    data = data[: len(data) - min(cut, len(data))].copy()
    rooms = np.maximum(len(data) - encoded.starts, 0).astype(np.int32)
    seen = [outcome(module, data, encoded.starts, rooms) for module in (kernel._choose(), plain)]
    assert seen[0] == seen[1]


def outcome(module: object, data: U1, positions: np.ndarray, rooms: np.ndarray) -> object:
    """All that one implementation returns for some bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "active", module)
        walk = walk_records(data, 0, len(data), 0)
        records = decode_records(data, positions, rooms)
        sound = records.take(np.flatnonzero(records.status == 0))
        rows = build_batch(sound, list(COLUMNS), broker="b")
        text = build_batch(sound, ["body"], broker="b", body_as_text=True)
        return (
            walk.positions.tolist(), walk.stop, walk.at, records.longs.tolist(),
            records.ints.tolist(), sound.body_crc_mismatch().tolist(),
            crc_property_mismatch(sound).tolist(), rows.to_pylist(), text.to_pylist(),
        )  # fmt: skip


@pytest.mark.threat("The compiled kernel stays within its buffers")
@both_kernels
@given(data=st.binary(max_size=600), start=st.integers(-5, 600), room=st.integers(-5, 700))
def test_garbage_is_no_record(data: bytes, start: int, room: int, each_kernel: str) -> None:
    raw = np.frombuffer(data, np.uint8)
    records = decode_records(raw, np.array([start], np.int64), np.array([room], np.int32))
    if b"\xda\xa3\x20" not in data:
        assert records.status[0] != 0
        assert not records.longs.any()


def test_a_walk_stops_at_a_blank_and_at_the_end(each_kernel: str) -> None:
    blank = np.frombuffer(encode_blank(64), np.uint8)
    assert walk_records(blank, 0, 64, 0).stop == plain.STOP_BLANK
    assert walk_records(blank, 0, 7, 0).stop == plain.STOP_MORE
    assert walk_records(np.zeros(64, np.uint8), 0, 64, 0).stop == plain.STOP_BAD


def test_a_topic_too_long_for_v1_is_refused(each_kernel: str) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            name: pa.array(
                [
                    {"topic": "t" * 128, "bornHost": "1.2.3.4:1", "storeHost": "1.2.3.4:1"}.get(
                        name, b"" if kind == pa.binary() else 0
                    )
                ],
                kind,
            )
            for name, kind in RECORD_COLUMNS.items()
        }
    )
    with pytest.raises(OptionError, match="Row 0: topic of 128 bytes"):
        encode_records(batch)
    assert len(encode_records(batch, magic=MAGIC_V2).starts) == 1


def crc_digits(record: bytes) -> bytes:
    """The property that 5.x puts behind a record: ten digits, least significant first."""
    value = zlib.crc32(record) & 0x7FFFFFFF
    return b"__CRC32#\x01" + f"{value:010d}"[::-1].encode() + b"\x02"


@pytest.mark.parametrize("flipped", [None, 12, 60, -22])
def test_the_crc_of_the_whole_record_is_checked_where_it_is(
    golden: Callable[[str], Path], flipped: int | None, each_kernel: str
) -> None:
    report = next(r for r in load_records(golden("tiny")) if r.properties_raw)
    separator = b"" if report.properties_raw.endswith(b"\x02") else b"\x02"
    placeholder = report.properties_raw + separator + b"__CRC32#\x01" + b"0" * 10 + b"\x02"
    batch = record_batch([report]).set_column(
        list(RECORD_COLUMNS).index("properties"), "properties", pa.array([placeholder], pa.binary())
    )
    data = encode_records(batch).data.copy()
    data[-20:] = np.frombuffer(crc_digits(data[:-20].tobytes()), np.uint8)
    if flipped is not None:
        data[flipped] ^= 1
    at = np.zeros(1, np.int64)
    records = decode_records(data, at, np.array([len(data)], np.int32))
    assert records.status[0] == 0
    assert crc_property_mismatch(records).tolist() == [flipped is not None]
