"""Keeps what a member of a DLedger group needs besides the log: topics, groups, progress.

A thread copies them from the leader's broker, as a slave does from its master's. A leader of ours
says on the port of the group where its broker is. RocketMQ's does not: then nothing is copied, and
topics are made as the records need them. A member that began without queues also asks the others,
on the port of the group, where these end.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.queue_ends import told_ends as read_ends
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
        told = told_ends = ""
        while not self._closing.wait(_INTERVAL_S):
            text = self._copy() if self._store.role.follows else ""
            if text and text != told:
                _log.warning(
                    "Topics, groups and progress of the group's leader cannot be copied: %s. "
                    "Trying again every %.0f s.", text, _INTERVAL_S,
                )  # fmt: skip
            told = text
            if self._store.queue_ends.are_lacking:
                text = self._learn_queue_ends()
                if text and text != told_ends:
                    _log.warning(
                        "This member may not lead: it does not know where queues end whose "
                        "messages have expired, and not all others tell it: %s. Trying again every "
                        "%.0f s.",
                        text, _INTERVAL_S,
                    )  # fmt: skip
                told_ends = text

    def _learn_queue_ends(self) -> str:
        """Ask the other members once; return why that does not suffice, or ""."""
        member, ends = self._store.member, self._store.queue_ends
        try:
            begin = member.log_begin()
            if begin is None:
                return ""
            if begin == (0, 0):  # nothing was before the log
                ends.learn({})
                return ""
            found: dict[tuple[str, int], int] = {}
            why_not, others = [], member.queue_ends_of_others()
            for peer, told in others.items():
                if isinstance(told, str):
                    why_not.append(f"{peer}: {told.removesuffix('.')}")
                    continue
                theirs = read_ends(told.ends)
                if told.known and told.log_end >= begin[1]:
                    ends.learn(theirs)
                    _log.info("%s says where %d queues end.", peer, len(theirs))
                    return ""
                if told.known:
                    why_not.append(f"{peer}: it does not have what this one begins with yet")
                found |= {route: max(end, found.get(route, 0)) for route, end in theirs.items()}
            if why_not:
                return "; ".join(why_not)
            ends.learn(found)
            if others:
                _log.warning(
                    "No other member says where queues end whose messages have expired: they began "
                    "without queues, too, or are RocketMQ's, or only vote. If this one leads, such "
                    "queues may begin at offset 0 again."
                )
            return ""
        except (RmqStoreError, ValueError, TypeError) as error:
            return str(error).removesuffix(".")

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
