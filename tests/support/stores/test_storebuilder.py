"""The builder's stores are those that RocketMQ wrote of the same messages, byte for byte."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS
from rmqstore_spark.reader import Store
from tests.support.stores.golden import RecordReport, load_meta, load_records
from tests.support.stores.storebuilder import FIRST_TIME, StoreBuilder, Traffic, build_store


def _batch(records: list[RecordReport]) -> pa.RecordBatch:
    fields = {
        "topic": [r.topic for r in records],
        "queueId": [r.queue_id for r in records],
        "flag": [r.flag for r in records],
        "sysFlag": [r.sys_flag for r in records],
        "bornTimestamp": [r.born_timestamp for r in records],
        "bornHost": [r.born_host for r in records],
        "storeTimestamp": [r.store_timestamp for r in records],
        "storeHost": [r.store_host for r in records],
        "reconsumeTimes": [r.reconsume_times for r in records],
        "preparedTransactionOffset": [r.prepared_transaction_offset for r in records],
        "body": [r.body for r in records],
        "properties": [r.properties_raw for r in records],
    }
    return pa.RecordBatch.from_pydict(
        {name: pa.array(values, RECORD_COLUMNS[name]) for name, values in fields.items()}
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["basic", "tiny", "boundary", "ipv6"])
@pytest.mark.parametrize("step", [7, 2000])
def test_a_store_is_rocketmqs(
    golden: Callable[[str], Path], tmp_path: Path, name: str, step: int
) -> None:
    folder = golden(name)
    meta, records = load_meta(folder), load_records(folder)
    builder = StoreBuilder(
        tmp_path / "store",
        segment_size=meta.commitlog_file_size,
        queue_entries=meta.consumequeue_file_size // 20,
        index=(meta.index_slots, meta.index_entries),
    )
    for first in range(0, len(records), step):
        builder.append(_batch(records[first : first + step]))
    builder.close()
    for part in ("commitlog", "consumequeue"):
        made, real = builder.path / part, folder / "store" / part
        assert _files(made) == _files(real)
        different = [p for p in _files(made) if not filecmp.cmp(made / p, real / p, shallow=False)]
        assert different == []
    # Index files are named by the time of their making.
    made_files = sorted((builder.path / "index").iterdir())
    real_files = sorted((folder / "store" / "index").iterdir())
    assert [p.read_bytes() for p in made_files] == [p.read_bytes() for p in real_files]
    stated = Checkpoint.decode((folder / "store" / "checkpoint").read_bytes())
    ours = Checkpoint.decode((builder.path / "checkpoint").read_bytes())
    assert ours.index_msg_timestamp == stated.index_msg_timestamp


def test_traffic_goes_where_it_was_told_to(tmp_path: Path) -> None:
    traffic = Traffic(
        1000, topics={"a": 2, "b": 1}, body_size=(0, 50), burst=10, tags=("x",), per_millisecond=1
    )
    path = build_store(tmp_path / "store", traffic, segment_size=8192, queue_entries=100)
    with Store.open(path) as store:
        rows = pa.Table.from_batches([b for queue in store.queues() for b in store.read(
            queue.topic, queue.queue_id
        )])  # fmt: skip
        assert [t.name for t in store.topics()] == ["a", "b"]
        assert [t.read_queue_nums for t in store.topics()] == [2, 1]
    counts = rows.group_by(["topic", "queueId"]).aggregate([("body", "count")]).to_pylist()
    assert {(c["topic"], c["queueId"]): c["body_count"] for c in counts} == {
        ("a", 0): 340, ("a", 1): 330, ("b", 0): 330,
    }  # fmt: skip
    assert len(set(rows["uniqKey"].to_pylist())) == 1000
    assert set(rows["tags"].to_pylist()) == {"x"}
    times = sorted(time.timestamp() for time in rows["storeTimestamp"].to_pylist())
    assert times[0] * 1000 == FIRST_TIME
    assert times[-1] * 1000 == FIRST_TIME + 999


def test_what_is_appended_is_read_as_soon_as_it_is_flushed(tmp_path: Path) -> None:
    batches = list(Traffic(50, body_size=10).batches())
    with StoreBuilder(tmp_path / "store", segment_size=4096, abort=True) as builder:
        stored = builder.append(batches[0])
        builder.flush()
        with Store.open(builder.path) as store:
            assert not store.is_closed_cleanly
            read = pa.Table.from_batches(store.read("orders", 0))
        for name in ("queueOffset", "physicalOffset", "body", "storeSize"):
            assert read[name].to_pylist() == stored[name].to_pylist()
        assert builder.append(batches[0])["queueOffset"].to_pylist() == list(range(50, 100))
    with Store.open(builder.path) as store:
        assert store.is_closed_cleanly
        assert store.queue("orders", 0).max_offset == 100
