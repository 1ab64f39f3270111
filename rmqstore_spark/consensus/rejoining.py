"""What a member that lost its files, or never had any, must learn before it may vote.

Before the loss it may have voted, in a term that it does not know, and acknowledged entries that it
does not have: its vote could make a leader of one that lacks them. So it asks the others as a
candidate of the lowest term does, until a quorum of voters has told their terms: whatever it once
agreed to, one of these knows. What others say that have lost their files too counts only when all
have been heard. If none of them has an entry, the group is new. Otherwise the member waits for a
leader of such a term, and votes again when it has all that this leader has committed, and all that
this leader had when it was asked: it may count what the member acknowledged before the loss.

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
        self._rounds_are_over = False
        self._terms: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._voters: set[str] = set()
        self._have_entries: dict[str, bool] = {}

    def ask(self, now: int) -> None:
        """The others are asked; what they were asked before is not answered any more."""
        self._rounds_are_over = now >= self._rounds_end

    def note(self, peer: str, answer: VoteAnswer) -> None:
        """Take the answer of a peer to a request with an empty ledger."""
        if answer.verdict in _TELLS_NOTHING:
            return
        self._terms[peer] = answer.term  # each was asked after the loss
        self._ends[peer] = answer.end
        if answer.verdict is not NOT_A_VOTER:
            self._have_entries[peer] = answer.verdict in LONGER_LEDGER
        if self._rounds_are_over and answer.verdict is not NOT_A_VOTER:
            self._voters.add(peer)

    @property
    def term(self) -> int | None:
        """The highest term that this member can have voted in; None while that is not known."""
        is_known = len(self._voters) >= self._quorum or len(self._terms) == self._others
        return max(self._terms.values()) if is_known else None

    @property
    def is_new_group(self) -> bool:
        """Whether none of the others has an entry, once all of them have told."""
        return len(self._terms) == self._others and not any(self._have_entries.values())

    def end_of(self, leader: str, term: int) -> int | None:
        """Return the last entry that a leader had when it was asked; None: it has not told.

        Args:
            leader: the leader.
            term: in which it leads: what it said before counts for nothing.
        """
        return self._ends[leader] if self._terms.get(leader) == term else None
