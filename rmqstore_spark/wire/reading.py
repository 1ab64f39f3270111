"""The messages of all clients, and of those that read a store's files, as dataclasses.

They are apart from `wire.messages`: to make a class takes half a millisecond, and a command that
reads through an endpoint, or a task of Spark, needs no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from rmqstore_spark.layout.constants import MAX_TOPIC_LENGTH
from rmqstore_spark.wire.codec import AtMost, Between

_INT_MAX: Final = (1 << 31) - 1

Int32 = Annotated[int, Between(0, _INT_MAX)]
TopicName = Annotated[str, AtMost(MAX_TOPIC_LENGTH)]


@dataclass(frozen=True)
class OpenRequest:
    """Requests what is needed to encode records.

    Attributes:
        topics: the topics to write; None for all topics.
        creates: whether missing ones are created, if the store creates topics automatically.
    """

    topics: tuple[TopicName, ...] | None = None
    creates: bool = True


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic, as in `topics.json`."""

    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Annotated[int, Between(0, 7)]


@dataclass(frozen=True)
class OpenReply:
    """The properties of a store that its clients need.

    Attributes:
        protocol: version of the protocol.
        store_id: the store's id, which never changes.
        broker_name: the store's broker name.
        is_master: whether it takes writes, and is not a slave or read-only.
        store_host_v6: whether records have 20 bytes for storeHost instead of 8.
        max_message_size: maximum bytes of a body.
        max_block_bytes, max_block_rows: limits of one put.
        topics: the settings of topics by name.
    """

    protocol: int
    store_id: str
    broker_name: str
    is_master: bool
    store_host_v6: bool
    max_message_size: int
    max_block_bytes: int
    max_block_rows: int
    auto_create_topic_enable: bool
    default_topic_queue_nums: int
    topics: Mapping[str, TopicSettings]


# ---- files ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathRequest:
    """A path relative to the store, with `/` between names; empty for the store itself."""

    path: str


@dataclass(frozen=True)
class WalkRequest:
    """Requests the entries of a folder, and what is below it, down to a depth."""

    path: str
    depth: Annotated[int, Between(0, 8)] = 0


@dataclass(frozen=True)
class FileEntry:
    """A file or folder: its path relative to the store, and its size (0 for a folder)."""

    path: str
    size: Annotated[int, Between(0, 1 << 62)]
    is_dir: bool
    mtime_ms: int


@dataclass(frozen=True)
class ListReply:
    """The entries in a folder, or below it."""

    entries: tuple[FileEntry, ...]


@dataclass(frozen=True)
class RangesRequest:
    """Requests byte ranges of files; a range is shorter only where its file ends.

    Attributes:
        paths: the files.
        counts: how many ranges of each, at least one, in the order of the ranges.
        offsets, lengths: n, the ranges.
    """

    paths: tuple[str, ...]
    counts: tuple[Int32, ...]
    offsets: tuple[int, ...]
    lengths: tuple[Int32, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.lengths):
            raise ValueError("there must be as many lengths as offsets")
        if (
            len(self.counts) != len(self.paths)
            or 0 in self.counts
            or sum(self.counts) != len(self.offsets)
        ):
            raise ValueError("the counts must be those of the paths, and of all ranges")
