"""Puts to the log of a group that wait for a quorum together, in no thread of their own.

The caller of a put continues, and the next records are on their way to the other members meanwhile.
Later, one call takes all outcomes that have become known.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rmqstore_spark.engine.append.member_durability import MemberDurability
from rmqstore_spark.engine.status import PutResult

_log = logging.getLogger(__name__)


class Awaits(Protocol):
    """Waits for the outcome of a put."""

    def settled(self, result: PutResult) -> None:
        """Take the outcome."""
        ...


class OutcomesWatcher(Protocol):
    """Has outcomes told: calls `LaterPuts.take`. Its methods must not wait."""

    def changed(self) -> None:
        """Call it soon: outcomes may be known. In the thread that finds it out."""
        ...

    def waits(self) -> None:
        """Call it, and when it says: a put has begun to wait, and none did. In any thread."""
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
        self._watcher: OutcomesWatcher | None = None

    def watch(self, watcher: OutcomesWatcher | None) -> None:
        """Tell somebody, in place of the last one, when outcomes may be known; None: nobody."""
        self._watcher = watcher
        self._durability.watch(None if watcher is None else watcher.changed)

    def add(self, result: PutResult, since: float, who: Awaits) -> None:
        """Wait for the outcome of a put.

        Args:
            result: what the log has of it.
            since: when it began, by `time.monotonic`.
            who: takes the outcome.
        """
        self._waiting.append(_Waiting(result, since, who))
        if self._watcher is None:
            return
        if self._durability.is_decided(result):
            self._watcher.changed()
        elif len(self._waiting) == 1:  # the others are seen to when its time is over
            self._watcher.waits()

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
            try:
                who.settled(self._settle(result, since))
            except Exception:  # noqa: BLE001 - the others are told theirs
                _log.exception("The outcome of a put could not be told.")
        return None
