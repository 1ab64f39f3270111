"""Reads a stream of blocks, and sends the answers.

A block is the only binary value of a record batch (`flight.blockbatch`). The store's writer checks
its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.server.calls import Call
from rmqstore_spark.server.flight.blockbatch import block_span, read_schema
from rmqstore_spark.server.flight.messages import FlightData, flight_data_head, read_flight_data
from rmqstore_spark.server.flight.received import ReceivedMessage
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.failures import BUSY, ILLEGAL
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import BLOCK_SCHEMA, FINISH, Acknowledgement, block_number

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

__all__ = ["BlockReader", "SentBlock"]

_MAX_COMMAND: Final = 4096
_MOST_BLOCKS: Final = 256
_MOST_BYTES: Final = 4 << 20
"""Maximum bytes of blocks that are taken together. A single block may be larger."""
_ROOM_SECONDS: Final = 10.0


class SentBlock(NamedTuple):
    """A block, valid until it is released.

    Attributes:
        number: the number that its client gave it.
        message: the message that owns its memory.
        begin, end: its position in the message.
    """

    number: int
    message: ReceivedMessage
    begin: int
    end: int

    @property
    def data(self) -> U1:
        """Its bytes, which are writable."""
        return self.message.data[self.begin : self.end]

    def release(self) -> None:
        """Release its memory, even if the block is still referenced."""
        self.message.release()


class BlockReader:
    """Reads the blocks of one stream, and answers them.

    Args:
        call: the call of the stream.
        config: the store's configuration.

    Attributes:
        is_finished: whether the client announced that no more blocks follow.
    """

    def __init__(self, call: Call, config: StoreConfig) -> None:
        self.call = call
        self.is_finished = False
        self._most = config.max_block_bytes
        self._idle_seconds = config.stream_idle_timeout / 1000
        self._has_schema = False
        self._expected: int | None = None
        self._refusal: str | None = None

    def command(self) -> StreamCommand:
        """Read the command of the stream: whether its blocks are put or staged.

        Raises:
            RefusedError: the first message holds no valid command.
        """
        message = self._wait()
        try:
            data = read_flight_data(message.view) if message else None
            command = decode(StreamCommand, data.command or b"" if data else b"", most=_MAX_COMMAND)
            if message is not None and data is not None and len(data.header):
                self._schema(data.header)
        except MessageError as error:
            raise RefusedError(f"The stream's command is invalid: {error}.", ILLEGAL) from None
        finally:
            if message is not None:
                message.release()
        return command

    def group(self) -> list[SentBlock]:
        """Return all blocks that have arrived, at least one; an empty list after the last.

        Raises:
            RefusedError: a message is not a block.
            OverBudgetError: there is no room for the next block.
        """
        if self._refusal is not None:
            raise RefusedError(self._refusal, ILLEGAL)
        found: list[SentBlock] = []
        size = 0
        message = self._wait()
        while message is not None:
            try:
                block = self._block(message)
            except RefusedError as refusal:
                if not found:
                    raise
                # Raised by the next call, once the blocks before it are stored and answered.
                self._refusal = str(refusal.args[0])
                break
            if block is not None:
                found.append(block)
                size += block.end - block.begin
            if self.is_finished or len(found) >= _MOST_BLOCKS or size >= _MOST_BYTES:
                break
            message = self.call.stream.ready() if found else self._wait()
        return found

    def send(self, metadata: bytes) -> None:
        """Send an answer."""
        self.call.stream.send(flight_data_head(b"", metadata, 0), seconds=self._idle_seconds)

    def refuse_next(self, remark: str) -> bool:
        """Refuse the block that found no room; return False if its number is unknown."""
        if self._expected is None:
            return False
        self.send(Acknowledgement(self._expected, BUSY, 0, remark).to_bytes())
        return True

    def drain(self) -> None:
        """Discard what the client still sends."""
        with self.call.reading():
            self.call.stream.drain(self._idle_seconds)

    def _wait(self) -> ReceivedMessage | None:
        with self.call.reading():
            return self.call.stream.read(self._idle_seconds, _ROOM_SECONDS)

    def _block(self, message: ReceivedMessage) -> SentBlock | None:
        """Return the block of a message; None if the message holds a schema or ends the stream."""
        try:
            data = read_flight_data(message.view)
            if not len(data.header):
                if data.metadata == FINISH:
                    self.is_finished = True
                elif data.metadata or data.command is None:
                    raise MessageError("a message without a batch")
            elif not self._has_schema:
                self._schema(data.header)
            else:
                number = block_number(data.metadata)
                begin, end = self._span(data)
                self._expected = number + 1
                return SentBlock(number, message, begin, end)
        except MessageError as error:
            message.release()
            raise RefusedError(f"The data sent is not a block: {error}.", ILLEGAL) from None
        message.release()
        return None

    def _span(self, data: FlightData) -> tuple[int, int]:
        """Return the position of the block in its message."""
        begin, end = block_span(data.header, data.body)
        if end - begin > self._most:
            raise MessageError(f"it has {end - begin} bytes, and maxBlockBytes is {self._most}")
        return data.body_at + begin, data.body_at + end

    def _schema(self, header: memoryview) -> None:
        if not read_schema(header).equals(BLOCK_SCHEMA):
            raise MessageError("its schema is not that of blocks")
        self._has_schema = True
