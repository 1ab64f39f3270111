"""Waits until what was put into the log of a group is committed: a quorum has it on disk."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.append.durability import Durability, Shortfall
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.member_log import MemberLog
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
    """

    def __init__(self, log: MemberLog, timeout_ms: int) -> None:
        self._log = log
        self._timeout = timeout_ms

    @property
    def awaits(self) -> bool:
        """True: a quorum has it first."""
        return True

    @property
    def awaits_others(self) -> bool:
        """True."""
        return True

    def await_put(self, end: int, term: LeaderTerm | None = None) -> Shortfall | None:
        """Wait until what was proposed in a term is committed, and in queues and index.

        Args:
            end: physical offset behind it.
            term: the term; None: nothing was proposed.

        Returns:
            What is lacking when the time is over; None if nothing is.
        """
        if term is None:
            return None
        is_committed = self._log.wait(term, end, self._timeout / 1000)
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
