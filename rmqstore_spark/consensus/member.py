"""The state machine of a member: terms, roles, and the commit index.

Invariants (each is asserted where it could break): a term never falls; a vote is given once a term;
nothing at or below the commit index is cut; a leader's ledger only grows; a leader commits what a
quorum has on disk, and nothing of earlier terms before an entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rmqstore_spark.consensus.actions import (
    Action,
    BeginRefused,
    CommittedUpTo,
    Cut,
    CutRefused,
    MemberRole,
    Respond,
    Restart,
    RoleChanged,
    Save,
    SendRequest,
    Stop,
    Write,
)
from rmqstore_spark.consensus.election import Round, RoundOutcome, VoterStanding, verdict_on
from rmqstore_spark.consensus.following import Following, write
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.messages import (
    LONGER_LEDGER,
    Answer,
    HeartbeatAnswer,
    LeaderHeartbeat,
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    Request,
    Vote,
    VoteAnswer,
    VoteVerdict,
)
from rmqstore_spark.consensus.pushing import Pusher
from rmqstore_spark.consensus.rejoining import Rejoining
from rmqstore_spark.consensus.timing import Timing

SPENT: Final = "-"
"""In place of who has the vote of a member that may have voted before it lost its files."""


class GroupMember:
    """One member of a group. Not thread-safe: a driver calls it from one place.

    Args:
        me: this member's id.
        group: the ids of all members, this one included.
        saved: what was last saved; None if there is nothing: a member that is new, or lost its
            files.
        ledger: its entries, all of them on disk. A driver only reads it.
        committed: entries up to this one are known to be committed; -1 for none.
        now: milliseconds of a clock that never goes back. Later steps tell it too.
        chance: returns numbers from 0 to 1, by which members differ in when they ask for votes.
        timing: how long it waits.
        within: returns the last of some entries that still fits into a push; None: all fit.

    Attributes:
        term: the current one.
        vote: who has this member's vote in it; SPENT: it gives none in it.
        role, leader: of now.
        commit: entries up to this one are committed; they may not all be here.
        actions: what the driver has to do, in order; it empties the list.
        stopped: why this member does nothing any more; empty if it does.
    """

    def __init__(
        self,
        me: str,
        group: Sequence[str],
        saved: Save | None,
        ledger: MemberLedger,
        *,
        committed: int = -1,
        now: int,
        chance: Callable[[], float],
        timing: Timing | None = None,
        within: Callable[[int, int], int] | None = None,
    ) -> None:
        assert me in group, "a member is one of its group"
        self.me = me
        self.peers = tuple(peer for peer in group if peer != me)
        self.quorum = len(group) // 2 + 1
        new = Save(0, None, is_voter=not self.peers)  # a member alone has nobody to ask
        self.term, self.vote, self.is_voter = saved or new
        self._is_saved = saved is not None
        self.ledger = ledger
        self.commit = min(committed, ledger.end)
        if 0 < ledger.begin <= ledger.end:  # what is before has expired, after it was committed
            self.commit = max(self.commit, ledger.begin)
        self.role = MemberRole.FOLLOWER
        self.leader: str | None = None
        self.actions: list[Action] = []
        self.stopped = ""
        self._timing = timing or Timing()
        self._within = within or (lambda _, last: last)
        self._chance = chance
        self._told_commit = -1  # the last one that the driver was told of
        self._asked: dict[int, tuple[str, Request]] = {}
        self._number = 0
        self._following = Following(ledger)
        self._unflushed: list[tuple[int, Respond]] = []  # (change of the ledger, answer)
        self._round = Round(len(group))
        self._may_have_led = self.vote == me  # and lost entries that it had not flushed
        self._in_round = False  # votes are asked for; otherwise a candidate waits
        self._next_term = 0  # the lowest in which votes are asked for next
        self._asks_in = 0  # the term in which it asks for votes; it may not have taken it yet
        self._rejoining = Rejoining(len(group), now + self._timing.rounds)
        self._pushers: dict[str, Pusher] = {}
        self._heard: dict[str, int] = {}  # when a leader last heard of each peer
        self._beat_at = now
        self._leader_heard = now
        self._deadline = now + self._patience()
        if not self.is_voter:
            self._deadline = now
        self._tell_commit()

    # ---- steps -----------------------------------------------------------------------------------

    @property
    def wake(self) -> int:
        """When `tick` has something to do, if nothing comes before."""
        if self.role is not MemberRole.LEADER:
            return self._deadline
        wake = self._beat_at
        for pusher in self._pushers.values():
            wake = min(wake, pusher.wake)
        return wake

    def tick(self, now: int) -> None:
        """Do what is due."""
        if self.stopped:
            return
        if self.role is MemberRole.LEADER:
            self._lead(now)
        elif now >= self._deadline:
            if not self.is_voter:
                self._ask_to_rejoin(now)
            elif self.role is MemberRole.FOLLOWER:
                self._become_candidate(now)
            else:
                self._judge(now, is_over=True)

    def receive(self, token: object, request: Request, now: int) -> None:
        """Take a request of a peer that is who it says. `Respond` has the token of its answer."""
        if self.stopped:
            return
        if isinstance(request, Vote):
            self._take_term()
            self.actions.append(Respond(token, self._voted(request, now)))
        elif isinstance(request, LeaderHeartbeat):
            self.actions.append(Respond(token, self._heartbeat(request, now)))
        else:
            self._pushed(token, request, now)

    def answered(self, number: int, answer: Answer, now: int) -> None:
        """Take the answer to a request (`SendRequest`)."""
        peer, request = self._asked.pop(number, ("", None))
        if request is None or self.stopped:
            return
        if answer.term > self.term and not isinstance(answer, VoteAnswer):
            self._raise_term(answer.term)
            self._follow(None, now)
        elif isinstance(answer, VoteAnswer):
            self._vote_answered(peer, number, answer, now)
        elif isinstance(request, Push) and isinstance(answer, PushAnswer):
            self._push_answered(peer, number, request, answer, now)
        elif isinstance(answer, HeartbeatAnswer):
            self._heartbeat_answered(peer, answer, now)

    def unanswered(self, number: int) -> None:
        """There is no answer to a request (`SendRequest`), and there will be none."""
        self._asked.pop(number, None)
        if self.role is MemberRole.CANDIDATE and self._in_round and not self._asked:
            self._deadline = 0  # the round is over: all others have answered

    def flushed(self, change: int, now: int) -> None:
        """All changes of the ledger up to this one (`Write`, `Cut`, `Restart`) are on disk."""
        if self.stopped:
            return
        self.ledger.note_flushed(change)
        while self._unflushed and self._unflushed[0][0] <= change:
            self.actions.append(self._unflushed.pop(0)[1])
        if self.role is MemberRole.LEADER:
            self._advance_commit(now)
        else:
            self._rejoin_if_caught_up()
        self._tell_commit()

    def append(self, entries: tuple[LedgerEntry, ...], now: int) -> None:
        """Append entries of this term behind the ledger's end, and push them. For a leader."""
        assert self.role is MemberRole.LEADER, "only a leader appends"
        self.actions.append(write(self.ledger, entries))
        self._push_all(now)

    def take_over(self, leader: str, term: int, now: int) -> bool:
        """Ask for votes in the next term, as the leader of this one wants; return whether it does.

        It does so only if it follows that leader.
        """
        if self.stopped or not self.is_voter or (leader, term) != (self.leader, self.term):
            return False
        if self.role is not MemberRole.FOLLOWER:
            return False
        self._raise_term(term + 1)
        self._become_candidate(now)
        return True

    def behind(self, peer: str) -> int | None:
        """Return how many entries a leader's peer lacks; None if that is not known."""
        match = self._pushers[peer].match
        return None if match < self.ledger.begin <= self.ledger.end else self.ledger.end - match

    # ---- terms and roles -------------------------------------------------------------------------

    def _raise_term(self, term: int) -> None:
        assert term > self.term, "a term never falls"
        self.term, self.vote = term, None
        self._may_have_led = False
        self._save()

    def _give_vote(self, to: str) -> None:
        if self.vote != to:
            assert self.vote is None, "a vote is given once a term"
            self.vote = to
            self._save()

    def _save(self) -> None:
        self._is_saved = True
        self.actions.append(Save(self.term, self.vote, self.is_voter))

    def _become(self, role: MemberRole, leader: str | None) -> None:
        self.role, self.leader = role, leader
        self._following.begin()
        self._asked.clear()
        self.actions.append(RoleChanged(role, self.term, leader))

    def _follow(self, leader: str | None, now: int) -> None:
        """Follow a leader of this term, or wait for one."""
        if (
            self.role is not MemberRole.FOLLOWER
            or self.leader != leader
            or not self._following.matched
        ):
            self._become(MemberRole.FOLLOWER, leader)
        self._wait_for_leader(now)

    def _begin_to_follow(self, leader: str, now: int) -> None:
        self._become(MemberRole.FOLLOWER, leader)
        if not self.is_voter:
            self._deadline = now  # this leader has not been asked

    def _wait_for_leader(self, now: int) -> None:
        """Be patient, but for a member that still has to ask the others before it may vote."""
        if not self._still_asks():
            self._deadline = now + self._patience()

    def _patience(self) -> int:
        return self._timing.silence + int(self._chance() * self._timing.round_gap)

    def _pause(self) -> int:
        return self._timing.round_gap + int(self._chance() * self._timing.round_spread)

    # ---- elections -------------------------------------------------------------------------------

    def _become_candidate(self, now: int) -> None:
        self._become(MemberRole.CANDIDATE, None)
        self._ask_for_votes(now)

    def _ask_for_votes(self, now: int) -> None:
        """Begin a round.

        A member that nobody answers stays in its term: it may be cut off from a leader, and one of
        RocketMQ keeps its own, though a member that is ahead refuses its entries.
        """
        self._asks_in = max(self._next_term, self.term)
        if self._asks_in == self.term and (self.vote not in (None, self.me) or self._may_have_led):
            self._asks_in += 1
        self._round = Round(len(self.peers) + 1)
        self._in_round = True
        self._asked.clear()
        if self._asks_in == self.term or self.quorum == 1:
            self._take_term()
        for peer in self.peers:
            self._ask(peer, Vote(self._asks_in, self.me, self.ledger.end, self.ledger.end_term))
        self._deadline = now + int(self._timing.vote_wait * (1 + self._chance() / 2))
        if self.quorum == 1:
            self._judge(now, is_over=False)

    def _take_term(self) -> None:
        """Vote for itself where it asks for votes, before it counts or gives any other."""
        if self.role is MemberRole.CANDIDATE and self._in_round:
            if self._asks_in > self.term:
                self._raise_term(self._asks_in)
            self._give_vote(self.me)

    def _vote_answered(self, peer: str, number: int, answer: VoteAnswer, now: int) -> None:
        if not self.is_voter:
            self._rejoining.note(peer, number, answer)
            if self._rejoining.wants_to_ask_again:
                self._deadline = now
            self._rejoin_if_new(now)
            self._rejoin_if_caught_up()
        elif self.role is MemberRole.CANDIDATE and self._in_round:
            if now >= self._deadline:  # a voter that lost its files may have forgotten its vote
                self._judge(now, is_over=True)
                return
            if answer.verdict not in LONGER_LEDGER:
                self._take_term()
            self._round.note(peer, answer)
            self._judge(now, is_over=False)

    def _judge(self, now: int, *, is_over: bool) -> None:
        """Do what the votes say; when a pause is over, begin the next round."""
        if not self._in_round:
            self._ask_for_votes(now)
            return
        outcome = self._round.outcome(self.term, is_over=is_over)
        if outcome is RoundOutcome.WAIT:
            return
        self._in_round = False
        if outcome is RoundOutcome.LEAD:
            self._become_leader(now)
        elif outcome is RoundOutcome.AGAIN_SOON:
            self._deadline = now + self._timing.round_gap // 10
        elif outcome is RoundOutcome.FOLLOW:
            self._deadline = now + self._timing.heartbeat + self._patience()
        else:
            self._deadline = now + self._pause()
            if outcome is RoundOutcome.NEXT_TERM:
                self._next_term = max(self._next_term, self.term + 1, self._round.highest_term)
            elif self._round.is_behind:
                self._deadline += self._timing.round_gap + self._timing.round_spread

    def _voted(self, vote: Vote, now: int) -> VoteAnswer:
        if vote.candidate == self.me:
            return VoteAnswer(self.term, VoteVerdict.REJECT_UNEXPECTED_LEADER)
        if vote.candidate not in self.peers:
            return VoteAnswer(self.term, VoteVerdict.REJECT_UNKNOWN_LEADER)
        if self.role is MemberRole.LEADER:
            self._pushers[vote.candidate].shown(vote.end_index, now)
        standing = VoterStanding(self.term, self.vote, self.leader, self.is_voter, *self._reach())
        verdict = verdict_on(vote, standing)
        if verdict is VoteVerdict.ACCEPT:
            if (vote.term, vote.candidate) != (self.term, self.vote):
                if vote.term > self.term:
                    self._raise_term(vote.term)
                self._give_vote(vote.candidate)
                self._follow(None, now)  # not again: one without its files asks on and on
        elif verdict in LONGER_LEDGER:  # the candidate has voted for itself in its term
            self._next_term = max(self._next_term, vote.term + 1)
        return VoteAnswer(self.term, verdict, self.ledger.end)

    def _reach(self) -> tuple[int, int]:
        """Term and index of the last entry."""
        return self.ledger.end_term, self.ledger.end

    # ---- rejoining -------------------------------------------------------------------------------

    def _ask_to_rejoin(self, now: int) -> None:
        if self.leader is not None and now - self._leader_heard > self._timing.silence:
            self._become(MemberRole.FOLLOWER, None)  # another may lead in this term
        self._deadline = now + self._timing.vote_wait
        self._rejoining.ask(self._number + 1, now)
        for peer in self.peers:
            self._ask(peer, Vote(self.term, self.me, -1, -1))

    def _rejoin_if_new(self, now: int) -> None:
        term = self._rejoining.term
        if not self._rejoining.is_new_group or term is None or not self.ledger.is_empty:
            return
        self.is_voter = True
        # A leader of RocketMQ, which may just be elected, stays in its term: a member in a later
        # one would refuse all of its entries. So it takes the others' term, and has no vote in it.
        if term > self.term:
            self.term, self._may_have_led = term, False
            self._follow(None, now)
        self.vote = self.leader or SPENT  # saved with the term: it may have voted in it
        self._save()
        self._wait_for_leader(now)

    def _has_asked(self) -> bool:
        """Whether this term is none in which a member without its files can have voted before."""
        term = self._rejoining.term
        return term is not None and term <= self.term

    def _may_acknowledge(self) -> bool:
        """Whether it has not promised, before it lost its files, to follow no leader of this term.

        It may have voted in a later one: that leader lacks what is committed with its help now.
        """
        return self.is_voter or self._has_asked()

    def _leaders_end(self) -> int | None:
        """The last entry of this term's leader when it was asked; None: it has not told."""
        return None if self.leader is None else self._rejoining.end_of(self.leader, self.term)

    def _still_asks(self) -> bool:
        """Whether it has lost its files, and has not been told all that it must know."""
        if self.is_voter:
            return False
        if self.ledger.is_empty and self._rejoining.may_be_new_group:
            return True
        return not self._has_asked() or (self.leader is not None and self._leaders_end() is None)

    def _rejoin_if_caught_up(self) -> None:
        told, following = self._leaders_end(), self._following
        if self.is_voter or told is None or not self._has_asked():
            return
        # A leader of RocketMQ tells no end, but it shows its last entry when it begins to compare.
        goal = max(told if told >= 0 else following.shown, following.commit)
        if following.matched and self.ledger.flushed >= goal:
            self.is_voter = True
            self.vote = self.leader  # it has led in this term: no other can
            self._save()

    # ---- leading ---------------------------------------------------------------------------------

    def _become_leader(self, now: int) -> None:
        assert self.vote == self.me, "a leader has its own vote"
        self._become(MemberRole.LEADER, self.me)
        self._pushers = {
            peer: Pusher(self.ledger, self._timing, self._within) for peer in self.peers
        }
        self._heard = dict.fromkeys(self.peers, now)
        self._beat_at = now
        self._lead(now)

    def _lead(self, now: int) -> None:
        if now >= self._beat_at:
            since = sorted((*self._heard.values(), now), reverse=True)[self.quorum - 1]
            if now - since > self._timing.silence:
                self._become_candidate(now)
                return
            self._beat_at = now + self._timing.heartbeat
            for peer in self.peers:
                self._ask(peer, LeaderHeartbeat(self.term, self.me))
        self._push_all(now)

    def _heartbeat_answered(self, peer: str, answer: HeartbeatAnswer, now: int) -> None:
        if self.role is not MemberRole.LEADER:
            return
        if answer.code is MemberCode.SUCCESS:
            self._heard[peer] = now
        elif answer.code is MemberCode.TERM_NOT_READY:
            self._beat_at = min(self._beat_at, now + self._timing.heartbeat // 100)

    def _push_all(self, now: int) -> None:
        for peer in self.peers:
            self._push(peer, now)

    def _push(self, peer: str, now: int) -> None:
        pusher = self._pushers[peer]
        while (due := pusher.due(now, self.commit)) is not None:
            push = Push(due[0], self.term, self.me, *due[1:], self.commit, self.ledger.begin)
            pusher.sent(self._ask(peer, push))

    def _push_answered(
        self, peer: str, number: int, push: Push, answer: PushAnswer, now: int
    ) -> None:
        if self.role is not MemberRole.LEADER:
            return
        self._pushers[peer].answered(number, push, answer, now)
        self._advance_commit(now)
        self._push(peer, now)

    def _advance_commit(self, now: int) -> None:
        ends = sorted((self.ledger.flushed, *(each.match for each in self._pushers.values())))
        index = ends[len(ends) - self.quorum]
        if index > self.commit and self._may_commit(index):
            assert sum(end >= index for end in ends) >= self.quorum, "a quorum has it on disk"
            self.commit = index
            self._tell_commit()
            self._push_all(now)

    def _may_commit(self, index: int) -> bool:
        """A later leader can overwrite an entry of an earlier term, even one that a quorum has."""
        return self.ledger.term_of(index) == self.term

    def _ask(self, peer: str, request: Request) -> int:
        self._number += 1
        self._asked[self._number] = (peer, request)
        self.actions.append(SendRequest(peer, self._number, request))
        return self._number

    # ---- following -------------------------------------------------------------------------------

    def _heartbeat(self, heartbeat: LeaderHeartbeat, now: int) -> HeartbeatAnswer:
        code = self._accept_leader(heartbeat.leader, heartbeat.term, now, is_beat=True)
        return HeartbeatAnswer(code, self.term if code is MemberCode.EXPIRED_TERM else -1)

    def _accept_leader(self, leader: str, term: int, now: int, *, is_beat: bool) -> MemberCode:
        """Follow the leader of this or a later term; refuse any other.

        As in DLedger, a silence begins with the last heartbeat. A push only says that the leader
        could still send the next one, one interval later.
        """
        is_known = leader == self.leader and term == self.term
        if leader not in self.peers:
            return MemberCode.UNEXPECTED_MEMBER if leader == self.me else MemberCode.UNKNOWN_MEMBER
        if term < self.term:
            return MemberCode.EXPIRED_TERM
        if term > self.term:
            self._raise_term(term)
            self._begin_to_follow(leader, now)
        elif self.leader is None:
            self._begin_to_follow(leader, now)
        elif self.leader != leader:
            return MemberCode.INCONSISTENT_LEADER
        self._leader_heard = now
        if is_beat or not is_known:
            self._wait_for_leader(now)
        elif not self._still_asks():
            least = self._timing.silence - self._timing.heartbeat
            self._deadline = max(self._deadline, now + least)
        return MemberCode.SUCCESS

    def _pushed(self, token: object, push: Push, now: int) -> None:
        code = self._accept_leader(push.leader, push.term, now, is_beat=False)
        if code is MemberCode.SUCCESS:
            code = self._take(push) if self._may_acknowledge() else MemberCode.TERM_NOT_READY
        if self.stopped:
            return
        ledger = self.ledger
        answer = PushAnswer(push.type, code, self.term, push.last, ledger.begin, ledger.end)
        reply = Respond(token, answer)
        if code is MemberCode.SUCCESS and push.last > ledger.flushed:
            self._unflushed.append((ledger.changes, reply))
        else:
            self.actions.append(reply)
        self._rejoin_if_caught_up()
        self._tell_commit()

    def _take(self, push: Push) -> MemberCode:
        assert self.role is MemberRole.FOLLOWER, "a leader's ledger only grows"
        held = -1 if self.ledger.is_empty else self.ledger.end  # what is not here may come again
        taken = self._following.take(push, self.term, self.commit, is_voter=self.is_voter)
        for change in taken.changes:
            if isinstance(change, Cut):
                assert change.end >= self.commit, "nothing that is committed is cut"
            elif isinstance(change, Write):
                first = change.entries[0].index
                assert first > min(self.commit, held), "what is committed stays"
        if taken.conflict >= 0:
            self._stop(taken.conflict)
        elif taken.kept >= 0:
            self.actions.append(CutRefused(push.leader, taken.kept))
        elif taken.is_behind:
            self.actions.append(BeginRefused(push.leader, push.first))
        if taken.changes and not self._is_saved:
            self._save()  # entries without a term would look like a lost file at the next start
        if any(isinstance(each, Cut | Restart) for each in taken.changes):
            self._unflushed.clear()  # nobody is told of what is cut
        self.actions += taken.changes
        if taken.code is MemberCode.SUCCESS and self._following.matched:
            self.commit = max(self.commit, min(push.commit, self.ledger.end))
        return taken.code

    def _stop(self, index: int) -> None:
        self.stopped = (
            f"The leader of term {self.term}, {self.leader}, has another entry {index}, which is "
            "committed here. What was acknowledged would be lost."
        )
        self.actions.append(Stop(self.stopped))

    # ---- the commit index ------------------------------------------------------------------------

    def _tell_commit(self) -> None:
        index = min(self.commit, self.ledger.flushed)
        if index > self._told_commit:
            self._told_commit = index
            self.actions.append(CommittedUpTo(index))
