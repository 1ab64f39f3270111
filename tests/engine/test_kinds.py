"""Stores that are opened for writing, and those that are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import UnsupportedStoreError
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.processes.serving import block_of
from tests.support.stores.golden import load_meta
from tests.support.stores.recovering import copy_store, tree

Golden = Callable[[str], Path]

REFUSED = {
    "consumequeue_rocksdb/CURRENT": "queues are in RocksDB",
    "batchconsumequeue/T/0/00000000000000000000": "batch queues",
    "config/topics/CURRENT": "config/topics is a RocksDB",
    "timerrocksdb/CURRENT": "timerrocksdb is a RocksDB",
    "timerlog/00000000000000000000": "timer wheel with messages",
    "compaction/compactionLog/T/0/00000000000000000000": "compacted topics",
    "compaction/compactionCq/T/0/00000000000000000000": "compacted topics",
    "epochFileCheckpoint": "a group of brokers with a controller",
    "dledger-n0/currterm": "belongs to a DLedger group",  # of a member that has no message yet
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_store_with_parts_that_are_not_written_is_refused(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    store = copy_store(golden("v5basic"), tmp_path)
    (store / name).parent.mkdir(parents=True, exist_ok=True)
    (store / name).write_bytes(b"x")
    before = tree(store)
    with pytest.raises(UnsupportedStoreError, match="can be read but not written") as told:
        StoreWriter.open(store)
    assert REFUSED[name] in str(told.value)
    assert tree(store) == before


@pytest.mark.parametrize("name", ["v5basic", "v5v2topic"])
def test_a_plain_store_of_5_is_written_with_a_warning(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    store = copy_store(golden(name), tmp_path)
    (store / "timerwheel").write_bytes(bytes(4096))  # a broker makes it, used or not
    (store / "timerlog").mkdir(exist_ok=True)
    meta = load_meta(golden(name))
    config = StoreConfig(max_hash_slot_num=meta.index_slots, max_index_num=meta.index_entries)
    with caplog.at_level(logging.WARNING), StoreWriter.open(store, config) as writer:
        assert writer.put(block_of([b"one", b"two"], topic="Ours")).rows == 2
    (said,) = (r.getMessage() for r in caplog.records if "RocketMQ 5" in r.getMessage())
    assert "compaction" in said
    with Store.open(store) as reader:
        assert verify(reader).ok
        assert [q.max_offset - q.min_offset for q in reader.queues(["Ours"])]


def test_the_users_of_a_broker_stay_as_they_are(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = copy_store(golden("v5basic"), tmp_path)
    for name in ("users", "acls"):
        (store / "config" / name).mkdir(parents=True)
        (store / "config" / name / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    before = tree(store / "config" / "users"), tree(store / "config" / "acls")
    meta = load_meta(golden("v5basic"))
    config = StoreConfig(max_hash_slot_num=meta.index_slots, max_index_num=meta.index_entries)
    with caplog.at_level(logging.WARNING), StoreWriter.open(store, config):
        pass
    assert "aclEnable and aclPath say who may do what" in caplog.text
    assert (tree(store / "config" / "users"), tree(store / "config" / "acls")) == before


def test_a_store_of_4_is_written_without_one(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = copy_store(golden("tiny"), tmp_path)
    # A broker that has ended has written these too; the golden store came without.
    for name, table in (("topics", "topicConfigTable"), ("consumerOffset", "offsetTable")):
        (store / "config" / f"{name}.json").write_text(f'{{"{table}":{{}}}}')
    with caplog.at_level(logging.WARNING), StoreWriter.open(store):
        pass
    assert caplog.messages == []
