"""Puts to the log of a group that wait for a quorum together, in no thread of their own.

The caller of a put continues, and the next records are on their way to the other members meanwhile.
Later, one call takes all outcomes that have become known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rmqstore_spark.engine.append.member_durability import MemberDurability
from rmqstore_spark.engine.status import PutResult


class Awaits(Protocol):
    """Waits for the outcome of a put."""

    def settled(self, result: PutResult) -> None:
        """Take the outcome."""
        ...


class _Waiting(NamedTuple):
    result: PutResult
    since: float
    who: Awaits


class LaterPuts:
    """Such puts. Thread-safe.

    Args:
        durability: knows what is committed.
        settle: returns the outcome of a put that began at some time, by `time.monotonic`.
    """

    def __init__(
        self, durability: MemberDurability, settle: Callable[[PutResult, float], PutResult]
    ) -> None:
        self._durability = durability
        self._settle = settle
        self._waiting: deque[_Waiting] = deque()
        self._changed: Callable[[], object] | None = None

    def watch(self, changed: Callable[[], object] | None) -> None:
        """Call a function, in place of the last one, when outcomes may be known; None: nobody.

        It is called in the thread that finds it out, and must not wait.
        """
        self._changed = changed
        self._durability.watch(changed)

    def add(self, result: PutResult, since: float, who: Awaits) -> None:
        """Wait for the outcome of a put.

        Args:
            result: what the log has of it.
            since: when it began, by `time.monotonic`.
            who: takes the outcome.
        """
        self._waiting.append(_Waiting(result, since, who))
        is_first = len(self._waiting) == 1  # its time has to be seen to
        if self._changed is not None and (is_first or self._durability.is_decided(result)):
            self._changed()

    def take(self) -> float | None:
        """Tell those whose outcome is known, or whose time is over. One thread at a time calls it.

        Returns:
            When the time of the next is over; None if nobody waits.
        """
        while self._waiting:
            result, since, who = self._waiting[0]
            ends = since + self._durability.patience
            if not self._durability.is_decided(result) and time.monotonic() < ends:
                return ends
            self._waiting.popleft()
            who.settled(self._settle(result, since))
        return None
