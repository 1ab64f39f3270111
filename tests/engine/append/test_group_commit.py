"""Single messages of many threads that are put together."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreConfig, StoreWriter
from rmqstore_spark.engine.append.group_commit import GroupCommit, is_single
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from tests.support.processes.serving import block_of

THREADS, EACH = 12, 100


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_each_thread_gets_the_places_of_its_own(tmp_path: Path, flush: str) -> None:
    told: list[list[tuple[int, int, bytes]]] = [[] for _ in range(THREADS)]
    config = StoreConfig().with_overrides({"flushDiskType": flush})
    with StoreWriter.open(tmp_path / "store", config) as store:
        store.create_topic("orders")
        start = threading.Barrier(THREADS)

        def put(number: int) -> None:
            start.wait(20)
            for turn in range(EACH):
                body = b"%d.%d" % (number, turn)
                block = block_of([body])
                bad = turn % 10 == 9
                if bad:
                    block[8] ^= 1  # bodyCRC: those put together with it must not suffer
                result = store.put(block)
                assert result.status is (PutStatus.MESSAGE_ILLEGAL if bad else PutStatus.PUT_OK)
                assert result.rows == len(result.physical_offset) == int(not bad)
                for at, offset in zip(result.physical_offset, result.queue_offset, strict=True):
                    told[number].append((int(at), int(offset), body))
                if flush == "SYNC_FLUSH" and result.ok:
                    assert store.stats()["commitLogFlushedOffset"] >= result.end_offset

        threads = [threading.Thread(target=put, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.stats()["putMessages"] == THREADS * EACH * 9 // 10
    with Store.open(tmp_path / "store") as read:
        rows = [row for batch in read.scan() for row in batch.to_pylist()]
    found = sorted((row["physicalOffset"], row["queueOffset"], row["body"]) for row in rows)
    assert found == sorted(place for places in told for place in places)
    assert len(found) == THREADS * EACH * 9 // 10
    for places in told:
        assert places == sorted(places)  # a thread's own stay in their order


class _Log:
    """Takes blocks; the first one only once it is let."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.begun, self.released = threading.Event(), threading.Event()

    def append(self, data: U1, *, patient: bool = True) -> PutResult:
        self.blocks.append(len(data))
        if len(self.blocks) == 1:
            self.begun.set()
            assert self.released.wait(20)
        elif not data.any():
            raise OSError("a block of zeros")
        places = np.arange(len(data) // 10)
        return PutResult(PutStatus.PUT_OK, len(places), places, places + 100)


def _put_while_first_is_under_way(log: _Log, others: list[U1]) -> list[PutResult | Exception]:
    group_commit = GroupCommit(log.append, lambda result: result, lambda _: False, 20)
    found: list[PutResult | Exception] = []

    def put(block: U1) -> None:
        try:
            found.append(group_commit.put(block))
        except OSError as error:
            found.append(error)

    first = threading.Thread(target=put, args=(np.ones(10, np.uint8),))
    first.start()
    assert log.begun.wait(20)
    threads = [threading.Thread(target=put, args=(block,)) for block in others]
    for thread in threads:
        thread.start()
    while len(group_commit._waiting) < len(others):
        assert all(thread.is_alive() for thread in threads)
    log.released.set()
    for thread in [first, *threads]:
        thread.join(20)
        assert not thread.is_alive()
    return found


def test_what_comes_while_a_put_is_under_way_is_put_at_once() -> None:
    log = _Log()
    found = _put_while_first_is_under_way(log, [np.ones(10, np.uint8)] * 7)
    assert log.blocks == [10, 70]
    results = [result for result in found if isinstance(result, PutResult)]
    assert len(results) == 8
    assert all(result.rows == 1 for result in results)
    offsets = sorted(int(offset) for result in results for offset in result.queue_offset)
    assert offsets == [100, 100, 101, 102, 103, 104, 105, 106]


def test_a_failure_is_told_to_all_who_wait() -> None:
    found = _put_while_first_is_under_way(_Log(), [np.zeros(10, np.uint8)] * 3)
    assert [str(error) for error in found if isinstance(error, OSError)] == ["a block of zeros"] * 3
    assert len(found) == 4


def test_what_nobody_takes_in_time_is_tried_alone() -> None:
    log = _Log()
    group_commit = GroupCommit(log.append, lambda result: result, lambda _: False, 0.01)
    first = threading.Thread(target=group_commit.put, args=(np.ones(10, np.uint8),))
    first.start()
    assert log.begun.wait(20)
    assert group_commit.put(np.ones(30, np.uint8)).rows == 3
    log.released.set()
    first.join(20)
    assert log.blocks == [10, 30]
    assert group_commit.put(np.ones(10, np.uint8)).rows == 1


def test_only_one_small_record_is_single() -> None:
    one = block_of([b"x"])
    assert is_single(one)
    assert not is_single(np.concatenate([one, one]))
    assert not is_single(block_of([b"x" * 20_000]))
    assert not is_single(one[:3])
