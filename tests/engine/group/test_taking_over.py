"""A member that is elected, or follows: half messages, topics and room at just that moment."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.append.copied import Copied
from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.engine.group.member_thread import GroupChange, MemberThread
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.tables.topics import TopicConfig, TopicTable
from rmqstore_spark.errors import RefusedError, StoreWriteError
from tests.engine.group.stores import problems_of
from tests.support.processes.halving import as_block, ends, half_config, halves, put_halves
from tests.support.processes.ports import free_port
from tests.support.stores.storing import in_queues, messages
from tests.support.waiting import eventually

PATIENCE = 60.0


def member(**settings: Any) -> StoreConfig:
    """A group of one. It checks no transaction for an hour."""
    return half_config(
        enableDLegerCommitLog="true", dLegerGroup="orders", dLegerSelfId="n0",
        dLegerPeers=f"n0-127.0.0.1:{free_port()}", dLegerBindAddress="127.0.0.1",
        dLegerHeartbeatInterval=100, **settings,
    )  # fmt: skip


@contextmanager
def leader(path: Path, **settings: Any) -> Iterator[StoreWriter]:
    """A store that leads a group of one."""
    with StoreWriter.open(path, member(**settings)) as store:
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        yield store


@contextmanager
def nothing_applied(monkeypatch: pytest.MonkeyPatch, cls: type, step: str) -> Iterator[None]:
    """Let what is committed wait before a step, as long as the block lasts."""
    over = threading.Event()
    real = getattr(cls, step)

    def waits(*given: Any) -> Any:
        assert over.wait(PATIENCE)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(cls, step, waits)
        try:
            yield
        finally:
            over.set()


# ---- transactions -------------------------------------------------------------------------------


def test_a_half_message_that_comes_as_soon_as_a_store_leads_can_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is proposed before all parts of the store know of the role, and committed afterwards."""
    with leader(tmp_path) as store:
        earlier = put_halves(store, [b"earlier"])
    opened: Future[StoreWriter] = Future()
    calls: list[Future[Any]] = []
    real = GroupRole.changed

    def changed(role: GroupRole) -> None:
        store = opened.result(PATIENCE)
        log = store._store.log
        calls.append(pool.submit(put_halves, store, [b"new"]))
        eventually(lambda: log.end > log.max_offset, PATIENCE)
        proposed = log.end
        real(role)
        calls.append(pool.submit(ends, store, earlier, is_commit=True))
        eventually(lambda: log.end > proposed, PATIENCE)

    monkeypatch.setattr(GroupRole, "changed", changed)
    with ThreadPoolExecutor() as pool, StoreWriter.open(tmp_path, member()) as store:
        opened.set_result(store)
        eventually(lambda: len(calls) == 2, PATIENCE)
        new, answers = [call.result(PATIENCE) for call in calls]
        assert answers == ["COMMITTED"]
        assert ends(store, new, is_commit=True) == ["COMMITTED"]
    assert sorted(in_queues(tmp_path)["T", 0]) == [b"earlier", b"new"]
    assert not problems_of(tmp_path)


def test_what_waits_is_not_found_out_while_half_messages_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leader(tmp_path, syncFlushTimeout=200) as store:
        transactions = store.transactions

        def waiting() -> list[int]:
            with suppress(RefusedError):
                return [one.place.queue_offset for one in transactions.waiting()]
            return []

        transactions.puts.put(as_block(halves([b"first"])))
        eventually(lambda: waiting() == [0], PATIENCE)
        with nothing_applied(monkeypatch, MemberLog, "show"):
            late = transactions.puts.put(as_block(halves([b"late"])))
            assert late.queue_offset.tolist() == [1]
            assert not late.ok
            transactions.forget()
            with pytest.raises(RefusedError, match="a quorum of the group does not have all"):
                transactions.begin()
        eventually(lambda: waiting() == [0, 1], PATIENCE)


# ---- topics -------------------------------------------------------------------------------------


def put_later(store: StoreWriter, body: bytes, queue_id: int) -> None:
    """Put a message of a new queue into the log; nobody waits for it."""
    put = as_block(messages([body], topic="late", queue_id=queue_id))
    assert store.put(put, wait=False).ok


