"""Follows a master in a thread: connects, again and again with pauses, until it is closed.

A master that can be reached again is followed again. What no new connection mends stops the
follower: another log, a log that is damaged, a store that has failed. The store then stays as it
is, and readers continue.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import closing, suppress
from typing import Final

from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RemotingError,
    ReplicationError,
    RmqStoreError,
    ServiceError,
)
from rmqstore_spark.ha.connection import HaConnection
from rmqstore_spark.ha.follower_progress import Progress, Standing
from rmqstore_spark.ha.master_broker import MasterBroker
from rmqstore_spark.ha.session import BrokenStreamError, ForkError, Session
from rmqstore_spark.remoting.access.identity import client_tls

_log = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_MOST_BAD_IN_A_ROW: Final = 3
_RECEIVE_BUFFER: Final = 4 << 20


class LogFollower:
    """Keeps a store a copy of its master's log, from its construction until `close`.

    Args:
        store: the store; its role is SLAVE, and `haMasterAddress` is set.

    Attributes:
        progress: how far it is.
        master: the address of the master, `host:port`.

    Raises:
        OptionError: a file of `haTlsEnable` cannot be used.
    """

    def __init__(self, store: StoreWriter) -> None:
        config = store.config
        self._store = store
        self.master = config.ha_master_address
        self._tls = client_tls(config) if config.ha_tls_enable else None
        self._patience = config.ha_housekeeping_interval / 1000
        self._closing = threading.Event()
        self._connection: HaConnection | None = None
        self._is_answered = False
        self.failure: RmqStoreError | None = None
        replica = store.replica
        self.progress = Progress(store.clock, lambda: replica.held, lambda: replica.newest)
        self._thread = threading.Thread(target=self._run, name="rmqstore-ha-follow", daemon=True)
        self._thread.start()

    def standing(self) -> Standing:
        """Return how far behind the master the store is."""
        return self.progress.standing()

    def stats(self) -> dict[str, object]:
        """Return metrics as JSON values."""
        return self.standing().stats()

    def close(self) -> None:
        """Stop following. What was received and is whole is in the store."""
        self._closing.set()
        connection = self._connection
        if connection is not None:
            connection.cut()
        self._thread.join()

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause, bad = _FIRST_PAUSE_S, 0
        told = ""
        while not self._closing.is_set():
            held = self._store.replica.end
            self._is_answered = has_ended = False
            try:
                self._follow()
                return
            except (ForkError, RefusedError) as error:
                self._stop(error)
                return
            except ReplicationError as error:
                bad = bad + 1 if self._store.replica.end == held else 1
                if bad >= _MOST_BAD_IN_A_ROW:
                    self._stop(error)
                    return
                text = str(error)
            except (BrokenStreamError, OSError) as error:
                text = f"{self.master}: {error}"
                has_ended = self.progress.is_following
            except Exception as error:
                self._stop(ReplicationError(f"The follower failed: {error!r}. Report this."))
                raise
            if self._closing.is_set():
                return
            if self._store.replica.end > held:
                pause = _FIRST_PAUSE_S
            if text != told:
                _log.warning(
                    "The master %s cannot be followed for now: %s. Trying again.",
                    self.master, text.rstrip("."),
                )  # fmt: skip
                told = text
            self.progress.connecting(text, answers=self._is_answered and not has_ended)
            self._closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _follow(self) -> None:
        host, _, port = self.master.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        connected = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
        self._is_answered = True
        with closing(HaConnection(connected, self._patience)) as connection:
            with suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            self._connection = connection
            if self._closing.is_set():
                connection.cut()
            try:
                if self._tls is not None:
                    connection.secure(self._tls, host)
                self.progress.connected()
                self._check_promotions()
                Session(connection, self._store, self.progress, self._closing).run()
            finally:
                self._connection = None

    def _check_promotions(self) -> None:
        """Refuse a master that lacks a promotion which this store's log has seen: a former one.

        The log itself is compared too (`Session`), but a former master can have all of it.

        Raises:
            ForkError: it is one.
            BrokenStreamError: its broker cannot be asked.
        """
        known, config = self._store.role.promotions, self._store.config
        if not known or not config.ha_master_remoting_address:
            return
        try:
            told = MasterBroker(config).promotions()
        except (OptionError, ServiceError, RemotingError) as error:
            raise BrokenStreamError(str(error)) from error
        if told[: len(known)] != known:
            raise ForkError(
                f"{self.master} is not the master of which this store holds a copy, or a former "
                f"one: another store was promoted at physical offset {known[-1].begin}, and its "
                "log does not know that. Follow the store that was promoted last. To keep this "
                "store's log aside and copy this master's from its beginning: `rmqstore follow "
                "--restart-from earliest`."
            )

    def _stop(self, error: RmqStoreError) -> None:
        if not self._closing.is_set():
            _log.error("The store no longer follows %s: %s", self.master, error)
        self.failure = error
        self.progress.stopped(str(error))
