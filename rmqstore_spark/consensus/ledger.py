"""What a member knows of its entries: where they begin and end, their terms, what is on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque


class MemberLedger:
    """Begin, end and terms of a ledger. The entries themselves are the driver's.

    Args:
        begin: index of the first entry; behind `end` if there is none.
        end: index of the last one, which is on disk; -1 if there never was any.
        terms: (index, term) of each entry whose term differs from the one before it, in order.

    Attributes:
        flushed: all entries up to this one are on disk.
        changes: how many times the ledger was written or cut.
    """

    def __init__(self, begin: int, end: int, terms: list[tuple[int, int]]) -> None:
        self.begin = begin
        self.end = end
        self.flushed = end
        self.changes = 0
        self._starts = [index for index, _ in terms]
        self._terms = [term for _, term in terms]
        self._unflushed: deque[tuple[int, int]] = deque()  # (change, end after it)

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self.end < self.begin

    @property
    def end_term(self) -> int:
        """The term of the last entry; -1 if there is none."""
        return -1 if self.is_empty else self._terms[-1]

    def term_of(self, index: int) -> int:
        """Return the term of an entry; -1 if it is not there."""
        if not self.begin <= index <= self.end:
            return -1
        return self._terms[bisect_right(self._starts, index) - 1]

    def write(self, end: int, terms: list[tuple[int, int]]) -> int:
        """Note entries behind the end; return the number of this change.

        Args:
            end: index of the last new one.
            terms: (index, term) of the new ones, at least where the term changes.
        """
        for index, term in terms:
            assert term >= self.end_term, "terms never fall along a ledger"
            if self.is_empty or term > self._terms[-1]:
                self._starts.append(index)
                self._terms.append(term)
        if self.is_empty:
            self.begin = terms[0][0]
        self.end = end
        self.changes += 1
        self._unflushed.append((self.changes, end))
        return self.changes

    def cut(self, end: int) -> int:
        """Forget what is behind `end`; return the number of this change."""
        while self._starts and self._starts[-1] > end:
            self._starts.pop()
            self._terms.pop()
        self.end = end
        self.flushed = min(self.flushed, end)
        self._unflushed = deque((change, min(at, end)) for change, at in self._unflushed)
        self.changes += 1
        self._unflushed.append((self.changes, end))
        return self.changes

    def restart(self, index: int) -> int:
        """Forget all; the next entry is `index`. Return the number of this change."""
        self._starts, self._terms = [], []
        self.begin, self.end, self.flushed = index, index - 1, -1
        self.changes += 1
        self._unflushed = deque([(self.changes, index - 1)])
        return self.changes

    def note_flushed(self, change: int) -> None:
        """All changes up to this one are on disk."""
        while self._unflushed and self._unflushed[0][0] <= change:
            self.flushed = self._unflushed.popleft()[1]

    def expire(self, begin: int) -> None:
        """Forget what is before `begin`, which is an entry of the ledger."""
        assert self.begin <= begin <= self.end, "the last entry stays"
        kept = bisect_right(self._starts, begin) - 1
        self._starts, self._terms = self._starts[kept:], self._terms[kept:]
        self.begin = begin
