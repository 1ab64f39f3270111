"""One connection of a follower to its master: asks for the log, compares, receives, reports.

A follower asks for the last bytes that it holds, and continues only if the master has the same.
So a master whose log has diverged is noticed at once. (Upstream: HAService.HAClient asks
from its end on, and never notices.)

It reports what it has after each change, and as a heartbeat. An observer repeats its first report:
a master takes any other as an acknowledgement.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import numpy as np

from rmqstore_spark.engine.append.replica import Replica
from rmqstore_spark.engine.append.stamped import MAX_UNIT_SIZE
from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import (
    OptionError,
    RefusedError,
    RemotingError,
    ReplicationError,
    ServiceError,
    StoreWriteError,
)
from rmqstore_spark.ha.connection import HaConnection
from rmqstore_spark.ha.follower_progress import Progress
from rmqstore_spark.ha.frames import FrameDecoder, ReceivedBytes, encode_report
from rmqstore_spark.ha.master_broker import MasterBroker
from rmqstore_spark.layout.spans import U1

_log = logging.getLogger(__name__)

_ROOM: Final = 4 << 20
_MOST: Final = MAX_UNIT_SIZE + _ROOM
_COMPARED: Final = 64 << 10
_RECEIVED_AT_ONCE: Final = 1 << 20
_LOOK_S: Final = 0.05
_QUIET_S: Final = 1.0
"""A master that sends a heartbeat, or nothing for so long, has sent all it has."""
_SILENT_CHECK_S: Final = 2.0
_RETRY_S: Final = 0.5
_RESTART: Final = (
    "To keep this store's log aside and copy the master's from its beginning: `rmqstore follow "
    "--restart-from earliest`."
)


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


class Incoming:
    """Bytes that were received and are not in the store yet.

    Attributes:
        size: their number.
    """

    def __init__(self) -> None:
        self._buffer: U1 = np.empty(0, np.uint8)
        self.size = 0

    @property
    def data(self) -> U1:
        """The bytes. They are not changed any more once `drop` was called."""
        return self._buffer[: self.size]

    @property
    def room(self) -> int:
        """How many bytes can be added before some should be dropped."""
        return (len(self._buffer) or _ROOM) - self.size

    def add(self, data: memoryview) -> None:
        """Add bytes, at most as many as there is room for."""
        if not len(self._buffer):
            self._buffer = np.empty(_ROOM, np.uint8)
        end = self.size + len(data)
        self._buffer[self.size : end] = np.frombuffer(data, np.uint8)
        self.size = end

    def drop(self, count: int) -> None:
        """Drop the first bytes, which are in the store; later ones are copied elsewhere.

        If nothing is dropped although there is no room, a record is larger: there is more room
        then.
        """
        if not count and self.room:
            return
        rest = self.data[count:]
        room = _ROOM if len(rest) < _ROOM else min(2 * len(rest), _MOST)
        self._buffer = np.empty(room, np.uint8)
        self._buffer[: len(rest)] = rest
        self.size = len(rest)


class BrokenStreamError(Exception):
    """The connection ended, or what came does not continue what came before: connect again."""


class ForkError(ReplicationError):
    """The master's log is not the one of which this store holds a copy."""


