"""Keeps what a member of a DLedger group needs besides the log: topics, groups, progress.

A thread copies them from the leader's broker, as a slave does from its master's. A leader of ours
says on the port of the group where its broker is. RocketMQ's does not: then nothing is copied, and
topics are made as the records need them. A member that began without queues also asks the others,
on the port of the group, where these end (`group_queue_ends`).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final

from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.ha.group_queue_ends import learn_queue_ends
from rmqstore_spark.ha.master_broker import MasterBroker

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
"""More often than from a master: nobody knows beforehand who leads next."""


class GroupTables:
    """Copies the tables of a leader while this store follows, and queue ends, until `close`.

    Args:
        store: the store, a member of a group.
        role: its role.
    """

    def __init__(self, store: StoreWriter, role: GroupRole) -> None:
        self._store = store
        self._role = role
        self._broker: MasterBroker | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqstore-tables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop copying."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._copy_until_closed()
        finally:
            self._leave_broker()

    def _copy_until_closed(self) -> None:
        told = told_ends = ""
        while not self._closing.wait(_INTERVAL_S):
            text = self._copy()
            if text and text != told and not self._is_ending():
                _log.warning(
                    "Topics, groups and progress of the group's leader cannot be copied: %s. "
                    "Trying again every %.0f s.", text, _INTERVAL_S,
                )  # fmt: skip
            told = text
            if self._store.queue_ends.are_lacking:
                text = learn_queue_ends(self._store, self._is_ending)
                if text and text != told_ends and not self._is_ending():
                    _log.warning(
                        "This member may not lead: it does not know where queues end whose "
                        "messages have expired, and not all others tell it: %s. Trying again every "
                        "%.0f s.",
                        text, _INTERVAL_S,
                    )  # fmt: skip
                told_ends = text

    def _is_ending(self) -> bool:
        """Return whether this store ends: that is why others cannot be asked, then."""
        return self._closing.is_set() or self._store.member.is_ending

    def _copy(self) -> str:
        """Copy once if another member leads; return why that is not possible, or ""."""
        followed = self._role.followed
        try:
            address = self._store.member.leader_broker() if followed else ""
            if not address:
                self._leave_broker()
                return ""
            told = self._broker_at(address).tables()
            with self._role.copying:
                # A leader that was stopped answers when it continues, and another leads by then.
                if self._role.followed == followed:
                    told.copy_to(self._store.replica.tables)
        except RmqStoreError as error:
            self._leave_broker()  # the next one may have another account, or certificate
            return str(error).removesuffix(".")
        return ""

    def _broker_at(self, address: str) -> MasterBroker:
        """Return the leader's broker; its connection stays while that one leads, and answers."""
        if self._broker is None or self._broker.address != address:
            self._leave_broker()
            config = replace(self._store.config, ha_master_remoting_address=address)
            self._broker = MasterBroker(config, stays=True)
        return self._broker

    def _leave_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
