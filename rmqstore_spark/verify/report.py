"""Defines the report of a verification, and the kinds of problems in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from rmqstore_spark.base.printable import camel_case

Severity: TypeAlias = Literal["error", "note"]

KINDS: Final[dict[str, str]] = {
    # the log
    "record": "no whole record begins here; the text says how many bytes cannot be read",
    "body-crc": "a body does not match its bodyCRC",
    "record-crc": "a record does not match the CRC property that RocketMQ 5 put into it",
    "sys-flag": "bits that no broker sets, or a body that is not compressed as the bits say",
    "field": "a number that no broker writes there",
    "topic-name": "a topic that cannot be a folder's name; a note if only a broker refuses it",
    "properties": "properties that are not UTF-8, that RocketMQ drops, or that hold a run of zeros",
    "delay": "a delayed message whose DELAY is not a number: a starting broker ends the log there",
    "time-back": "a storeTimestamp before that of an earlier record",
    "batch": "a Spark batch without its rest, as a slave of RocketMQ that became the master has "
    "it, or a DLedger group whose leader was killed; or entries of such a batch that are not void",
    "log-file": "a file of the log that differs in size, has a wrong name, or is missing",
    "log-end": "records that were flushed, or that queues or index name, past the log's files",
    "unchecked": "a file with 1,000 damaged places: the rest of it was not checked",
    # queues
    "missing-queue": "records of a queue that does not exist",
    "missing-entry": "a record without an entry, past the queue's end or before its beginning",
    "entry-unwritten": "an entry inside a queue that is not written",
    "entry-filler": "a filler after a queue's first message",
    "entry-outside": "an entry that points before the log's beginning or past its end",
    "entry-record": "an entry that points to a place where no record begins",
    "entry-identity": "an entry and its record differ in topic, queueId or queueOffset; reported "
    "at the one of the two that nothing else confirms",
    "entry-size": "an entry with another size than its record",
    "entry-pending": "an entry of a prepared or rolled-back record",
    "entry-before-begin": "an entry before a queue's beginning, neither expired nor a filler",
    "tags-code": "an entry whose tagsCode is not the hash of the TAGS, or not the due time; or one "
    "that is void, although its record is not part of a batch without its rest",
    "ext-unit": "a tagsCode that is not the address of an extension unit of the record",
    "stale-entries": "entries past the end, left by an earlier crash",
    "undispatched": "entries that a killed broker writes to its queues when it starts again",
    "older-than-queue": "a record of a topic that was deleted, and has messages again",
    "queue-file": "as `log-file`, of a queue",
    "no-queues": "a store without queues, or with queues of a kind that is not checked",
    # index
    "index-header": "a header that does not match the content",
    "index-slot": "a slot that does not point to its newest entry",
    "index-chain": "an entry that its chain does not reach, or a link out of its chain",
    "index-entry": "an entry that does not point to a record with its key",
    "index-time": "an entry with a wrong timeDiff",
    "missing-key": "a record's key that an index file should hold, but that cannot be found in it",
    "unindexed": "keys of records between or after the index files: a broker does not find them",
    # DLedger
    "dledger-entry": "an entry whose header does not match its place, its predecessor or the index",
    "dledger-index": "a unit that does not match its number or the unit before it",
    # the rest
    "state": "a broker or store process has the store open, or was killed; or a DLedger member has "
    "no entries yet",
    "checkpoint": "a time after the log's newest record, or a missing or damaged checkpoint",
    "config": "a file of `config/` that is not JSON of its "
    "[shape](format.md#configuration-files); a note if it is a `.bak`, or the file of a `.bak` is "
    "gone",
    "topic-config": "a queue that `topics.json` does not configure",
    "group-offset": "an offset of a consumer group past the end of its queue: messages may be lost",
    "stray-file": "a file that does not belong there; an error if it has a segment's name",
    "unreadable": "a file that could not be read, and why",
    "expired": "a file that expired while it was verified",
}
"""The meaning of each kind."""


@dataclass(frozen=True)
class Problem:
    """A problem in a store.

    Attributes:
        kind: the check that failed (docs/verify.md lists them).
        severity: an "error" is damage; a "note" is unusual, but not damage.
        file: the file or folder with the problem.
        offset: offset in that file; None for the whole file.
        text: what is wrong, in one phrase.
    """

    kind: str
    severity: Severity
    file: str
    offset: int | None
    text: str

    def __str__(self) -> str:
        where = self.file if self.offset is None else f"{self.file} at {self.offset}"
        return f"{self.severity}: {where}: {self.text} [{self.kind}]"


@dataclass(frozen=True)
class TornTail:
    """Bytes that a crash left after the end of the intact log. A broker's start cuts them off.

    Attributes:
        physical_offset: where the intact log ends.
        file: the file of that offset.
        offset: the offset in the file.
        size: bytes from there to the last one that is not zero.
        cause: why the record there does not count.
        holds_records: whether the tail contains whole records.
    """

    physical_offset: int
    file: str
    offset: int
    size: int
    cause: str
    holds_records: bool


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes:
        problems: errors first, then notes; only the first ones of each kind.
        totals: number of problems of each kind, including those that are not listed.
        errors: number of errors among them.
        counts: how much was checked: `bytes`, `records`, `entries`, `indexEntries`, `files` and so
            on. Counts of zero are left out.
        log_begin: physical offset of the log's first byte.
        log_end: physical offset up to which the log was verified.
        being_written: a broker has the store open. The log was verified up to the newest record
            that the queues knew at the start.
        torn_tail: what a crash left after the end of the log, if anything.
    """

    problems: tuple[Problem, ...]
    totals: dict[str, int]
    errors: int
    counts: dict[str, int]
    log_begin: int
    log_end: int
    being_written: bool
    torn_tail: TornTail | None

    @property
    def ok(self) -> bool:
        """Whether there is no damage. Notes and a torn tail are not damage."""
        return self.errors == 0

    @property
    def notes(self) -> int:
        """The number of notes."""
        return sum(self.totals.values()) - self.errors

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON, with names in RocketMQ's spelling."""
        tail = self.torn_tail
        return {
            "ok": self.ok,
            "errors": self.errors,
            "notes": self.notes,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "beingWritten": self.being_written,
            "tornTail": tail and {camel_case(key): value for key, value in asdict(tail).items()},
            "counts": self.counts,
            "totals": self.totals,
            "problems": [asdict(problem) for problem in self.problems],
        }
