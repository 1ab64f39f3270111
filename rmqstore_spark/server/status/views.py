"""What pages show of a store's figures, as plain objects: topics, queues, groups, writers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.engine.batches.marker import MARKER_TOPIC, read_marker
from rmqstore_spark.layout.constants import is_system_topic
from rmqstore_spark.reader.groups import group_offsets
from rmqstore_spark.reader.options import ReadOptions

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store
    from rmqstore_spark.server.status.history import Queues

Rates = Mapping[tuple[str, str], float]
"""Messages a second, by topic and queueId."""

MOST_MARKERS: Final = 1000
"""How many of the newest commits are read."""


@dataclass(frozen=True)
class QueueLine:
    """A queue.

    Attributes:
        topic, queue_id: which.
        first, end: its first offset, and its next one.
        rate: messages a second; None while unknown.
    """

    topic: str
    queue_id: int
    first: int
    end: int
    rate: float | None

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return max(0, self.end - self.first)


@dataclass(frozen=True)
class TopicLine:
    """A topic.

    Attributes:
        name: its name.
        queues: how many queues it has.
        messages: how many messages they have.
        rate: messages a second; None while unknown.
        is_system: whether it is the broker's own.
    """

    name: str
    queues: int
    messages: int
    rate: float | None
    is_system: bool


@dataclass(frozen=True)
class ProgressLine:
    """The progress of a group in a queue.

    Attributes:
        group, topic, queue_id: which.
        offset: the next one that it consumes.
        end: the queue's next one; None if the store does not have the queue.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    end: int | None

    @property
    def lag(self) -> int:
        """How many messages it has not consumed."""
        return max(0, (self.end or 0) - self.offset)


@dataclass(frozen=True)
class GroupLine:
    """A consumer group.

    Attributes:
        name: its name.
        topics: those that it has consumed of.
        lag: how many messages it has not consumed.
        members: how many of its consumers are connected.
    """

    name: str
    topics: tuple[str, ...]
    lag: int
    members: int


@dataclass(frozen=True)
class CommitLine:
    """A batch that Spark has committed.

    Attributes:
        kind, name, number: its writer and its number among those of the writer.
        time: when it was stored, in microseconds since the epoch; None if its marker does not
            say.
        rows, size: of the batch, in messages and bytes of the log.
        topics: rows of each topic.
        physical_offset: where it begins in the log.
    """

    kind: str
    name: str
    number: int
    time: int | None
    rows: int
    size: int
    topics: Mapping[str, int]
    physical_offset: int


@dataclass(frozen=True)
class WriterLine:
    """A writer with its newest batches: a streaming query, an application, a single write.

    Attributes:
        commits: its batches, the newest first; at least one.
    """

    commits: Sequence[CommitLine]

    @property
    def last(self) -> CommitLine:
        """Its newest batch."""
        return self.commits[0]


def queue_lines(queues: Queues, rates: Rates, topic: str) -> list[QueueLine]:
    """Return the queues of a topic by queueId; none if there is no such topic."""
    return [
        QueueLine(topic, int(queue_id), first, end, rates.get((topic, queue_id)))
        for queue_id, (first, end) in sorted(
            queues.get(topic, {}).items(), key=lambda item: int(item[0])
        )
    ]


def topic_lines(queues: Queues, rates: Rates, containing: str = "") -> list[TopicLine]:
    """Return topics by name.

    Args:
        queues: of the store.
        rates: of these.
        containing: only topics whose name contains this, in any case.
    """
    wanted = containing.lower()
    found = []
    for name in sorted(queues):
        if wanted not in name.lower():
            continue
        by_id = queues[name]
        known = [rates[name, queue_id] for queue_id in by_id if (name, queue_id) in rates]
        messages = sum(max(0, end - first) for first, end in by_id.values())
        rate = sum(known) if known else None
        found.append(TopicLine(name, len(by_id), messages, rate, is_system_topic(name)))
    return found


def progress_lines(store: Store, queues: Queues) -> list[ProgressLine]:
    """Return the progress of all groups, by group, topic and queueId.

    Args:
        store: has the offsets of groups, as they were written last.
        queues: of the store.
    """
    lines = []
    for one in group_offsets(store, ends_of(queues)):
        bounds = queues.get(one.topic, {}).get(str(one.queue_id))
        end = None if bounds is None else bounds[1]
        lines.append(ProgressLine(one.group, one.topic, one.queue_id, one.offset, end))
    return lines


def ends_of(queues: Queues) -> Mapping[tuple[str, int], int]:
    """Return the next offset of each queue."""
    return {
        (topic, int(queue_id)): end
        for topic, by_id in queues.items()
        for queue_id, (_, end) in by_id.items()
    }


def group_lines(progress: Sequence[ProgressLine], members: Mapping[str, int]) -> list[GroupLine]:
    """Return the groups of some progress, and those with connected members, by name."""
    lag: dict[str, int] = dict.fromkeys(members, 0)
    topics: dict[str, dict[str, None]] = {name: {} for name in members}
    for one in progress:
        lag[one.group] = lag.get(one.group, 0) + one.lag
        topics.setdefault(one.group, {})[one.topic] = None
    return [
        GroupLine(name, tuple(topics[name]), lag[name], members.get(name, 0))
        for name in sorted(lag)
    ]


def writer_lines(store: Store, queues: Queues) -> list[WriterLine]:
    """Return the writers of the newest commits, the one that committed last first.

    Args:
        store: has the markers of commits.
        queues: of the store.
    """
    by_writer: dict[tuple[str, str], list[CommitLine]] = {}
    for commit in _commits(store, queues):
        by_writer.setdefault((commit.kind, commit.name), []).append(commit)
    return [WriterLine(commits) for commits in by_writer.values()]


def _commits(store: Store, queues: Queues) -> Iterator[CommitLine]:
    """Yield the newest commits, the newest first."""
    first, end = queues.get(MARKER_TOPIC, {}).get("0", (0, 0))
    first = max(first, end - MOST_MARKERS)
    if first >= end:
        return
    options = ReadOptions(columns=("physicalOffset", "body"), fail_on_data_loss=False)
    read: list[tuple[int, bytes]] = []
    for batch in store.read(MARKER_TOPIC, 0, first, end, options):
        read += zip(batch["physicalOffset"].to_pylist(), batch["body"].to_pylist(), strict=True)
    for place, body in reversed(read):
        marked = read_marker(body, place)
        if marked is not None:
            writer, done = marked
            moment = None if done.time is None else done.time * 1000
            yield CommitLine(
                writer.kind, writer.name, writer.number, moment, done.content.rows, done.bytes,
                dict(done.content.topics), done.physical_offset,
            )  # fmt: skip


def failures(stats: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return what failed since the start: what, with which status, how often."""
    kinds = (
        ("puts", "putFailures"),
        ("blocks of Spark", "stageFailures"),
        ("commits of Spark", "commitFailures"),
        ("calls", "callFailures"),
    )
    return [
        (what, status, count)
        for what, key in kinds
        for status, count in stats.get(key, {}).items()
        if count
    ]
