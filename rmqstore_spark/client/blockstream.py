"""Sends blocks to a store process: many in flight at once, each acknowledged.

Blocks are kept until they are acknowledged, at most a window of bytes. All is done in the thread
that sends: it takes the acknowledgements that have come after each block, and waits for more when
the window is full.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rmqstore_spark.client.connection import Connection
from rmqstore_spark.client.link import Link
from rmqstore_spark.client.pauses import backoff
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.wire.codec import MessageError, encode
from rmqstore_spark.wire.failures import TRANSIENT
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import Acknowledgement, Code

_MAX_ACKNOWLEDGEMENT: Final = 64 << 20
_NUMBERS: Final = (1 << 31) - 1


class _Sent(NamedTuple):
    """A block in flight.

    Attributes:
        number: the one by which it is acknowledged, of 31 bits.
    """

    number: int
    data: memoryview


class BlockStream:
    """A stream of blocks, for puts or for a stage. Only one thread may use it at a time.

    Args:
        connection: calls the store process.
        command: the purpose of the stream.
        max_in_flight_bytes: maximum bytes of blocks in flight. A single block may be larger.
        on_ack: called with each acknowledgement, in order, while the stream is used; it must not
            use the stream itself.
        begins_again: whether blocks are sent again after a transient refusal.
        resends: whether they are also sent again after the connection broke, although the store
            may have them.

    Attributes:
        rows: number of acknowledged records.
    """

    def __init__(
        self,
        connection: Connection,
        command: StreamCommand,
        max_in_flight_bytes: int,
        on_ack: Callable[[Acknowledgement], None] | None = None,
        *,
        begins_again: bool = False,
        resends: bool = False,
    ) -> None:
        self.rows = 0
        self._connection = connection
        self._command = encode(command)
        self._window = max_in_flight_bytes
        self._on_ack = on_ack
        self._attempts = connection.retries if begins_again else 0
        self._resends = resends
        self._attempts_left = self._attempts
        self._waits = backoff()
        self._waiting: deque[_Sent] = deque()
        self._written = 0  # of those that wait, on this connection
        self._in_flight = 0
        self._count = 0
        self._since = time.monotonic()
        self._failure: RmqStoreError | None = None
        self._last_words: bytes | None = None
        self._is_finishing = self._is_finish_sent = self._is_closed = False
        self._link: Link | None = None  # until it is open
        self._link = self._open_link()

    def send(self, data: Any) -> int:
        """Send a block, waiting while the window is full.

        Acknowledgements are taken by this method and `drain` alone. A stream that is left alone for
        `streamIdleTimeout` of the store process is ended.

        Args:
            data: bytes-like, contiguous encoded records; must not change until it is acknowledged.

        Returns:
            The block's number.

        Raises:
            RefusedError: the store refused this block or an earlier one.
            ServiceError: the store process cannot be reached, or is stalled.
        """
        view = memoryview(data).cast("B")
        self._advance(lambda: not self._waiting or self._in_flight + len(view) <= self._window)
        number = self._count
        sent = _Sent(number & _NUMBERS, view)
        self._count += 1
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(sent)
        self._in_flight += len(view)
        self._advance(lambda: True)
        return number

    def drain(self) -> None:
        """Wait until all blocks are acknowledged.

        Raises:
            RefusedError, ServiceError: as for `send`.
        """
        self._advance(lambda: not self._waiting)

    @property
    def is_finished(self) -> bool:
        """Whether the stream was finished, with all blocks acknowledged."""
        return self._last_words is not None

    def close(self) -> None:
        """End the stream. Blocks without an acknowledgement may be in the store or not."""
        self._is_closed = True
        self._drop_link()

    def _finish(self) -> bytes:
        """Announce the end of the stream, and return the final answer."""
        self.drain()
        self._is_finishing = True
        self._since = time.monotonic()
        self._advance(lambda: self._last_words is not None)
        assert self._last_words is not None  # noqa: S101 - it was waited for
        if self._link is not None:
            self._connection.give_back(self._link)
            self._link = None
        return self._last_words

    # ---- one connection, or several ------------------------------------------------------------

    def _advance(self, is_done: Callable[[], bool]) -> None:
        """Send what is not sent, and take acknowledgements until a condition holds."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise ServiceError(f"The stream to {self._connection.endpoint} is closed.")
            try:
                with self._connection.own_errors():
                    self._advance_once(is_done)
                return
            except MessageError as error:
                self._fail(self._connection.nonsense(error))
            except RmqStoreError as failure:
                if not (self._may_pass(failure) and self._attempts_left > 0):
                    self._fail(failure)
            except BaseException:
                self.close()  # a part of a block may be sent: nothing can follow it
                raise
            self._drop_link()
            if self._failure is None:
                self._attempts_left -= 1
                time.sleep(next(self._waits))
                self._since = time.monotonic()

    def _advance_once(self, is_done: Callable[[], bool]) -> None:
        if self._link is None:
            self._link = self._open_link()
        link = self._link
        while self._written < len(self._waiting):
            sent = self._waiting[self._written]
            self._written += 1
            self._send(link, Code.BLOCK, sent.data, sent.number)
            self._take_ready(link)
        if self._is_finishing and not self._waiting and not self._is_finish_sent:
            self._is_finish_sent = True
            self._send(link, Code.FINISH, b"")
        while not is_done():
            self._take(link, self._awaited(link))

    def _send(self, link: Link, code: Code, data: Any, number: int = 0) -> None:
        try:
            link.send(code, data, self._check, number)
        except OSError:
            self._take_ready(link)  # what came before the end, and why it came
            raise

    def _open_link(self) -> Link:
        """Begin a stream on a connection; what was sent on another one is sent again.

        If that fails, after all tries, the stream has failed.
        """

        def begin() -> Link:
            link = self._connection.take(time.monotonic() + self._connection.timeout_s)
            self._since = time.monotonic()
            try:
                link.send(Code.BLOCKS, self._command, self._check)
            except BaseException:
                link.close()
                raise
            return link

        self._written, self._is_finish_sent = 0, False
        try:
            return self._connection.repeated(begin)
        except RmqStoreError as failure:
            self._fail(failure)
            raise

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _fail(self, failure: RmqStoreError) -> None:
        """Keep the first failure."""
        if self._failure is None:
            self._failure = failure

    def _may_pass(self, failure: RmqStoreError) -> bool:
        """Return whether the blocks in flight can be sent again."""
        if self._failure is not None:
            return False
        if isinstance(failure, RefusedError):
            return failure.status in TRANSIENT and not failure.is_open
        return self._resends and isinstance(failure, ServiceError) and failure.can_pass

    def _check(self, _sent: int) -> None:
        """Look what the store process says, while it does not take all."""
        if self._link is not None:
            self._take_ready(self._link)
        if self._is_late:
            raise self._stalled()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._since > self._connection.timeout_s

    def _stalled(self) -> RmqStoreError:
        """Return the error of a store process that acknowledges nothing; it is not tried again."""
        self._fail(self._connection.too_late("acknowledge a block"))
        assert self._failure is not None  # noqa: S101 - it was just set
        return self._failure

    # ---- acknowledgements ----------------------------------------------------------------------

    def _take_ready(self, link: Link) -> None:
        """Take the acknowledgements that are here."""
        while (found := link.ready_head()) is not None:
            self._take(link, found)

    def _awaited(self, link: Link) -> tuple[Command, int]:
        """Wait for an acknowledgement, or the final answer."""
        try:
            return link.head(self._since + self._connection.timeout_s)
        except TimeoutError:
            found = link.ready_head()  # it may have come long ago, while the caller was busy
            if found is None:
                raise self._stalled() from None
            return found

    def _take(self, link: Link, found: tuple[Command, int]) -> None:
        """Take an acknowledgement, or the final answer."""
        _, size = found
        if size > _MAX_ACKNOWLEDGEMENT:
            raise MessageError(f"an acknowledgement has {size} bytes")
        try:
            body = bytes(link.body(size, time.monotonic() + self._connection.timeout_s))
        except TimeoutError:
            raise self._stalled() from None
        if self._is_finish_sent and not self._waiting and self._last_words is None:
            self._last_words = body
            return
        ack = Acknowledgement.from_bytes(body)
        if not self._written or self._waiting[0].number != ack.number:
            raise MessageError(f"block {ack.number} is acknowledged out of order")
        if ack.status in TRANSIENT and not ack.is_open:
            raise RefusedError(ack.remark, ack.status)
        if self._on_ack is not None:
            self._on_ack(ack)
        self._in_flight -= len(self._waiting.popleft().data)
        self._written -= 1
        self._since = time.monotonic()
        self._attempts_left = self._attempts
        self.rows += ack.rows
        self._acknowledged(ack)

    def _acknowledged(self, ack: Acknowledgement) -> None:
        """Handle an acknowledgement.

        Raises:
            RefusedError: the block is not stored as it should be.
        """
        if not ack.is_ok:
            raise RefusedError(ack.remark, ack.status, is_open=ack.is_open)
