"""Streams of blocks to a store process: many on their way at once, each acknowledged.

    with client.put_stream() as stream:
        for block in blocks:
            stream.send(block)        # returns before the acknowledgement
    # every block is acknowledged here, or an error was raised

The caller's thread sends, a second one takes acknowledgements, a third ends a stream on which
nothing moves. Blocks on their way are held until they are acknowledged, a window's worth at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import flight

from rmqstore_spark.client.connection import Connection
from rmqstore_spark.errors import RefusedError, RmqStoreError, ServiceError
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import (
    FINISH,
    Acknowledgement,
    block_batch,
    number_bytes,
)
from rmqstore_spark.writer.staging import StageInfo

__all__ = ["DEFAULT_WINDOW", "BlockStream", "PutStream", "StageStream"]

DEFAULT_WINDOW: Final = 32 << 20
_MAX_INFO: Final = 64 << 10
_WATCH_SECONDS: Final = 0.25


class BlockStream:
    """A stream of blocks; see `PutStream` and `StageStream`. One thread uses it at a time.

    Args:
        connection: to the store process.
        command: what the stream is for.
        max_in_flight_bytes: blocks that may be on their way together. One always may.
        on_ack: told of each acknowledgement, in order, from another thread.
    """

    def __init__(
        self,
        connection: Connection,
        command: StreamCommand,
        max_in_flight_bytes: int = DEFAULT_WINDOW,
        on_ack: Callable[[Acknowledgement], None] | None = None,
    ) -> None:
        self.rows = 0
        self._connection = connection
        self._window = max_in_flight_bytes
        self._on_ack = on_ack
        self._moved = threading.Condition()
        self._waiting: deque[tuple[int, Any, int]] = deque()  # number, block, bytes
        self._in_flight = 0
        self._sent = 0
        self._since = time.monotonic()
        self._failure: RmqStoreError | None = None
        self._last_words: bytes | None = None
        self._finishing = self._ended = self._closed = False
        self._writer, self._reader = connection.exchange(encode(command))
        for work in (self._take, self._watch):
            threading.Thread(target=work, name=f"rmqstore-{work.__name__}", daemon=True).start()

    def send(self, data: Any) -> int:
        """Send a block, waiting while the window is full.

        Args:
            data: bytes-like, encoded records one behind the other; not to be changed until it is
                acknowledged.

        Returns:
            The block's number.

        Raises:
            RefusedError: the store refused this block, or one before it.
            ServiceError: the store process cannot be reached, or stands still.
        """
        batch = block_batch(data)
        size = batch.column(0).buffers()[2].size
        with self._moved:
            self._moved.wait_for(
                lambda: self._failure or not self._waiting or self._in_flight + size <= self._window
            )
            self._raise_failure()
            number = self._sent
            self._sent += 1
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append((number, batch, size))
            self._in_flight += size
        self._write(lambda: self._writer.write_with_metadata(batch, number_bytes(number)))
        return number

    def drain(self) -> None:
        """Wait until all that was sent is acknowledged.

        Raises:
            RefusedError, ServiceError: as `send`.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._failure or not self._waiting)
            self._raise_failure()

    @property
    def is_finished(self) -> bool:
        """Whether the stream was ended in order, with everything acknowledged."""
        return self._finishing and self._ended and self._failure is None

    def close(self) -> None:
        """End the stream. What has not been acknowledged may be in the store or not."""
        with self._moved:
            if self._closed:
                return
            self._closed = True
            broken = not self._ended
            self._moved.notify_all()
        if broken:
            self._reader.cancel()
        # What fails here has been told already, or the stream was given up.
        with suppress(flight.FlightError, pa.ArrowException):
            self._writer.close()

    def _finish(self) -> bytes | None:
        """Say that nothing more comes, and wait for the answer to that."""
        self.drain()
        with self._moved:
            self._finishing = True
            self._since = time.monotonic()
        self._write(lambda: self._writer.write_metadata(FINISH))
        self._write(self._writer.done_writing)
        with self._moved:
            self._moved.wait_for(lambda: self._failure or self._ended)
            self._raise_failure()
            return self._last_words

    def _write(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            # Why the server ended the stream, the other direction tells.
            with self._moved:
                self._moved.wait_for(lambda: self._failure or self._ended, timeout=_WATCH_SECONDS)
                self._fail(self._connection.explained(error))
                self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, failure: RmqStoreError) -> None:
        """Remember the first failure. The lock is held."""
        if self._failure is None:
            self._failure = failure
        self._moved.notify_all()

    # ---- the other threads ---------------------------------------------------------------------

    def _take(self) -> None:
        """Take acknowledgements until the stream ends."""
        failure: RmqStoreError | None = None
        try:
            while True:
                metadata = self._reader.read_chunk().app_metadata
                if metadata is not None:
                    self._took(metadata.to_pybytes())
        except StopIteration:
            if not self._finishing:
                failure = ServiceError(
                    f"The store process at {self._connection.endpoint} ended a stream of blocks. "
                    "Look at its log."
                )
        except MessageError as error:
            failure = ServiceError(
                f"{self._connection.endpoint} answers what no store process does: {error}."
            )
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            failure = self._connection.explained(error)
        with self._moved:
            self._ended = True
            if failure is not None:
                self._fail(failure)
            self._moved.notify_all()

    def _took(self, metadata: bytes) -> None:
        with self._moved:
            if self._finishing and not self._waiting:
                self._last_words = metadata
                return
            ack = Acknowledgement.from_bytes(metadata)
            if not self._waiting or self._waiting[0][0] != ack.number:
                raise MessageError(f"block {ack.number} is acknowledged out of turn")
        if self._on_ack is not None:
            self._on_ack(ack)
        with self._moved:
            _, _, size = self._waiting.popleft()
            self._in_flight -= size
            self._since = time.monotonic()
            self.rows += ack.rows
            self._acknowledged(ack)
            self._moved.notify_all()

    def _acknowledged(self, ack: Acknowledgement) -> None:
        """Look at an acknowledgement. The lock is held."""
        if not ack.is_ok:
            self._fail(RefusedError(ack.remark, ack.status))

    def _watch(self) -> None:
        """End the stream when what was sent is not answered in time."""
        limit = self._connection.timeout_s
        with self._moved:
            while not (self._ended or self._closed):
                self._moved.wait(timeout=_WATCH_SECONDS)
                due = bool(self._waiting) or self._finishing
                if due and time.monotonic() - self._since > limit:
                    self._fail(
                        ServiceError(
                            f"The store process at {self._connection.endpoint} did not acknowledge "
                            f"a block within {limit:g} s. See what it is doing (rmqstore stats), "
                            "or raise requestTimeout."
                        )
                    )
                    self._reader.cancel()
                    return


