"""A leader puts its own blocks into queues as it has appended them; all others it reads again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.consensus.actions import MemberRole, RoleChanged
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.append.applier import Applier
from rmqstore_spark.engine.append.copied import Copied
from rmqstore_spark.engine.append.replica_deletions import ReplicaDeletions
from rmqstore_spark.engine.batches.batch_block import BatchBlock
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.group.member_thread import (
    CommittedLog,
    DecisionQueue,
    GroupChange,
    MemberEnd,
    _Decisions,
)
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.recovery import whole_batches
from rmqstore_spark.engine.recovery.log_end import LogEnd
from rmqstore_spark.engine.recovery.member import member_log_of
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.engine.recovery.queues_and_index import QueuesAndIndex, RecoverySettings
from rmqstore_spark.engine.recovery.redispatch import log_blocks
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import CorruptStoreError, RefusedError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.record.format import write_batch_end
from rmqstore_spark.reader import Store
from tests.engine.group.stores import problems_of
from tests.fault.messages import TOPICS, block, read_numbers
from tests.support.messages.batches import bodies, commit_batch, rows_block
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

PATIENCE = 120.0


@contextmanager
def leader(path: Path, segment: int) -> Iterator[StoreWriter]:
    """A store that leads a group of one."""
    config = StoreConfig(
        enable_d_leger_commit_log=True, d_leger_group="orders", d_leger_self_id="n0",
        d_leger_peers=f"n0-127.0.0.1:{free_port()}", d_leger_bind_address="127.0.0.1",
        mapped_file_size_commit_log=segment, max_hash_slot_num=1000, max_index_num=4000,
    )  # fmt: skip
    with StoreWriter.open(path, config) as store:
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        for topic in TOPICS:
            store.create_topic(topic, write_queue_nums=4)
        yield store


def test_what_a_leader_has_appended_is_not_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []

    def noted(log: Any, start: int, end: int) -> Any:
        read.append((start, end))
        return log_blocks(log, start, end)

    monkeypatch.setattr(whole_batches, "log_blocks", noted)
    path = tmp_path / "store"
    with leader(path, 1 << 20) as store:
        assert store.put(block(0, 10)).ok  # each queue begins
        read.clear()
        for number in range(10, 100, 5):
            assert store.put(block(number, 5)).ok
        assert read == []
    with Store.open(path) as opened:
        assert sorted(chain.from_iterable(read_numbers(opened).values())) == [*range(100)]
    assert not problems_of(path)


def test_own_blocks_and_what_is_read_are_in_queues_in_the_order_of_the_log(
    tmp_path: Path,
) -> None:
    """Batches are read, and segments end; a topic begins again while puts are under way."""
    path = tmp_path / "store"
    with leader(path, 1 << 16) as store:
        assert store.put(rows_block(bodies("first", 8))).ok
        for number in range(60):
            assert store.put(block(number * 5, 5)).ok
            if number % 20 == 10:
                commit_batch(store, number)
        assert store.put(block(300, 8), wait=False).ok
        store.delete_topic(TOPICS[1])
        store.create_topic(TOPICS[1], write_queue_nums=4)
        for number in range(320, 360, 8):
            assert store.put(block(number, 8)).ok
    with Store.open(path) as opened:
        found = read_numbers(opened)
    assert all(numbers == sorted(numbers) for numbers in found.values())
    kept = [n for (topic, _), numbers in found.items() if topic == TOPICS[0] for n in numbers]
    expected = [*range(308), *range(320, 360)]
    assert sorted(kept) == [n for n in expected if n // 4 % 2 == 0]
    others = {n for (topic, _), numbers in found.items() if topic == TOPICS[1] for n in numbers}
    assert others >= {n for n in range(320, 360) if n // 4 % 2}
    assert not problems_of(path)


def test_a_leader_that_has_proposed_a_part_of_a_batch_takes_nothing_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next messages would have the offsets of the part, and get no place at any member."""
    real = BatchBlock.portions

    def broken(batch: BatchBlock) -> Iterator[Any]:
        portions = real(batch)
        yield next(portions)
        raise RefusedError("a stage could not be read back", PutStatus.SERVICE_NOT_AVAILABLE)

    path = tmp_path / "store"
    with leader(path, 1 << 20) as store:
        assert store.put(rows_block(bodies("first", 8))).ok
        with monkeypatch.context() as patch:
            patch.setattr(BatchBlock, "portions", broken)
            with pytest.raises(RefusedError, match="could not be read back"):
                commit_batch(store, 1)
        assert store.state == "FAILED"
        assert not store.put(rows_block(bodies("no", 8))).ok
    with leader(path, 1 << 20) as store:
        commit_batch(store, 1)
        assert store.put(rows_block(bodies("second", 8))).ok
    assert not problems_of(path)
    with Store.open(path) as opened:
        found = Counter(
            body
            for queue in opened.queues(("orders", "bills"))
            for batch in opened.read(queue.topic, queue.queue_id)
            for body in batch.column("body").to_pylist()
        )
    for body in (*bodies("first", 8), *bodies("second", 8)):
        assert found[body] == 1
    assert set(found.values()) == {1}


