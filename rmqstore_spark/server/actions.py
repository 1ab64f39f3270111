"""What clients ask of one store: topics, offsets, commits, queries. See `wire.messages`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.base.types import CommitRequest, CommitResult, HalfId
from rmqstore_spark.broker.acl.accounts import Right
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.engine.config.key import host_and_port
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.transactions import messages_of
from rmqstore_spark.server.callers import Caller, of_topics
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.wire.messages import (
    MOST_LISTED,
    AbortRequest,
    ChecksRequest,
    CommitOffsetsReply,
    CommitOffsetsRequest,
    DemoteReply,
    DemoteRequest,
    Done,
    EndReply,
    EndRequest,
    ExpireReply,
    ExpireRequest,
    ExpiringSegment,
    FlushReply,
    OffsetsReply,
    OffsetsRequest,
    PromoteReply,
    PromoteRequest,
    QueryRequest,
    TopicRequest,
)
from rmqstore_spark.wire.protocol import DENIED, ILLEGAL, UNAVAILABLE
from rmqstore_spark.wire.reading import ListReply, OpenReply, OpenRequest, PathRequest, WalkRequest

_log = logging.getLogger(__name__)

_MAX_RESULT: Final = 32 << 20
_QUERY_BYTES: Final = 4 << 20  # read or decompressed at once by a query
_LONGEST_READ_SECONDS: Final = 60.0
_MAX_DIGITS: Final = 10


class StoreActions:
    """Does what requests ask of one store. Each method returns the answer, or its bytes.

    Args:
        store: the store.
        stop: called when a client asks the process to stop.
        is_stopping: whether the process is stopping; long reads are aborted then.
    """

    def __init__(
        self,
        store: ServedStore,
        stop: Callable[[], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._store = store
        self._stop = stop
        self._is_stopping = is_stopping
        self._hidden: set[str] = set()

    # ---- topics, offsets -----------------------------------------------------------------------

    def open(self, request: OpenRequest) -> OpenReply:
        return self._store.open(request)

    def create(self, request: TopicRequest) -> Done:
        numbers: dict[str, Any] = {
            "read_queue_nums": request.read_queue_nums,
            "write_queue_nums": request.write_queue_nums,
            "perm": request.perm,
        }
        writer = self._store.writer
        if request.name in writer.topics:
            writer.update_topic(request.name, **numbers)
        else:
            writer.create_topic(request.name, **numbers)
        return Done()

    def delete(self, request: TopicRequest) -> Done:
        self._store.writer.delete_topic(request.name)
        return Done()

    def offsets(self, request: OffsetsRequest) -> OffsetsReply:
        return self._store.offsets(request.topics)

    def commit_offsets(self, request: CommitOffsetsRequest) -> CommitOffsetsReply:
        offsets = {topic: _by_number(queues) for topic, queues in request.offsets.items()}
        writer = self._store.writer
        changed = writer.commit_offsets(request.group, offsets, reset=request.reset)
        if writer.config.serves_rocketmq and not request.reset:
            self._introduce(writer, request.group)
        return CommitOffsetsReply(changed)

    def _introduce(self, writer: StoreWriter, group: str) -> None:
        """Have RocketMQ's tools find a group, which they do by its retry topic."""
        try:
            Catalog(writer).introduce(group)
        except Refusal as error:
            if group not in self._hidden and len(self._hidden) < MOST_LISTED:
                self._hidden.add(group)
                _log.warning(
                    "The offsets of the consumer group %s are recorded, but RocketMQ's tools do "
                    "not show them: %s.", group, escaped(error.remark).rstrip("."),
                )  # fmt: skip

    # ---- batches of Spark ----------------------------------------------------------------------

    def commit(self, request: CommitRequest, caller: Caller) -> CommitResult:
        """Write staged blocks, whose topics the client must still be allowed to write."""
        if caller.limited() is not None:
            staged = self._store.writer.batches.staged_topics(request.stages)
            caller.require(of_topics(staged, Right.PUB))
        return self._store.writer.batches.commit(request, caller.identity)

    def abort(self, request: AbortRequest, caller: Caller) -> Done:
        self._store.writer.batches.abort(request.stage_ids, caller.identity)
        return Done()

    # ---- transactions --------------------------------------------------------------------------

    def end_transactions(self, request: EndRequest) -> EndReply:
        named = zip(request.queue_offsets, request.physical_offsets, strict=True)
        answers = self._store.writer.transactions.end(
            request.group, [HalfId(*pair) for pair in named], is_commit=request.is_commit
        )
        return EndReply(
            tuple(answer.status for answer in answers), tuple(answer.remark for answer in answers)
        )

    def transaction_checks(self, request: ChecksRequest) -> pa.Buffer:
        """Answer with an Arrow IPC stream of half messages."""
        asked = self._store.writer.transactions.take_asked(request.group, request.most)
        with self._store.reader() as store:
            return pa.py_buffer(_ipc_stream(messages_of(store, asked, _MAX_RESULT)))

    # ---- the process ---------------------------------------------------------------------------

    def flush(self, _request: Done) -> FlushReply:
        writer = self._store.writer
        writer.flush()
        return FlushReply(writer.stats()["commitLogFlushedOffset"])

    def expire(self, request: ExpireRequest) -> ExpireReply:
        if request.remove:
            self._store.writer.expire(request.before_ms)
        found = self._store.writer.expirable(request.before_ms)
        segments = found.segments
        return ExpireReply(
            len(segments),
            sum(segment.end - segment.start for segment in segments),
            tuple(ExpiringSegment(*segment) for segment in segments[:MOST_LISTED]),
            found.is_working,
            found.remark,
        )

    def promote(self, request: PromoteRequest) -> PromoteReply:
        replication = self._store.replication
        begin = replication.promote(waits_for_slaves=request.waits_for_slaves, force=request.force)
        return PromoteReply(begin, replication.address)

    def demote(self, request: DemoteRequest) -> DemoteReply:
        try:
            master, broker = map(host_and_port, (request.master, request.master_broker))
            if not master:
                raise ValueError("must be host:port")
        except ValueError as error:
            raise RefusedError(f"The address of a master {error}.", ILLEGAL) from None
        end, handover = self._store.replication.demote(master, broker)
        return DemoteReply(end, *handover)

    def stats(self, _request: Done) -> bytes:
        return json.dumps(self._store.stats()).encode()

    def stop_process(self, _request: Done) -> Done:
        self._stop()
        return Done()

    # ---- reading -------------------------------------------------------------------------------

    def walk(self, request: WalkRequest) -> ListReply:
        return ListReply(
            tuple(self._store.view.walk(request.path, request.depth, self._breaking_off()))
        )

    def info(self, request: PathRequest) -> object:
        return self._store.view.entry(request.path)

    def _breaking_off(self) -> Callable[[], None]:
        """Return a function that a long read calls between its steps, and that raises to end it."""
        deadline = time.monotonic() + _LONGEST_READ_SECONDS

        def look() -> None:
            if self._is_stopping():
                raise RefusedError(
                    "The store process is stopping and aborted the read. Try again later.",
                    UNAVAILABLE,
                )
            if time.monotonic() > deadline:
                raise RefusedError(
                    f"The read took more than {_LONGEST_READ_SECONDS:g} s and was aborted. Read "
                    "the store with Spark, or on the machine that has its files.",
                    DENIED,
                )

        return look

    def query(self, request: QueryRequest) -> pa.Buffer:
        """Answer with an Arrow IPC stream instead of JSON."""
        with self._store.reader() as store:
            found = query_by_key(
                store,
                request.topic,
                request.key,
                max_num=request.max_num,
                max_bytes=_MAX_RESULT,
                options=ReadOptions(batch_bytes=_QUERY_BYTES),
                begin_ms=request.begin_ms,
                end_ms=request.end_ms,
                between=self._breaking_off(),
            )
        return pa.py_buffer(_ipc_stream(found))


def _ipc_stream(table: pa.Table) -> U1:
    """Encode a table as an Arrow IPC stream, in a buffer of exactly its size."""
    counter = pa.MockOutputStream()
    _write_stream(table, counter)
    data = np.empty(counter.size(), np.uint8)
    _write_stream(table, pa.FixedSizeBufferWriter(pa.py_buffer(data)))
    return data


def _write_stream(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def _by_number(queues: Mapping[str, int]) -> dict[int, int]:
    """Return the offsets of queues by queueId.

    Raises:
        RefusedError: a key is not a queueId.
    """
    for key in queues:
        if not (key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS):
            raise RefusedError(f"{key[:64]!r} is not a queueId.", ILLEGAL)
    return {int(key): offset for key, offset in queues.items()}
