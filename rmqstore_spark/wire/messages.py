"""The messages between a store process and its clients, as dataclasses (JSON: `wire.codec`).

Those of clients that only read are in `wire.reading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from rmqstore_spark.layout.constants import MAX_GROUP_LENGTH
from rmqstore_spark.wire.codec import AtMost, Between
from rmqstore_spark.wire.reading import TopicName

_MAX_QUEUES: Final = 65_536
MOST_LISTED: Final = 10_000

QueueNums = Annotated[int, Between(1, _MAX_QUEUES)]
GroupName = Annotated[str, AtMost(MAX_GROUP_LENGTH)]
Address = Annotated[str, AtMost(300)]
StageId = Annotated[str, AtMost(32)]


@dataclass(frozen=True)
class Done:
    """An empty request or answer."""


@dataclass(frozen=True)
class TopicRequest:
    """Creates, changes or deletes a topic; None leaves a number at its default."""

    name: TopicName
    read_queue_nums: QueueNums | None = None
    write_queue_nums: QueueNums | None = None
    perm: Annotated[int, Between(0, 7)] = 6


@dataclass(frozen=True)
class OffsetsRequest:
    """Requests the ends of queues; None for all topics."""

    topics: tuple[TopicName, ...] | None = None


@dataclass(frozen=True)
class QueueOffsets:
    """The ends of a queue: `max_offset` is one past its last message."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True)
class OffsetsReply:
    """The ends of the log, and of queues by topic and queue id (as text, for JSON)."""

    min_offset: int
    max_offset: int
    flushed_offset: int
    queues: Mapping[str, Mapping[str, QueueOffsets]]


@dataclass(frozen=True)
class CommitOffsetsRequest:
    """Moves the offsets of a consumer group.

    Attributes:
        group: its name.
        offsets: the next offsets to consume, by topic and queue id (as text, for JSON).
        reset: also move offsets back.
    """

    group: GroupName
    offsets: Mapping[str, Mapping[str, int]]
    reset: bool = False


@dataclass(frozen=True)
class CommitOffsetsReply:
    """The number of offsets that have changed."""

    changed: int


@dataclass(frozen=True)
class FlushReply:
    """The physical offset up to which the log is flushed."""

    flushed_offset: int


# ---- expiry -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpireRequest:
    """Lists the segments all of whose messages were stored before a time, or orders their removal.

    Attributes:
        before_ms: the time, milliseconds since the epoch.
        remove: begin to remove them. A request without it then tells how far the store is.
    """

    before_ms: Annotated[int, Between(1, 1 << 62)]
    remove: bool = False


@dataclass(frozen=True)
class ExpiringSegment:
    """A segment of the log: its range of physical offsets, and when its messages were stored.

    `stored_from` is the storeTimestamp of its first message (-1 if that is not readable);
    `stored_until` is that of the first message of the next segment.
    """

    start: int
    end: int
    stored_from: int
    stored_until: int


@dataclass(frozen=True)
class ExpireReply:
    """The segments that are to be removed.

    Attributes:
        count, total_bytes: their number and bytes.
        segments: the oldest of them, at most MOST_LISTED.
        is_working: whether an order is being carried out.
        remark: why the store keeps segments that were to be removed.
    """

    count: int
    total_bytes: int
    segments: tuple[ExpiringSegment, ...]
    is_working: bool
    remark: str


# ---- the role ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromoteRequest:
    """Makes a slave the master.

    Attributes:
        waits_for_slaves: whether it becomes a SYNC_MASTER, and not an ASYNC_MASTER.
        force: whether also if its master answers, or has sent a log that cannot be followed.
    """

    waits_for_slaves: bool = False
    force: bool = False


@dataclass(frozen=True)
class PromoteReply:
    """The new master.

    Attributes:
        begin: the physical offset from which on the log is its own.
        slaves: where slaves connect, as `host:port`; None if none are taken.
    """

    begin: int
    slaves: str | None


@dataclass(frozen=True)
class DemoteRequest:
    """Makes a master a slave.

    Attributes:
        master: whom to follow: the `host:port` where that one serves slaves.
        master_broker: the `host:port` where its broker answers clients; "" for none.
    """

    master: Address
    master_broker: Address = ""


@dataclass(frozen=True)
class DemoteReply:
    """The new slave.

    Attributes:
        end: the physical offset at which its log ends.
        slaves: how many slaves of its own were connected.
        lacking: how many of them lack some of its log.
        unknown: how many of them were sent all of it, and do not say what they have.
    """

    end: int
    slaves: int
    lacking: int
    unknown: int


# ---- transactions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class EndRequest:
    """Ends transactions.

    Attributes:
        group: the producer group.
        queue_offsets, physical_offsets: n, what names each half message.
        is_commit: whether to commit or to roll back.
    """

    group: GroupName
    queue_offsets: tuple[int, ...]
    physical_offsets: tuple[int, ...]
    is_commit: bool

    def __post_init__(self) -> None:
        if len(self.queue_offsets) != len(self.physical_offsets):
            raise ValueError("there must be as many physicalOffsets as queueOffsets")
        if len(self.queue_offsets) > MOST_LISTED:
            raise ValueError(f"there must be at most {MOST_LISTED} queueOffsets")


@dataclass(frozen=True)
class EndReply:
    """The outcome for each half message.

    Attributes:
        statuses: n, COMMITTED, ROLLED_BACK, ENDED_BEFORE, or a status of RocketMQ.
        remarks: n, why a transaction waits on; or what a stored message lacks.
    """

    statuses: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class ChecksRequest:
    """Requests the half messages whose producers are to be asked. Each check is answered once.

    Attributes:
        group: the producer group.
        most: the most half messages.
    """

    group: GroupName
    most: Annotated[int, Between(1, 1024)] = 32


# ---- staging ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamCommand:
    """The purpose of a stream of blocks.

    Attributes:
        op: "put"; "half": put as half messages of transactions; or "stage".
        results: whether a put is acknowledged with the offsets of each record.
        stage_id: UUID as 32 hex digits, for op "stage".
    """

    op: Annotated[str, AtMost(8)]
    results: bool = False
    stage_id: StageId | None = None

    def __post_init__(self) -> None:
        if self.op not in ("put", "half", "stage"):
            raise ValueError("op must be put, half or stage")
        if (self.stage_id is not None) != (self.op == "stage"):
            raise ValueError("op stage, and only it, must have a stageId")


@dataclass(frozen=True)
class AbortRequest:
    """Discards stages; unknown and committed ones are skipped."""

    stage_ids: tuple[StageId, ...]


# ---- searching --------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryRequest:
    """Looks messages up by key (or UNIQ_KEY), within a range of storeTimestamp."""

    topic: TopicName
    key: str
    max_num: Annotated[int, Between(1, 1024)] = 32
    begin_ms: int = 0
    end_ms: int = (1 << 63) - 1
