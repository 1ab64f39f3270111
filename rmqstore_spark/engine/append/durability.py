"""Waits until messages are as durable as the store is configured: on its disk, and at a slave.

Both are awaited in one place, for puts and for commits. If both fail, the slave's status counts.
(Upstream: CommitLog.submitFlushRequest, submitReplicaRequest, GroupTransferService.)

Each connection of a slave has its own offset here, and takes it along when it ends. (Upstream:
HAService.push2SlaveMaxOffset is one offset for all slaves and never goes back, so one wrong report
acknowledges every later put.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.published_end import PublishedEnd
from rmqstore_spark.engine.role import Role
from rmqstore_spark.errors import RefusedError

_LOOK_S: Final = 0.02


class Handover(NamedTuple):
    """How many slaves a master had, and got all of its log to.

    Attributes:
        slaves: those that were connected when it began.
        lacking: those of them that lack some of its log; one that has left may have come again.
        unknown: those of them that were sent all, and do not say what they have.
    """

    slaves: int
    lacking: int
    unknown: int


class Slave:
    """A slave that is connected.

    Args:
        slaves: all slaves of the store.

    Attributes:
        held: the physical offset up to which it has reported to have the log.
        sent: the physical offset up to which the log was sent to it.
        is_observer: whether it only reads: it repeats its first report whatever it was sent.
    """

    def __init__(self, slaves: Slaves) -> None:
        self._slaves = slaves
        self.held = 0
        self.sent = 0
        self.is_observer = False

    def report(self, offset: int) -> None:
        """Register what the slave has; the caller has checked that it was sent."""
        self._slaves.reported(self, offset)

    def leave(self) -> None:
        """Forget the slave: it is not connected any more."""
        self._slaves.remove(self)


class Slaves:
    """The slaves that are connected. Thread-safe.

    Args:
        published: where the log ends.
        most_behind: bytes that a slave may be behind to count as available
            (`haSlaveFallbehindMax`).
    """

    def __init__(self, published: PublishedEnd, most_behind: int) -> None:
        self._published = published
        self._most_behind = most_behind
        self._changed = threading.Condition()
        self._all: list[Slave] = []
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._all)

    def join(self) -> Slave:
        """Register a slave that has connected."""
        slave = Slave(self)
        with self._changed:
            self._all.append(slave)
        return slave

    def reported(self, slave: Slave, offset: int) -> None:
        """Register what a slave has, and wake the puts that wait for that."""
        with self._changed:
            slave.held = offset
            if self._waiting:
                self._changed.notify_all()

    def remove(self, slave: Slave) -> None:
        """Forget a slave."""
        with self._changed:
            self._all.remove(slave)
            self._changed.notify_all()

    def is_available(self, end: int) -> bool:
        """Return whether a slave is near enough to wait for it.

        A slave that was up to date lacks all of a batch that has just been committed. It is not
        behind because of that, so the last batch does not count until the slave has it.

        Args:
            end: physical offset at which the log ends.
        """
        return any(self._behind(slave, end) < self._most_behind for slave in self._acknowledging())

    def wait(self, end: int, timeout: float) -> bool:
        """Wait until a slave has the log up to an offset, for some seconds.

        Returns:
            Whether one has it.
        """
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self._has(end), timeout)
            finally:
                self._waiting -= 1

    def connected(self) -> list[Slave]:
        """Return those that are connected."""
        with self._changed:
            return list(self._all)

    def await_all(self, slaves: Sequence[Slave], end: int, timeout: float) -> Handover:
        """Wait until slaves have the log up to an offset, or have left, for some seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._waiting += 1
            try:
                while (
                    any(slave in self._all for slave in _lacking(slaves, end))
                    and time.monotonic() < deadline
                ):
                    self._changed.wait(_LOOK_S)
                behind = sum(slave.held < end for slave in slaves)
                lacking = len(_lacking(slaves, end))
                return Handover(len(slaves), lacking, behind - lacking)
            finally:
                self._waiting -= 1

    def held(self) -> int:
        """Return the offset up to which at least one slave has the log; 0 without slaves."""
        return max((slave.held for slave in self._acknowledging()), default=0)

    def behind_bytes(self) -> list[int]:
        """Return for each slave how many bytes of the log were not sent to it yet."""
        end = self._published.offset
        return [max(0, end - slave.sent) for slave in list(self._all)]

    def _behind(self, slave: Slave, end: int) -> int:
        """Return how many bytes a slave lacks, without those of the last batch."""
        begin, stop = self._published.block
        return end - slave.held - max(0, min(end, stop) - max(slave.held, begin))

    def _has(self, end: int) -> bool:
        return self.held() >= end

    def _acknowledging(self) -> list[Slave]:
        return [slave for slave in list(self._all) if not slave.is_observer]


