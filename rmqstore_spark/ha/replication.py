"""Runs what the role of a store needs: a follower, a master, or nothing. Changes the role.

    promote:  follow nobody any more -> copy the tables of the former master, if it answers
              -> listen for slaves -> `StoreWriter.promote`
    demote:   `StoreWriter.demote` -> wait until the slaves have all -> serve none any more
              -> follow the other master

So the store is never fed by a master while it accepts messages. If a promotion fails before the
role is on disk, the store follows again.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final

from rmqstore_spark.engine.append.durability import Handover
from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.ha.follower import LogFollower
from rmqstore_spark.ha.group_tables import GroupTables
from rmqstore_spark.ha.master import Master
from rmqstore_spark.ha.master_broker import MasterBroker, Metadata
from rmqstore_spark.remoting.access.identity import client_tls

_log = logging.getLogger(__name__)

_ILLEGAL: Final = "MESSAGE_ILLEGAL"


class Replication:
    """The part of a store in replication, from its construction until `close`. Thread-safe.

    Args:
        store: the store.

    Attributes:
        follower: follows the store's master; None if it has none.
        metadata: copies the master's tables; None if their address is not known.
        master: serves the store's slaves; None if it takes none.
        tables: copies the tables of a group's leader; None without a group.

    Raises:
        OptionError: there is no port for slaves, or the access key or a file of TLS cannot be used.
        ServiceError: the address for slaves cannot be bound.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self._changing = threading.Lock()
        self._is_closed = False
        self.follower: LogFollower | None = None
        self.metadata: Metadata | None = None
        self.master: Master | None = None
        self.tables: GroupTables | None = None
        config = store.config
        if isinstance(store.role, GroupRole):
            self.tables = GroupTables(store, store.role)  # members get the log from each other
            return
        if store.role.follows:
            self._follow()
            return
        if config.ha_master_address:
            _log.warning(
                "haMasterAddress=%s has no effect: this store is a master (%s), and what is put "
                "here is not in the other log. To follow it, use `rmqstore demote`.",
                config.ha_master_address, store.role,
            )  # fmt: skip
        if store.role.serves_slaves:
            self.master = Master(store)

    @property
    def address(self) -> str | None:
        """Where slaves connect, as `host:port`; None if none are taken."""
        master = self.master
        return master.address if master is not None else None

    def stats(self) -> dict[str, object]:
        """Return metrics as JSON values."""
        part = self.follower or self.master
        return part.stats() if part is not None else {}

    def promote(self, *, waits_for_slaves: bool, force: bool) -> int:
        """Make a slave the master.

        Args:
            waits_for_slaves: whether it becomes a SYNC_MASTER.
            force: whether also if its master answers, or sent a log that cannot be followed.

        Returns:
            The physical offset from which on the log is this store's own.

        Raises:
            RefusedError: the store is a master, is closing, or has failed; or `force` is needed.
            OptionError, ServiceError: slaves cannot be served; see the class.
            RmqStoreError: the log cannot be read, or something could not be written. After any of
                these, the store is a slave as before.
        """
        with self._changing:
            self._require_open()
            self._require_own_role()
            if not self._store.role.follows:
                raise RefusedError(f"The store is a master already ({self._store.role}).", _ILLEGAL)
            if not force:
                self._require_alone()
            follower, metadata = self.follower, self.metadata
            self._stop()
            try:
                if metadata is not None and follower is not None and follower.failure is None:
                    metadata.copy_last()
                # Its port is taken before the role is: afterwards, nothing may fail.
                listens = waits_for_slaves or self._store.config.ha_listen_port >= 0
                self.master = Master(self._store) if listens else None
                return self._store.promote(waits_for_slaves=waits_for_slaves)
            except BaseException:
                if self._store.role.follows:
                    self._stop()
                    self._follow()
                raise

    def demote(self, master: str, master_broker: str) -> tuple[int, Handover]:
        """Make a master a slave, which follows another one.

        Its own slaves get what they lack, within `slaveTimeout`: one of them may be the new master.

        Args:
            master: whom to follow, as `haMasterAddress` says it.
            master_broker: the same for `haMasterRemotingAddress`; "" for none.

        Returns:
            Where the log ends then, and who has it.

        Raises:
            RefusedError: the store is a slave, is closing, or has failed.
            OptionError: an access key or a file of TLS cannot be used.
            RmqStoreError: something could not be written. After any of these, the store is a
                master as before.
        """
        with self._changing:
            self._require_open()
            self._require_own_role()
            config = replace(
                self._store.config, ha_master_address=master,
                ha_master_remoting_address=master_broker,
            )  # fmt: skip
            if config.ha_tls_enable:
                client_tls(config)  # what is wrong with these shows before the role is given up
            if master_broker:
                MasterBroker(config)
            slaves = self._store.slaves.connected()
            end = self._store.demote(master, master_broker)
            handover = self._store.slaves.await_all(slaves, end, config.slave_timeout / 1000)
            self._stop()
            self._follow()
            return end, handover

    def close(self) -> None:
        """Stop following, or serving slaves."""
        with self._changing:
            self._is_closed = True
            self._stop()

    def _require_open(self) -> None:
        if self._is_closed:
            raise RefusedError("The store is closing.", "SERVICE_NOT_AVAILABLE")

    def _require_own_role(self) -> None:
        if self._store.role.is_elected:
            raise RefusedError(
                "The store is a member of a DLedger group, which elects its master.", _ILLEGAL
            )

    def _require_alone(self) -> None:
        """Refuse to promote a slave whose master is there, or which somebody must look at first.

        Raises:
            RefusedError: why.
        """
        follower = self.follower
        if follower is None:
            return
        standing = follower.standing()
        if standing.state == "STOPPED":
            raise RefusedError(
                f"The store no longer follows {follower.master}, and may lack what that one has: "
                f"{standing.error} If this log is to continue, from {standing.end} on, promote it "
                "with --force.",
                _ILLEGAL,
            )
        if standing.state == "CONNECTING" and standing.answers:
            raise RefusedError(
                f"The master {follower.master} answers, but cannot be followed for now: "
                f"{standing.error.rstrip('.')}. With two masters, each would get messages that the "
                "other one lacks. Stop that one first, or promote this store with --force.",
                _ILLEGAL,
            )
        if standing.state != "CONNECTING" or not standing.error:
            raise RefusedError(
                f"The master {follower.master} is connected, or it is not known yet that it is not "
                "(if its machine has gone, that shows within haHousekeepingInterval). With two "
                "masters, each would get messages that the other one lacks. Stop that one first, "
                "or promote this store with --force.",
                _ILLEGAL,
            )

    def _follow(self) -> None:
        """Follow the store's master."""
        config = self._store.config
        if not config.ha_master_address:
            _log.info("The slave has no haMasterAddress: it follows nobody.")
            return
        if config.ha_master_remoting_address:
            self.metadata = Metadata(self._store)
        self.follower = LogFollower(self._store)
        if self.metadata is not None:
            self.metadata.start(self.follower.progress)

    def _stop(self) -> None:
        """Follow nobody, and serve no slave. What was received and is whole is in the store."""
        parts = (self.metadata, self.follower, self.master, self.tables)
        self.metadata = self.follower = self.master = self.tables = None
        for part in parts:
            if part is not None:
                part.close()
