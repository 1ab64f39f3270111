"""What a store accepts can be read: no query fails on it, and no verification finds damage."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.layout import compression
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.verify import verify
from tests.support.messages.compressing import flags_of_type
from tests.support.messages.strategies import BYTES, HOSTS, INT32, INT64
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch
from tests.support.stores.storing import config

EVERYTHING = ReadOptions(columns=tuple(COLUMNS))

BODIES = st.one_of(
    st.tuples(st.sampled_from([0, 0x2, 0x1, 0x301, 0x101, 0x201, 0x401, 0x500]), BYTES),
    st.builds(
        lambda kind, body, end: (
            flags_of_type(kind),
            compression.compress(body, kind)[: end or None],
        ),
        st.integers(0, 3),
        BYTES,
        st.sampled_from([0, 0, 0, -1, -4, 2]),
    ),
)
"""sysFlag and body: most of them sound, some not what the flag says."""

PIECES = st.sampled_from([
    b"\x01", b"\x02", b" ", b"a", b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"DELAY\x01", b"3",
    b"WAIT\x01", b"REAL_TOPIC\x01", b"INNER_MULTI_DISPATCH\x01", b"INNER_MULTI_QUEUE_OFFSET\x01",
    b"__CRC32#\x01", b"0123456789\x02", b"\xff", "\U0001f511".encode(), bytes(9),
])  # fmt: skip

MESSAGES = st.builds(
    lambda flags_and_body, properties, **fields: RecordReport(
        queue_offset=0, physical_offset=0, store_size=0, body_crc=0, sys_flag=flags_and_body[0],
        store_timestamp=0, body=flags_and_body[1], body_uncompressed=None, properties={},
        properties_raw=properties, msg_id="", crc_ok=True, raw={}, **fields,
    ),
    BODIES,
    st.lists(PIECES, max_size=12).map(b"".join),
    topic=st.sampled_from(["T", "T", "T", "U", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "a b", "\u9375"]),
    queue_id=st.sampled_from([0, 1, 3, 3, 9]),
    flag=INT32,
    born_timestamp=INT64,
    born_host=HOSTS,
    store_host=st.sampled_from(["0.0.0.0:0"] * 5 + ["[0:0:0:0:0:0:0:0]:0"]),
    reconsume_times=st.one_of(st.sampled_from([0, 0, 1, 2**31 - 1]), INT32),
    prepared_transaction_offset=st.one_of(st.just(0), st.just(0), st.just(0), INT64),
)  # fmt: skip

FIELDS = st.sampled_from([*range(12), *range(12, 20), *range(36, 72), *range(72, 88)])
"""Bytes of a record's fields, without those that the store stamps whatever they are."""


def written(data: U1, store: Path) -> PutStatus:
    with StoreWriter.open(store, config(mappedFileSizeCommitLog=1 << 16)) as writer:
        result = writer.put(data.copy())
        assert writer.state == "RUNNING"
    return result.status


def require_readable(store: Path) -> int:
    """Read all of a store, every column, and verify it; returns how many messages it holds."""
    with Store.open(store) as reader:
        found = verify(reader)
        assert [p for p in found.problems if p.severity == "error"] == []
        scanned = sum(len(batch) for batch in reader.scan(options=EVERYTHING))
        queued = sum(
            len(batch)
            for queue in reader.queues()
            for batch in reader.read(queue.topic, queue_id=queue.queue_id, options=EVERYTHING)
        )
    assert scanned == queued
    return scanned


@pytest.mark.threat("What the process receives")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=3),
    damage=st.lists(st.tuples(st.integers(0, 2), FIELDS, st.integers(0, 255)), max_size=2),
)
def test_what_is_accepted_is_readable_and_no_damage(
    messages: list[RecordReport], damage: list[tuple[int, int, int]], each_kernel: str
) -> None:
    encoded = encode_records(record_batch(messages))
    data = encoded.data.copy()
    for row, at, value in damage:
        data[int(encoded.starts[row % len(messages)]) + at] = value
    with tempfile.TemporaryDirectory() as folder:
        status = written(data, Path(folder, "s"))
        count = require_readable(Path(folder, "s"))
    assert count == (len(messages) if status is PutStatus.PUT_OK else 0)


def message(**changes: object) -> RecordReport:
    fields = {
        "topic": "T", "queue_id": 1, "queue_offset": 0, "physical_offset": 0, "store_size": 0,
        "body_crc": 0, "flag": 0, "sys_flag": 0, "born_timestamp": 5, "born_host": "1.2.3.4:5",
        "store_timestamp": 0, "store_host": "0.0.0.0:0", "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body": b"body", "body_uncompressed": None,
        "properties": {}, "properties_raw": b"TAGS\x01a", "msg_id": "", "crc_ok": True, "raw": {},
    }  # fmt: skip
    return RecordReport(**{**fields, **changes})  # type: ignore[arg-type]  # as the names say


@pytest.mark.parametrize(
    "changes",
    [
        {"sys_flag": 0x1},
        {"sys_flag": 0x1, "body": b""},
        {"sys_flag": 0x301, "body": compression.compress(b"body", 3)[:-1]},
        {"sys_flag": 0x501},
        {"reconsume_times": -1},
        {"prepared_transaction_offset": -1},
        {"prepared_transaction_offset": 1 << 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("staged", [False, True])
def test_what_readers_refuse_is_refused(
    changes: dict[str, object], staged: bool, tmp_path: Path, each_kernel: str
) -> None:
    data = encode_records(record_batch([message(), message(**changes)])).data.copy()
    with StoreWriter.open(tmp_path / "s", config()) as writer:
        if staged:
            stage = writer.batches.begin_stage("0" * 32)
            with pytest.raises(ValueError, match="MESSAGE_ILLEGAL: record 1 of the block"):
                stage.append(data)
            return
        result = writer.put(data)
        assert result.status is PutStatus.MESSAGE_ILLEGAL
        assert "record 1 of the block" in result.remark
    assert require_readable(tmp_path / "s") == 0


def test_a_port_that_no_host_has_is_refused(tmp_path: Path, each_kernel: str) -> None:
    data = encode_records(record_batch([message()])).data.copy()
    data[53] = 1
    assert written(data, tmp_path / "s") is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.threat("What the process receives")
def test_a_bomb_holds_no_other_put_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unpacked before the append lock is taken, and not together with other messages."""
    import threading

    from rmqstore_spark.engine import admission

    begun, released = threading.Event(), threading.Event()

    def held(block: object) -> None:
        begun.set()
        assert released.wait(60)

    monkeypatch.setattr(admission, "check_bodies", held)
    bomb = encode_records(
        record_batch([message(sys_flag=0x201, body=compression.compress(bytes(1 << 20), 2))])
    ).data.copy()
    plain = encode_records(record_batch([message()])).data.copy()
    with StoreWriter.open(tmp_path / "s", config()) as writer:
        results = []
        thread = threading.Thread(target=lambda: results.append(writer.put(bomb)))
        thread.start()
        try:
            assert begun.wait(60)
            assert writer.put(plain.copy()).ok
            assert not results
        finally:
            released.set()
            thread.join()
        assert results[0].ok
        assert np.array_equal(results[0].queue_offset, [1])
