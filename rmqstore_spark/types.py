"""Values that the store, its process and the clients of it all know."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, Literal, get_args

from rmqstore_spark.errors import RefusedError

__all__ = [
    "CommitRequest",
    "CommitResult",
    "CommitStatus",
    "Content",
    "Kind",
    "StageInfo",
    "WriterId",
    "is_writer_name",
]

_LONGEST_NAME: Final = 256


_MOST_NUMBER: Final = 2**63 - 1


Kind = Literal["stream", "batch", "once"]


@dataclass(frozen=True)
class WriterId:
    """Whose batch is committed, and which of its batches.

    Attributes:
        kind: "stream": a streaming query; "batch": an application that numbers its writes; "once":
            a write that nothing repeats but its own lost acknowledgement.
        name: queryId, txnAppId, or a name that nobody else has.
        number: batchId or txnVersion; 0 for a write of its own.
    """

    kind: Kind
    name: str
    number: int

    @classmethod
    def of_stream(cls, query_id: str, batch_id: int) -> WriterId:
        """A micro-batch of a streaming query."""
        return cls("stream", query_id, batch_id)

    @classmethod
    def of_batch(cls, txn_app_id: str, txn_version: int) -> WriterId:
        """A batch write that may be run again: its application says which one it is."""
        return cls("batch", txn_app_id, txn_version)

    @classmethod
    def of_one_write(cls) -> WriterId:
        """A batch write that is not told from any other."""
        return cls("once", uuid.uuid4().hex, 0)

    def check(self) -> None:
        """Refuse what no client of ours sends.

        Raises:
            RefusedError: an unknown kind, a name that is no printable text of 1 to 256
                characters, or a number that no long can hold.
        """
        name = self.name
        if self.kind not in get_args(Kind):
            raise RefusedError(f"{str(self.kind)[:64]!r} is no kind of writer", "MESSAGE_ILLEGAL")
        if not is_writer_name(name):
            raise RefusedError(
                f"A writer's name ({name[:64]!r}...) takes 1 to {_LONGEST_NAME} printable "
                "characters.",
                "MESSAGE_ILLEGAL",
            )
        if not 0 <= self.number <= _MOST_NUMBER:
            text = f"{self.number} is no number of a batch: it must not be negative."
            raise RefusedError(text, "MESSAGE_ILLEGAL")

    def __str__(self) -> str:
        words = {"stream": "batch {} of query {}", "batch": "txnVersion {} of txnAppId {}"}
        return words.get(self.kind, "write {1}").format(self.number, self.name)


def is_writer_name(value: object) -> bool:
    """Whether something can be the name of a writer."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


@dataclass(frozen=True)
class Content:
    """What two attempts at the same batch have in common, and two batches hardly ever.

    Records of the same row differ from attempt to attempt: in UNIQ_KEY, bornTimestamp and
    bornHost; in their length where one executor has an IPv4 address and another IPv6; in their
    order and their partition where Spark cuts a replay differently. Bodies do not.

    Attributes:
        rows: how many.
        body_bytes: of their bodies together; None in a marker of an earlier version.
    """

    rows: int
    body_bytes: int | None

    def is_like(self, other: Content) -> bool:
        """Whether nothing speaks against their being the same."""
        unknown = self.body_bytes is None or other.body_bytes is None
        return self.rows == other.rows and (unknown or self.body_bytes == other.body_bytes)

    def __str__(self) -> str:
        size = "" if self.body_bytes is None else f" with {self.body_bytes} bytes of bodies"
        return f"{self.rows} rows{size}"


@dataclass(frozen=True)
class StageInfo:
    """What a task says that it has staged; a commit takes a stage only where all of it agrees.

    Attributes:
        stage_id: 32 hex digits, made by the task.
        rows: records.
        bytes: of all records.
        body_bytes: of their bodies alone.
        checksum: CRC-32 of the records, as they were sent.
    """

    stage_id: str
    rows: int
    bytes: int
    body_bytes: int
    checksum: int


CommitStatus = Literal["COMMITTED", "ALREADY_COMMITTED"]


@dataclass(frozen=True)
class CommitRequest:
    """What is to be committed.

    Attributes:
        writer: whose batch it is, and which.
        stages: what its tasks have staged, in the order of their partitions.
    """

    writer: WriterId
    stages: tuple[StageInfo, ...]

    @property
    def content(self) -> Content:
        """What the stages hold together."""
        rows = sum(info.rows for info in self.stages)
        return Content(rows, sum(info.body_bytes for info in self.stages))

    def check(self) -> None:
        """Refuse what no client of ours sends.

        Raises:
            RefusedError: the writer is none, or there are no rows.
        """
        self.writer.check()
        if not self.content.rows:
            raise RefusedError(
                f"{self.writer} cannot be committed: its commit has no rows. Leave out the commit "
                "of a batch that is empty.",
                "MESSAGE_ILLEGAL",
            )


@dataclass(frozen=True)
class CommitResult:
    """What a commit did.

    Attributes:
        status: ALREADY_COMMITTED where an earlier one had done it.
        rows: of the batch.
        physical_offset: where its first record stands in the log.
    """

    status: CommitStatus
    rows: int
    physical_offset: int