class PutStream(BlockStream):
    """Appends blocks to the log, each by itself and durable as the store is configured."""

    def __init__(
        self,
        connection: Connection,
        *,
        results: bool = False,
        max_in_flight_bytes: int = DEFAULT_WINDOW,
        on_ack: Callable[[Acknowledgement], None] | None = None,
    ) -> None:
        self._newest: Acknowledgement | None = None
        self._asked = False
        command = StreamCommand("put", results)
        super().__init__(connection, command, max_in_flight_bytes, on_ack)

    def __enter__(self) -> PutStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        self.close()

    def put(self, data: Any) -> Acknowledgement:
        """Send a block and wait for its acknowledgement, whatever its status.

        Raises:
            RefusedError: the store refused a block that was sent before.
            ServiceError: the store process cannot be reached, or stands still.
        """
        self.drain()
        self._asked = True
        try:
            self.send(data)
            self.drain()
        finally:
            self._asked = False
        if self._newest is None:
            raise ServiceError("a block was acknowledged by nothing")  # not reached: drain raises
        return self._newest

    def finish(self) -> int:
        """Wait for all acknowledgements and end the stream; returns how many records are stored."""
        if not self.is_finished:
            self._finish()
            self.close()
        return self.rows

    def _acknowledged(self, ack: Acknowledgement) -> None:
        self._newest = ack
        if not self._asked:
            super()._acknowledged(ack)


class StageStream(BlockStream):
    """Writes a stage: records that wait, beside the log, for a commit.

    Args:
        connection: to the store process.
        stage_id: 32 hex digits; a new one where None.
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
        command = StreamCommand("stage", stage_id=self.stage_id)
        self._info: StageInfo | None = None
        super().__init__(connection, command, max_in_flight_bytes)

    def finish(self) -> StageInfo:
        """End the stage; what it holds, for the commit.

        Raises:
            RefusedError, ServiceError: as `send`.
        """
        if self._info is None:
            words = self._finish()
            self.close()
            try:
                self._info = decode(StageInfo, words or b"", most=_MAX_INFO)
            except MessageError as error:
                raise ServiceError(
                    f"{self._connection.endpoint} answers what no store process does: {error}."
                ) from None
        return self._info

    def __enter__(self) -> StageStream:
        return self

    def __exit__(self, *_: object) -> None:
        # Unfinished, it is given up, and its records with it.
        self.close()
