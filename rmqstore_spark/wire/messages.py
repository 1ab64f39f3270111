"""The messages between a store process and its clients, as dataclasses (JSON: `wire.codec`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from rmqstore_spark.layout.constants import MAX_TOPIC_LENGTH
from rmqstore_spark.types import CommitRequest, CommitResult, StageInfo, WriterId
from rmqstore_spark.wire.codec import AtMost, Between

__all__ = [
    "AbortRequest",
    "CommitRequest",
    "CommitResult",
    "Done",
    "FileEntry",
    "FlushReply",
    "ListReply",
    "OffsetsReply",
    "OffsetsRequest",
    "OpenReply",
    "OpenRequest",
    "PathRequest",
    "QueryRequest",
    "QueueOffsets",
    "RangesRequest",
    "Refusal",
    "StageInfo",
    "StreamCommand",
    "TopicRequest",
    "TopicSettings",
    "TopicsReply",
    "WalkRequest",
    "WriterId",
]

_INT_MAX: Final = (1 << 31) - 1
_MAX_QUEUES: Final = 65_536

Int32 = Annotated[int, Between(0, _INT_MAX)]
QueueNums = Annotated[int, Between(1, _MAX_QUEUES)]
TopicName = Annotated[str, AtMost(MAX_TOPIC_LENGTH)]
StageId = Annotated[str, AtMost(32)]


@dataclass(frozen=True)
class Done:
    """The answer of an action that has nothing to tell."""


@dataclass(frozen=True)
class Refusal:
    """Why something was refused.

    Attributes:
        status: a status of RocketMQ's, or one of `wire.failures`.
        message: what happened and what to do.
    """

    status: Annotated[str, AtMost(64)]
    message: Annotated[str, AtMost(16_384)]


# ---- opening, topics --------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenRequest:
    """Ask for what one needs to know to encode records.

    Attributes:
        topics: those that are to be written, made where the store makes topics by itself; None for
            all that there are.
    """

    topics: tuple[TopicName, ...] | None = None


@dataclass(frozen=True)
class TopicSettings:
    """A topic as `topics.json` has it."""

    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Annotated[int, Between(0, 7)]


@dataclass(frozen=True)
class OpenReply:
    """What a store tells its clients.

    Attributes:
        protocol: version of what is said here.
        store_id: stays the same for the life of the store.
        broker_name: what the store calls itself.
        store_host_v6: records leave 20 bytes for storeHost, else 8.
        max_message_size: bytes of a body.
        max_block_bytes, max_block_rows: limits of one put.
        topics: by name.
    """

    protocol: int
    store_id: str
    broker_name: str
    store_host_v6: bool
    max_message_size: int
    max_block_bytes: int
    max_block_rows: int
    auto_create_topic_enable: bool
    default_topic_queue_nums: int
    topics: Mapping[str, TopicSettings]


@dataclass(frozen=True)
class TopicRequest:
    """Make, change or delete a topic; None leaves a number at its default."""

    name: TopicName
    read_queue_nums: QueueNums | None = None
    write_queue_nums: QueueNums | None = None
    perm: Annotated[int, Between(0, 7)] = 6


@dataclass(frozen=True)
class TopicsReply:
    """All topics by name."""

    topics: Mapping[str, TopicSettings]


@dataclass(frozen=True)
class OffsetsRequest:
    """Ask for the ends of queues; None for all topics."""

    topics: tuple[TopicName, ...] | None = None


@dataclass(frozen=True)
class QueueOffsets:
    """Ends of a queue: `max_offset` is one past its last message."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True)
class OffsetsReply:
    """Ends of the log and of queues, these by topic and queue id (as text, for JSON)."""

    min_offset: int
    max_offset: int
    flushed_offset: int
    queues: Mapping[str, Mapping[str, QueueOffsets]]


@dataclass(frozen=True)
class FlushReply:
    """How far everything is on disk now."""

    flushed_offset: int


# ---- staging ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamCommand:
    """What a stream of blocks is for.

    Attributes:
        op: "put" or "stage".
        results: acknowledge a put with the offsets of each record.
        stage_id: UUID as 32 hex digits, for op "stage".
    """

    op: Annotated[str, AtMost(8)]
    results: bool = False
    stage_id: StageId | None = None

    def __post_init__(self) -> None:
        if self.op not in ("put", "stage"):
            raise ValueError("op is put or stage")
        if (self.stage_id is not None) != (self.op == "stage"):
            raise ValueError("op stage, and no other, has a stageId")


@dataclass(frozen=True)
class AbortRequest:
    """Discard stages; those that are unknown, or committed, are passed over."""

    stage_ids: tuple[StageId, ...]


# ---- reading ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathRequest:
    """A file or folder of the store, relative to it with `/` between names; empty for itself."""

    path: str


@dataclass(frozen=True)
class WalkRequest:
    """All that lies below a folder, down to a depth."""

    path: str
    depth: Annotated[int, Between(0, 8)]


@dataclass(frozen=True)
class FileEntry:
    """A file or folder: its path relative to the store, and its size (0 for a folder)."""

    path: str
    size: int
    is_dir: bool
    mtime_ms: int


@dataclass(frozen=True)
class ListReply:
    """What lies in a folder, or below it."""

    entries: tuple[FileEntry, ...]


@dataclass(frozen=True)
class RangesRequest:
    """Byte ranges of one file; each gives fewer bytes where the file ends."""

    path: str
    offsets: tuple[int, ...]
    lengths: tuple[Int32, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.lengths):
            raise ValueError("there are as many lengths as offsets")


@dataclass(frozen=True)
class QueryRequest:
    """Look messages up by key (or UNIQ_KEY), within a time of storage."""

    topic: TopicName
    key: str
    max_num: Annotated[int, Between(1, 1024)] = 32
    begin_ms: int = 0
    end_ms: int = (1 << 63) - 1
