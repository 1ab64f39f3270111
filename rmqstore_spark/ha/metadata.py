"""Copies a master's topics, groups and progress to its slave in a thread, every ten seconds.

Only while the slave is connected: a store that is to be the master, and is a slave still, has older
ones than the former master that waits for it. (Upstream: BrokerController.handleSlaveSynchronize.)
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.ha.follower_progress import Progress
from rmqstore_spark.ha.master_broker import MasterBroker

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 10.0
_LOOK_S: Final = 0.1


class Metadata:
    """Keeps the tables of a slave like its master's, from `start` until `close`.

    Args:
        store: the store; its role is SLAVE, and `haMasterRemotingAddress` is set.

    Raises:
        OptionError: the access key for requests to the master cannot be read.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._address = store.config.ha_master_remoting_address
        self._broker = MasterBroker(store.config)
        self._tables = store.replica.tables
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, progress: Progress) -> None:
        """Start to copy.

        Args:
            progress: knows whether there is a connection, and is told where the master's log ends.
        """
        self._thread = threading.Thread(
            target=self._run, args=(progress,), name="rmqstore-ha-tables", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop copying."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def copy_last(self) -> None:
        """Copy once more, after `close`: the master may have changed since the last round."""
        text = self._copy()
        if text:
            _log.warning(
                "What has changed of topics, groups and progress since the last copy is lost: the "
                "master %s cannot be asked: %s.", self._address, text,
            )  # fmt: skip

    def _run(self, progress: Progress) -> None:
        told = ""
        while True:
            while not progress.is_connected:
                if self._closing.wait(_LOOK_S):
                    return
            text = self._copy(progress)
            if text and text != told:
                _log.warning(
                    "Topics, groups and progress of the master %s cannot be copied: %s. Trying "
                    "again every %.0f s.", self._address, text, _INTERVAL_S,
                )  # fmt: skip
            told = text
            if self._closing.wait(_INTERVAL_S):
                return

    def _copy(self, progress: Progress | None = None) -> str:
        """Copy once; return why that is not possible, or ""."""
        try:
            end = self._broker.copy_tables(self._tables)
        except RmqStoreError as error:
            return str(error).removesuffix(".")
        if progress is not None:
            progress.master_ends(end)
        return ""
