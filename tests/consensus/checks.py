"""What must hold of a group, over all its members and a whole run."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqstore_spark.consensus.messages import LedgerEntry
from tests.consensus.disks import Disk

Violation = AssertionError
"""Something that must hold did not; members raise it too."""


@dataclass
class Checks:
    """What must hold.

    Attributes:
        written: body of each (index, term) that anybody wrote: there is one.
        committed: the entry at each index that is committed: there is one.
        places: the index at which each body is committed: it is committed once.
        leaders: who leads in each term: it is one.
        acknowledged: (time asked, time answered, index, term) of each append.
        expired: index before which some member's entries have expired: no log begins behind it.
        elections, crashes: how many there were.
    """

    written: dict[tuple[int, int], object] = field(default_factory=dict)
    committed: dict[int, tuple[int, object]] = field(default_factory=dict)
    places: dict[object, int] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    acknowledged: list[tuple[int, int, int, int]] = field(default_factory=list)
    expired: int = 0
    elections: int = 0
    crashes: int = 0

    def wrote(self, entries: tuple[LedgerEntry, ...]) -> None:
        """An index and a term name one entry."""
        for index, term, _, _, body in entries:
            if self.written.setdefault((index, term), body) != body:
                raise Violation(f"two entries {index} of term {term}")

    def began(self, who: str, disk: Disk) -> None:
        """A log begins where all is that was committed, but for what has expired."""
        if disk.begin > self.expired:
            raise Violation(
                f"the log of {who} begins at {disk.begin}, and entries have expired up to "
                f"{self.expired}"
            )

    def commit(self, who: str, disk: Disk, before: int, index: int) -> None:
        """Committed prefixes agree, and a member's never shrinks while it lives.

        So who reads it sees all members' appends in one order, each once.
        """
        if index <= before:
            raise Violation(f"{who} has committed up to {before}, and then up to {index}")
        for at, term, _, _, body in disk.read(max(before + 1, disk.begin), index):
            here = (term, body)
            if self.written[at, term] != body:
                raise Violation(f"{who} commits entry {at}, which nobody wrote so")
            if self.committed.setdefault(at, here) != here:
                raise Violation(f"{who} commits {here} at {at}, where {self.committed[at]} was")
            if self.places.setdefault(body, at) != at:
                raise Violation(f"{who} commits {body} at {at} and at {self.places[body]}")

    def elected(self, who: str, term: int, disk: Disk) -> None:
        """There is one leader a term, and it has all that was acknowledged in earlier ones."""
        self.elections += 1
        if self.leaders.setdefault(term, who) != who:
            raise Violation(f"{who} and {self.leaders[term]} lead in term {term}")
        begin, entries = disk.begin, disk.entries
        end = begin + len(entries) - 1
        for _, _, index, of in self.acknowledged:
            if index < begin or of >= term:
                continue  # it has expired, or is of a later leader, which this one has not heard of
            if index > end or entries[index - begin].term != of:
                raise Violation(f"{who} leads in term {term} without entry {index} of term {of}")

    def order(self) -> None:
        """An append that began after another was acknowledged is behind it.

        With one place for each, on which all members agree, the appends are linearizable.
        """
        answers = sorted((answered, index) for _, answered, index, _ in self.acknowledged)
        highest, at = -1, 0
        for asked, _, index, _ in sorted(self.acknowledged):
            while at < len(answers) and answers[at][0] < asked:
                highest = max(highest, answers[at][1])
                at += 1
            if index <= highest:
                raise Violation(f"entry {index} was asked for after {highest} was acknowledged")
