"""Defines the report of a verification, for users and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Problem", "Severity", "TornTail", "VerifyReport"]

Severity: TypeAlias = Literal["error", "note"]


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
            "tornTail": None
            if tail is None
            else {
                "physicalOffset": tail.physical_offset,
                "file": tail.file,
                "offset": tail.offset,
                "size": tail.size,
                "cause": tail.cause,
                "holdsRecords": tail.holds_records,
            },
            "counts": self.counts,
            "totals": self.totals,
            "problems": [asdict(problem) for problem in self.problems],
        }
