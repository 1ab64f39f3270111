"""Starts what the role of a store needs: a follower, a master, or nothing."""

from __future__ import annotations

import logging

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.ha.follower import LogFollower
from rmqstore_spark.ha.master import Master
from rmqstore_spark.ha.metadata import Metadata

__all__ = ["Replication"]

_log = logging.getLogger(__name__)


class Replication:
    """The part of a store in replication, from its construction until `close`.

    Args:
        store: the store.

    Attributes:
        follower: follows the store's master; None if it has none.
        metadata: copies the master's tables; None if their address is not known.
        master: serves the store's slaves; None if it takes none.

    Raises:
        OptionError: there is no port for slaves, or the access key or a file of TLS cannot be used.
        ServiceError: the address for slaves cannot be bound.
    """

    def __init__(self, store: StoreWriter) -> None:
        config = store.config
        self.follower: LogFollower | None = None
        self.metadata: Metadata | None = None
        self.master: Master | None = None
        if config.broker_role == "SLAVE":
            if config.ha_master_address:
                if config.ha_master_remoting_address:
                    self.metadata = Metadata(store)
                self.follower = LogFollower(store)
                if self.metadata is not None:
                    self.metadata.start(self.follower.progress)
            else:
                _log.info("The slave has no haMasterAddress: it follows nobody.")
            return
        if config.ha_master_address:
            _log.warning(
                "haMasterAddress=%s has no effect: this store is a master (brokerRole=%s), and "
                "what is put here is not in the other log. To follow it, set brokerRole=SLAVE.",
                config.ha_master_address, config.broker_role,
            )  # fmt: skip
        if config.broker_role == "SYNC_MASTER" or config.ha_listen_port >= 0:
            self.master = Master(store)

    def stats(self) -> dict[str, object]:
        """Return metrics as JSON values."""
        part = self.follower or self.master
        return part.stats() if part is not None else {}

    def close(self) -> None:
        """Stop following, or serving slaves."""
        if self.metadata is not None:
            self.metadata.close()
        part = self.follower or self.master
        if part is not None:
            part.close()
