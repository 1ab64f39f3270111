"""Streams of blocks: puts and stages.

Nothing of a batch is touched before it was validated as a whole; then it is one binary value, and
what is in it the writer checks. Where a block is not stored for a reason that passes, the stream
ends with its acknowledgement: no later block may overtake it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.service.budget import Budget, OverBudgetError
from rmqstore_spark.service.calls import Call, Calls
from rmqstore_spark.service.puts import Puts
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.failures import BUSY, ILLEGAL
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import (
    BLOCK_SCHEMA,
    FINISH,
    PUT_OK,
    Acknowledgement,
    block_number,
)

if TYPE_CHECKING:
    from rmqstore_spark.writer.store import StoreWriter

__all__ = ["BlockStreams"]

_log = logging.getLogger(__name__)

_MAX_COMMAND: Final = 4096
_SLACK: Final = 4096
_STAGE_WAIT_SECONDS: Final = 10.0


class _BadBlockError(Exception):
    """What came is no block."""


class BlockStreams:
    """Handles streams of blocks.

    Args:
        store: that they are for.
        calls: tells whether the process is stopping.
        budget: of bytes, for all streams together.
        max_block_bytes: of one block.
    """

    def __init__(
        self, store: StoreWriter, calls: Calls, budget: Budget, max_block_bytes: int
    ) -> None:
        self._store = store
        self._puts = Puts(store, calls, budget)
        self._budget = budget
        self._most = max_block_bytes

    def handle(self, call: Call, command: bytes | None, reader: Any, writer: Any) -> None:
        """Handle one stream until its client ends it, or it is ended here.

        Args:
            call: the stream's.
            command: of its descriptor.
            reader, writer: Flight's.

        Raises:
            RefusedError: the stream is not as it should be.
        """
        try:
            asked = decode(StreamCommand, command or b"", most=_MAX_COMMAND)
        except MessageError as error:
            raise RefusedError(f"The stream's command is wrong: {error}.", ILLEGAL) from None
        call.begin_work()
        answers = _Answers(call, writer)
        blocks = self._blocks(call, reader)
        try:
            if asked.stage_id is None:
                self._puts.handle(call, blocks, answers.send, asked.results)
            else:
                self._stage(call, asked.stage_id, blocks, answers)
            # Where a stream ends that its client still writes into, Flight at the client drops the
            # answers that were not taken yet: so the rest of a refused one is let pass.
            for _ in blocks:
                pass
        except (_BadBlockError, MessageError) as error:
            raise RefusedError(f"What was sent is no block: {error}.", ILLEGAL) from None

    def _stage(
        self,
        call: Call,
        stage_id: str,
        blocks: Iterator[tuple[int, pa.Buffer] | None],
        answers: _Answers,
    ) -> None:
        stage = self._store.begin_stage(stage_id, _owner(call))
        finished = False
        try:
            rows = 0
            for item in blocks:
                if item is None:
                    info = stage.finish()
                    finished = True
                    answers.send(encode(info))
                    return
                number, block = item
                try:
                    with self._budget.use(block.size, _STAGE_WAIT_SECONDS):
                        total = stage.append(np.frombuffer(block, np.uint8))
                except OverBudgetError:
                    text = "The store gets more than it can stage. Run the task again later."
                    answers.send(Acknowledgement(number, BUSY, 0, text).to_bytes())
                    return
                except RefusedError as error:
                    refused = Acknowledgement(number, error.status, 0, str(error.args[0]))
                    answers.send(refused.to_bytes())
                    return
                answers.send(Acknowledgement(number, PUT_OK, total - rows).to_bytes())
                rows = total
        finally:
            if not finished:
                stage.discard()

    def _blocks(self, call: Call, reader: Any) -> Iterator[tuple[int, pa.Buffer] | None]:
        """Blocks with their numbers, then None; nothing more where the client just went away."""
        checked = False
        while True:
            try:
                with call.waiting():
                    chunk = reader.read_chunk()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:  # OSError: no IPC message at all
                raise _BadBlockError(str(error)[:200]) from None
            metadata = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
            if chunk.data is None:
                if metadata != FINISH:
                    raise _BadBlockError("a message without a batch")
                yield None
                return
            if not checked:
                if not reader.schema.equals(BLOCK_SCHEMA):
                    raise _BadBlockError("its schema is not that of blocks")
                checked = True
            yield block_number(metadata), self._value(chunk.data)

    def _value(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The one value of a batch that holds together."""
        if batch.num_rows != 1 or batch.num_columns != 1:
            raise _BadBlockError(f"a batch of {batch.num_rows} rows; it has one")
        try:
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise _BadBlockError(str(error)[:200]) from None
        column = batch.column(0)
        if not column.type.equals(pa.binary()) or column.null_count:
            raise _BadBlockError("a null")
        if batch.get_total_buffer_size() > self._most + _SLACK:
            raise _BadBlockError(
                f"it takes {batch.get_total_buffer_size()} bytes, and maxBlockBytes is {self._most}"
            )
        return column[0].as_buffer()


class _Answers:
    """Sends acknowledgements."""

    def __init__(self, call: Call, writer: Any) -> None:
        self._call = call
        self._writer = writer

    def send(self, metadata: bytes) -> None:
        with self._call.waiting():
            self._writer.write_metadata(metadata)


def _owner(call: Call) -> str:
    """Who writes a stage, for messages to people."""
    peer = call.peer
    if peer is None or not peer.address:
        return f"process {call.process}" if call.process else "a local process"
    return peer.address