def _lacking(slaves: Sequence[Slave], end: int) -> list[Slave]:
    """Return those that lack some of the log; an observer does not say it, but what it was sent."""
    return [
        slave
        for slave in slaves
        if slave.held < end and not (slave.is_observer and slave.sent >= end)
    ]


class Shortfall(NamedTuple):
    """What messages lack that are in the log.

    Attributes:
        status: the status of their put.
        remark: what happened, for people.
        is_open: whether it is unknown if the messages are in the log.
    """

    status: PutStatus
    remark: str
    is_open: bool = False


class Durability:
    """Waits for the disk and for slaves. Thread-safe.

    Args:
        config: says how long to wait.
        role: says whether to wait for slaves.
        flusher: flushes the log.
        slaves: the slaves of the store.
    """

    def __init__(
        self, config: StoreConfig, role: Role, flusher: FlushService, slaves: Slaves
    ) -> None:
        self._config = config
        self._waits_for_disk = config.flush_disk_type == "SYNC_FLUSH"
        self._role = role
        self._flusher = flusher
        self._slaves = slaves

    @property
    def awaits(self) -> bool:
        """Whether a put waits: for the disk, or for slaves."""
        return self._waits_for_disk or self._role.waits_for_slaves

    @property
    def awaits_others(self) -> bool:
        """Whether a put waits for other processes: slaves, or members of a group."""
        return self._role.waits_for_slaves

    def await_put(
        self, end: int, term: LeaderTerm | None = None, since: float | None = None
    ) -> Shortfall | None:
        """Wait until the log is durable up to an offset.

        Args:
            end: physical offset.
            term: the term in which it was proposed to a group; None without one.
            since: when the wait began, by `time.monotonic`; None: it begins now.

        Returns:
            What is lacking when the time is over; None if nothing is.

        Raises:
            StoreWriteError: flushing has failed permanently.
        """
        assert term is None, "the log of a group has no slaves and no flusher"
        begin = time.monotonic() if since is None else since
        on_disk = self._await_disk(end) if self._waits_for_disk else None
        if not self._role.waits_for_slaves:
            return on_disk
        return self._await_slave(end, end, begin) or on_disk

    def await_copies(self, end: int, term: LeaderTerm | None) -> None:
        """Wait until copies of delayed messages can be counted as delivered.

        Args:
            end: physical offset behind them.
            term: the term in which they were proposed to a group; None without one.

        Raises:
            RefusedError: that is not known.
        """

    def await_commit(self, begin: int, end: int) -> None:
        """Wait until a slave has a batch that is committed, and so on disk.

        Args:
            begin: where the log ended before the batch, or the batch begins. A slave that is up to
                date lacks all of a large batch, and is not behind because of that.
            end: where the log ends with it.

        Raises:
            RefusedError: the batch is committed, but no slave has it in time.
        """
        if not self._role.waits_for_slaves:
            return
        lacking = self._await_slave(begin, end, time.monotonic())
        if lacking is not None:
            raise RefusedError(
                f"The batch is committed, but {lacking.remark[0].lower()}{lacking.remark[1:]} "
                "Commit it again: that waits again, and writes nothing twice.",
                str(lacking.status),
            )

    def _await_disk(self, end: int) -> Shortfall | None:
        timeout = self._config.sync_flush_timeout
        if self._flusher.wait(end, timeout / 1000):
            return None
        return Shortfall(
            PutStatus.FLUSH_DISK_TIMEOUT,
            "The messages are in the log, but were not on disk within syncFlushTimeout "
            f"({timeout} ms).",
        )

    def _await_slave(self, due: int, end: int, began: float) -> Shortfall | None:
        """Wait for a slave until `slaveTimeout` after a time.

        Args:
            due: a slave that is far behind this offset is not waited for.
            end: what the slave must have.
            began: the time.
        """
        timeout = self._config.slave_timeout
        if not self._slaves.is_available(due):
            return Shortfall(
                PutStatus.SLAVE_NOT_AVAILABLE,
                "The messages are in the log, but no slave is connected that acknowledges what it "
                "has, or all are more than haSlaveFallbehindMax "
                f"({self._config.ha_slave_fallbehind_max} bytes) behind.",
            )
        left = began + timeout / 1000 - time.monotonic()
        if self._slaves.wait(end, max(left, 0)):
            return None
        return Shortfall(
            PutStatus.FLUSH_SLAVE_TIMEOUT,
            f"The messages are in the log, but no slave had them within slaveTimeout ({timeout} "
            "ms).",
        )
