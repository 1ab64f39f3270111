"""Waits until what was put into the log of a group is committed: a quorum has it on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.append.durability import Durability, Shortfall
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.errors import RefusedError

_LOOK_S: Final = 1.0
UNKNOWN: Final = (
    "Another member of the group may lead now: it is unknown whether it has the messages. If they "
    "are sent again, they may be stored twice."
)


class MemberDurability(Durability):
    """A `Durability` of a member. Thread-safe.

    Args:
        log: the log of the group.
        timeout_ms: how long to wait.

    Attributes:
        patience: the same in seconds.
    """

    def __init__(self, log: MemberLog, timeout_ms: int) -> None:
        self._log = log
        self._timeout = timeout_ms
        self.patience = timeout_ms / 1000

    def watch(self, changed: Callable[[], object] | None) -> None:
        """Call a function when more is decided, in place of the last one; None: nobody."""
        self._log.watcher = changed

    def is_decided(self, result: PutResult) -> bool:
        """Return whether `await_put` would not wait for a put."""
        return result.term is None or self._log.is_decided(result.term, result.end_offset)

    def await_put(
        self, end: int, term: LeaderTerm | None = None, since: float | None = None
    ) -> Shortfall | None:
        """Wait until what was proposed in a term is committed, and in queues and index.

        Args:
            end: physical offset behind it.
            term: the term; None: nothing was proposed.
            since: when the wait began, by `time.monotonic`; None: it begins now.

        Returns:
            What is lacking when the time is over; None if nothing is.
        """
        if term is None:
            return None
        left = self.patience if since is None else since + self.patience - time.monotonic()
        is_committed = self._log.wait(term, end, max(left, 0))
        if is_committed:
            return None
        if is_committed is None:
            return Shortfall(PutStatus.SERVICE_NOT_AVAILABLE, UNKNOWN, is_open=True)
        return Shortfall(
            PutStatus.SERVICE_NOT_AVAILABLE,
            "No quorum of the group had the messages on disk within syncFlushTimeout "
            f"({self._timeout} ms). They may be committed later: if they are sent again, they may "
            "be stored twice.",
            is_open=True,
        )

    def await_copies(self, end: int, term: LeaderTerm | None) -> None:
        """Wait until copies of delayed messages are committed, or the term is over.

        Raises:
            RefusedError: it is over, and the next leader finds out which of them it has.
        """
        while term is not None and not (is_committed := self._log.wait(term, end, _LOOK_S)):
            if is_committed is None:
                raise RefusedError(UNKNOWN, PutStatus.SERVICE_NOT_AVAILABLE, is_open=True)

    def await_commit(self, begin: int, end: int) -> None:
        """Wait for a batch that this member has: what it has of a batch is committed."""
        del begin
        if self._log.max_offset < end:
            raise RefusedError(UNKNOWN, PutStatus.SERVICE_NOT_AVAILABLE, is_open=True)