class Session:
    """Follows a master over one connection.

    Args:
        connection: to the master; the caller closes it.
        store: the store; its role is SLAVE.
        progress: notes what happens.
        closing: ends waiting when it is set.
    """

    def __init__(
        self,
        connection: HaConnection,
        store: StoreWriter,
        progress: Progress,
        closing: threading.Event,
    ) -> None:
        config = store.config
        self._connection = connection
        self._store = store
        self._replica = store.replica
        self._progress = progress
        self._closing = closing
        self._patience = config.ha_housekeeping_interval / 1000
        self._decoder = FrameDecoder()
        self._incoming = Incoming()
        self._log: PublishedLog | None = None
        store.replica.rewind()
        self._asked = self._first_report()
        self._next = self._asked
        self._is_checked = False
        self._is_told = False
        self._is_waiting = False
        self._silent_since: float | None = None
        self._reporter = Reporter(
            connection,
            store.replica,
            self._asked,
            acknowledge=config.ha_acknowledge,
            interval=config.ha_send_heartbeat_interval / 1000,
        )

    def run(self) -> None:
        """Receive the log until the connection ends.

        Raises:
            BrokenStreamError: connect again.
            ForkError: the master's log cannot be followed.
            ReplicationError: the master sent something that is not a log.
            RefusedError: the store has failed or is closed.
        """
        try:
            self._replica.reconnected()
            self._receive()
        except StoreWriteError as error:
            raise BrokenStreamError(str(error)) from error
        finally:
            self._reporter.close()
            if self._log is not None:
                self._log.close()

    # ---- receiving -------------------------------------------------------------------------------

    def _receive(self) -> None:
        buffer = memoryview(bytearray(_RECEIVED_AT_ONCE))
        heard, has_come = time.monotonic(), False
        self._connection.settimeout(_LOOK_S)
        while not self._closing.is_set():
            try:
                count = self._connection.recv_into(buffer)
            except TimeoutError:
                self._store_received()
                silent = time.monotonic() - heard
                is_quiet = self._silent_since is not None or silent > _QUIET_S
                if is_quiet and self._replica.held == self._replica.end:
                    self._progress.waits()
                self._check_silence()
                if silent > self._patience:
                    raise BrokenStreamError(
                        f"the master sent nothing for {silent:.0f} s (haHousekeepingInterval)"
                    ) from None
                continue
            except OSError as error:
                raise BrokenStreamError(f"the connection broke: {error}") from error
            if not count:
                raise BrokenStreamError(
                    "the master closed the connection"
                    if has_come
                    else "the master closed the connection before it sent anything: see its log. "
                    "Slaves connect to listenPort + 1 of a broker"
                )
            heard, has_come = time.monotonic(), True
            for piece in self._decoder.feed(buffer[:count]):
                self._take(piece)
            if count < _RECEIVED_AT_ONCE:
                self._store_received()

    def _take(self, piece: ReceivedBytes) -> None:
        if not self._is_checked and self._replica.is_empty:
            self._begin_at(piece)
        if piece.offset != self._next:
            self._refuse_place(piece.offset)
        data = piece.data
        if not len(data):
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            return
        self._silent_since = None
        self._progress.arrived()
        self._next = piece.offset + len(data)
        if not self._is_checked:
            data = self._compare(piece)
        while len(data):
            part = data[: self._incoming.room]
            self._incoming.add(part)
            data = data[len(part) :]
            if not self._incoming.room:
                self._store_received()

    def _store_received(self) -> None:
        """Store what is whole. Wait while the store has no room for it."""
        incoming, end = self._incoming, self._replica.end
        while incoming.size:
            try:
                count = self._replica.append(incoming.data)
            except RefusedError as error:
                if self._store.state in ("FAILED", "CLOSED"):
                    raise
                if not self._is_waiting:
                    self._is_waiting = True
                    _log.warning("What the master sent cannot be stored yet: %s", error)
                if self._closing.wait(_RETRY_S):
                    return
                continue
            incoming.drop(count)
            self._is_waiting = False
            if count:
                self._progress.took(count)
            if self._replica.end > end:
                self._reporter.stored()
            return

    # ---- the beginning ---------------------------------------------------------------------------

    def _first_report(self) -> int:
        """Return what to ask for: the last bytes that are held, or where to begin."""
        replica, begin = self._replica, self._store.config.ha_from
        if not replica.is_empty:
            last = replica.end - 1
            return max(last - last % replica.segment_size, replica.end - _COMPARED, 1)
        if begin == "latest":
            return 0  # a broker takes this for the beginning of its last segment
        return self._earliest() if begin == "earliest" else int(begin) or 1

    def _earliest(self) -> int:
        """Return where the master's log begins, or 1, which a broker only has before it expires."""
        config = self._store.config
        if not config.ha_master_remoting_address:
            return 1
        try:
            return MasterBroker(config).log_begin() or 1
        except (OptionError, ServiceError, RemotingError) as error:
            raise BrokenStreamError(str(error)) from error

    def _begin_at(self, piece: ReceivedBytes) -> None:
        """Let an empty store begin where the master does."""
        asked, offset = self._asked, piece.offset
        if asked > 1 and offset != asked:
            raise ForkError(
                f"The master does not send its log from physical offset {asked} (haFrom), but "
                f"from {offset}."
            )
        self._next = offset
        if not len(piece.data):
            return
        if offset == asked == 1:
            # Byte 0 of a log is always 0: no record has more than 16 MiB.
            self._incoming.add(memoryview(b"\0"))
        else:
            self._replica.begin_at(offset)
        self._is_checked = True
        self._progress.following()

    def _compare(self, piece: ReceivedBytes) -> memoryview:
        """Compare bytes with those that are held; return the rest, which is new."""
        if self._log is None:
            self._log = self._store.published_log()
        end = self._log.end
        stop = min(piece.offset + len(piece.data), end)
        held = self._log.read(piece.offset, stop)
        sent = bytes(piece.data[: stop - piece.offset])
        if held != sent:
            at = next(
                n for n, (one, other) in enumerate(zip(held, sent, strict=True)) if one != other
            )
            raise ForkError(
                f"The master's log differs at physical offset {piece.offset + at} from this copy, "
                f"and this store holds a log up to {end}. The master lost its disk and began "
                "again, or another one took its place, or this store was written to. "
                f"{_RESTART}"
            )
        if stop == end:
            self._is_checked = True
            self._log.close()
            self._log = None
            self._progress.following()
            self._reporter.stored()
        return piece.data[stop - piece.offset :]

    def _check_silence(self) -> None:
        """Stop if a master has nothing where this store has records."""
        since = self._silent_since
        if self._is_checked or since is None or time.monotonic() - since < _SILENT_CHECK_S:
            return
        if self._replica.is_empty:
            self._tell_of_nothing()
            return
        raise ForkError(
            f"The master has nothing at physical offset {self._next}, and this store holds a log "
            f"up to {self._replica.end}. The master's log ends before that, as after it lost its "
            f"disk or came back with an older copy; or it begins after that. {_RESTART}"
        )

    def _tell_of_nothing(self) -> None:
        if not self._is_told:
            self._is_told = True
            meaning = (
                f"The master sends nothing from physical offset {self._asked} onwards. Its log is "
                "empty or begins later; in the second case set haFrom to where it begins "
                "(commitLogMinOffset of `mqadmin brokerStatus`), or to latest."
            )
            _log.warning("%s", meaning)
            self._progress.silent(meaning)

    def _refuse_place(self, offset: int) -> None:
        if not self._is_checked and self._next == self._asked:
            raise ForkError(
                f"The master does not send its log from physical offset {self._asked}, but from "
                f"{offset}, and this store holds a log up to {self._replica.end}. Either the "
                f"master has removed the segments in between, or it lost the end of its log. "
                f"{_RESTART}"
            )
        raise BrokenStreamError(f"the master sent physical offset {offset}; expected {self._next}")
