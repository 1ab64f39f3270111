"""Streams of blocks that a store process puts, or stages.

with client.put_stream() as stream:
    for block in blocks:
        stream.send(block)        # returns before the acknowledgement
# every block is acknowledged here, or an error was raised
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

from rmqstore_spark.client.blockstream import BlockStream
from rmqstore_spark.client.connection import Connection
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.messages import StageInfo, StreamCommand
from rmqstore_spark.wire.protocol import Acknowledgement

DEFAULT_WINDOW: Final = 8 << 20
_MAX_INFO: Final = 64 << 10


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
        self._is_asked = False
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
        if not self.is_finished:
            self._finish()
            self.close()
        return self.rows

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
            words = self._finish()
            self.close()
            try:
                self._info = decode(StageInfo, words or b"", most=_MAX_INFO)
            except MessageError as error:
                raise self._connection.nonsense(error) from None
        return self._info
