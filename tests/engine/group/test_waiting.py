"""Segments with messages that wait are kept by followers: any of them may be the next leader."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.consensus.driver.wire import DLedgerRequest
from rmqstore_spark.consensus.messages import MemberCode
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.group.group_role import GroupRole
from tests.consensus.driver.members import GroupClient
from tests.engine.group.stores import StoreGroup, StoreProcess, bodies_in, group_of, problems_of
from tests.engine.group.test_delays import as_a_broker
from tests.support.processes.delaying import delayed, delayed_config
from tests.support.processes.halving import ends, put_halves, waiting_in
from tests.support.processes.ports import free_port
from tests.support.stores.storing import Clock, messages
from tests.support.waiting import eventually, next_millisecond

PATIENCE = 60.0
HOUR = 3_600_000
SEGMENT = 65536
LEVELS = "1s 25s"


class Expiring:
    """Orders to all members of a group to expire what is old.

    Args:
        group: the group, which has what waits. More than two segments of old messages, and newer
            ones, are put behind that.
    """

    def __init__(self, group: StoreGroup) -> None:
        self._group = group
        group.send(*(f"old {n} " + "x" * 100_000 for n in range(22)))
        group.await_all()
        next_millisecond()  # what follows is later than the time below
        self._before = int(time.time() * 1000)
        group.send(*(f"new {n} " + "x" * 100_000 for n in range(12)))
        group.await_all()

    def order(self) -> None:
        """Have them begin."""
        for store in self._running():
            with StoreClient(store.endpoint) as client:
                client.flush()
                client.expire(self._before, remove=True)

    def await_kept(self, reason: str) -> None:
        """Order it, and wait until each keeps all for a reason."""
        self.order()

        def is_kept(store: StoreProcess) -> bool:
            with StoreClient(store.endpoint) as client:
                found = client.expire(self._before)
            return not found.is_working and reason in found.remark

        for store in self._running():
            eventually(partial(is_kept, store), PATIENCE)
            assert store.stats()["commitLogMinOffset"] == 0

    def await_done(self) -> None:
        """Order it until each has removed the old segments, which needs the latest progress."""

        def is_done() -> bool:
            self.order()
            begins = [store.stats().get("commitLogMinOffset") for store in self._running()]
            return begins == [2 << 20] * len(begins)

        eventually(is_done, PATIENCE)

    def _running(self) -> list[StoreProcess]:
        return [each for each in self._group.stores.values() if each.process.poll() is None]


def test_the_next_leader_delivers_what_waited_when_all_members_expired(tmp_path: Path) -> None:
    with group_of(tmp_path, messageDelayLevel=LEVELS) as group:
        leader = group.leader()
        assert leader.send("delayed", properties="DELAY\x012\x02UNIQ_KEY\x01k1\x02")
        expiring = Expiring(group)
        expiring.await_kept("delayed messages that wait")
        leader.kill()
        leader = group.leader()
        eventually(lambda: "delayed" in bodies_in(leader.store), PATIENCE)
        assert leader.stats()["delayedSkipped"] == 0
        expiring.await_done()
        group.stop()
    assert bodies_in(leader.store).count("delayed") == 1
    assert not problems_of(leader.store, delay_levels=LEVELS)


def test_the_next_leader_commits_what_waited_when_all_members_expired(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        leader = group.leader()
        with StoreClient(leader.endpoint) as client:
            rows = {"topic": pa.array(["orders"]), "body": pa.array([b"half"])}
            half = client.producer("payers").put(rows)
        expiring = Expiring(group)
        expiring.await_kept("half messages")
        leader.kill()
        leader = group.leader()
        with StoreClient(leader.endpoint) as client:
            assert client.producer("payers").commit(half).statuses == ("COMMITTED",)
        expiring.await_done()
        group.stop()
    assert bodies_in(leader.store).count("half") == 1
    assert not problems_of(leader.store)


# ---- nothing was told ----------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    """It begins now: an election has the time of the machine."""
    return Clock(time.time_ns() // 1_000_000)


@pytest.fixture
def config() -> StoreConfig:
    """A group of one."""
    return delayed_config(
        enableDLegerCommitLog="true", dLegerGroup="orders", dLegerSelfId="n0",
        dLegerPeers=f"n0-127.0.0.1:{free_port()}", dLegerBindAddress="127.0.0.1",
        dLegerHeartbeatInterval=100, mappedFileSizeCommitLog=SEGMENT, cleanResourceInterval=100,
        deleteCommitLogFilesInterval=0, flushDelayOffsetInterval=100,
        transactionCheckInterval=HOUR, fileReservedTime=10_000,
    )  # fmt: skip


def fill(store: StoreWriter, clock: Clock) -> None:
    """Put more than a segment."""
    for _ in range(2):
        assert store.put_batch(messages([b"x" * 40_000], topic="Other")).ok
        clock.now += 1


@contextmanager
def follower(path: Path, config: StoreConfig, clock: Clock) -> Iterator[StoreWriter]:
    """A member that follows, of a group whose others are away: it asks for votes in minutes."""
    others = "".join(f";n{n}-127.0.0.1:{free_port()}" for n in (1, 2))
    peers = config.d_leger_peers + others
    with StoreWriter.open(
        path,
        replace(config, d_leger_peers=peers, d_leger_heartbeat_interval=60_000),
        clock=clock,
    ) as store:
        yield store


def hear_leader(store: StoreWriter, leader: str) -> GroupRole:
    """Let a member hear a leader of a later term, and follow it."""
    role = store.role
    assert isinstance(role, GroupRole)
    (address,) = re.findall(r"n0-([^;]+)", store.config.d_leger_peers)
    told = {"term": 100, "leaderId": leader, "localId": leader}
    assert GroupClient({"n0": address}).ask("n0", DLedgerRequest.HEART_BEAT, **told)["code"] == (
        MemberCode.SUCCESS
    )
    eventually(lambda: role.leader == leader)
    return role


def begin_after_expiry(store: StoreWriter, before: int) -> int:
    """Expire, and return where the log begins then."""
    store.flush()
    store.expire(before)
    eventually(lambda: not store.expirable(before).is_working)
    return int(store.stats()["commitLogMinOffset"])


@pytest.fixture
def led(tmp_path: Path, config: StoreConfig, clock: Clock) -> Path:
    """A store whose leader was a broker: the files do not tell what was done under it.

    The first segments have what was delivered and committed, and later ones what waits.
    """
    path = tmp_path / "s"
    with StoreWriter.open(path, config, clock=clock) as store:
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        assert store.put_batch(delayed([b"before"], 1)).ok
        clock.now += 1000
        eventually(lambda: store.stats()["delayedDelivered"] == 1, PATIENCE)
    with as_a_broker(path), StoreWriter.open(path, config, clock=clock) as store:
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        done = put_halves(store, [b"done"])
        assert store.put_batch(delayed([b"soon"], 1)).ok
        fill(store, clock)
        put_halves(store, [b"waits"])
        fill(store, clock)
        fill(store, clock)
        assert store.put_batch(delayed([b"late"], 3)).ok
        fill(store, clock)
        assert ends(store, done, is_commit=True) == ["COMMITTED"]
        clock.now += 1000
        eventually(lambda: store.stats()["delayedDelivered"] == 1, PATIENCE)
    for name in ("consumerOffset", "transactionChecks"):
        for file in (path / "config").glob(f"{name}.json*"):
            file.unlink()
    return path


def test_the_log_tells_a_follower_what_was_done_if_the_leader_did_not(
    led: Path, config: StoreConfig, clock: Clock
) -> None:
    (half,) = [one.place.physical_offset for one in waiting_in(led)]
    with follower(led, config, clock) as store:
        begin = begin_after_expiry(store, clock.now + HOUR)
        assert begin == half - half % SEGMENT > 0
        assert "half messages" in store.expirable(clock.now + HOUR).remark


@pytest.fixture
def is_full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Fills the disk when it is set."""
    event = threading.Event()
    monkeypatch.setattr(
        "rmqstore_spark.engine.admission.disk_used_ratio",
        lambda _: 1.01 if event.is_set() else 0.5,
    )
    return event


