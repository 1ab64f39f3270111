"""Changes the role of an open store: a slave becomes the master, or a master a slave.

    promote:  all of the log in the queues, all commits in the ledger, the log on disk
              -> the role on disk, with the promotion -> messages are accepted
    demote:   no more messages are accepted -> all of the log on disk and in the queues -> the role
              on disk -> nothing of this store's own is appended any more

The role on disk and the one in memory change together, under the append lock. So no record of this
store's own gets into the log before the role on disk is a master's, or after it is a slave's, and
nothing of another master's after a promotion (`Replica`). A process that is killed in between has,
when it starts again, the role of before or of after, and has accepted nothing in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

from rmqstore_spark.engine.append.replica import Replica
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.recovery.configuration import check_progress
from rmqstore_spark.engine.role import ASYNC_MASTER, SYNC_MASTER, Promotion
from rmqstore_spark.engine.workers import Workers
from rmqstore_spark.errors import RefusedError, RmqStoreError, StoreWriteError

_log = logging.getLogger(__name__)

_ILLEGAL: Final = "MESSAGE_ILLEGAL"


class RoleChanges:
    """Promotes and demotes a store. Used by one thread at a time.

    Args:
        store: the open store.
        workers: its threads.
    """

    def __init__(self, store: OpenStore, workers: Workers) -> None:
        self._store = store
        self._role = store.role
        self._workers = workers

    def promote(self, replica: Replica, *, waits_for_slaves: bool) -> int:
        """Make a slave the master. Nobody may append to its log any more.

        What is held of a batch that is not whole is erased: its commit was never acknowledged.

        Args:
            replica: has appended the log of the former master.
            waits_for_slaves: whether it becomes a SYNC_MASTER.

        Returns:
            The physical offset from which on the log is this store's own.

        Raises:
            RefusedError: the store is a master, is closing, or has failed.
            RmqStoreError: the log cannot be read, or something could not be written. The store is a
                slave as before.
        """
        if not self._role.follows:
            raise RefusedError(f"The store is a master already ({self._role}).", _ILLEGAL)
        store, workers = self._store, self._workers
        workers.admission.require_alive()
        replica.rewind()
        workers.drain()
        workers.batches.catch_up()
        with workers.appender.appending(patient=True):
            end = workers.flusher.flush()
            # The former master may have deleted topics behind the end: other records come there.
            store.deleted.settle(store.log.min_offset, end)
            workers.appender.continue_from_log()
            reach("promote.before_mark")
            name = SYNC_MASTER if waits_for_slaves else ASYNC_MASTER
            with self._certainly():
                self._role.become_master(name, Promotion(end, uuid4().hex))
            reach("promote.after_mark")
        _log.warning(
            "%s is the master now (%s), from physical offset %d on.", store.path, name, end
        )
        self._role.changed()
        if store.queue_ends.are_lacking:
            _log.warning(
                "%s began without queues, and the former master has not said where those end whose "
                "messages had expired: they begin at offset 0 again.", store.path,
            )  # fmt: skip
            with suppress(StoreWriteError):  # it is the master, and warns again if it has to
                store.queue_ends.learn({})
        check_progress(
            store.path, store.consumer_offsets.table(), store.queues.ranges(),
            {topic.name for topic in store.topics},
        )  # fmt: skip
        self._register()
        return end

    def demote(self, master: str, master_broker: str) -> int:
        """Make a master a slave, which accepts nothing more.

        Args:
            master: whom to follow, as `haMasterAddress` says it.
            master_broker: the same for `haMasterRemotingAddress`; "" for none.

        Returns:
            Where the log ends then.

        Raises:
            RefusedError: the store is a slave, is closing, or has failed.
            RmqStoreError: something could not be written. The store is a master as before.
        """
        if self._role.follows:
            raise RefusedError("The store is a slave already.", _ILLEGAL)
        store, workers = self._store, self._workers
        workers.admission.require_alive()
        with workers.batches.nothing_committed(), workers.appender.appending(patient=True):
            workers.flusher.flush()
            workers.drain()  # what is appended to a slave's log has to continue the queues
            reach("demote.before_mark")
            end = store.log.max_offset
            with self._certainly():
                self._role.become_slave(master, master_broker, end)
            reach("demote.after_mark")
        _log.warning(
            "%s is a slave now, and follows %s. Its log ends at %d.", store.path, master, end
        )
        self._role.changed()
        return end

    @contextmanager
    def _certainly(self) -> Iterator[None]:
        """Let the store fail if it is not known which role its next start will find."""
        try:
            yield
        except RmqStoreError as error:
            if not self._role.is_certain:
                self._workers.admission.health.fail(error)
            raise

    def _register(self) -> None:
        """Give the topics a new version: name servers take those of a master only with one."""
        try:
            self._store.topics.renew()
        except StoreWriteError as error:
            _log.warning("The topics of the new master are registered with its next one: %s", error)
