"""Streams of blocks that a store process puts, or stages: many in flight, each acknowledged.

    with client.put_stream() as stream:
        for block in blocks:
            stream.send(block)        # returns before the acknowledgement
    # every block is acknowledged here, or an error was raised

Blocks are kept until they are acknowledged, at most a window of bytes. All is done in the thread
that sends: it takes the acknowledgements that have come after each block, and waits for more when
the window is full.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple
from uuid import uuid4

from rmqstore_spark.base.types import StageInfo
from rmqstore_spark.client.connection import FAILURES, Connection
from rmqstore_spark.client.contact import backoff
from rmqstore_spark.client.link import Link
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import TRANSIENT, Acknowledgement, Code

DEFAULT_WINDOW: Final = 8 << 20
_SMALL: Final = 1 << 12
_MAX_ACKNOWLEDGEMENT: Final = 64 << 20
_MAX_INFO: Final = 64 << 10
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
        self._is_closed = False
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
        if self._waiting and self._in_flight + len(view) > self._window:
            self._advance(lambda link: self._wait_for_room(link, len(view)))
        number = self._count
        self._count += 1
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(_Sent(number & _NUMBERS, view))
        self._in_flight += len(view)
        self._advance(lambda _: None)
        return number

    def drain(self) -> None:
        """Wait until all blocks are acknowledged.

        Raises:
            RefusedError, ServiceError: as for `send`.
        """
        self._advance(self._wait_for_all)

    @property
    def has_unanswered(self) -> bool:
        """Whether blocks are not acknowledged: those that were sent may be stored or not."""
        return bool(self._waiting)

    def close(self) -> None:
        """End the stream. Blocks without an acknowledgement may be in the store or not."""
        self._is_closed = True
        self._drop_link()

    # ---- one connection, or several ------------------------------------------------------------

    def _advance(self, step: Callable[[Link], None]) -> None:
        """Send what is not sent, and take a step; do so again on another connection if that helps.

        Args:
            step: takes acknowledgements that it waits for.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise ServiceError(f"The stream to {self._connection.endpoint} is closed.")
            try:
                if self._link is None:
                    self._link = self._open_link()
                self._write(self._link)
                step(self._link)
                return
            except FAILURES as error:
                failure = self._connection.told(error)
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

    def _write(self, link: Link) -> None:
        while self._written < len(self._waiting):
            sent = self._waiting[self._written]
            self._written += 1
            self._send(link, Code.BLOCK, sent.data, sent.number)
            # A small one that is alone has no answer yet; a large one can be refused meanwhile.
            if len(self._waiting) > 1 or len(sent.data) > _SMALL:
                self._take_ready(link)

    def _send(self, link: Link, code: Code, data: Any = b"", number: int = 0) -> None:
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

        self._written = 0
        try:
            return self._connection.repeated(begin)
        except RmqStoreError as failure:
            self._fail(failure)
            raise

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _leave_link(self) -> None:
        """Let other calls use the connection, on which the stream has ended, and close this."""
        if self._link is not None:
            self._connection.give_back(self._link)
            self._link = None
        self.close()

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
        if time.monotonic() - self._since > self._connection.timeout_s:
            raise self._stalled()

    def _stalled(self) -> RmqStoreError:
        """Return the error of a store process that acknowledges nothing; it is not tried again."""
        self._fail(self._connection.too_late("acknowledge a block"))
        assert self._failure is not None  # noqa: S101 - it was just set
        return self._failure

    # ---- acknowledgements ----------------------------------------------------------------------

    def _wait_for_all(self, link: Link) -> None:
        while self._waiting:
            self._take(self._awaited(link))

    def _wait_for_room(self, link: Link, size: int) -> None:
        while self._waiting and self._in_flight + size > self._window:
            self._take(self._awaited(link))

    def _take_ready(self, link: Link) -> None:
        """Take the acknowledgements that are here."""
        while (size := link.ready_head()) is not None:
            self._take(self._body(link, size))

    def _awaited(self, link: Link) -> bytes:
        """Wait for the next answer, and return its body."""
        try:
            return self._body(link, link.head(self._since + self._connection.timeout_s))
        except TimeoutError:
            size = link.ready_head()  # it may have come long ago, while the caller was busy
            if size is None:
                raise self._stalled() from None
            return self._body(link, size)

    def _body(self, link: Link, size: int) -> bytes:
        if size > _MAX_ACKNOWLEDGEMENT:
            raise MessageError(f"an acknowledgement has {size} bytes")
        try:
            return bytes(link.body(size, time.monotonic() + self._connection.timeout_s))
        except TimeoutError:
            raise self._stalled() from None

    def _take(self, body: bytes) -> None:
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