def test_a_part_of_a_batch_right_before_the_walk_of_a_recovery_is_void(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with leader(path, 1 << 20) as store:
        for name in ("before", "part", "after"):
            assert store.put(rows_block(bodies(name, 8))).ok
        end = store.published_end
    with Store.open(path) as opened:
        rows = [row for part in opened.scan() for row in part.to_pylist()]
    places = [row["physicalOffset"] for row in rows if row["topic"] in ("orders", "bills")]
    first, after = places[8], places[16]
    (segment, *_) = sorted((path / "dledger-n0" / "data").iterdir())
    log = np.frombuffer(segment.read_bytes(), np.uint8).copy()
    write_batch_end(log, first, after + 1000)
    segment.write_bytes(log.tobytes())
    files = LocalFiles(8)
    directory = StoreDirectory(files, str(path))
    found = member_log_of(files, str(path), str(segment.parent), end)
    parts = QueuesAndIndex(
        directory, found, LogEnd(found.unit_start(after), end, "", 0, False),
        QueueSurvey(directory, found), clean=True, keeper=CheckpointKeeper(str(path)),
        vouched_index=0, settings=RecoverySettings(lambda: 0), is_group=True,
    )  # fmt: skip
    parts._complete()
    parts.queues.flush()
    parts.close()
    files.close()
    void = set()
    with Store.open(path) as opened:
        for topic, queue_ids in opened.directory.topology.queues.items():
            for queue in (opened.queue(topic, queue_id) for queue_id in queue_ids):
                entries = queue.entries(0, queue.max_offset)
                void |= {
                    int(one) for one in entries["physicalOffset"][queue.format.is_void(entries)]
                }
    assert void == set(places[8:16])


def test_a_put_whose_term_is_over_when_it_is_written_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemberLog.write

    def over(log: MemberLog, *given: Any) -> None:
        real(log, *given)
        log.stop_leading()

    with leader(tmp_path / "store", 1 << 20) as store:
        assert store.put(rows_block(bodies("first", 8))).ok
        monkeypatch.setattr(MemberLog, "write", over)
        unknown = store.put(rows_block(bodies("second", 8)))
    assert (unknown.status, unknown.is_open) == (PutStatus.SERVICE_NOT_AVAILABLE, True)


def test_commits_of_a_follower_gather_and_those_of_a_leader_do_not() -> None:
    told = DecisionQueue()

    async def decide() -> None:
        decisions = _Decisions(told, "")
        for end in range(1, 100):
            decisions.committed(0, end)
        assert [*told.take(0)] == [CommittedLog(0, 1)]
        while not (gathered := told.take(0)):
            await asyncio.sleep(0.001)
        assert [*gathered] == [CommittedLog(0, 99)]
        decisions.committed(0, 100)
        decisions.role_changed(RoleChanged(MemberRole.LEADER, 3, "n0"), 200)
        assert [*told.take(0)] == [CommittedLog(0, 100), GroupChange(True, 3, "n0", 200)]
        for end in (200, 300):
            decisions.committed(0, end)
            assert [*told.take(0)] == [CommittedLog(0, end)]

    asyncio.run(decide())


def test_what_is_decided_stays_short_as_long_as_nobody_takes_it() -> None:
    told = DecisionQueue()
    for term in (1, 2):
        for end in range(1000 * term):
            told.put(CommittedLog(0, end))
        for leads in (False, True) * 1000:
            told.put(GroupChange(leads, term, "n0", end))
    why = MemberEnd(OSError("a disk is lost"))
    told.put(why)
    told.put(MemberEnd(None))
    assert [*told.take()] == [
        CommittedLog(0, 999), GroupChange(True, 1, "n0", 999),
        CommittedLog(0, 1999), GroupChange(True, 2, "n0", 1999), why, MemberEnd(None),
    ]  # fmt: skip
    assert not told.take(0)


def test_a_segment_that_is_missing_is_told_and_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with leader(path, 1 << 16) as store:
        for number in range(0, 400, 5):
            assert store.put(block(number, 5)).ok
        end = store.published_end
    data = path / "dledger-n0" / "data"
    segments = sorted(data.iterdir())
    segments[1].unlink()
    with pytest.raises(CorruptStoreError, match="no file holds the entries from 65536 to 131072"):
        member_log_of(LocalFiles(), str(path), str(data), end)
    for segment in segments[2:]:
        segment.unlink()
    with pytest.raises(CorruptStoreError, match="no file holds the entries from 65536 to"):
        member_log_of(LocalFiles(), str(path), str(data), end)


def test_nothing_is_copied_into_queues_while_deletions_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, set[bool]] = {"_take": set(), "drop_older": set()}
    locks: list[Lock] = []

    def noted(name: str, real: Any) -> Any:
        def call(*given: Any) -> Any:
            if name != "_take" or isinstance(given[1], Copied):
                held[name] |= {lock.locked() for lock in locks}
            return real(*given)

        return call

    monkeypatch.setattr(Applier, "_take", noted("_take", Applier._take))
    monkeypatch.setattr(ConsumeQueues, "drop_older", noted("drop_older", ConsumeQueues.drop_older))
    with leader(tmp_path / "store", 1 << 20) as store:
        locks.append(store._store.deleted.copying)
        commit_batch(store, 1)
        ReplicaDeletions(store._store, store._workers.appender, store._workers.dispatcher).take(
            {TOPICS[0]: store.published_end}
        )
    assert held == {"_take": {True}, "drop_older": {True}}


def test_a_topic_is_deleted_when_all_that_was_put_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with leader(path, 1 << 20) as store:
        for number in range(40):
            assert store.put(block(number * 16, 16), wait=False).ok
            store.delete_topic(TOPICS[1])
            assert store._store.deleted.end(TOPICS[1]) == store._store.log.end
            store.create_topic(TOPICS[1], write_queue_nums=4)
        assert store.put(block(640, 16)).ok
    assert not problems_of(path)
