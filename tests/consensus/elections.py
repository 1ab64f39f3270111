"""How long an election takes when the member that must lead is behind in terms.

The leader of a group of three has failed. One of the others has entries that the last one lacks, so
only it can lead; the last one is some terms ahead, and asks for votes too. Each can be a member of
ours, or one with DLedger's rules of election, with DLedger's times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rmqstore_spark.consensus.actions import MemberRole, Save, SendRequest
from rmqstore_spark.consensus.election import RoundOutcome, VoterStanding, verdict_on
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import LedgerEntry, Vote, VoteAnswer, VoteVerdict
from rmqstore_spark.consensus.timing import Timing
from tests.consensus.simulator import SIZE, Node, Simulator

LIMIT: Final = 120_000
"""Milliseconds after which an election is given up."""
_FAILED, LONGER, SHORTER = "n0", "n1", "n2"
_ENDS: Final = {LONGER: 5, SHORTER: 3}
_TERM: Final = 2


class AsDLedger(GroupMember):
    """Elects as DLedger 0.3.1.2 does (`DLedgerLeaderElector`).

    A candidate's term above its own makes it refuse until it has raised its own, which it does not
    before a round of its own is over. It remembers no term of those that it refuses for their
    ledgers. A request that fails counts towards the end of a round.
    """

    _told = 0  # the term that it has to raise its own to

    def _voted(self, vote: Vote, now: int) -> VoteAnswer:
        standing = VoterStanding(self.term, self.vote, self.leader, self.is_voter, *self._reach())
        verdict = verdict_on(vote, standing)
        if verdict is VoteVerdict.ACCEPT and vote.term > self.term:
            self._told = vote.term
            verdict = VoteVerdict.REJECT_TERM_NOT_READY
            if self.role is not MemberRole.CANDIDATE:
                self._become(MemberRole.CANDIDATE, None)
            if not self._in_round:
                self._step_up(now)
            return VoteAnswer(self.term, verdict)
        if verdict is VoteVerdict.ACCEPT:
            return super()._voted(vote, now)
        return VoteAnswer(self.term, verdict)

    def _step_up(self, now: int) -> None:
        self._raise_term(max(self._told, self.term + 1))
        self._in_round = False
        self._deadline = now + self._pause()

    def _judge(self, now: int, *, is_over: bool) -> None:
        if not self._in_round:
            self._ask_for_votes(now)
            return
        is_over |= not self._asked
        outcome = self._round.outcome(self.term, is_over=is_over)
        if outcome is not RoundOutcome.WAIT and self._told > self.term:
            self._step_up(now)
        elif outcome is RoundOutcome.NEXT_TERM:
            self._in_round = False
            self._next_term = max(self.term + 1, self._round.highest_term)
            self._deadline = now + self._pause()
        else:
            super()._judge(now, is_over=is_over)

    def unanswered(self, number: int) -> None:
        super().unanswered(number)
        if self.role is MemberRole.CANDIDATE and self._in_round and not self._asked:
            self._deadline = 0  # the round is over


class Election(Simulator):
    """The two that are left, and nothing else that fails.

    Args:
        seed: of all that is drawn.
        longer, shorter: make the members.
        ahead: by how many terms the one that cannot lead is ahead.
        refuses: whether requests to the failed one fail at once, or get no answer.
    """

    def __init__(
        self,
        seed: int,
        longer: Callable[..., GroupMember],
        shorter: Callable[..., GroupMember],
        *,
        ahead: int,
        refuses: bool,
    ) -> None:
        super().__init__(random.Random(seed), (_FAILED, LONGER, SHORTER), Timing())
        self._refuses = refuses
        self._makers = {LONGER: longer, SHORTER: shorter}
        for name, end in _ENDS.items():
            entries = [LedgerEntry(at, _TERM, at * SIZE, SIZE, at) for at in range(end + 1)]
            self.checks.wrote(tuple(entries))
            self.nodes[name].disk.hold(Save(_TERM, _FAILED, is_voter=True), entries)
        self.nodes[SHORTER].disk.saved = Save(_TERM + ahead, None, is_voter=True)

    def milliseconds(self) -> int:
        """Play it; return when somebody leads, `LIMIT` if nobody does by then."""
        for name, maker in self._makers.items():
            self.make = maker
            self.start(self.nodes[name])
        self.until(LIMIT, lambda: any(node.leads for node in self.nodes.values()))
        return self.now

    def request(self, node: Node, action: SendRequest) -> None:
        if self._refuses and action.peer == _FAILED:
            self.at(self.now + 1, self._refused, node, action.number)
        else:
            super().request(node, action)

    def _refused(self, node: Node, number: int) -> None:
        if node.member is not None:
            node.member.unanswered(number)
            self.act(node)
