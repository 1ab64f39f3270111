"""A broker as a store: its topics, queues and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rmqstore_spark.client.brokers.broker import ALL_TAGS, BrokerClient
from rmqstore_spark.client.brokers.pulling import PulledPiece, QueuePuller
from rmqstore_spark.datasource.sources.pulled_queue import PulledQueue
from rmqstore_spark.datasource.sources.source import QueueName
from rmqstore_spark.errors import OptionError, TopicNotFoundError
from rmqstore_spark.layout.constants import (
    SCHEDULE_TOPIC,
    is_system_topic,
)
from rmqstore_spark.reader.options import QueueRange, QueueSplit, Split
from rmqstore_spark.reader.plan import MOST_SPLITS, PlanLimits, plan_by_size
from rmqstore_spark.reader.rows.pulled import PulledRows
from rmqstore_spark.reader.topics import Topic

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.server_group import ServerGroup
    from rmqstore_spark.reader.options import ReadOptions

_READABLE: Final = 4
_SAMPLE: Final = 32
_SHORT: Final = 10_000
_LONGEST_EXPRESSION: Final = 4096
_TAG: Final = re.compile(r"[^\s|*][^|*]*[^\s|*]|[^\s|*]")
"""What a tag expression can hold: others are filtered here alone."""


class PulledStore:
    """What a broker has, asked for over its protocol."""

    def __init__(self, broker_name: str, client: BrokerClient) -> None:
        self.broker_name = broker_name
        self.path = client.name
        self._client = client
        self._topics: list[Topic] | None = None
        self._queues: dict[QueueName, PulledQueue] = {}
        self._sizes: dict[QueueName, float] = {}

    @property
    def servers(self) -> ServerGroup:
        """The processes that are asked."""
        return self._client.servers

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # ---- topics and queues

    def refresh(self) -> None:
        """Ask for the topics again when they are needed next."""
        self._topics = None

    def known_topics(self) -> list[Topic]:
        """List the topics that may be read, sorted by name."""
        if self._topics is None:
            self._topics = [
                Topic(
                    name,
                    tuple(range(topic.read_queues)),
                    topic.read_queues,
                    topic.write_queues,
                    topic.perm,
                    topic.is_ordered,
                    is_system_topic(name),
                )
                for name, topic in sorted(self._client.topics().items())
                if topic.perm & _READABLE
            ]
        return self._topics

    def queue(self, topic: str, queue_id: int) -> PulledQueue:
        """Return a queue.

        Raises:
            TopicNotFoundError: the topic or queue does not exist.
        """
        found = self._queues.get((topic, queue_id))
        if found is not None:
            return found
        if not any(one.name == topic and queue_id in one.queue_ids for one in self.known_topics()):
            raise TopicNotFoundError(f"{self.path} has no queue {topic}/{queue_id}.")
        found = self._queues[topic, queue_id] = PulledQueue(self._client, topic, queue_id)
        return found

    def look(self, names: Sequence[QueueName]) -> bool:
        """Ask how far some queues reach; return whether any has changed."""
        queues = [self.queue(*name) for name in names]
        ends = self._client.max_offsets(names)
        moved = [
            (queue, end) for queue, end in zip(queues, ends, strict=True) if queue.known_end != end
        ]
        begins = self._client.min_offsets([(queue.topic, queue.queue_id) for queue, _ in moved])
        unsure = []
        for (queue, end), begin in zip(moved, begins, strict=True):
            at = queue.set_offsets(begin, end)
            if at is not None:
                unsure.append((queue, at))
        asked = [((queue.topic, queue.queue_id), at) for queue, at in unsure]
        for (queue, _), pulled in zip(unsure, self._client.messages(asked), strict=True):
            queue.set_first(pulled)
        return bool(moved)

    def look_before(self, offsets: Mapping[QueueName, int]) -> None:
        """Ask for the messages before some offsets, all together, and keep them.

        `before` of a queue then asks no more for that one. Without this, each queue of
        each micro-batch would wait for answers of its own.
        """
        wanted = [(name, offset) for name, offset in offsets.items() if offset > 0]
        found = self._client.messages([(name, offset - 1) for name, offset in wanted])
        for (name, offset), pulled in zip(wanted, found, strict=True):
            self.queue(*name).set_before(offset, pulled)

    def used(self, names: Sequence[QueueName]) -> list[QueueName]:
        """Return those of some queues that have, or had, a message."""
        return [name for name in names if self.queue(*name).max_offset]

    # ---- messages

    def average_size(self, wanted: QueueRange) -> float:
        """Estimate the bytes of a record of a range: the mean of its first and last records.

        For a short range, as in a micro-batch, what is known of its queue must do: to look at its
        messages would cost as much as to read them.
        """
        name = wanted.topic, wanted.queue_id
        known = self._sizes.get(name)
        if not wanted.count or (known is not None and wanted.count < _SHORT):
            return known or 0.0
        found = [
            piece
            for start in {wanted.start, max(wanted.start, wanted.end - _SAMPLE)}
            for piece in self._puller(
                wanted.topic, wanted.queue_id, start, min(start + _SAMPLE, wanted.end), ALL_TAGS
            ).take(1, 1)
        ]
        size = sum(len(piece.data) for piece in found)
        if size:  # void entries alone say nothing of what others hold
            count = sum(piece.end - piece.start - piece.void for piece in found)
            self._sizes[name] = size / max(1, count)
        return self._sizes.get(name, 0.0)

    def cut(self, ranges: Sequence[QueueRange], limits: PlanLimits) -> list[QueueSplit]:
        """Plan splits that are ranges of one queue each.

        Raises:
            OptionError: there would be too many, as when a broker claims absurd offsets.
        """
        sizes = [(wanted, int(self.average_size(wanted) * wanted.count)) for wanted in ranges]
        total, count = sum(size for _, size in sizes), sum(wanted.count for wanted in ranges)
        splits = max(total // limits.max_bytes, count // (limits.max_records or count or 1))
        if splits > MOST_SPLITS:
            raise OptionError(
                f"{self.path} claims to have {count} messages of this query, about {total} bytes: "
                f"they would be more than {MOST_SPLITS} partitions. Check its queues (mqadmin "
                "topicStatus), or raise maxBytesPerPartition or maxRecordsPerPartition."
            )
        return plan_by_size(sizes, limits)

    def read(self, split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Read the messages of a range of one queue, in its order.

        Raises:
            DataLossError: messages have expired, and `fail_on_data_loss` is set.
            CorruptStoreError: a record is damaged, and the mode is FAILFAST.
            ServiceError: the broker does not answer, or what it sends makes no sense.
        """
        assert isinstance(split, QueueSplit)  # noqa: S101  # of `cut`
        wanted = split.range
        tags = _expression(options.tags, wanted.topic)
        puller = self._puller(wanted.topic, wanted.queue_id, wanted.start, wanted.end, tags)
        rows = PulledRows(
            self.broker_name,
            self.path,
            wanted.topic,
            wanted.queue_id,
            options,
            is_filtered=tags != ALL_TAGS,
        )
        queue = PulledQueue(self._client, wanted.topic, wanted.queue_id)
        while pieces := puller.take(options.batch_rows, options.batch_bytes):
            if tags != ALL_TAGS:
                pieces[:0] = _expired(queue, pieces)
            yield from rows.decode(pieces)

    def _puller(self, topic: str, queue_id: int, start: int, end: int, tags: str) -> QueuePuller:
        return QueuePuller(self._client, (topic, queue_id), start, end, tags)


def _expired(queue: PulledQueue, pieces: Sequence[PulledPiece]) -> Iterator[PulledPiece]:
    """Yield what has expired of some pieces without a sign of it.

    A broker passes over messages that have expired as over those with other tags. They expire from
    the front on: if the first message is there now, all were there when they were pulled.
    """
    there = [piece for piece in pieces if not piece.why_gone]
    if not there:
        return
    start, end = there[0].start, there[-1].end
    first = queue.first_from(start, end)
    if first > start:
        why = f"{first - start} messages from offset {start} on have expired"
        yield PulledPiece(start, first, why_gone=why)


def _expression(tags: frozenset[str] | None, topic: str) -> str:
    """Return the tag expression that a broker gets; it must not leave out what is wanted."""
    if tags is None or topic == SCHEDULE_TOPIC:  # whose entries have a time in place of a hash code
        return ALL_TAGS
    if not all(map(_TAG.fullmatch, tags)):
        return ALL_TAGS
    expression = " || ".join(sorted(tags))
    # Each pull has it, and the broker parses it each time.
    return expression if len(expression) <= _LONGEST_EXPRESSION else ALL_TAGS
