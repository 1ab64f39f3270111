"""A leader brings one peer's ledger to the end of its own. See DLedger's `EntryDispatcher`.

It compares its last entry with the peer's, then others, until it knows the last one that both have;
makes the peer forget what is behind that; and appends the rest. DLedger compares one entry after
the other: here each comparison halves what is left.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import MemberCode, Push, PushAnswer, PushType
from rmqstore_spark.consensus.timing import Timing


class _State(enum.Enum):
    COMPARE = enum.auto()
    TRUNCATE = enum.auto()
    APPEND = enum.auto()


class Pusher:
    """What a leader knows of a peer in its term.

    Args:
        ledger: the leader's.
        timing: how long it waits.
        within: returns the last of some entries that still fits into a push, the first at least.

    Attributes:
        match: the peer has all entries up to this one, on disk; -1 if that is not known.
    """

    def __init__(
        self, ledger: MemberLedger, timing: Timing, within: Callable[[int, int], int]
    ) -> None:
        self._ledger = ledger
        self._timing = timing
        self._within = within
        self.match = -1
        self._next = 0  # the first entry that was not pushed
        self._is_taken = False  # something was appended since the ends were compared
        self._told = -1  # the commit index that the peer knows, or is told at `_idle`
        self._waiting = 0  # requests without an answer
        self._late = 0  # when they are given up
        self._idle = 0  # when the peer is told of the commit index again
        self._last = 0  # number of the last request
        self._since = 0  # answers to requests before this one do not count
        self._compare(0)

    @property
    def wake(self) -> int:
        """When `due` should be asked again, if nothing comes before."""
        return self._late if self._waiting or self._state is not _State.APPEND else self._idle

    def due(self, now: int, commit: int) -> tuple[PushType, int, int] | None:
        """Return what to send: type, first and last entry; None if there is nothing more now."""
        if self._ledger.is_empty:
            self._late = now + self._timing.retry
            return None
        if self._state is _State.APPEND:
            return self._due_append(now, commit)
        if now < self._late:
            return None
        if self._waiting and self._state is _State.TRUNCATE:
            self._compare(now)  # without an answer, the peer may have lost its files
        self._late = now + self._timing.compare_wait
        self._waiting = 1
        if self._state is _State.TRUNCATE and self._at >= self._ledger.begin:
            return PushType.TRUNCATE, self._at, self._at
        if self._at < self._ledger.begin:  # it has expired meanwhile
            self._compare(self._late)
        return PushType.COMPARE, self._at, self._at

    def _due_append(self, now: int, commit: int) -> tuple[PushType, int, int] | None:
        # A broker of RocketMQ keeps a push that reaches over its ledger's end, and refuses all that
        # begin at the same entry, until it is asked to compare (EntryHandler.writeRequestMap).
        is_expired = self._next < self._ledger.begin
        if is_expired or (self._waiting and now >= self._late):
            self._compare(now)
            return self.due(now, commit)
        if self._next <= self._ledger.end:
            if self._waiting == self._timing.window:
                return None
            first = self._next
            last = min(first + self._timing.batch - 1, self._ledger.end)
            self._next = self._within(first, last) + 1
            self._late = now + self._timing.push_wait
            self._waiting += 1
            self._told = commit
            self._idle = now + self._timing.idle
            return PushType.APPEND, first, self._next - 1
        if self._waiting:
            return None
        if self._told != commit:  # entries that come soon tell it too
            self._idle = min(self._idle, now + self._timing.tell)
            self._told = commit
        if now >= self._idle:
            self._idle = now + self._timing.idle
            return PushType.COMMIT, -1, -1
        return None

    def sent(self, number: int) -> None:
        """What `due` returned was sent, with this number, which is higher than those before."""
        self._last = number
        if self._state is not _State.APPEND:
            self._since = number

    def answered(self, number: int, push: Push, answer: PushAnswer, now: int) -> None:
        """Take what the peer says to a request."""
        if number < self._since:
            return
        is_appended = push.type is PushType.APPEND and answer.code is MemberCode.SUCCESS
        has_lost = answer.end < self.match and not is_appended  # entries that it had
        if has_lost:
            self.match = -1
        if push.type is PushType.COMMIT:
            if has_lost:
                self._compare(now)
        elif push.type is PushType.COMPARE:
            self._compared(answer, now)
        elif answer.code is not MemberCode.SUCCESS:
            self._compare(now if self._is_taken else now + self._timing.retry)
        elif push.type is PushType.TRUNCATE:
            self._append_behind(self._at)
        else:
            self._is_taken = True
            self._waiting = max(self._waiting - 1, 0)
            self._late = now + self._timing.push_wait
            self.match = max(self.match, push.last)

    def shown(self, end: int, now: int) -> None:
        """The peer says how its ledger ends, -1 if it is empty: it may lack what it had.

        Then what it acknowledged before counts no more, also if that comes later.
        """
        if end < 0 or end < self.match:
            self.match = -1
            self._compare(now)

    def _compare(self, at: int) -> None:
        """Look for the last entry that both have, from the end on, not before the time `at`."""
        self._state = _State.COMPARE
        self._is_taken = False
        self._since = self._last + 1
        self._at = self._ledger.end
        self._low, self._high = -1, -1  # the peer has the one, and not the other
        self._waiting = 0
        self._late = at

    def _compared(self, answer: PushAnswer, now: int) -> None:
        ledger = self._ledger
        self._late = now
        self._waiting = 0
        if answer.code is MemberCode.SUCCESS:
            self._low = self._at
            if answer.end == self._at:
                self._append_behind(self._at)
                return
        elif answer.code is MemberCode.INCONSISTENT_STATE:
            self._high = self._at
        else:
            self._late = now + self._timing.retry
            return
        first, last = max(answer.begin, ledger.begin), min(answer.end, ledger.end)
        if first > last:  # they have no index in common
            self._truncate(ledger.begin)
            return
        low = max(self._low, first - 1)
        high = last + 1 if self._high < 0 else min(self._high, last + 1)
        if low + 1 < high:
            self._at = last if self._high < 0 or self._high > last else (low + high) // 2
        else:
            self._truncate(low if low >= first else ledger.begin)

    def _truncate(self, at: int) -> None:
        self._state = _State.TRUNCATE
        self._at = at

    def _append_behind(self, at: int) -> None:
        self._state = _State.APPEND
        self.match = max(self.match, at)
        self._next = at + 1
        self._waiting = 0