def test_a_topic_for_which_the_table_has_no_room_ends_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader has replaced a topic by it; a member's table still has the other one."""
    with leader(tmp_path, maxTopics=30) as store:
        store.create_topic("late", write_queue_nums=4)
        topics = store._store.topics
        with nothing_applied(monkeypatch, Copied, "__init__"):
            for queue_id in range(4):
                put_later(store, b"%d" % queue_id, queue_id)
            topics.delete(["late"])
            for number in range(30 - len(topics)):
                topics.create(f"other-{number}", 1, 1)
        eventually(lambda: store.state == "FAILED" or is_applied(store), PATIENCE)
        assert store.state == "RUNNING"
        assert "late" not in topics
        assert caplog.text.count("maxTopics is 30") == 1
    assert [in_queues(tmp_path)["late", n] for n in range(4)] == [[b"%d" % n] for n in range(4)]


def is_applied(store: StoreWriter) -> bool:
    """Whether all that was proposed is committed, and handed to queues and index."""
    return store._store.log.end == store._store.log.max_offset


def test_a_topic_that_the_leaders_table_lacks_in_that_moment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that follows the leader's table removes it, just before it gets more queues."""
    real = TopicTable.get

    def removed(topics: TopicTable, name: str) -> TopicConfig | None:
        found = real(topics, name)
        is_applier = threading.current_thread().name == "rmqstore-applier"
        if is_applier and name == "late" and found is not None:
            topics.delete([name])
        return found

    with leader(tmp_path) as store:
        store.create_topic("late", write_queue_nums=4)
        with nothing_applied(monkeypatch, Copied, "__init__"):
            put_later(store, b"m", 3)
            store._store.topics.update("late", read_queue_nums=1, write_queue_nums=1)
            monkeypatch.setattr(TopicTable, "get", removed)
        eventually(lambda: store.state == "FAILED" or is_applied(store), PATIENCE)
        assert store.state == "RUNNING"
        made = store._store.topics.content["late"]
        assert min(made.read_queue_nums, made.write_queue_nums) >= 4
    assert in_queues(tmp_path)["late", 3] == [b"m"]


# ---- room ---------------------------------------------------------------------------------------


class Lack:
    """Lets a step of a store fail, as long as something is wrong with its disk.

    Attributes:
        error: what is wrong; None if nothing is.
    """

    def __init__(self, patch: pytest.MonkeyPatch, cls: type, step: str, error: int) -> None:
        self.error: int | None = error
        self._real: Callable[..., Any] = getattr(cls, step)

        def lacking(*given: Any) -> Any:
            if self.error is None:
                return self._real(*given)
            failure = StoreWriteError(f"nothing is written: {os.strerror(self.error)}")
            failure.errno = self.error
            raise failure

        patch.setattr(cls, step, lacking)


@pytest.mark.parametrize(("cls", "step"), [(Copied, "to_queues"), (TopicTable, "renew")])
def test_a_store_that_lacks_room_when_it_is_elected_leads_as_soon_as_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    cls: type, step: str,
) -> None:  # fmt: skip
    lack = Lack(monkeypatch, cls, step, errno.ENOSPC)
    with StoreWriter.open(tmp_path, member()) as store:
        eventually(lambda: "cannot lead" in caplog.text or store.state == "FAILED", PATIENCE)
        assert store.state == "SLAVE"
        lack.error = None
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        assert store.put(as_block(messages([b"m"]))).ok
        assert caplog.text.count("cannot lead yet") == 1
    assert not problems_of(tmp_path)


def test_a_store_that_lacks_room_when_its_term_ends_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lack = Lack(monkeypatch, TopicTable, "renew", errno.ENOSPC)
    with StoreWriter.open(tmp_path, member()) as store:
        eventually(lambda: "cannot lead" in caplog.text or store.state == "FAILED", PATIENCE)
        role, decided = store._store.role, store._store.member
        assert isinstance(role, GroupRole)
        assert isinstance(decided, MemberThread)
        for leader_id in ("n1", "n2"):  # behind each it would try again
            decided.decisions.put(GroupChange(False, 99, leader_id, 0))
            eventually(lambda who=leader_id: role.leader == who, PATIENCE)
            lack.error = None
    assert "is the master now" not in caplog.text


def test_a_store_that_cannot_lead_for_another_reason_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lack(monkeypatch, TopicTable, "renew", errno.EIO)
    with StoreWriter.open(tmp_path, member()) as store:
        eventually(lambda: store.state == "FAILED", PATIENCE)
        assert "cannot lead: nothing is written" in str(store._workers.health.failure)
