"""Whom a member votes for, and what a candidate does next. See `DLedgerLeaderElector`."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from rmqstore_spark.consensus.messages import LONGER_LEDGER, Vote, VoteAnswer, VoteVerdict

NOT_A_VOTER: Final = VoteVerdict.REJECT_TAKING_LEADERSHIP
"""What a member says that may not vote. DLedger's candidates take it for no vote, and no more."""

_HIGHER_TERM: Final = frozenset(
    {VoteVerdict.REJECT_EXPIRED_VOTE_TERM, VoteVerdict.REJECT_TERM_SMALL_THAN_LEDGER}
)


class VoterStanding(NamedTuple):
    """What counts when a member is asked for its vote."""

    term: int
    vote: str | None
    leader: str | None
    is_voter: bool
    end_term: int
    end_index: int


def verdict_on(vote: Vote, standing: VoterStanding) -> VoteVerdict:
    """Return what a member says to a candidate of its group, other than itself.

    A term above its own does not make it refuse: the member takes it over.
    """
    if not standing.is_voter:
        return NOT_A_VOTER
    if vote.end_term < standing.end_term:
        return VoteVerdict.REJECT_EXPIRED_LEDGER_TERM
    if vote.end_term == standing.end_term and vote.end_index < standing.end_index:
        return VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    if vote.term < standing.term:
        return VoteVerdict.REJECT_EXPIRED_VOTE_TERM
    if vote.term < standing.end_term:
        return VoteVerdict.REJECT_TERM_SMALL_THAN_LEDGER
    if vote.term == standing.term and standing.vote not in (None, vote.candidate):
        if standing.leader is not None:
            return VoteVerdict.REJECT_ALREADY_HAS_LEADER
        return VoteVerdict.REJECT_ALREADY_VOTED
    return VoteVerdict.ACCEPT


class RoundOutcome(enum.Enum):
    """What a candidate does after a round."""

    WAIT = enum.auto()  # more answers can change it
    LEAD = enum.auto()
    FOLLOW = enum.auto()  # somebody has a leader
    AGAIN = enum.auto()  # in the same term
    AGAIN_SOON = enum.auto()  # the same, as soon as voters have raised their terms
    NEXT_TERM = enum.auto()


class Round:
    """The votes of one round.

    Args:
        members: how many members the group has, the candidate included.
    """

    def __init__(self, members: int) -> None:
        self._members = members
        self._quorum = members // 2 + 1
        self._answers: dict[str, VoteAnswer] = {}

    def note(self, peer: str, answer: VoteAnswer) -> None:
        """Count a voter's answer, the last one if there are several."""
        self._answers[peer] = answer

    @property
    def highest_term(self) -> int:
        """The highest term of those that refused this one; -1 if nobody did."""
        return max(
            (answer.term for answer in self._answers.values() if answer.verdict in _HIGHER_TERM),
            default=-1,
        )

    @property
    def is_behind(self) -> bool:
        """Whether a voter has a longer ledger."""
        return any(answer.verdict in LONGER_LEDGER for answer in self._answers.values())

    def outcome(self, term: int, *, is_over: bool) -> RoundOutcome:
        """Return what follows, in the order in which DLedger looks.

        Args:
            term: the candidate's.
            is_over: whether its time is up.
        """
        verdicts = [answer.verdict for answer in self._answers.values()]
        accepted = 1 + verdicts.count(VoteVerdict.ACCEPT)
        if accepted >= self._quorum:
            return RoundOutcome.LEAD
        if accepted + verdicts.count(VoteVerdict.REJECT_TERM_NOT_READY) >= self._quorum:
            return RoundOutcome.AGAIN_SOON
        if not is_over and len(verdicts) < self._members - 1:
            return RoundOutcome.WAIT
        if self.highest_term > term:
            return RoundOutcome.NEXT_TERM
        if VoteVerdict.REJECT_ALREADY_HAS_LEADER in verdicts:
            return RoundOutcome.FOLLOW
        # Those who have a longer ledger may be behind in terms: let them catch up.
        if 1 + sum(verdict not in LONGER_LEDGER for verdict in verdicts) < self._quorum:
            return RoundOutcome.AGAIN
        return RoundOutcome.NEXT_TERM
