"""A wrong state of the engine stops the store, instead of writing a wrong log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.dispatch.jobs import Appended
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.expiry import expiry
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record.block import Block, Route
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.stores.storing import Clock, config, in_queues, messages, until

NEVER_FLUSHED = config(flushIntervalCommitLog=3_600_000, flushIntervalConsumeQueue=3_600_000)


class BreakingClock(Clock):
    """A clock that moves the end of a store's log while a put, which has its place, asks for it."""

    store: StoreWriter | None = None

    def __call__(self) -> int:
        store = self.store
        if store is not None and store.is_busy:
            self.store = None
            store.published.move(store.published_end + 100)
        return self.now


@pytest.mark.fault
def test_records_that_would_not_follow_the_log_are_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = BreakingClock()
    store = StoreWriter.open(tmp_path / "s", NEVER_FLUSHED, clock=clock)
    assert store.put_batch(messages([b"good"])).ok
    end = store.published_end
    before = (tmp_path / "s/commitlog" / f"{0:020}").read_bytes()
    clock.store = store
    refused = store.put_batch(messages([b"wrong"]))
    assert (refused.status, refused.is_open) == (PutStatus.SERVICE_NOT_AVAILABLE, True)
    assert f"records were placed at {end}, but the log ends at {end + 100}" in refused.remark
    assert (tmp_path / "s/commitlog" / f"{0:020}").read_bytes() == before
    assert store.state == "FAILED"
    assert store.put_batch(messages([b"no"])).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "accepts no more messages: The store process is in a wrong state" in caplog.text
    assert (tmp_path / "s/commitlog" / f"{0:020}").read_bytes() == before
    store.close()
    with StoreWriter.open(tmp_path / "s", config()) as again:
        assert again.put_batch(messages([b"new"])).ok
    assert in_queues(tmp_path / "s") == {("T", 0): [b"good", b"new"]}
    with Store.open(tmp_path / "s") as read:
        assert verify(read).ok


def wrongly_numbered() -> Appended:
    """A block whose only record has a queue offset that there is not."""
    one = np.zeros(1, np.int64)
    sizes, first = np.full(1, 100, np.int32), np.zeros(1, np.int32)
    queued = np.ones(1, np.bool_)
    block = Block(np.zeros(100, np.uint8), one, sizes, (Route("T", 0),), first, one, queued)
    return Appended(block, one, one - 5, 1)


@pytest.mark.fault
def test_a_wrong_state_in_the_dispatchers_thread_fails_the_store(tmp_path: Path) -> None:
    health = Health(str(tmp_path))
    queues = ConsumeQueues(str(tmp_path), CONSUME_QUEUE)
    dispatcher = Dispatcher(queues, None, CheckpointKeeper(str(tmp_path)), health)
    dispatcher.submit(wrongly_numbered())
    until(lambda: health.failure is not None)
    assert "entries of T/0 from -5 on lie before its files" in str(health.failure)
    with pytest.raises(StoreWriteError, match="Restart the store process"):
        dispatcher.submit(replace(wrongly_numbered(), queue_offset=np.zeros(1, np.int64)))
    dispatcher.close()
    assert not list(tmp_path.glob("consumequeue/T/0/*"))


@pytest.mark.fault
def test_all_that_put_at_that_time_get_an_answer(tmp_path: Path) -> None:
    clock = BreakingClock()
    store = StoreWriter.open(tmp_path / "s", NEVER_FLUSHED, clock=clock)
    assert store.put_batch(messages([b"good"])).ok
    clock.store = store
    with ThreadPoolExecutor(8) as threads:
        puts = [threads.submit(store.put_batch, messages([b"%d" % n])) for n in range(50)]
        found = {put.result(timeout=30).status for put in puts}
    assert found == {PutStatus.SERVICE_NOT_AVAILABLE}
    store.close()
    StoreWriter.open(tmp_path / "s", config()).close()
    assert in_queues(tmp_path / "s") == {("T", 0): [b"good"]}


@pytest.mark.fault
def test_a_wrong_state_in_expiry_fails_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first segment is removed while expiry, which has chosen it, is about to do that."""
    clock = Clock(1_700_000_000_000)
    given = config(mappedFileSizeCommitLog=4096)
    with StoreWriter.open(tmp_path / "s", given, clock=clock) as store:
        for _ in range(10):
            assert store.put_batch(messages([bytes(1000)])).ok
        clock.now += 3_600_000
        store.flush()

        def remove_first(failpoint: str) -> None:
            if failpoint == "expiry.before_remove":
                store._store.log.expire(0)

        monkeypatch.setattr(expiry, "reach", remove_first)
        store.expire(clock.now)
        until(lambda: store.state == "FAILED")
        until(lambda: not store.expirable(clock.now).is_working)
        assert store.stats()["expiredSegments"] == 0
