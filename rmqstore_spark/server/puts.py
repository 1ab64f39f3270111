"""Reads and answers streams of blocks: puts them into the log, or stages them for a commit.

Blocks are stored and answered in the order in which they arrive. All blocks that have arrived are
stored together, and wait for the disk together. An answer with a transient failure ends its stream,
so that no later block overtakes the failed one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.broker.acl.accounts import Right
from rmqstore_spark.engine.counters import Failures
from rmqstore_spark.errors import BlockError, RefusedError, RmqStoreError
from rmqstore_spark.layout.record.block import read_block
from rmqstore_spark.server.budget import OverBudgetError
from rmqstore_spark.server.callers import WRITES, Caller, of_topics
from rmqstore_spark.server.calls import Call
from rmqstore_spark.server.connections.receiver import ReceivedRequest
from rmqstore_spark.server.put_turns import PutTurns, WaitingStream
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import (
    BUSY,
    ILLEGAL,
    MAX_REQUEST,
    TRANSIENT,
    UNAVAILABLE,
    Acknowledgement,
    Code,
)
from rmqstore_spark.wire.transport import PlainTransport

if TYPE_CHECKING:
    from rmqstore_spark.engine.append.puts import Puts
    from rmqstore_spark.engine.batches.stage import Stage
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.engine.status import PutResult
    from rmqstore_spark.engine.store import StoreWriter
    from rmqstore_spark.server.stores.served import ServedStore

_MOST_BLOCKS: Final = 256
_MOST_BYTES: Final = 4 << 20
"""Maximum bytes of blocks that are taken together. A single block may be larger."""
_SMALL: Final = 4 << 10
"""Bytes of a block of which several are received at once."""
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
        self._left: ReceivedRequest | None = None
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
        request, self._left = self._left, None
        if request is None:
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
            if len(request.data) <= _SMALL and not self.call.connection.has_more:
                break  # small blocks of a client that does not wait for each come together
            try:
                request = self.call.connection.ready()
            except (RmqStoreError, OSError):
                break  # the next call meets it again, once these blocks are stored and answered
        return found

    def wait_in_turns(self, turns: PutTurns, stream: WaitingStream) -> bool:
        """Have blocks stored and answered in turns, until this thread has to act.

        Returns:
            Whether more blocks may follow.
        """
        turns.wait(stream, self._idle_seconds)
        self._left = stream.left
        if stream.rest:
            self.call.connection.answer_rest(stream.rest, self._idle_seconds)
        return not stream.is_over

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


_OVERLOADED: Final = "The store process receives more data than it can handle. Try again later."


class BlockStreams:
    """Handles streams of blocks.

    Args:
        served: the store that takes the blocks.
        is_stopping: whether the process accepts nothing more.
        failures: counts blocks that do not reach the store.
    """

    def __init__(
        self, served: ServedStore, is_stopping: Callable[[], bool], failures: Failures
    ) -> None:
        self._failures = failures
        self._served = served
        self._store = served.writer
        self._is_stopping = is_stopping

    def handle(self, blocks: BlockReader) -> None:
        """Handle one stream until its client or an answer ends it.

        Raises:
            RefusedError: the stream is malformed, or there is no room for it.
        """
        asked = blocks.command()
        try:
            if asked.op == "half":
                self._put(self._store.transactions.puts, blocks, asked.results)
            elif asked.stage_id is None:
                self._put(self._store, blocks, asked.results)
            else:
                self._stage(blocks, asked.stage_id)
        except OverBudgetError:
            blocks.refuse_next(_OVERLOADED)
            self._failures.count(BUSY)

    # ---- puts ----------------------------------------------------------------------------------

    def _put(self, store: StoreWriter | Puts, blocks: BlockReader, results: bool) -> None:
        is_told = False  # by the answer to a block: the end of a stream without any is answered
        turns = self._served.put_turns if store is self._store else None
        if not isinstance(blocks.call.connection.transport, PlainTransport):
            turns = None
        while not blocks.is_finished:
            group = blocks.group()
            if not group:
                break
            is_told = True
            try:
                if not self._put_group(store, blocks, group, results):
                    return
            finally:
                sizes = [len(block.data) for block in group]
                for block in group:
                    block.release()
            if turns is None or len(sizes) > 1 or sizes[0] > _SMALL or blocks.is_finished:
                continue
            if not blocks.call.connection.has_more and not blocks.wait_in_turns(
                turns, self._waiting(blocks.call, results)
            ):
                return
        if blocks.is_finished and not is_told:
            blocks.finish()

    def _waiting(self, call: Call, results: bool) -> WaitingStream:
        def allows() -> bool:
            if self._is_stopping() or call.caller.limited() is not None:
                return False
            try:
                self._served.require(call.caller, WRITES)
            except RefusedError:
                return False
            return True

        return WaitingStream(call, allows, lambda number, result: _answer(number, result, results))

    def _put_group(
        self,
        store: StoreWriter | Puts,
        blocks: BlockReader,
        group: Sequence[ReceivedRequest],
        results: bool,
    ) -> bool:
        """Store and answer blocks; return whether more may follow."""
        if self._is_stopping():
            text = "The store process is stopping."
            self._failures.count(UNAVAILABLE)
            blocks.acknowledge(Acknowledgement(group[0].head.opaque, UNAVAILABLE, 0, text))
            return False
        self._served.require(blocks.call.caller, WRITES)  # a stream can outlive its permission
        while group:
            allowed, refused = _allowed(blocks.call.caller, group)
            group = group[len(allowed) + 1 :]
            if len(allowed) == 1:
                done = [store.put(allowed[0].data)]  # together with blocks of other streams
            else:
                done = store.put_all([block.data for block in allowed]) if allowed else []
            for block, result in zip(allowed, done, strict=False):
                answer = _answer(block.head.opaque, result, results)
                blocks.acknowledge(answer)
                if answer.status in TRANSIENT:
                    return False
            if refused is not None:
                blocks.acknowledge(refused)
        return True

    # ---- stages --------------------------------------------------------------------------------

    def _stage(self, blocks: BlockReader, stage_id: str) -> None:
        stage = self._store.batches.begin_stage(
            stage_id, blocks.call.peer, blocks.call.caller.identity
        )
        blocks.call.is_precious = True
        is_kept = False
        try:
            with blocks.call.connection.receiving_into(stage.room):
                if not _append_all(stage, blocks):
                    return
            info = stage.finish()
            is_kept = True
            blocks.finish(encode(info))
        finally:
            if not is_kept:
                stage.discard()


def _append_all(stage: Stage, blocks: BlockReader) -> bool:
    """Stage and answer the blocks of a stream; return whether its client has finished it."""
    while not blocks.is_finished:
        group = blocks.group()
        if not (group or blocks.is_finished):
            return False  # the client has gone
        try:
            if not _append(stage, blocks, group):
                return False
        finally:
            for block in group:
                block.release()
    return True


def _append(stage: Stage, blocks: BlockReader, group: Sequence[ReceivedRequest]) -> bool:
    """Stage and answer blocks; return whether more may follow."""
    allowed, refused = _allowed(blocks.call.caller, group)
    for block in allowed:
        rows = stage.info.rows
        try:
            total = stage.append(block.data, given=True)
        except RefusedError as error:
            refused = Acknowledgement(block.head.opaque, error.status, 0, str(error.args[0]))
            blocks.acknowledge(refused)
            return False
        except BlockError as error:
            blocks.acknowledge(Acknowledgement(block.head.opaque, error.status, 0, str(error)))
            return False
        blocks.acknowledge(Acknowledgement(block.head.opaque, PutStatus.PUT_OK, total - rows))
    if refused is not None:
        blocks.acknowledge(refused)
    return refused is None


def _allowed(
    caller: Caller, group: Sequence[ReceivedRequest]
) -> tuple[Sequence[ReceivedRequest], Acknowledgement | None]:
    """Return the blocks before the first that the client may not put, and the answer to that."""
    if caller.limited() is None:
        return group, None
    for number, block in enumerate(group):
        try:
            routes = read_block(block.data).routes
            caller.require(of_topics({route.topic for route in routes}, Right.PUB))
        except (RefusedError, BlockError) as error:
            text = str(error.args[0])
            return group[:number], Acknowledgement(block.head.opaque, error.status, 0, text)
    return group, None


def _answer(number: int, done: PutResult, results: bool) -> Acknowledgement:
    status, remark = done.status.value, done.remark
    if not done.status.is_stored:
        return Acknowledgement(number, status, 0, remark, is_open=done.is_open)
    if not results:
        return Acknowledgement(number, status, done.rows, remark)
    return Acknowledgement(
        number, status, done.rows, remark, done.queue_offset, done.physical_offset
    )