class PutStream(BlockStream):
    """Appends blocks to the log. Each block is as durable as the store is configured to make it.

    If the store refuses a block because it is overloaded or temporarily unavailable, the stream
    sends the block again after a pause, and all later blocks in their order. A block that is open,
    because the flush that covered it failed, is not sent again: it ends the stream.

    Args:
        connection: the connection to the store process.
        results: acknowledge each block with the offsets of its records.
        resends: if the connection breaks, send all blocks again that were not acknowledged. Those
            that the store had appended by then are stored twice.
        halves: put the records as half messages of transactions.
        max_in_flight_bytes, on_ack: as for `BlockStream`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        results: bool = False,
        resends: bool = False,
        halves: bool = False,
        max_in_flight_bytes: int = DEFAULT_WINDOW,
        on_ack: Callable[[Acknowledgement], None] | None = None,
    ) -> None:
        self._newest: Acknowledgement | None = None
        self._is_asked = self._is_finished = False
        command = StreamCommand("half" if halves else "put", results)
        super().__init__(
            connection,
            command,
            max_in_flight_bytes,
            on_ack,
            begins_again=True,
            resends=resends,
        )

    def __enter__(self) -> PutStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._is_closed:
                self.finish()
        finally:
            self.close()

    def put(self, data: Any) -> Acknowledgement:
        """Send a block and wait for its acknowledgement.

        Returns:
            The acknowledgement of a block that is stored, or that can never be stored.

        Raises:
            RefusedError: the store accepts nothing at present, or refused an earlier block; or it
                failed while this block was in flight (`is_open`).
            ServiceError: the store process cannot be reached, or is stalled.
        """
        if self._waiting:
            self.drain()
        self._is_asked = True
        try:
            self.send(data)
            self.drain()
        finally:
            self._is_asked = False
        assert self._newest is not None  # noqa: S101 - `drain` waited for it
        return self._newest

    def finish(self) -> int:
        """Wait for all acknowledgements, end the stream, and return how many records are stored."""
        if not self._is_finished:
            self.drain()
            self._is_finished = True
            if not self._count:
                self._advance(self._ask_whether_accepted)
                self._leave_link()
                return self.rows
            with suppress(*FAILURES):  # everything is stored: if it is not told, the link is closed
                assert self._link is not None  # noqa: S101 - `drain` has opened it
                self._send(self._link, Code.FINISH)
                self._leave_link()
            self.close()
        return self.rows

    def _ask_whether_accepted(self, link: Link) -> None:
        """End a stream without blocks: its end is answered, as no block was."""
        self._send(link, Code.FINISH)
        self._awaited(link)

    def _acknowledged(self, ack: Acknowledgement) -> None:
        self._newest = ack
        if not self._is_asked or ack.is_open:
            super()._acknowledged(ack)


class StageStream(BlockStream):
    """Writes a stage: records that wait, outside the log, for a commit.

    Args:
        connection: the connection to the store process.
        stage_id: 32 hex digits; generated if None.
        max_in_flight_bytes: as for `BlockStream`.
    """

    def __init__(
        self,
        connection: Connection,
        stage_id: str | None = None,
        *,
        max_in_flight_bytes: int = DEFAULT_WINDOW,
    ) -> None:
        self.stage_id = stage_id or uuid4().hex
        self._info: StageInfo | None = None
        command = StreamCommand("stage", stage_id=self.stage_id)
        super().__init__(connection, command, max_in_flight_bytes)

    def __enter__(self) -> StageStream:
        return self

    def __exit__(self, *_: object) -> None:
        # An unfinished stage is discarded with its records.
        self.close()

    def finish(self) -> StageInfo:
        """End the stage; return its description for the commit.

        Raises:
            RefusedError, ServiceError: as for `send`.
        """
        if self._info is None:
            self.drain()
            self._since = time.monotonic()
            self._advance(self._ask_info)
            self._leave_link()
        assert self._info is not None  # noqa: S101 - it was waited for
        return self._info

    def _ask_info(self, link: Link) -> None:
        self._send(link, Code.FINISH)
        self._info = decode(StageInfo, self._awaited(link), most=_MAX_INFO)
