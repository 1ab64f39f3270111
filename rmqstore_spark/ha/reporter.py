"""Reports to a master, from a thread, what a slave has: after each change, and as a heartbeat.

An observer repeats its first report. A master takes any other report as an acknowledgement.
"""

from __future__ import annotations

import threading

from rmqstore_spark.engine.append.replica import Replica
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.ha.connection import HaConnection
from rmqstore_spark.ha.frames import encode_report


class Reporter:
    """Sends the reports of one connection, until it is closed. Ends the connection if it cannot.

    Args:
        connection: to the master.
        replica: the copy of its log.
        first: the first report; sent at once.
        acknowledge: `haAcknowledge`.
        interval: seconds between heartbeats.
    """

    def __init__(
        self,
        connection: HaConnection,
        replica: Replica,
        first: int,
        *,
        acknowledge: str,
        interval: float,
    ) -> None:
        self._connection = connection
        self._replica = replica
        self._first = first
        self._acknowledge = acknowledge
        self._interval = interval
        self._changed = threading.Condition()
        self._is_checked = False
        self._is_due = False
        self._closing = False
        connection.sendall(encode_report(first))
        self._thread = threading.Thread(target=self._run, name="rmqstore-ha-report", daemon=True)
        self._thread.start()

    def stored(self) -> None:
        """Note that more is in the store, which is known to be the master's."""
        if self._acknowledge == "false":
            return
        with self._changed:
            self._is_checked = self._is_due = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_due or self._closing, self._interval)
                    if self._closing:
                        return
                    self._is_due = False
                self._connection.sendall(encode_report(self._held()))
        except (OSError, StoreWriteError):  # the store remembers the second one
            self._connection.cut()

    def _held(self) -> int:
        if not self._is_checked:
            return self._first
        return self._replica.flush() if self._acknowledge == "true" else self._replica.end