@pytest.mark.parametrize("is_forced", [True, False])
def test_a_full_disk_takes_what_is_not_known_to_have_ended_under_a_broker(
    led: Path,
    config: StoreConfig,
    clock: Clock,
    is_forced: bool,
    is_full: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(config, clean_file_forcibly_enable=is_forced)
    with follower(led, config, clock) as store:
        begin = begin_after_expiry(store, clock.now + HOUR)
        is_full.set()
        assert begin_after_expiry(store, clock.now + HOUR) == begin, "a store process may lead"
        role = hear_leader(store, "n1")
        role._brokers.learn("n1", "")  # as RocketMQ's answer
        end = begin_after_expiry(store, clock.now + HOUR)
        assert end > begin
        eventually(lambda: "half messages that may wait" in caplog.text)
        eventually(lambda: "delayed messages that wait" in caplog.text)


def test_half_messages_stay_that_certainly_wait_once_a_leader_tells(
    led: Path,
    config: StoreConfig,
    clock: Clock,
    is_full: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may begin to lead, or tell, after the segments were chosen: archiving takes minutes."""
    with follower(led, config, clock) as store:
        begin = begin_after_expiry(store, clock.now + HOUR)
        role = hear_leader(store, "n1")
        role._brokers.learn("n1", "")

        def tell(place: str) -> None:
            if place == "expiry.before_remove":
                role._brokers.learn("n1", "10.0.0.1:10911")

        is_full.set()
        monkeypatch.setattr("rmqstore_spark.engine.expiry.expiry.reach", tell)
        assert begin_after_expiry(store, clock.now + HOUR) == begin
