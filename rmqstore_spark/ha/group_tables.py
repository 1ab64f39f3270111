"""Keeps what a follower of a DLedger group needs besides the log: topics, groups, progress.

A thread copies them from the leader's broker, as a slave does from its master's. A leader of ours
says on the port of the group where its broker is. RocketMQ's does not: then nothing is copied, and
topics are made as the records need them.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.ha.master_broker import MasterBroker

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
"""More often than from a master: nobody knows beforehand who leads next."""


class GroupTables:
    """Copies the tables of a leader while this store follows, until `close`.

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

    def _copy(self) -> str:
        """Copy once; return why that is not possible, or ""."""
        try:
            address = self._store.leader_broker()
            if address:
                config = replace(self._store.config, ha_master_remoting_address=address)
                MasterBroker(config).copy_tables(self._store.replica.tables)
        except RmqStoreError as error:
            return str(error).removesuffix(".")
        return ""
