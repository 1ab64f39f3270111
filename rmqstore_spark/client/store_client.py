"""The client of a store process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.base.types import CommitRequest, CommitResult
from rmqstore_spark.client.connection import RETRIES, TIMEOUT_S, Connection
from rmqstore_spark.client.contact import CONNECT_SECONDS
from rmqstore_spark.client.streams import DEFAULT_WINDOW, PutStream, StageStream
from rmqstore_spark.layout.constants import is_topic_of_group
from rmqstore_spark.wire.codec import read_json
from rmqstore_spark.wire.endpoint import Endpoint
from rmqstore_spark.wire.messages import (
    AbortRequest,
    CommitOffsetsReply,
    CommitOffsetsRequest,
    DemoteReply,
    DemoteRequest,
    Done,
    ExpireReply,
    ExpireRequest,
    FlushReply,
    OffsetsReply,
    OffsetsRequest,
    PromoteReply,
    PromoteRequest,
    QueryRequest,
    TopicRequest,
)
from rmqstore_spark.wire.protocol import MAX_ANSWER, Acknowledgement, Code
from rmqstore_spark.wire.reading import OpenReply, OpenRequest, TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.client.transactions import TransactionProducer

_PERM_READ_WRITE: Final = 6
_MOST_NAMES: Final = 1000
"""Topics that one request names: its body is bounded."""


class StoreClient:
    """A client of one store process. It is a context manager, and threads can share it.

    Args:
        endpoint: `rmq://host:port`, `rmqs://host:port` or `unix:/path`, with `#name`
            for one of several stores.
        acl_file: file with `accessKey` and `secretKey` of an account, as RocketMQ's `tools.yml`,
            which others must not be able to read.
        tls_ca: file with the CA certificates for the server's; the system's by default.
        tls_cert: file with the client's certificate, for mTLS.
        tls_key: file with its private key.
        timeout_s: seconds that an answer, or an acknowledgement, may take.
        retries: how often a repeatable action is tried again, with growing waits.
        connect_s: seconds after which a process that has never answered is given up, with all
            retries; None for one that another process of this program has reached.

    Raises:
        OptionError: the endpoint is invalid, or a file cannot be used. (Only the first call
            connects to the store process.)
    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        acl_file: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        connect_s: float | None = CONNECT_SECONDS,
    ) -> None:
        self.connection = Connection(
            endpoint,
            acl_file=acl_file,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            timeout_s=timeout_s,
            retries=retries,
            connect_s=connect_s,
        )

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.endpoint)!r})"

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the store process."""
        return self.connection.endpoint

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    # ---- writing -------------------------------------------------------------------------------

    def open(self, topics: Sequence[str] | None = None, *, creates: bool = True) -> OpenReply:
        """Fetch what is needed to encode records.

        Args:
            topics: the topics to write; None for all topics.
            creates: whether missing ones are created, if the store creates topics automatically.

        Raises:
            RefusedError: a topic cannot be created.
            ServiceError: the process cannot be reached, or speaks another version of the protocol.
        """
        names = None if topics is None else tuple(topics)
        return self.connection.open(OpenRequest(names, creates))

    def put_stream(
        self,
        *,
        results: bool = False,
        resends: bool = False,
        max_in_flight_bytes: int = DEFAULT_WINDOW,
        on_ack: Callable[[Acknowledgement], None] | None = None,
    ) -> PutStream:
        """Open a stream that puts blocks.

        Args:
            results: acknowledge each block with the offsets of its records.
            resends: if the connection breaks, send all blocks again that were not acknowledged.
                Those that the store had appended by then are stored twice.
            max_in_flight_bytes: maximum bytes of blocks in flight.
            on_ack: called with each acknowledgement, in order, while the stream is used; it
                must not use the stream itself.
        """
        return PutStream(
            self.connection,
            results=results,
            resends=resends,
            max_in_flight_bytes=max_in_flight_bytes,
            on_ack=on_ack,
        )

    def stage_stream(
        self, stage_id: str | None = None, *, max_in_flight_bytes: int = DEFAULT_WINDOW
    ) -> StageStream:
        """Open a stage: its records wait for a `commit`.

        Args:
            stage_id: 32 hex digits, new for each attempt; generated if None.
            max_in_flight_bytes: maximum bytes of blocks in flight.
        """
        return StageStream(self.connection, stage_id, max_in_flight_bytes=max_in_flight_bytes)

    def commit(self, request: CommitRequest) -> CommitResult:
        """Append stages to the log, all or nothing, and once: repeating a commit has no effect.

        Raises:
            RefusedError: there are no rows; a stage is missing, or does not hold what it should;
                the writer's number was used for other rows; or the writer or a stage belongs to
                another client.
        """
        return self.connection.call(Code.COMMIT, request, CommitResult)

    def abort(self, stage_ids: Sequence[str]) -> None:
        """Discard stages. Committed stages stay committed."""
        self.connection.call(Code.ABORT, AbortRequest(tuple(stage_ids)), Done)

    def producer(self, group: str) -> TransactionProducer:
        """Return a producer of transactional messages.

        Args:
            group: the producer group.

        Raises:
            OptionError: no broker accepts the group's name.
        """
        from rmqstore_spark.client.transactions import TransactionProducer  # loads the encoder

        return TransactionProducer(self.connection, group, self.open)

    # ---- topics, offsets -----------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        read_queue_nums: int | None = None,
        write_queue_nums: int | None = None,
        perm: int = 6,
    ) -> None:
        """Create a topic, or change an existing one."""
        request = TopicRequest(name, read_queue_nums, write_queue_nums, perm)
        self.connection.call(Code.CREATE_TOPIC, request, Done)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.connection.call(Code.DELETE_TOPIC, TopicRequest(name), Done)

    def topics_to_write(self, names: Iterable[str], opened: OpenReply) -> dict[str, TopicSettings]:
        """Return the settings of topics. None is created: only a message that is stored does that.

        Args:
            names: of the topics.
            opened: what the store said when it was opened.

        Returns:
            The settings by name: for a missing topic those that it will get, if the store creates
            topics automatically.
        """
        names = tuple(names)
        known = dict(opened.topics)
        asked = [name for name in dict.fromkeys(names) if name not in known]
        for begin in range(0, len(asked), _MOST_NAMES):
            some = asked[begin : begin + _MOST_NAMES]
            known.update(self.open(some, creates=False).topics)
        found: dict[str, TopicSettings] = {}
        for name in names:
            if name in known:
                found[name] = known[name]
            elif opened.auto_create_topic_enable:
                count = 1 if is_topic_of_group(name) else opened.default_topic_queue_nums
                found[name] = TopicSettings(count, count, _PERM_READ_WRITE)
        return found

    def topics(self) -> dict[str, TopicSettings]:
        """Return all topics by name."""
        return dict(self.open().topics)

    def offsets(self, topics: Sequence[str] | None = None) -> OffsetsReply:
        """Return the ends of the log, and of the queues of some or all topics."""
        request = OffsetsRequest(None if topics is None else tuple(topics))
        return self.connection.call(Code.OFFSETS, request, OffsetsReply)

    def commit_offsets(
        self, group: str, offsets: Mapping[str, Mapping[int, int]], *, reset: bool = False
    ) -> int:
        """Move the offsets of a consumer group.

        Args:
            group: its name.
            offsets: the next offsets to consume, by topic and queueId. Offsets below the recorded
                ones, and past a queue's end, are ignored.
            reset: also move offsets back; an offset past a queue's end is then refused.

        Returns:
            How many offsets have changed.
        """
        by_text = {
            topic: {str(queue_id): offset for queue_id, offset in queues.items()}
            for topic, queues in offsets.items()
        }
        request = CommitOffsetsRequest(group, by_text, reset)
        return self.connection.call(Code.COMMIT_OFFSETS, request, CommitOffsetsReply).changed

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 32,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> pa.Table:
        """Return the messages of a topic that have a key (KEYS or UNIQ_KEY).

        Args:
            topic: the topic of the messages.
            key: the UNIQ_KEY of the messages, or one of their KEYS.
            max_num: maximum number of messages, the newest ones; 1024 at most.
            begin_ms: least storeTimestamp, milliseconds since the epoch.
            end_ms: greatest storeTimestamp.
        """
        request = QueryRequest(topic, key, max_num, begin_ms, end_ms)
        return self.connection.call_table(Code.QUERY, request)

    # ---- the process ---------------------------------------------------------------------------

    def flush(self) -> FlushReply:
        """Flush everything to disk."""
        return self.connection.call(Code.FLUSH, Done(), FlushReply)

    def expire(self, before_ms: int, *, remove: bool = False) -> ExpireReply:
        """Return the segments all of whose messages were stored before a time.

        Args:
            before_ms: milliseconds since the epoch.
            remove: also begin to remove them. Call this without it to learn how far the store is.
        """
        return self.connection.call(Code.EXPIRE, ExpireRequest(before_ms, remove), ExpireReply)

    def promote(self, *, waits_for_slaves: bool = False, force: bool = False) -> PromoteReply:
        """Make a slave the master.

        Args:
            waits_for_slaves: whether it becomes a SYNC_MASTER, and not an ASYNC_MASTER.
            force: also if its master answers, or has sent a log that cannot be followed.

        Raises:
            RefusedError: it is a master, or `force` is needed.
        """
        request = PromoteRequest(waits_for_slaves, force)
        return self.connection.call(Code.PROMOTE, request, PromoteReply, repeat=False)

    def demote(self, master: str, master_broker: str = "") -> DemoteReply:
        """Make a master a slave.

        Args:
            master: whom to follow: the `host:port` where that one serves slaves.
            master_broker: the `host:port` where its broker answers clients; "" for none.

        Raises:
            RefusedError: it is a slave, or an address is none.
        """
        request = DemoteRequest(master, master_broker)
        return self.connection.call(Code.DEMOTE, request, DemoteReply, repeat=False)

    def stats(self) -> dict[str, Any]:
        """Return the store's figures (docs/operate.md)."""
        stats: dict[str, Any] = self.connection.ask(
            Code.STATS,
            Done(),
            lambda link, until: read_json(bytes(link.answer(until)), most=MAX_ANSWER),
        )
        return stats

    def stop(self) -> None:
        """Ask the process to stop: it drains its calls, and flushes and closes the store."""
        self.connection.call(Code.STOP, Done(), Done, repeat=False)
