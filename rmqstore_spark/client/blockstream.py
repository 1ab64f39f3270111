"""Sends blocks to a store process: many in flight at once, each acknowledged.

The caller's thread sends, a second thread takes acknowledgements, and a third ends a stream that
makes no progress. Blocks are kept until they are acknowledged, at most a window of bytes.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import pyarrow as pa
from pyarrow import flight

from rmqstore_spark.client.connection import Connection
from rmqstore_spark.client.hangup import hang_up
from rmqstore_spark.client.pauses import backoff
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError
from rmqstore_spark.wire.codec import MessageError, encode
from rmqstore_spark.wire.failures import TRANSIENT
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import FINISH, Acknowledgement, block_batch, number_bytes

__all__ = ["BlockStream"]

_WATCH_SECONDS: Final = 0.25
_JOIN_SECONDS: Final = 5.0
_CANCEL_SECONDS: Final = 1.0


class _Sent(NamedTuple):
    """A block in flight."""

    number: int
    batch: pa.RecordBatch
    size: int


class _Lane:
    """One stream of Flight. A `BlockStream` opens another to send blocks again.

    Attributes:
        has_ended: whether no more answers come.
        refusal: the transient refusal with which the store ended it, or None.
    """

    def __init__(self, writer: Any, reader: Any) -> None:
        self.writer = writer
        self.reader = reader
        self.has_ended = False
        self.refusal: RefusedError | None = None
        self._thread: threading.Thread | None = None

    def start(self, take: Callable[[_Lane], None]) -> None:
        """Start a thread that takes the answers."""
        name = "rmqstore-acknowledgements"
        self._thread = threading.Thread(target=take, args=(self,), name=name, daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Close it.

        Args:
            seconds: how long the store may take to end its side, though it has said all.
        """
        if not self.has_ended:
            self.reader.cancel()
        _join(self._thread)
        late = threading.Timer(seconds, self.reader.cancel)
        late.daemon = True
        late.start()
        # An error here was raised before, or the stream was abandoned.
        with suppress(flight.FlightError, pa.ArrowException):
            self.writer.close()
        late.cancel()
        late.join()


