"""Values shared by the store, the store process and its clients."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import RefusedError

MOST_TOPICS: Final = 8
"""Topics that an error names."""
_LONGEST_NAME: Final = 256
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_MOST_NUMBER: Final = 2**63 - 1


@dataclass(frozen=True)
class HalfId:
    """Names a half message, as the acknowledgement of its put does.

    Attributes:
        queue_offset: its offset in RMQ_SYS_TRANS_HALF_TOPIC.
        physical_offset: where its record starts in the log.
    """

    queue_offset: int
    physical_offset: int


Kind = Literal["stream", "batch", "once"]


@dataclass(frozen=True)
class WriterId:
    """Identifies a batch: its writer, and its number.

    Attributes:
        kind: "stream": a streaming query; "batch": an application that numbers its writes; "once":
            a single write, which is repeated only if its acknowledgement was lost.
        name: queryId, txnAppId, or a random name.
        number: batchId or txnVersion; 0 for a single write.
    """

    kind: Kind
    name: str
    number: int

    @classmethod
    def of_stream(cls, query_id: str, batch_id: int) -> WriterId:
        """Identify a micro-batch of a streaming query."""
        return cls("stream", query_id, batch_id)

    @classmethod
    def of_batch(cls, txn_app_id: str, txn_version: int) -> WriterId:
        """Identify a batch write that its application numbers, and may run again."""
        return cls("batch", txn_app_id, txn_version)

    @classmethod
    def of_one_write(cls, name: str | None = None) -> WriterId:
        """Identify a batch write by a random name. A second run counts as another write.

        Args:
            name: one that was drawn before, for a repeated commit of the same run.
        """
        return cls("once", uuid.uuid4().hex if name is None else name, 0)

    def check(self) -> None:
        """Refuse a writer that no client of ours sends.

        Raises:
            RefusedError: the kind is unknown, the name is not 1 to 256 printable characters, or the
                number is negative or does not fit into a long.
        """
        name = self.name
        if self.kind not in get_args(Kind):
            raise RefusedError(
                f"Unknown kind of writer: {str(self.kind)[:64]!r}", PutStatus.MESSAGE_ILLEGAL
            )
        if not is_writer_name(name):
            raise RefusedError(
                f"A writer's name ({name[:64]!r}...) must have 1 to {_LONGEST_NAME} printable "
                "characters.",
                PutStatus.MESSAGE_ILLEGAL,
            )
        if not 0 <= self.number <= _MOST_NUMBER:
            text = f"Invalid batch number {self.number}: it must not be negative."
            raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL)

    def __str__(self) -> str:
        words = {"stream": "batch {} of query {}", "batch": "txnVersion {} of txnAppId {}"}
        return words.get(self.kind, "write {1}").format(self.number, self.name)


def is_writer_name(value: object) -> bool:
    """Return whether a value can be the name of a writer."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


def is_digest(value: object) -> bool:
    """Return whether a value is a digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def sum_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of all that several digests are of."""
    high = low = 0
    for digest in digests:
        high += int(digest[:16], 16)
        low += int(digest[16:], 16)
    return f"{high % (1 << 64):016x}{low % (1 << 64):016x}"


@dataclass(frozen=True)
class Content:
    """What a batch holds, by which a repeated attempt is recognized.

    Records of the same row differ from attempt to attempt in UNIQ_KEY, bornTimestamp and bornHost,
    and in their order, queue and partition if Spark splits a replay differently. All else is the
    same, and so is the digest (`layout.record.block`).

    Attributes:
        rows: number of records.
        body_bytes: bytes of all bodies; None in a marker of version 1.
        digest: of all records; None in a marker of version 1 or 2.
        topics: the rows of each topic, for people: the digest covers the topics. Empty if they are
            not known.
    """

    rows: int
    body_bytes: int | None
    digest: str | None = None
    topics: Mapping[str, int] = field(default_factory=dict)

    def is_like(self, other: Content) -> bool:
        """Return whether both can be the content of the same batch."""
        pairs = ((self.body_bytes, other.body_bytes), (self.digest, other.digest))
        known = (one == another for one, another in pairs if None not in (one, another))
        return self.rows == other.rows and all(known)

    def __str__(self) -> str:
        if not self.rows:
            return "no rows, because its tasks commit theirs separately (atomic=false)"
        size = "" if self.body_bytes is None else f" with {self.body_bytes} bytes of bodies"
        shown = topics_with_most_rows(self.topics)
        parts = [f"{escaped(topic)}: {rows}" for topic, rows in shown.items()]
        if parts and sum(shown.values()) < self.rows:
            parts.append("other topics")
        parts += [f"digest {self.digest}"] if self.digest else []
        return f"{self.rows} rows{size}" + (f" ({', '.join(parts)})" if parts else "")


def topics_with_most_rows(topics: Mapping[str, int], most: int = MOST_TOPICS) -> dict[str, int]:
    """Return the rows of the topics that have the most, those first."""
    return dict(sorted(topics.items(), key=lambda item: (-item[1], item[0]))[:most])


@dataclass(frozen=True)
class StageInfo:
    """What a task reports about its stage. A commit takes a stage only if all fields agree.

    Attributes:
        stage_id: 32 hex digits, chosen by the task.
        rows: number of records.
        bytes: bytes of all records.
        body_bytes: bytes of all bodies.
        checksum: CRC-32 of the records as they were sent.
        digest: what the records say (`layout.record.block`).
    """

    stage_id: str
    rows: int
    bytes: int
    body_bytes: int
    checksum: int
    digest: str


CommitStatus = Literal["COMMITTED", "ALREADY_COMMITTED"]


@dataclass(frozen=True)
class CommitRequest:
    """A request to commit a batch.

    Attributes:
        writer: identifies the batch.
        stages: the stages of its tasks, in the order of their partitions. None for a batch write
            whose tasks commit their parts separately: its number is then used, as by rows.
    """

    writer: WriterId
    stages: tuple[StageInfo, ...]

    @property
    def content(self) -> Content:
        """The content of all stages together."""
        return Content(
            sum(info.rows for info in self.stages),
            sum(info.body_bytes for info in self.stages),
            sum_of_digests(info.digest for info in self.stages),
        )

    def check(self) -> None:
        """Refuse a request that no client of ours sends.

        Raises:
            RefusedError: the writer or a digest is invalid, or stages have no rows.
        """
        self.writer.check()
        for info in self.stages:
            if not is_digest(info.digest):
                raise RefusedError(
                    f"{self.writer} cannot be committed: the digest of a stage must have 32 "
                    f"hexadecimal digits, and one is {info.digest[:40]!r}.",
                    PutStatus.MESSAGE_ILLEGAL,
                )
        is_in_parts = self.writer.kind == "batch" and not self.stages
        if not self.content.rows and not is_in_parts:
            raise RefusedError(
                f"{self.writer} cannot be committed: its commit has no rows. Skip the commit of "
                "an empty batch.",
                PutStatus.MESSAGE_ILLEGAL,
            )


@dataclass(frozen=True)
class CommitResult:
    """The outcome of a commit.

    Attributes:
        status: ALREADY_COMMITTED if an earlier commit stored the batch.
        rows: number of rows in the batch.
        physical_offset: where the first record starts in the log.
    """

    status: CommitStatus
    rows: int
    physical_offset: int
