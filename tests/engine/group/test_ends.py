"""How a member ends, and what the next start of its store finds."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.lock import OpenMark, StoreGuard
from rmqstore_spark.errors import RmqStoreError
from tests.engine.group.stores import PATIENCE, StoreProcess, bodies_in, group_of, problems_of
from tests.engine.group.test_stores import stage
from tests.support.waiting import eventually

ROWS = [b"row %d " % n + bytes(2000) for n in range(12_000)]


def is_stopped(store: StoreProcess) -> bool:
    """Whether a process stopped at a failpoint, as SIGSTOP stops it."""
    stat = Path(f"/proc/{store.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def is_clean(store: StoreProcess) -> bool:
    """Whether a store is closed in such a way that a broker can take it over."""
    is_guarded = StoreGuard(str(store.store / "commitlog")).is_placed
    assert is_guarded == OpenMark(str(store.store)).is_placed
    return not is_guarded


def test_a_member_with_a_part_of_a_batch_keeps_brokers_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ 5 would begin behind that part, and never put it into queues."""
    monkeypatch.setenv("RMQSTORE_FAILPOINT", "group.within_run:3:stop")
    with group_of(tmp_path, syncFlushTimeout=60_000) as group:
        monkeypatch.delenv("RMQSTORE_FAILPOINT")
        leader, (follower, other) = group.leader(), group.followers()
        (before,) = group.send("before")
        eventually(lambda: follower.pulled() == [before], PATIENCE)
        # Nobody votes then: another leader would end the batch before the follower has stopped.
        other.process.send_signal(signal.SIGSTOP)
        known = follower.stats()["groupCommitIndex"]
        committing = threading.Thread(target=commit, args=(leader,))
        committing.start()
        eventually(lambda: is_stopped(leader), PATIENCE)
        eventually(lambda: follower.stats()["groupCommitIndex"] > known, PATIENCE)
        follower.stop()
        assert not is_clean(follower)
        assert "a part of a batch" in follower.output
        for store in (leader, other):
            store.process.send_signal(signal.SIGCONT)
        committing.join()
        follower.start()
        # Its leader may have changed since; then the batch is committed again, as Spark does.
        eventually(lambda: commit(group.leader()), PATIENCE)
        group.await_all()
        for store in group.stores.values():
            eventually(lambda store=store: len(store.pulled()) == 1 + len(ROWS[::3]), PATIENCE)
            store.stop()
            assert is_clean(store)
            assert not problems_of(store.store)
            assert sorted(bodies_in(store.store)) == sorted([before, *map(bytes.decode, ROWS)])


def commit(leader: StoreProcess) -> bool:
    """Commit the batch; returns whether it is known to be committed."""
    try:
        staged = tuple(stage(leader.endpoint, ROWS[n::8]) for n in range(8))
        with StoreClient(leader.endpoint, retries=0) as client:
            client.commit(CommitRequest(WriterId.of_batch("nightly", 1), staged))
    except RmqStoreError:
        return False
    return True


def test_the_topics_of_a_store_after_a_start(tmp_path: Path) -> None:
    """One whose queue was built from the log is made; one with fewer queues than before stays."""
    with group_of(tmp_path, count=1) as group:
        store = group.leader()
        for queue in range(4):
            group.send(f"text {queue}", queue=queue)
        store.stop()
        path = store.store / "config" / "topics.json"
        table = json.loads(path.read_text())
        table["topicConfigTable"]["orders"]["writeQueueNums"] = 2
        path.write_text(json.dumps(table))
        store.start()
        group.leader()
        assert queues_of(store) == (table["topicConfigTable"]["orders"]["readQueueNums"], 2)
        store.kill()
        del table["topicConfigTable"]["orders"]
        path.write_text(json.dumps(table))
        path.with_name("topics.json.bak").unlink()
        for queue in (2, 3):
            for file in (store.store / "consumequeue" / "orders" / str(queue)).iterdir():
                file.unlink()
        store.start()
        group.leader()
        eventually(lambda: len(store.pulled(3)) == 1, PATIENCE)
        assert queues_of(store)[0] >= 4


def queues_of(store: StoreProcess) -> tuple[int, int]:
    """How many queues to read and to write the topic has."""
    table = json.loads((store.store / "config" / "topics.json").read_text())
    topic = table["topicConfigTable"]["orders"]
    return topic["readQueueNums"], topic["writeQueueNums"]
