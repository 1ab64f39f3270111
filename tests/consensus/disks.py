"""The disk of a simulated member: what a kill keeps, and what a power cut takes."""

from __future__ import annotations

import random

from rmqstore_spark.consensus.actions import Cut, Restart, Save, Write
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import LedgerEntry

Change = Write | Cut | Restart


class Disk:
    """What a member has stored.

    Attributes:
        saved: term and vote, which are on disk before anything else happens.
        begin: index of the first of `entries`.
        entries: what a reader of the files finds, as long as the power is on.
        committed: the commit index that the member has told; what it has saved of it may be lower.
        pending: changes that are not flushed.
        kept_begin, kept: what a power cut cannot take.
    """

    def __init__(self) -> None:
        self.saved: Save | None = None
        self.begin = 0
        self.entries: list[LedgerEntry] = []
        self.committed = -1
        self.pending: list[Change] = []
        self.kept_begin = 0
        self.kept: list[LedgerEntry] = []

    def hold(self, save: Save, entries: list[LedgerEntry]) -> None:
        """Begin with entries, all of them flushed."""
        self.saved, self.entries, self.kept = save, list(entries), list(entries)

    def do(self, action: Change) -> None:
        """Change the files, without flushing them."""
        self.begin = _apply(self.entries, self.begin, action)
        self.pending.append(action)

    def flush(self, number: int) -> None:
        """Keep all changes up to a number."""
        while self.pending and self.pending[0].number <= number:
            self.kept_begin = _apply(self.kept, self.kept_begin, self.pending.pop(0))

    def kill(self, chance: random.Random) -> None:
        """End the process: all that was written stays, flushed or not.

        Of the commit index, an older value may be saved, but none before the first entry.
        """
        if self.committed >= self.begin and chance.random() < 0.5:
            self.committed = chance.randint(self.begin, self.committed)
        self.pending = [action._replace(number=0) for action in self.pending]

    def cut_power(self, chance: random.Random) -> None:
        """Keep a part of what was not flushed: some changes, and a part of the next."""
        self.kill(chance)
        whole = chance.randint(0, len(self.pending))
        for action in self.pending[:whole]:
            self.kept_begin = _apply(self.kept, self.kept_begin, action)
        torn = self.pending[whole] if whole < len(self.pending) else None
        if isinstance(torn, Write) and len(torn.entries) > 1:
            part = torn.entries[: chance.randint(1, len(torn.entries) - 1)]
            self.kept_begin = _apply(self.kept, self.kept_begin, Write(torn.number, part))
        self.pending.clear()
        self.entries, self.begin = list(self.kept), self.kept_begin

    def start(self) -> MemberLedger:
        """Return what a start finds, which it flushes: a killed process may not have done so."""
        self.flush(0)
        return self.ledger()

    def ledger(self) -> MemberLedger:
        """Return what the files have."""
        terms: list[tuple[int, int]] = []
        for entry in self.entries:
            if not terms or terms[-1][1] != entry.term:
                terms.append((entry.index, entry.term))
        return MemberLedger(self.begin, self.begin + len(self.entries) - 1, terms)

    def read(self, first: int, last: int) -> tuple[LedgerEntry, ...]:
        """Return entries."""
        return tuple(self.entries[first - self.begin : last - self.begin + 1])

    def expire(self, begin: int) -> None:
        """Forget entries before `begin`, all of which are flushed."""
        del self.entries[: begin - self.begin]
        del self.kept[: begin - self.kept_begin]
        self.begin = self.kept_begin = begin


def _apply(entries: list[LedgerEntry], begin: int, action: Change) -> int:
    if isinstance(action, Write):
        if not entries:
            begin = action.entries[0].index
        entries.extend(action.entries)
    elif isinstance(action, Cut):
        del entries[action.end + 1 - begin :]
    else:
        entries.clear()
    return begin
