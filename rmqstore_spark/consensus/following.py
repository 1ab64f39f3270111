"""A follower brings its ledger to what its leader pushes. See DLedger's `EntryHandler`."""

from __future__ import annotations

from typing import NamedTuple

from rmqstore_spark.consensus.actions import Cut, Restart, Write
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import LedgerEntry, MemberCode, Push, PushType


class Taken(NamedTuple):
    """What follows from a push.

    Attributes:
        code: of the answer.
        changes: of the ledger.
        conflict: index of a committed entry of which the leader has another; -1 if there is none.
        kept: index of the last entry of which the leader wanted what is committed behind it cut; -1
            if it did not.
        is_behind: the leader's first entry does not follow this ledger.
    """

    code: MemberCode
    changes: tuple[Write | Cut | Restart, ...] = ()
    conflict: int = -1
    kept: int = -1
    is_behind: bool = False


_REFUSED = Taken(MemberCode.INCONSISTENT_STATE)
_DONE = Taken(MemberCode.SUCCESS)


class Following:
    """What a follower knows of its leader's ledger.

    Args:
        ledger: its own.

    Attributes:
        matched: its ledger is the beginning of the leader's.
        commit: the highest commit index that the leader has told since; -1 if there is none.
        shown: the highest entry that the leader has shown until then: a leader begins with its
            last one. -1 if it has shown none.
    """

    def __init__(self, ledger: MemberLedger) -> None:
        self._ledger = ledger
        self.begin()

    def begin(self) -> None:
        """Know nothing: the leader is another one."""
        self.matched = self._has_refused = False
        self.commit = self.shown = -1

    def take(self, push: Push, term: int, commit: int, *, is_voter: bool) -> Taken:
        """Do what a push of the leader wants.

        Args:
            push: the push.
            term: the leader's.
            commit: the member's commit index: nothing up to it is cut.
            is_voter: whether the group relies on what this member has.
        """
        if not self.matched:
            self.shown = max(self.shown, push.last)
        if push.type is PushType.COMPARE:
            taken = self._compare(push.entries[0], commit)
        elif push.type is PushType.TRUNCATE:
            taken = self._truncate(push, term, commit, is_voter)
        elif push.type is PushType.APPEND:
            taken = self._append(push.entries, term)
        else:
            taken = _DONE
        if taken.code is MemberCode.SUCCESS and self.matched:
            self.commit = max(self.commit, push.commit)
        return taken

    def _compare(self, entry: LedgerEntry, commit: int) -> Taken:
        term = self._ledger.term_of(entry.index)
        if term != entry.term:
            self._has_refused = True
            if term >= 0:
                self.matched = False  # a leader of RocketMQ can lose entries, and lead on
                if entry.index <= commit:
                    return _REFUSED._replace(conflict=entry.index)
            return _REFUSED
        self.matched = self.matched or entry.index == self._ledger.end
        return _DONE

    def _truncate(self, push: Push, term: int, commit: int, is_voter: bool) -> Taken:
        """End with this entry, unless all of the ledger is known to be the leader's.

        Then the request is late: it was sent before others that have been answered since.
        """
        ledger, entry = self._ledger, push.entries[0]
        if entry.term > term:
            return _REFUSED
        if self.matched and entry.index <= ledger.end:
            return _DONE
        if entry.index < ledger.end and self._ends_as_leader(term):
            return _REFUSED._replace(kept=entry.index)
        taken = _DONE
        if ledger.term_of(entry.index) != entry.term:
            if not self._is_first(push):
                return _REFUSED
            taken = self._begin_again(entry, commit, is_voter)
        elif entry.index < ledger.end:
            if entry.index < commit:  # it is late, or wrong: what is committed stays
                return _REFUSED._replace(kept=entry.index)
            taken = _DONE._replace(changes=(Cut(ledger.cut(entry.index), entry.index),))
        self.matched = self.matched or taken.code is MemberCode.SUCCESS
        return taken

    def _is_first(self, push: Push) -> bool:
        """Whether the entry of a TRUNCATE is the leader's first, with which a ledger may begin.

        Any other is from a request that was sent before this member has lost its files. A leader of
        RocketMQ does not say; what it sends after a comparison that was refused is not late.
        """
        return self._has_refused if push.begin < 0 else push.begin == push.first

    def _ends_as_leader(self, term: int) -> bool:
        """Whether the last entry is of the leader's term, so that all entries are the leader's.

        They may have been acknowledged before a restart: a request to cut them is late.
        """
        return self._ledger.end_term == term

    def _begin_again(self, entry: LedgerEntry, commit: int, is_voter: bool) -> Taken:
        """Begin with the leader's first entry: of this ledger, none is one of the leader's.

        If entry 0 differs, nothing is committed. Otherwise what is between may have expired, but
        nobody except the leader says so: a voter keeps what it has.

        Args:
            entry: the leader's first.
            commit: this member's commit index.
            is_voter: whether the group relies on what this member has.
        """
        ledger = self._ledger
        if ledger.is_empty:
            return _DONE._replace(changes=(write(ledger, (entry,)),))
        if entry.index <= commit:
            is_other = ledger.term_of(entry.index) >= 0
            return _REFUSED._replace(conflict=entry.index if is_other else -1, kept=entry.index)
        if entry.index > 0 and is_voter:
            return _REFUSED._replace(is_behind=True)
        restart = Restart(ledger.restart(entry.index))
        return _DONE._replace(changes=(restart, write(ledger, (entry,))))

    def _append(self, entries: tuple[LedgerEntry, ...], term: int) -> Taken:
        ledger = self._ledger
        if not self.matched or entries[0].index > ledger.end + 1:
            return _REFUSED
        known = [entry for entry in entries if entry.index <= ledger.end]
        if any(ledger.term_of(entry.index) != entry.term for entry in known):
            return _REFUSED
        new = entries[len(known) :]
        if any(entry.term > term for entry in new) or not _follow_each_other(new, ledger):
            return _REFUSED
        return _DONE._replace(changes=(write(ledger, new),)) if new else _DONE


def write(ledger: MemberLedger, entries: tuple[LedgerEntry, ...]) -> Write:
    """Note entries behind the end of a ledger; return what puts them there."""
    number = ledger.write(entries[-1].index, [(each.index, each.term) for each in entries])
    return Write(number, entries)


def _follow_each_other(entries: tuple[LedgerEntry, ...], ledger: MemberLedger) -> bool:
    index, term = ledger.end, ledger.end_term
    for entry in entries:
        if entry.index != index + 1 or entry.term < term:
            return False
        index, term = entry.index, entry.term
    return True
