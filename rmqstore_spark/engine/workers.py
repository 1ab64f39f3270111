"""The threads that work for an open store: dispatch, flush, staging, expiry, delivery and others.

The threads start one after the other, and end in reverse order, also if one cannot start.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Any, Final

from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.applier import Applier
from rmqstore_spark.engine.append.durability import Durability, Slaves
from rmqstore_spark.engine.append.member_appender import MemberAppender
from rmqstore_spark.engine.append.member_durability import MemberDurability
from rmqstore_spark.engine.append.puts import Puts, Singles
from rmqstore_spark.engine.append.replica import Replica
from rmqstore_spark.engine.batches.batches import Batches
from rmqstore_spark.engine.delay.delivery import Delivery
from rmqstore_spark.engine.dispatch.dispatcher import NO_ROOM, Dispatcher, QueueFlusher
from rmqstore_spark.engine.expiry.expiry import Expiry
from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.engine.health import Health, Periodic
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.recovery.configuration import check_progress
from rmqstore_spark.engine.transactions.checks import Checks
from rmqstore_spark.engine.transactions.transactions import Transactions
from rmqstore_spark.errors import RefusedError, StoreWriteError

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_MS: Final = 1000


class Workers:
    """The threads of an open store, and the objects that they serve.

    Args:
        store: the open store.

    Attributes:
        dispatcher: writes queues and index.
        admission: decides what the store accepts.
        appender: appends to the log.
        flusher: flushes the log.
        slaves: the slaves of the store.
        durability: waits for the disk and for slaves.
        puts: stores what clients put.
        batches: the batches of Spark.
        health: remembers what failed.
        expiry: removes old segments.
        delivery: delivers delayed messages.
        transactions: holds and ends the transactions of producers.
        checks: checks them.
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._opened = time.monotonic()
        self._lacks_room = False  # for queues and index
        self.health = health = Health(store.path)
        with ExitStack() as ends:
            self.dispatcher = Dispatcher(store.queues, store.indexes, store.checkpoint, health)
            ends.callback(self.dispatcher.close)
            self._queues = QueueFlusher(self.dispatcher, store.checkpoint, store.config)
            self.admission = Admission(store, self.dispatcher, health)
            log, role = store.log, store.role
            kind = MemberAppender if isinstance(log, MemberLog) else Appender
            self.appender = kind(store, self.dispatcher, health)
            self.flusher = FlushService(store.log, store.checkpoint, store.config, health)
            ends.callback(self.flusher.close)
            self.slaves = Slaves(store.log.published, store.config.ha_slave_fallbehind_max)
            self.durability = Durability(store.config, role, self.flusher, self.slaves)
            if isinstance(log, MemberLog):
                self.durability = MemberDurability(log, store.config.sync_flush_timeout)
            # An entry of a group has a place of its own, and is written by the member.
            singles = None if log.lead else Singles(self.admission, self.appender)
            self.puts = Puts(store.config, self.admission, self.appender, self.durability, singles)
            self.batches = Batches(
                store, self.admission, self.appender, self.flusher, self.durability, self.puts
            )
            ends.callback(self.batches.close)
            flushing = Periodic(
                "rmqstore-queues",
                store.config.flush_interval_consume_queue,
                self._flush_queues_if_room,
                health,
                longest_ms=store.config.flush_consume_queue_thorough_interval,
            )
            ends.callback(flushing.close)
            ends.callback(Periodic("rmqstore-look", _LOOK_INTERVAL_MS, self._look, health).close)
            self.transactions = Transactions(
                store, self.admission, self.appender, self.durability, self.dispatcher, self.flusher
            )
            self.expiry = Expiry(
                store,
                self.dispatcher,
                self._queues,
                self.admission,
                self.batches,
                self.transactions,
            )
            ends.callback(self.expiry.close)
            self.delivery = Delivery(
                store, self.admission, self.appender, self.flusher, self.durability
            )
            ends.callback(self.delivery.stop)
            self.checks = Checks(self.transactions, self.admission, store)
            ends.callback(self.checks.stop)
            self._applier: Applier | None = None
            if isinstance(log, MemberLog) and isinstance(role, GroupRole) and store.member:
                assert isinstance(self.appender, MemberAppender)
                self._applier = Applier(
                    store, log, role, store.member, self.appender, self.flusher, health,
                    drain=self.drain, take_over=self._take_over,
                )  # fmt: skip
                ends.callback(self._applier.close)
            self._ends = ends.pop_all()

    def _group_stats(self) -> dict[str, object]:
        member = self._store.member
        if member is None:
            return {}
        return {**member.stats(), "groupKnowsQueueEnds": not self._store.queue_ends.are_lacking}

    def replica(self) -> Replica:
        """Return what appends the bytes of a master's log to the log as it is now."""
        return Replica(self._store, self.admission, self.appender, self.flusher, self.dispatcher)

    def leave_group(self) -> bool:
        """End the member of a group, if the store is one; see `Applier.close`."""
        return self._applier is None or self._applier.close()

    def _take_over(self) -> None:
        """Learn what a master has to know, when all of its log is in queues and index."""
        self.transactions.forget()  # before a half message comes, which no queue has yet
        self.batches.catch_up()
        store = self._store
        store.topics.renew()  # name servers take those of a master only with a new version
        check_progress(
            store.path, store.consumer_offsets.table(), store.queues.ranges(),
            {topic.name for topic in store.topics},
        )  # fmt: skip

    def flush(self) -> None:
        """Flush log, queues, index and checkpoint.

        Raises:
            StoreWriteError: the flush failed, and the store accepts no more messages; or only room
                is lacking, and part of the log is not in queues and index.
        """
        self.flusher.flush()
        self.drain()
        try:
            self._queues.flush(sync_index=True)
        except StoreWriteError as error:
            if error.errno not in NO_ROOM:
                self.health.fail(error)
            raise

    def drain(self) -> None:
        """Wait until all appended records are in queues and index.

        Raises:
            StoreWriteError: dispatching failed, or there is no room for queues and index.
        """
        self.dispatcher.drain_or_refuse()

    def settle(self) -> None:
        """Wait until all that was put is in queues and index. Needs the append lock.

        Raises:
            RefusedError: what was put into the log of a group is not committed.
            StoreWriteError: as for `drain`.
        """
        log = self._store.log
        if log.term is not None:
            lacking = self.durability.await_put(log.end, log.term)
            if lacking is not None:
                raise RefusedError(
                    f"What was put before is not settled. {lacking.remark}", lacking.status
                )
        self.drain()

    def stats(self) -> dict[str, Any]:
        """Return the figures of the store, which commands and Prometheus show, as JSON values."""
        log = self._store.log
        return {
            "state": self.admission.state,
            "uptimeSeconds": time.monotonic() - self._opened,
            **self.puts.stats(),
            "commitLatency": self.batches.latency.to_json(),
            "flushLatency": self.flusher.latency.to_json(),
            "commitLogMinOffset": log.min_offset,
            "commitLogMaxOffset": log.max_offset,
            "commitLogFlushedOffset": log.flushed_offset,
            **self._group_stats(),
            **self.batches.stats(),
            **self.expiry.stats(),
            **self.delivery.stats(),
            **self.transactions.stats(),
            "dispatchBehindBytes": self.dispatcher.behind_bytes,
            "diskUsedRatio": self.admission.disk_used_ratio,
            "clockBehindSeconds": self.appender.time.behind_ms / 1000,
            "queues": {
                topic: {str(queue_id): list(bounds) for queue_id, bounds in numbers.items()}
                for topic, numbers in self._store.queues.ranges().items()
            },
        }

    def close(self) -> None:
        """Stop all threads. The next recovery handles whatever is not flushed by now."""
        self._ends.close()

    def _look(self) -> None:
        """Check what changes without a put: the room on the disk, and the clock."""
        self.admission.look_at_disk()
        self._store.reserve.fill()
        self._store.log.retry_segment()
        self.appender.time.look()

    def _flush_queues_if_room(self) -> None:
        try:
            self._queues.flush()
        except StoreWriteError as error:
            if error.errno not in NO_ROOM:  # the next try flushes what is left
                raise
            if not self._lacks_room:
                _log.warning("Queues and index cannot be flushed for now: %s", error)
            self._lacks_room = True
        else:
            if self._lacks_room:
                _log.warning("Queues and index are flushed again.")
            self._lacks_room = False
