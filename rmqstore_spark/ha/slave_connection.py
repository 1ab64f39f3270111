"""One connection of a slave: a thread sends it the log, and another one takes its reports.

    first report 0        from the beginning of the last segment
    first report 1        from the log's first byte, also if that is later (byte 0 is always 0)
    any other             from there on, if the log holds that
    a later report        what the slave has: no more than it was sent, and never less than before

(Upstream: HAConnection, which takes any first report, and any later one up to the log's end.)
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from rmqstore_spark.engine.log.published_log import PublishedLog
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.ha.connection import HaConnection
from rmqstore_spark.ha.frames import HEADER_SIZE, ReportDecoder, encode_header

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 1 << 20
_READ_AT_ONCE: Final = 64 << 10
_SEND_BUFFER: Final = 4 << 20


class FrameSender:
    """Sends frames over one connection. Used by one thread at a time.

    Args:
        log: the log.
        connection: to the slave.
        most: most bytes of the log in a frame (`haTransferBatchSize`).
    """

    def __init__(self, log: PublishedLog, connection: HaConnection, most: int) -> None:
        self._log = log
        self._connection = connection
        self._most = most
        self._at_once = max(1, _AT_ONCE // most) * most
        self._buffer = memoryview(b"")

    def sendable(self, at: int) -> int:
        """Return up to which offset `send` can send from an offset on.

        That is the offset itself at the end of the log, and at most the end of its segment.

        Raises:
            SegmentExpiredError: the segment is gone.
        """
        return at + min(self._log.readable(at), self._at_once)

    def send(self, at: int, end: int) -> None:
        """Send the log between two offsets, which `sendable` has allowed.

        Raises:
            SegmentExpiredError: the segment is gone.
            TimeoutError: the slave did not take it.
            OSError: the connection broke.
        """
        if self._connection.is_encrypted:
            self._send_copy(at, end)
            return
        deadline = self._connection.deadline()
        with self._log.segment(at) as (descriptor, begin):
            for offset, size in self._frames(at, end):
                self._connection.sendall(encode_header(offset, size), more=True)
                sent = self._connection.send_file(descriptor, offset - begin, size, deadline)
                if sent < size:
                    raise self._log.shorter(at)

    def _send_copy(self, at: int, end: int) -> None:
        """Send many frames with one read and one write."""
        if not self._buffer:
            room = self._at_once // self._most * (HEADER_SIZE + self._most)
            self._buffer = memoryview(bytearray(room))
        bodies, place = [], 0
        for offset, size in self._frames(at, end):
            body = place + HEADER_SIZE
            self._buffer[place:body] = encode_header(offset, size)
            place = body + size
            bodies.append(self._buffer[body:place])
        self._log.read_into(at, bodies)
        self._connection.sendall(self._buffer[:place])

    def _frames(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        for offset in range(at, end, self._most):
            yield offset, min(end - offset, self._most)


class SlaveConnection:
    """Serves a slave until the connection ends.

    Args:
        connection: to the slave; closed at the end.
        peer: its address, for messages.
        store: the store.
        ended: called with this object when nothing is open any more.
        tls: the certificates for it; None: it must be plain.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        store: StoreWriter,
        ended: Callable[[SlaveConnection], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = store.config
        self.peer = peer
        self._tls = tls
        self._log = store.published_log()
        self._heartbeat = config.ha_send_heartbeat_interval / 1000
        self._patience = config.ha_housekeeping_interval / 1000
        self._store = store
        self._slave = store.slaves.join()
        self._slave.is_observer = tls is not None  # no put waits for it before the handshake
        self._published = store.published
        self._asked = threading.Event()
        self._first = -1
        self._ended = ended
        self._ending = threading.Lock()
        self._closing = False
        self._users = 2  # the threads
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._connection = HaConnection(connection, self._patience)
        self._frames = FrameSender(self._log, self._connection, config.ha_transfer_batch_size)
        self._sender = threading.Thread(target=self._send_all, name="rmqstore-ha-send", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="rmqstore-ha-read", daemon=True)

    def start(self) -> None:
        """Start to serve the slave.

        Raises:
            RuntimeError: there are no more threads.
        """
        for thread in (self._sender, self._reader):
            try:
                thread.start()
            except RuntimeError:
                self._end("it cannot be served")
                self._leave()
                if thread is self._sender:
                    self._leave()
                raise

    def close(self) -> None:
        """End the connection."""
        self._end("")
        self._sender.join()
        self._reader.join()

    def _leave(self) -> None:
        """Let the last of the two threads close what both use: the slave may never come back."""
        with self._ending:
            self._users -= 1
            if self._users:
                return
        self._connection.close()
        self._log.close()
        self._ended(self)

    def _end(self, cause: str) -> None:
        """End the connection from one of its threads."""
        with self._ending:
            if self._closing:
                return
            self._closing = True
        if cause:
            _log.warning("The connection of the slave %s ends: %s.", self.peer, cause)
        self._slave.leave()
        self._connection.cut()
        self._asked.set()
        self._published.wake()

    # ---- reports ---------------------------------------------------------------------------------

    def _read_all(self) -> None:
        try:
            refusal = self._connection.accept(self._tls)
            if not refusal:
                self._slave.is_observer = False
                refusal = self._take_reports()
            self._end(refusal)
        except TimeoutError:
            self._end(f"it sent nothing for {self._patience:.0f} s (haHousekeepingInterval)")
        except OSError as error:
            self._end(f"it broke ({error})")
        finally:
            self._end("")
            self._leave()

    def _take_reports(self) -> str:
        """Take reports until the connection must end; return why."""
        reports = ReportDecoder()
        buffer = memoryview(bytearray(_READ_AT_ONCE))
        while not self._closing and (count := self._connection.recv_into(buffer)):
            offsets = reports.feed(bytes(buffer[:count]))
            fault = self._check_deviation(offsets) if offsets else ""
            if fault:
                return fault
        return "the slave closed it"

    def _check_deviation(self, offsets: list[int]) -> str:
        """Take reports; return why the connection must end, or ""."""
        slave = self._slave
        if self._first < 0:
            first = offsets.pop(0)
            if first < 0:
                return f"its first report is negative ({first})"
            if first <= self._log.end:
                slave.report(first)
            self._first = first
            self._asked.set()
        others = [offset for offset in offsets if offset != self._first]
        if not others:
            if offsets and slave.held <= self._first:
                slave.is_observer = slave.sent > self._first  # or it has stored nothing yet
            return ""
        if max(others) > slave.sent:
            return (
                f"it reports to have the log up to {max(others)}, and was sent it up to "
                f"{slave.sent}"
            )
        if min(others) < slave.held:
            return f"it reports to have the log up to {min(others)}, and had it up to {slave.held}"
        slave.is_observer = False
        slave.report(others[-1])
        return ""

    # ---- the log ---------------------------------------------------------------------------------

    def _send_all(self) -> None:
        try:
            if not self._asked.wait(self._patience):
                self._end("it reported nothing")
                return
            self._send_from(self._begin())
        except TimeoutError:
            self._end(f"it took nothing for {self._patience:.0f} s (haHousekeepingInterval)")
        except OSError as error:
            self._end(f"it broke ({error})")
        except SegmentExpiredError as error:
            self._end(str(error))
        finally:
            self._end("")
            self._leave()

    def _begin(self) -> int:
        """Return from where to send, by the slave's first report."""
        log, first = self._log, self._first
        if first == 0:
            return max(log.end - log.end % log.segment_size, log.begin)
        if first == 1:
            return max(log.begin, 1)
        # What the log does not hold: a heartbeat with another offset than asked shows that.
        return min(max(first, log.begin), log.end)

    def _send_from(self, at: int) -> None:
        slave = self._slave
        if self._first > 1 and at != self._first:
            _log.warning(
                "The slave %s asks for the log from %d on, and there is only %d to %d.",
                self.peer, self._first, self._log.begin, self._log.end,
            )  # fmt: skip
            self._connection.sendall(encode_header(at, 0))
        slave.sent = at
        size = self._log.segment_size
        while not self._closing:
            start = at - at % size
            with self._store.reading(f"commitlog/{start:020}"):
                at = self._send_until(start + size, at)

    def _send_until(self, limit: int, at: int) -> int:
        """Send from an offset to the end of its segment; return where the sending has stopped."""
        told = time.monotonic()
        while at < limit and not self._closing:
            end = self._frames.sendable(at)
            if end > at:
                self._slave.sent = end  # before the slave can report it
                self._frames.send(at, end)
                at, told = end, time.monotonic()
                continue
            left = told + self._heartbeat - time.monotonic()
            if left <= 0:
                self._connection.sendall(encode_header(at, 0))
                told = time.monotonic()
            elif not self._closing:
                self._log.wait_beyond(at, left)
        return at
