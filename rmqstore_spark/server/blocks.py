"""Reads a stream of blocks, and sends the answers. The store's writer checks what blocks hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqstore_spark.errors import RefusedError, RmqStoreError
from rmqstore_spark.server.calls import Call
from rmqstore_spark.server.connections.receiver import ReceivedRequest
from rmqstore_spark.wire.codec import MessageError, decode
from rmqstore_spark.wire.failures import BUSY, ILLEGAL
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import MAX_REQUEST, Acknowledgement, Code

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

_MOST_BLOCKS: Final = 256
_MOST_BYTES: Final = 4 << 20
"""Maximum bytes of blocks that are taken together. A single block may be larger."""
_ROOM_SECONDS: Final = 10.0


class BlockReader:
    """Reads the blocks of one stream, and answers them.

    Args:
        call: the call of the stream.
        begun: the request that began it.
        config: the store's configuration.

    Attributes:
        is_finished: whether the client announced that no more blocks follow.
    """

    def __init__(self, call: Call, begun: ReceivedRequest, config: StoreConfig) -> None:
        self.call = call
        self.is_finished = False
        self._begun = begun
        self._idle_seconds = config.stream_idle_timeout / 1000

    def command(self) -> StreamCommand:
        """Return the command of the stream: whether its blocks are put or staged.

        Raises:
            RefusedError: it is not a valid command.
        """
        try:
            return decode(StreamCommand, self._begun.data.tobytes(), most=MAX_REQUEST[Code.BLOCKS])
        except MessageError as error:
            raise RefusedError(f"The stream's command is invalid: {error}.", ILLEGAL) from None

    def group(self) -> list[ReceivedRequest]:
        """Return all blocks that have arrived, at least one; an empty list after the last.

        Raises:
            RefusedError: a request does not belong to a stream of blocks.
            OverBudgetError: there is no room for the next block.
        """
        found: list[ReceivedRequest] = []
        size = 0
        with self.call.reading():
            request = self.call.connection.read(self._idle_seconds, _ROOM_SECONDS)
        while request is not None:
            if request.head.code == Code.FINISH:
                self.is_finished = True
                break
            found.append(request)
            size += len(request.data)
            if len(found) >= _MOST_BLOCKS or size >= _MOST_BYTES:
                break
            try:
                request = self.call.connection.ready()
            except (RmqStoreError, OSError):
                break  # the next call meets it again, once these blocks are stored and answered
        return found

    def acknowledge(self, answer: Acknowledgement) -> None:
        """Answer a block."""
        self.call.connection.answer(
            answer.to_bytes(), seconds=self._idle_seconds, opaque=answer.number
        )

    def finish(self, body: bytes = b"") -> None:
        """Answer the end of the stream."""
        self.call.connection.answer(body, seconds=self._idle_seconds)

    def refuse_next(self, remark: str) -> None:
        """Refuse the block that found no room: the last whose header was read."""
        self.acknowledge(Acknowledgement(self.call.connection.opaque, BUSY, 0, remark))
