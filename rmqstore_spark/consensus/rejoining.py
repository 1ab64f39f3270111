"""What a member that lost its files, or never had any, must learn before it may vote.

Before the loss it may have voted, in a term that it does not know, and acknowledged entries that it
does not have: its vote could make a leader of one that lacks them. So it asks the others as a
candidate of the lowest term does, until a quorum of voters has told their terms: whatever it once
agreed to, one of each quorum knows. What others say that have lost their files too counts only when
all have been heard. Then the member waits for a leader of such a term, and votes again when it has
all that this leader has committed, and all that this leader had when it was asked: it may count
what the member acknowledged before the loss.

If nobody has an entry, the group is new, and there is nothing to wait for. A leader that was asked
counts nothing any more that this member had acknowledged; what it committed with that before, one
of the others has. So all others must say that they have no entry, asked after all were asked once.

A candidate may hold a vote of this member in a round that is not over, and get the votes that it
lacks from those who have just told a lower term. So a quorum counts only if it was asked when such
a round is over; all others include that candidate, and count at once.
"""

from __future__ import annotations

from rmqstore_spark.consensus.election import NOT_A_VOTER
from rmqstore_spark.consensus.messages import LONGER_LEDGER, VoteAnswer, VoteVerdict

_TELLS_NOTHING = frozenset(
    {VoteVerdict.REJECT_UNKNOWN_LEADER, VoteVerdict.REJECT_UNEXPECTED_LEADER}
)
_NEVER = 1 << 62


class Rejoining:
    """What the others have told.

    Args:
        members: the size of the group.
        rounds_end: when each round has ended in which this member may have voted before.
    """

    def __init__(self, members: int, rounds_end: int) -> None:
        self._others = members - 1
        self._quorum = members // 2 + 1
        self._rounds_end = rounds_end
        self._numbers: dict[str, int] = {}  # of the last request that each has answered
        self._told: dict[str, VoteAnswer] = {}  # each was asked after the loss
        self._of_voters: dict[str, int] = {}  # their terms, when rounds were over
        self._have_entries: dict[str, bool] = {}
        self._later = _NEVER  # the first request when rounds were over
        self._again = _NEVER  # the first request when all had told
        self._have_told_again: set[str] = set()

    def ask(self, number: int, now: int) -> None:
        """The others are asked, with requests from this number on."""
        if now >= self._rounds_end:
            self._later = min(self._later, number)
        if self._all_have_told:
            self._again = min(self._again, number)

    def note(self, peer: str, number: int, answer: VoteAnswer) -> None:
        """Take the answer of a peer to a request with an empty ledger."""
        if answer.verdict in _TELLS_NOTHING or number < self._numbers.get(peer, 0):
            return
        self._numbers[peer] = number
        self._told[peer] = answer
        if number >= self._again:
            self._have_told_again.add(peer)
        if answer.verdict is NOT_A_VOTER:
            if answer.end >= 0:  # it may have acknowledged them
                self._have_entries[peer] = True
            return
        self._have_entries[peer] = answer.verdict in LONGER_LEDGER
        if number >= self._later:
            self._of_voters[peer] = answer.term

    @property
    def _all_have_told(self) -> bool:
        return len(self._told) == self._others

    @property
    def wants_to_ask_again(self) -> bool:
        """Whether all have told once, so that the next answers say whether the group is new."""
        return self._all_have_told and self._again == _NEVER

    @property
    def term(self) -> int | None:
        """The highest term that this member can have voted in; None while that is not known."""
        if len(self._of_voters) >= self._quorum:
            return sorted(self._of_voters.values())[self._quorum - 1]
        return max([each.term for each in self._told.values()]) if self._all_have_told else None

    @property
    def may_be_new_group(self) -> bool:
        """Whether none of those that have told has an entry."""
        return not any(self._have_entries.values())

    @property
    def is_new_group(self) -> bool:
        """Whether none of the others has an entry."""
        return len(self._have_told_again) == self._others and self.may_be_new_group

    def end_of(self, leader: str, term: int) -> int | None:
        """Return the last entry that a leader had when it was asked; None: it has not told.

        Args:
            leader: the leader.
            term: in which it leads: what it said before counts for nothing.
        """
        told = self._told.get(leader)
        return None if told is None or told.term != term else told.end
