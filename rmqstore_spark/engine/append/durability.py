"""Waits until messages are as durable as the store is configured: on its disk, and at a slave.

Both are awaited in one place, for puts and for commits. If both fail, the slave's status counts.
(Upstream: CommitLog.submitFlushRequest, submitReplicaRequest, GroupTransferService.)
"""

from __future__ import annotations

import time
from typing import NamedTuple

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.append.slaves import Slaves
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.role import Role
from rmqstore_spark.errors import RefusedError


class Shortfall(NamedTuple):
    """What messages lack that are in the log.

    Attributes:
        status: the status of their put.
        remark: what happened, for people.
    """

    status: PutStatus
    remark: str


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
        self._role = role
        self._flusher = flusher
        self._slaves = slaves

    def await_put(self, end: int) -> Shortfall | None:
        """Wait until the log is durable up to an offset.

        Args:
            end: physical offset.

        Returns:
            What is lacking when the time is over; None if nothing is.

        Raises:
            StoreWriteError: flushing has failed permanently.
        """
        begin = time.monotonic()
        on_disk = self._await_disk(end)
        return self._await_slave(end, end, begin) or on_disk

    def await_commit(self, begin: int, end: int) -> None:
        """Wait until a slave has a batch that is committed, and so on disk.

        Args:
            begin: where the log ended before the batch. A slave that is up to date lacks all of a
                large batch, and is not behind because of that.
            end: where the log ends with it.

        Raises:
            RefusedError: the batch is committed, but no slave has it in time.
        """
        lacking = self._await_slave(begin, end, time.monotonic())
        if lacking is not None:
            raise RefusedError(
                f"The batch is committed, but {lacking.remark[0].lower()}{lacking.remark[1:]} "
                "Commit it again: that waits again, and writes nothing twice.",
                str(lacking.status),
            )

    def _await_disk(self, end: int) -> Shortfall | None:
        config = self._config
        if config.flush_disk_type != "SYNC_FLUSH":
            return None
        if self._flusher.wait(end, config.sync_flush_timeout / 1000):
            return None
        return Shortfall(
            PutStatus.FLUSH_DISK_TIMEOUT,
            "The messages are in the log, but were not on disk within syncFlushTimeout "
            f"({config.sync_flush_timeout} ms).",
        )

    def _await_slave(self, due: int, end: int, began: float) -> Shortfall | None:
        """Wait for a slave until `slaveTimeout` after a time.

        Args:
            due: a slave that is far behind this offset is not waited for.
            end: what the slave must have.
            began: the time.
        """
        if not self._role.waits_for_slaves:
            return None
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