class BlockStream:
    """A stream of blocks, for puts or for a stage. Only one thread may use it at a time.

    Args:
        connection: the connection to the store process.
        command: the purpose of the stream.
        max_in_flight_bytes: maximum bytes of blocks in flight. A single block may be larger.
        on_ack: called with each acknowledgement, in order, from another thread.
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
        self._moved = threading.Condition()
        self._waiting: deque[_Sent] = deque()
        self._in_flight = 0
        self._count = 0
        self._since = time.monotonic()
        self._failure: RmqStoreError | None = None
        self._last_words: bytes | None = None
        self._is_finishing = self._is_closed = self._must_begin_again = False
        self._is_writing = False
        self._lane = self._open_lane()
        _open_streams.add(self)
        self._watcher = threading.Thread(target=self._watch, name="rmqstore-watch", daemon=True)
        self._watcher.start()

    def send(self, data: Any) -> int:
        """Send a block, waiting while the window is full.

        Args:
            data: bytes-like, contiguous encoded records; must not change until it is acknowledged.

        Returns:
            The block's number.

        Raises:
            RefusedError: the store refused this block or an earlier one.
            ServiceError: the store process cannot be reached, or is stalled.
        """
        batch = block_batch(data)
        size = batch.column(0).buffers()[2].size
        self._wait(lambda: not self._waiting or self._in_flight + size <= self._window)
        with self._moved:
            sent = _Sent(self._count, batch, size)
            self._count += 1
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(sent)
            self._in_flight += size
            lane = self._lane
        self._write(lane, lambda: _write_block(lane, sent))
        return sent.number

    def drain(self) -> None:
        """Wait until all blocks are acknowledged.

        Raises:
            RefusedError, ServiceError: as for `send`.
        """
        self._wait(lambda: not self._waiting)

    @property
    def is_finished(self) -> bool:
        """Whether the stream was finished, with all blocks acknowledged."""
        return self._is_finishing and self._lane.has_ended and self._failure is None

    def close(self) -> None:
        """End the stream. Blocks without an acknowledgement may be in the store or not."""
        with self._moved:
            if self._is_closed:
                return
            self._is_closed = True
            self._moved.notify_all()
        self._lane.close(self._connection.timeout_s)
        _join(self._watcher)

    def _finish(self) -> bytes | None:
        """Announce the end of the stream, and return the final answer."""
        self.drain()
        with self._moved:
            self._is_finishing = True
            self._since = time.monotonic()
            lane = self._lane
        # No `done_writing` here: if the connection breaks, the reading thread does the same, and
        # gRPC aborts the process if both do it at once.
        self._write(lane, lambda: lane.writer.write_metadata(FINISH))
        self._wait(lambda: lane.has_ended)
        return self._last_words

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, and send blocks again when necessary."""
        while True:
            with self._moved:
                self._moved.wait_for(lambda: self._failure or self._must_begin_again or condition())
                if self._failure is not None:
                    raise self._failure
                if not self._must_begin_again:
                    return
            self._begin_again()

    def _write(self, lane: _Lane, work: Callable[[], None]) -> None:
        self._is_writing = True
        try:
            work()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            with self._moved:
                # The reading thread learns why the stream was ended.
                self._moved.wait_for(
                    lambda: self._failure or lane.has_ended, timeout=self._connection.timeout_s
                )
                if not self._must_begin_again:
                    self._fail(self._connection.explained(error))
                if self._failure is not None:
                    raise self._failure from None
        finally:
            with self._moved:
                self._is_writing = False
                self._moved.notify_all()

    def _begin_again(self) -> None:
        """Send all unacknowledged blocks again on another stream, after a pause."""
        time.sleep(next(self._waits))
        with self._moved:
            self._must_begin_again = False
            self._attempts_left -= 1
            self._since = time.monotonic()
            waiting = list(self._waiting)
        self._lane.close(self._connection.timeout_s)
        self._lane = lane = self._open_lane()
        for sent in waiting:
            if self._must_begin_again:
                break
            self._write(lane, lambda: _write_block(lane, sent))  # noqa: B023 - called at once

    def _open_lane(self) -> _Lane:
        lane = _Lane(*self._connection.exchange(self._command))
        lane.start(self._take)
        return lane

    def _fail(self, failure: RmqStoreError) -> None:
        """Keep the first failure. The caller holds the lock."""
        if self._failure is None:
            self._failure = failure
        self._moved.notify_all()

    # ---- the other threads ---------------------------------------------------------------------

    def _take(self, lane: _Lane) -> None:
        """Take acknowledgements until the stream ends, or blocks must be sent again."""
        failure: RmqStoreError | None = None
        try:
            while lane.refusal is None:
                metadata = lane.reader.read_chunk().app_metadata
                if metadata is not None:
                    self._took(lane, metadata.to_pybytes())
            lane.reader.cancel()
        except StopIteration:
            if not self._is_finishing:
                failure = ServiceError(
                    f"The store process at {self._connection.endpoint} closed a stream of "
                    "blocks. See its log."
                )
        except MessageError as error:
            failure = self._connection.nonsense(error)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            failure = self._connection.explained(error)
        with self._moved:
            lane.has_ended = True
            failure = lane.refusal or failure
            if self._may_pass(failure) and self._attempts_left > 0:
                self._must_begin_again = True
            elif failure is not None:
                self._fail(failure)
            self._moved.notify_all()

    def _may_pass(self, failure: RmqStoreError | None) -> bool:
        """Return whether the blocks in flight can be sent again."""
        if isinstance(failure, RefusedError):
            return failure.status in TRANSIENT
        return self._resends and isinstance(failure, ServiceError) and failure.can_pass

    def _took(self, lane: _Lane, metadata: bytes) -> None:
        with self._moved:
            if self._is_finishing and not self._waiting:
                self._last_words = metadata
                return
            ack = Acknowledgement.from_bytes(metadata)
            if not self._waiting or self._waiting[0].number != ack.number:
                raise MessageError(f"block {ack.number} is acknowledged out of order")
            if ack.status in TRANSIENT and not ack.is_open:
                lane.refusal = RefusedError(ack.remark, ack.status)
                return
        if self._on_ack is not None:
            self._on_ack(ack)
        with self._moved:
            self._in_flight -= self._waiting.popleft().size
            self._since = time.monotonic()
            self._attempts_left = self._attempts
            self.rows += ack.rows
            self._acknowledged(ack)
            self._moved.notify_all()

    def _acknowledged(self, ack: Acknowledgement) -> None:
        """Handle an acknowledgement. The caller holds the lock."""
        if not ack.is_ok:
            self._fail(RefusedError(ack.remark, ack.status, is_open=ack.is_open))

    def _watch(self) -> None:
        """End the stream when no answer comes in time."""
        limit = self._connection.timeout_s
        with self._moved:
            while not (self._is_closed or self._failure or self.is_finished):
                self._moved.wait(timeout=_WATCH_SECONDS)
                due = bool(self._waiting) or self._is_finishing
                if due and time.monotonic() - self._since > limit:
                    self._fail(self._connection.too_late("acknowledge a block"))
                    self._lane.reader.cancel()
                    if not self._moved.wait_for(lambda: not self._is_writing, _CANCEL_SECONDS):
                        hang_up(self._connection.endpoint)


def _join(thread: threading.Thread | None) -> None:
    """Wait for a thread, but not forever.

    A thread that is inside Flight when the interpreter ends, or that then frees Flight's objects,
    aborts the process.
    """
    if thread is not None and thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)


_open_streams: Final[WeakSet[BlockStream]] = WeakSet()
os.register_at_fork(after_in_child=_open_streams.clear)  # a forked child has none of their threads


@atexit.register
def _close_streams() -> None:
    """Close the streams that a program leaves open when it ends."""
    for stream in list(_open_streams):
        stream.close()


def _write_block(lane: _Lane, sent: _Sent) -> None:
    lane.writer.write_with_metadata(sent.batch, number_bytes(sent.number))
