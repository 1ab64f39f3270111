"""Keeps what a member of a DLedger group needs besides the log: topics, groups, progress.

A thread copies them from the leader's broker, as a slave does from its master's. A leader of ours
says on the port of the group where its broker is. RocketMQ's does not: then nothing is copied, and
topics are made as the records need them. A member that began without queues also asks any other
where these end.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Final

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.ha.master_broker import MasterBroker

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
"""More often than from a master: nobody knows beforehand who leads next."""


class GroupTables:
    """Copies the tables of a leader while this store follows, and queue ends, until `close`.

    Args:
        store: the store, a member of a group.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqstore-tables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop copying."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        told = ""
        while not self._closing.wait(_INTERVAL_S):
            text = self._copy() if self._store.role.follows else ""
            if text and text != told:
                _log.warning(
                    "Topics, groups and progress of the group's leader cannot be copied: %s. "
                    "Trying again every %.0f s.", text, _INTERVAL_S,
                )  # fmt: skip
            told = text
            if self._store.queue_ends.are_lacking:
                self._learn_queue_ends()

    def _learn_queue_ends(self) -> None:
        store = self._store
        begin = store.member.log_begin()
        if begin is None:
            return
        if begin == (0, 0):  # nothing was before the log
            store.queue_ends.learn({})
            return
        brokers = store.member.other_brokers()
        for address in filter(None, brokers.values()):
            with suppress(RmqStoreError):  # it may lack them, too
                if self._broker(address).teach_queue_ends(store.queue_ends, begin[1]):
                    return
        if len(brokers) == len(store.member.group.ids) - 1 and not any(brokers.values()):
            store.queue_ends.learn({})
            _log.warning(
                "The other members are RocketMQ's, or have no broker: nobody says where queues end "
                "whose messages have expired. If this one leads, they begin at offset 0 again."
            )

    def _broker(self, address: str) -> MasterBroker:
        return MasterBroker(replace(self._store.config, ha_master_remoting_address=address))

    def _copy(self) -> str:
        """Copy once; return why that is not possible, or ""."""
        try:
            address = self._store.member.leader_broker()
            if address:
                self._broker(address).copy_tables(self._store.replica.tables)
        except RmqStoreError as error:
            return str(error).removesuffix(".")
        return ""
