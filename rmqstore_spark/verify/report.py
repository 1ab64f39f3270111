"""What a verification found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Problem", "Severity", "TornTail", "VerifyReport"]

Severity: TypeAlias = Literal["error", "note"]


@dataclass(frozen=True)
class Problem:
    """Something in a store that is not as it should be.

    Attributes:
        kind: which check it failed (docs/verify.md lists them).
        severity: an "error" is damage; a "note" is unusual, and yet no damage.
        file: the file that it is in, or a folder.
        offset: byte in that file; None where the whole file is meant.
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
    """Bytes behind the end of the intact log, which a crash left and a broker's start cuts off.

    Attributes:
        physical_offset: where the intact log ends.
        file: the file of that place.
        offset: the byte in it.
        size: bytes from there to the last one that is not zero.
        cause: why the record there does not count.
        holds_records: whether whole records stand somewhere behind.
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
        problems: errors first, then notes; of each kind only the first ones.
        totals: how many problems there are of each kind, those that are not listed included.
        errors: how many of them are errors.
        counts: what was looked at: `bytes`, `records`, `entries`, `indexEntries`, `files` and so
            on; what is not there was not met.
        log_begin: physical offset of the log's first byte.
        log_end: physical offset up to which the log was verified.
        being_written: a broker has the store open: it was verified up to the newest record that
            the queues knew at the start.
        torn_tail: what a crash left behind the end of the log, if there is anything.
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
        """Whether there is no damage; notes and a torn tail are none."""
        return self.errors == 0

    @property
    def notes(self) -> int:
        """How many of the problems are notes."""
        return sum(self.totals.values()) - self.errors

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it; its names are written as RocketMQ writes names."""
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
