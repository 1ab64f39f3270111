"""Golden stores written again: the same messages at the same times give the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreConfig, StoreWriter
from rmqstore_spark.engine.append.appender import Stored
from rmqstore_spark.layout.constants import is_topic_of_group
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.spans import U1
from tests.support.stores.golden import RecordReport, load_meta, load_records
from tests.support.stores.records import record_batch
from tests.support.stores.storing import Clock

ONE_BY_ONE = ("basic", "tiny", "boundary", "flags", "ipv6")


def configuration(folder: Path, host: str) -> StoreConfig:
    """As the golden store was configured, for records of one storeHost."""
    meta = load_meta(folder)
    address, _, port = host.rpartition(":")
    given = {
        "mappedFileSizeCommitLog": meta.commitlog_file_size,
        "mappedFileSizeConsumeQueue": meta.consumequeue_file_size,
        "maxHashSlotNum": meta.index_slots,
        "maxIndexNum": meta.index_entries,
        "brokerIP1": address,
        "listenPort": port,
    }
    return StoreConfig().with_overrides({key: str(value) for key, value in given.items()})


def encoded(records: Sequence[RecordReport]) -> U1:
    """Records as a client sends them: what the store decides is not in them."""
    blank = [replace(r, queue_offset=0, physical_offset=0, store_timestamp=0) for r in records]
    return encode_records(record_batch(blank)).data


def write_again(folder: Path, store: Path, groups: Iterator[list[RecordReport]]) -> None:
    """Put groups of messages into a new store, each at the time at which RocketMQ stored it."""
    clock = Clock()
    by_host = itertools.groupby(groups, key=lambda group: group[0].store_host)
    for host, of_host in by_host:
        with StoreWriter.open(store, configuration(folder, host), clock=clock) as writer:
            for group in of_host:
                clock.now = group[0].store_timestamp
                for topic in {record.topic for record in group}:
                    if is_topic_of_group(
                        topic
                    ):  # RocketMQ's store, without a broker, knows no limit
                        writer.create_topic(topic, read_queue_nums=8, write_queue_nums=8)
                stored: PutResult | Stored
                stored = result = writer.put(encoded(group), units=[len(group)])
                if is_clients(group[0]):
                    assert result.status is PutStatus.PUT_OK, result.remark
                    assert result.msg_ids() == [r.msg_id for r in group]
                else:
                    assert result.status is PutStatus.MESSAGE_ILLEGAL
                    stored = writer._appender.append(read_block(encoded(group)))
                assert stored.physical_offset.tolist() == [r.physical_offset for r in group]
                assert stored.queue_offset.tolist() == [r.queue_offset for r in group]


def is_clients(record: RecordReport) -> bool:
    """Whether a client may send a message: `flags` holds two that the store itself would refuse."""
    return record.topic.isascii() and record.queue_id < 8


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def index_contents(folder: Path, slots: int) -> list[tuple[object, bytes, bytes]]:
    """Headers, slots and entries of the index files, in the order of their names."""
    files = [
        IndexFile.decode(path.read_bytes(), slots) for path in sorted((folder / "index").iterdir())
    ]
    return [(file.header, file.slots.tobytes(), file.entries.tobytes()) for file in files]


def assert_same(folder: Path, store: Path) -> None:
    theirs = folder / "store"
    for part in ("commitlog", "consumequeue"):
        expected, found = files_below(theirs / part), files_below(store / part)
        assert list(found) == list(expected)
        assert [name for name in expected if found[name] != expected[name]] == []
    slots = load_meta(folder).index_slots
    assert index_contents(store, slots) == index_contents(theirs, slots)
    assert {path.name for path in store.iterdir()} == {
        "checkpoint", "commitlog", "config", "consumequeue", "index", "lock", "rmqstore",
    }  # fmt: skip


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_messages_put_one_by_one_give_the_same_store(
    name: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = golden(name)
    write_again(folder, tmp_path / "store", ([record] for record in load_records(folder)))
    assert_same(folder, tmp_path / "store")


def batches(records: Sequence[RecordReport]) -> Iterator[list[RecordReport]]:
    """Records that one MessageExtBatch brought: they share all that the batch has once."""
    for _, group in itertools.groupby(
        records, key=lambda r: (r.store_timestamp, r.born_timestamp, r.topic, r.queue_id)
    ):
        yield list(group)


def test_batches_give_the_same_store(golden: Callable[[str], Path], tmp_path: Path) -> None:
    folder = golden("batch")
    segment, groups = load_meta(folder).commitlog_file_size, list(batches(load_records(folder)))
    moved = [
        (before[-1], group)
        for before, group in itertools.pairwise(groups)
        if group[0].physical_offset % segment == 0
    ]
    assert any(
        last.physical_offset % segment + last.store_size + group[0].store_size + 8 <= segment
        for last, group in moved
    ), "one whose first messages would have fit goes to the next segment as a whole"
    write_again(folder, tmp_path / "store", iter(groups))
    assert_same(folder, tmp_path / "store")
