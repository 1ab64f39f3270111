"""Rules of a member, each in a few steps: those whose loss the simulator finds rarely or never."""

from __future__ import annotations

from typing import Any

import pytest

from rmqstore_spark.consensus.actions import (
    BeginRefused,
    CommittedUpTo,
    CutRefused,
    MemberRole,
    Respond,
    Restart,
    RoleChanged,
    Save,
    SendRequest,
    Write,
)
from rmqstore_spark.consensus.election import NOT_A_VOTER
from rmqstore_spark.consensus.ledger import MemberLedger
from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import (
    HeartbeatAnswer,
    LeaderHeartbeat,
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    PushType,
    Vote,
    VoteAnswer,
    VoteVerdict,
)
from rmqstore_spark.consensus.timing import Timing

GROUP = ("n0", "n1", "n2")
LATER = 60_000


def member(*terms: tuple[int, int], end: int = -1, **saved: Any) -> GroupMember:
    """A member n0 with entries 0 to `end`."""
    save = Save(**{"term": 3, "vote": None, "is_voter": True, **saved})
    return GroupMember(
        "n0",
        GROUP,
        save,
        MemberLedger(0, end, list(terms)),
        now=0,
        chance=lambda: 0.0,
        timing=Timing(),
    )


def without_files(group: tuple[str, ...] = GROUP) -> GroupMember:
    """A member n0 that has just been started."""
    return GroupMember(
        "n0", group, None, MemberLedger(0, -1, []), now=0, chance=lambda: 0.0, timing=Timing()
    )


def hear(of: GroupMember, now: int, **said: VoteAnswer) -> None:
    """Let a member ask, and peers answer."""
    of.tick(now)
    for ask in taken(of, SendRequest):
        if ask.peer in said:
            of.answered(ask.number, said[ask.peer], now)


def taken(of: GroupMember, kind: type[Any]) -> list[Any]:
    """Take the actions of a kind, and drop all others."""
    actions, of.actions = of.actions, []
    return [action for action in actions if isinstance(action, kind)]


def entry(index: int, term: int) -> LedgerEntry:
    return LedgerEntry(index, term, index * 100, 100, b"")


def push(kind: PushType, term: int, *entries: LedgerEntry, commit: int = -1) -> Push:
    first, last = entries[0].index, entries[-1].index
    begin = first if kind is PushType.TRUNCATE else 0
    return Push(kind, term, "n1", first, last, commit, begin, entries)


def elected(*terms: tuple[int, int], end: int = -1) -> GroupMember:
    """A member that leads in term 3, with the entries that it had."""
    made = member(*terms, end=end)
    made.tick(LATER)
    asks = taken(made, SendRequest)
    made.answered(asks[0].number, VoteAnswer(3, VoteVerdict.ACCEPT), LATER)
    assert made.role is MemberRole.LEADER
    return made


def acknowledge(leader: GroupMember, code: MemberCode = MemberCode.SUCCESS) -> None:
    """Let a peer have all that was pushed to it."""
    for ask in taken(leader, SendRequest):
        if ask.peer == "n1" and isinstance(ask.request, Push):
            pushed = ask.request
            answer = PushAnswer(pushed.type, code, 3, pushed.last, 0, pushed.last)
            leader.answered(ask.number, answer, LATER)


def test_a_leader_does_not_count_what_it_has_not_flushed() -> None:
    leader = elected((0, 2), end=4)
    leader.append((entry(5, 3),), LATER)
    acknowledge(leader)  # the comparison
    acknowledge(leader)  # the entry
    assert leader.commit == -1
    leader.flushed(leader.ledger.changes, LATER)
    assert taken(leader, CommittedUpTo) == [CommittedUpTo(5)]


def test_a_leader_commits_nothing_before_an_entry_of_its_term() -> None:
    leader = elected((0, 2), end=4)
    acknowledge(leader)  # a quorum has all of them
    assert leader.commit == -1


def test_a_follower_appends_only_behind_what_it_has_compared() -> None:
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.APPEND, 3, entry(5, 3)), 1)
    (reply,) = taken(follower, Respond)
    assert reply.answer.code is MemberCode.INCONSISTENT_STATE
    follower.receive("b", push(PushType.COMPARE, 3, entry(4, 2)), 2)
    follower.receive("c", push(PushType.APPEND, 3, entry(5, 3)), 3)
    assert [write.entries for write in taken(follower, Write)] == [(entry(5, 3),)]


def test_a_follower_answers_when_it_has_flushed() -> None:
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.COMPARE, 3, entry(4, 2)), 1)
    assert len(taken(follower, Respond)) == 1
    follower.receive("b", push(PushType.APPEND, 3, entry(5, 3), entry(6, 3)), 2)
    assert taken(follower, Respond) == []
    follower.flushed(follower.ledger.changes, 3)
    assert [reply.token for reply in taken(follower, Respond)] == ["b"]


def test_a_request_to_cut_that_comes_after_a_restart_cuts_nothing_of_its_leaders() -> None:
    follower = member((0, 2), (5, 3), end=5)  # it has acknowledged entry 5 of term 3 before
    follower.receive("a", push(PushType.TRUNCATE, 3, entry(4, 2)), 1)
    assert taken(follower, Respond)[0].answer.code is MemberCode.INCONSISTENT_STATE
    assert follower.ledger.end == 5
    follower.receive("b", push(PushType.TRUNCATE, 4, entry(4, 2)), 2)  # a later leader's counts
    assert follower.ledger.end == 4


def test_a_member_forgets_nothing_because_its_leader_says_that_it_has_expired() -> None:
    """A lie could make it lose what is committed. Its folder is moved away if it is true."""
    follower = member((0, 2), (5, 3), end=5)
    follower.receive("a", push(PushType.TRUNCATE, 3, entry(40, 3), commit=40), 1)
    refused, reply = follower.actions[-2:]
    assert refused == BeginRefused("n1", 40)
    assert isinstance(reply, Respond)
    assert (follower.ledger.begin, follower.ledger.end) == (0, 5)


def test_a_member_whose_entry_0_differs_begins_again() -> None:
    follower = member((0, 2), end=0)
    follower.receive("a", push(PushType.TRUNCATE, 3, entry(0, 3)), 1)
    assert [type(action) for action in follower.actions[-2:]] == [Restart, Write]
    lost = member(end=-1, term=3)  # it crashes before the entry is on disk
    lost.receive("b", Vote(4, "n2", -1, -1), 1)
    assert taken(lost, Respond)[0].answer.verdict is VoteVerdict.ACCEPT


def test_a_leader_that_has_lost_entries_and_leads_on_is_not_believed() -> None:
    """One of RocketMQ can lose its page cache, and be elected again in the same term."""
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.COMPARE, 3, entry(4, 2)), 1)
    follower.receive("b", push(PushType.APPEND, 3, entry(5, 3)), 2)
    follower.receive("c", push(PushType.COMPARE, 3, entry(5, 2)), 3)
    follower.receive("d", push(PushType.TRUNCATE, 3, entry(4, 2), commit=5), 4)
    assert CutRefused("n1", 4) in follower.actions
    assert (follower.commit, follower.ledger.end) == (-1, 5)


def test_a_member_that_may_not_vote_forgets_a_leader_that_is_silent() -> None:
    """A peer that said that it leads may have lied, and another leads in that term."""
    lost, longer = without_files(), VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    lost.receive("a", LeaderHeartbeat(3, "n1"), 0)
    hear(lost, LATER, n2=VoteAnswer(3, longer, 7))
    lost.receive("b", LeaderHeartbeat(3, "n2"), LATER)
    assert lost.leader == "n2"


def test_a_leader_that_one_peer_does_not_know_leads_on() -> None:
    leader = elected((0, 1), end=2)
    beats = [ask for ask in taken(leader, SendRequest) if isinstance(ask.request, LeaderHeartbeat)]
    other = HeartbeatAnswer(MemberCode.INCONSISTENT_LEADER, -1)
    leader.answered(beats[0].number, other, LATER + 2)
    assert leader.role is MemberRole.LEADER


def test_what_is_committed_is_not_cut() -> None:
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.COMPARE, 3, entry(4, 2), commit=4), 1)
    assert follower.commit == 4
    follower.receive("b", push(PushType.TRUNCATE, 4, entry(2, 2)), 2)  # it can be late
    refused, reply = follower.actions[-2:]
    assert refused == CutRefused("n1", 2)
    assert isinstance(reply, Respond)
    assert isinstance(reply.answer, PushAnswer)
    assert reply.answer.code is MemberCode.INCONSISTENT_STATE
    assert follower.ledger.end == 4
    follower.receive("c", push(PushType.COMPARE, 4, entry(3, 1)), 3)
    assert "another entry 3" in follower.stopped


def test_a_leader_that_begins_with_another_committed_entry_stops_the_member() -> None:
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.COMPARE, 3, entry(4, 2), commit=4), 1)
    follower.receive("b", push(PushType.TRUNCATE, 4, entry(2, 1), commit=2), 2)
    assert "another entry 2" in follower.stopped
    assert follower.ledger.end == 4


def test_a_log_begins_again_only_with_what_its_leader_has_committed() -> None:
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.TRUNCATE, 3, entry(40, 3), commit=39), 1)
    assert taken(follower, Respond)[-1].answer.code is MemberCode.INCONSISTENT_STATE
    assert (follower.ledger.begin, follower.ledger.end) == (0, 4)


def test_no_entry_is_of_a_later_term_than_its_leader() -> None:
    follower = member((0, 2), end=4)
    follower.receive("a", push(PushType.TRUNCATE, 3, entry(40, 4), commit=40), 1)
    assert taken(follower, Respond)[-1].answer.code is MemberCode.INCONSISTENT_STATE
    assert follower.ledger.end == 4


def test_what_expired_was_committed() -> None:
    ledger = MemberLedger(30, 40, [(30, 1)])
    found = GroupMember(
        "n0", GROUP, Save(2, None, is_voter=True), ledger,
        committed=-1, now=0, chance=lambda: 0.0, timing=Timing(),
    )  # fmt: skip
    assert found.commit == 30


def test_a_member_without_files_forgets_a_term_that_a_peer_takes_back() -> None:
    lost = without_files()

    def hear(now: int, *terms: int) -> None:
        lost.tick(now)
        asks = taken(lost, SendRequest)
        for ask, term in zip(asks, terms, strict=True):
            verdict = VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
            lost.answered(ask.number, VoteAnswer(term, verdict), now)

    hear(0, 1 << 40, 3)
    lost.receive("a", push(PushType.TRUNCATE, 3, entry(0, 3), commit=0), 1)
    assert lost.ledger.is_empty
    hear(LATER, 3, 3)
    lost.receive("b", push(PushType.TRUNCATE, 3, entry(0, 3), commit=0), LATER)
    assert not lost.is_voter
    lost.flushed(lost.ledger.changes, LATER)
    assert lost.is_voter


def test_a_member_without_files_acknowledges_nothing_before_it_has_asked() -> None:
    """It voted for n2 in term 5 before; n1, the leader of term 3, does not know that."""
    lost = without_files()

    def told(now: int, term: int) -> MemberCode:
        lost.receive("a", push(PushType.TRUNCATE, term, entry(0, 2), commit=-1), now)
        lost.flushed(lost.ledger.changes, now)
        (reply,) = taken(lost, Respond)
        code: MemberCode = reply.answer.code
        return code

    assert told(1, 3) is MemberCode.TERM_NOT_READY
    lost.tick(LATER)
    verdict = VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    for ask, term in zip(taken(lost, SendRequest), (3, 5), strict=True):
        lost.answered(ask.number, VoteAnswer(term, verdict), LATER)
    assert told(LATER + 1, 3) is MemberCode.TERM_NOT_READY
    assert told(LATER + 2, 5) is MemberCode.SUCCESS


def test_a_quorum_of_others_counts_only_when_it_was_asked_after_rounds_before_the_loss() -> None:
    """n1 asks for votes in term 9, holds that of n0, and gets those of n2 and n3 a bit later."""
    group = (*GROUP, "n3", "n4")
    lost = without_files(group)

    def told(now: int, **terms: int) -> bool:
        """Let some peers tell their terms; return whether the member then takes entries."""
        lost.tick(now)
        for ask in taken(lost, SendRequest):
            if ask.peer in terms:
                verdict = VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
                lost.answered(ask.number, VoteAnswer(terms[ask.peer], verdict), now)
        lost.receive("a", push(PushType.COMPARE, lost.term, entry(0, 2), commit=-1), now)
        (reply,) = taken(lost, Respond)
        return reply.answer.code is not MemberCode.TERM_NOT_READY

    lost.receive("a", LeaderHeartbeat(3, "n1"), 0)
    round_ = Timing().rounds
    assert not told(1, n2=3, n3=3, n4=3)
    assert not told(round_ - 1, n2=3, n3=3, n4=3)
    assert told(2 * round_, n2=3, n3=3, n4=3)


@pytest.mark.parametrize("told", [7, -1])
def test_a_member_without_files_votes_when_it_has_what_its_leader_had(told: int) -> None:
    """It may have acknowledged entries 6 and 7, and the leader counts that: 5 is committed.

    A leader of RocketMQ tells no end, but shows its last entry first.
    """
    lost, longer = without_files(), VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    hear(lost, 0, n1=VoteAnswer(3, longer, told), n2=VoteAnswer(3, longer, 7))
    lost.receive("a", push(PushType.COMPARE, 3, entry(7 if told < 0 else 0, 3), commit=5), 1)
    hear(lost, 2, n1=VoteAnswer(3, longer, told), n2=VoteAnswer(3, longer, 7))
    lost.receive("b", push(PushType.TRUNCATE, 3, entry(0, 3), commit=5), 3)
    for last in (5, 6, 7):
        had = lost.ledger.end + 1
        entries = [entry(index, 3) for index in range(had, last + 1)]
        lost.receive("c", push(PushType.APPEND, 3, *entries, commit=5), 4)
        assert not lost.is_voter
        lost.flushed(lost.ledger.changes, 5)
        assert lost.is_voter == (last == 7)


def test_a_member_without_files_asks_each_leader() -> None:
    """What was told before, or by others, says nothing of what this leader has."""
    lost, longer = without_files(), VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    hear(lost, 0, n1=VoteAnswer(3, longer, 7), n2=VoteAnswer(3, longer, 0))
    lost.receive("a", push(PushType.TRUNCATE, 4, entry(0, 4), commit=0), 1)
    lost.flushed(lost.ledger.changes, 1)
    assert not lost.is_voter
    hear(lost, 2, n1=VoteAnswer(4, longer, 0))
    assert lost.is_voter


def test_a_group_is_new_when_all_others_say_twice_that_they_have_no_entry() -> None:
    """The leader may be the one that has not told, and count what this member acknowledged."""
    new, nothing = without_files((*GROUP, "n3", "n4")), VoteAnswer(1, VoteVerdict.ACCEPT)
    hear(new, LATER, n1=nothing, n2=nothing, n3=nothing)
    assert not new.is_voter
    hear(new, 2 * LATER, n4=nothing)
    assert new.wake == 2 * LATER  # at once
    hear(new, 2 * LATER, n1=nothing, n2=nothing, n3=nothing)
    assert not new.is_voter
    hear(new, 3 * LATER, n1=nothing, n2=nothing, n3=nothing, n4=nothing)
    assert new.is_voter


def test_a_group_is_not_new_if_an_entry_comes_before_all_others_have_told() -> None:
    """n4 leads, commits it with what n0 had acknowledged and with n1, and loses its files too."""
    lost, nothing = without_files((*GROUP, "n3", "n4")), VoteAnswer(1, VoteVerdict.ACCEPT)
    hear(lost, LATER, n1=nothing, n2=nothing, n3=nothing)
    hear(lost, 2 * LATER, n4=VoteAnswer(1, NOT_A_VOTER))
    longer = VoteAnswer(1, VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX, 0)
    hear(lost, 2 * LATER, n1=longer, n2=nothing, n3=nothing, n4=VoteAnswer(1, NOT_A_VOTER))
    assert not lost.is_voter


def test_a_group_is_not_new_if_one_that_may_not_vote_yet_has_an_entry() -> None:
    """It may have acknowledged it, and the leader, whose disk was lost, have committed it."""
    lost, nothing = without_files(), VoteAnswer(1, VoteVerdict.ACCEPT)
    for now in (0, 0, LATER):
        hear(lost, now, n1=nothing, n2=VoteAnswer(1, NOT_A_VOTER, 3))
    assert not lost.is_voter
    for now in (2 * LATER, 2 * LATER):
        hear(lost, now, n1=nothing, n2=nothing)
    assert lost.is_voter


def test_a_new_member_asks_until_it_may_vote_though_it_has_a_leader() -> None:
    """A leader of RocketMQ may have no entry, too, so that there is nothing to catch up with."""
    new, nothing = without_files(), VoteAnswer(1, VoteVerdict.ACCEPT)
    hear(new, 0, n1=nothing, n2=nothing)
    new.receive("a", LeaderHeartbeat(1, "n1"), 0)
    hear(new, 0, n1=nothing)  # the answer of n2 is lost
    assert not new.is_voter
    new.receive("b", LeaderHeartbeat(1, "n1"), 10)
    hear(new, new.wake, n1=nothing, n2=nothing)
    assert new.is_voter


def test_a_leader_counts_no_more_what_a_peer_had_that_asks_without_entries() -> None:
    leader = elected((0, 1), end=2)
    leader.append((entry(3, 3),), LATER)
    for ask in taken(leader, SendRequest):
        if ask.peer == "n1" and isinstance(ask.request, Push):
            has = PushAnswer(ask.request.type, MemberCode.SUCCESS, 3, 2, 0, 2)
            leader.answered(ask.number, has, LATER)
    assert leader.behind("n1") == 1
    late = [ask for ask in taken(leader, SendRequest) if ask.peer == "n1"][-1]
    assert late.request.type is PushType.APPEND
    leader.receive("a", Vote(0, "n1", -1, -1), LATER)
    assert leader.behind("n1") is None
    had = PushAnswer(PushType.APPEND, MemberCode.SUCCESS, 3, 3, 0, 3)  # before it lost its files
    leader.answered(late.number, had, LATER)
    assert leader.behind("n1") is None


def test_one_that_is_ahead_of_a_quorum_keeps_no_member_out() -> None:
    """Each quorum knows in which term this member may have voted. n4 asked for votes alone."""
    lost, longer = without_files((*GROUP, "n3", "n4")), VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    ahead, others = VoteAnswer(9, longer, 7), VoteAnswer(3, longer, 7)
    hear(lost, LATER, n4=ahead, n1=others, n2=others)
    lost.receive("a", push(PushType.TRUNCATE, 3, entry(0, 3), commit=0), LATER)
    assert lost.ledger.is_empty
    hear(lost, 2 * LATER, n4=ahead, n1=others, n2=others, n3=others)
    lost.receive("b", push(PushType.TRUNCATE, 3, entry(0, 3), commit=0), 2 * LATER)
    assert lost.ledger.end == 0


def test_a_ledger_begins_with_the_first_entry_of_the_leader_only() -> None:
    """A TRUNCATE that was sent to a member before it lost its files can come after that."""
    longer = VoteAnswer(3, VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX, 7)
    lost = without_files()
    hear(lost, 0, n1=longer, n2=longer)
    late = push(PushType.TRUNCATE, 3, entry(6, 3), commit=7)
    lost.receive("a", late._replace(begin=0), 1)
    assert lost.ledger.is_empty
    lost.receive("b", late._replace(begin=-1), 1)  # of RocketMQ, which compares before
    assert lost.ledger.is_empty
    lost.receive("c", push(PushType.COMPARE, 3, entry(7, 3), commit=7)._replace(begin=-1), 1)
    lost.receive("d", late._replace(begin=-1), 1)
    assert lost.ledger.begin == 6


def test_a_member_that_follows_from_the_first_term_on_saves_it_before_entries() -> None:
    """RocketMQ's first term can be 0; without its file, the next start would be refused."""
    new, longer = without_files(), VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    hear(new, 0, n1=VoteAnswer(0, longer), n2=VoteAnswer(0, longer))
    new.receive("a", push(PushType.TRUNCATE, 0, entry(0, 0), commit=0), 1)
    kinds = [type(action) for action in new.actions]
    assert kinds.index(Save) < kinds.index(Write)


def test_a_member_that_is_asked_again_and_again_for_one_vote_still_asks_itself() -> None:
    """One that has lost its files asks so, as long as it waits for the answer of another."""
    voter = member(term=5)
    for now in range(0, LATER, 1000):
        voter.receive(now, Vote(5, "n1", -1, -1), now)
        voter.tick(now)
    assert voter.role is MemberRole.CANDIDATE


def test_a_voter_that_has_no_entries_now_is_believed() -> None:
    """What was said of it before may have been a lie."""
    new, longer = without_files(), VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX
    hear(new, 0, n1=VoteAnswer(1, longer))
    nothing = VoteAnswer(1, VoteVerdict.ACCEPT)
    hear(new, LATER, n1=nothing, n2=nothing)
    hear(new, LATER, n1=nothing, n2=nothing)
    assert new.is_voter


def test_all_others_count_at_once() -> None:
    """The candidate that may hold the member's vote is one of them, and knows its own term."""
    lost, nothing = without_files(), VoteAnswer(3, VoteVerdict.ACCEPT)
    hear(lost, 0, n1=nothing, n2=nothing)
    hear(lost, 0, n1=nothing, n2=nothing)
    assert lost.is_voter


def test_a_vote_that_comes_when_the_round_is_over_is_not_counted() -> None:
    """The voter may have lost its files since, and have asked those who vote now."""
    for late, role in ((1, MemberRole.LEADER), (LATER, MemberRole.CANDIDATE)):
        candidate = member((0, 2), end=0)
        candidate.tick(10_000)
        asks = taken(candidate, SendRequest)
        candidate.answered(asks[0].number, VoteAnswer(3, VoteVerdict.ACCEPT), 10_000 + late)
        assert candidate.role is role


def test_a_member_of_a_new_group_stays_in_the_term_of_its_leader() -> None:
    """RocketMQ's would not follow it into the next one, and it would refuse all entries."""
    new = without_files()
    new.tick(0)
    asks = taken(new, SendRequest)
    new.receive("a", LeaderHeartbeat(6, "n1"), 1)
    for ask in asks:
        new.answered(ask.number, VoteAnswer(5, VoteVerdict.ACCEPT), 2)
    told = VoteAnswer(6, VoteVerdict.REJECT_ALREADY_VOTED)
    new.receive("a", LeaderHeartbeat(6, "n1"), LATER)
    hear(new, LATER, n1=told, n2=told)
    hear(new, LATER, n1=told, n2=told)
    assert new.is_voter
    assert (new.term, new.vote, new.leader) == (6, "n1", "n1")
    new.receive("b", Vote(6, "n2", -1, -1), LATER)
    (reply,) = taken(new, Respond)[-1:]
    assert reply.answer.verdict is VoteVerdict.REJECT_ALREADY_HAS_LEADER


def test_a_member_that_is_cut_off_comes_back_in_the_term_of_its_leader() -> None:
    """RocketMQ's keeps its own, though a member that is ahead refuses its entries."""
    follower = member((0, 2), end=4, vote="n1")
    follower.receive("a", LeaderHeartbeat(3, "n1"), 0)
    for now in range(LATER, 10 * LATER, LATER):
        follower.tick(now)
        assert follower.role is MemberRole.CANDIDATE
    asks = taken(follower, SendRequest)
    assert {ask.request.term for ask in asks} == {4}
    answer = VoteAnswer(3, VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX)
    follower.answered(asks[-1].number, answer, 10 * LATER)
    follower.receive("b", LeaderHeartbeat(3, "n1"), 10 * LATER)
    actions, follower.actions = follower.actions, []
    assert not [action for action in actions if isinstance(action, Save)]
    replies: list[Any] = [action for action in actions if isinstance(action, Respond)]
    assert [reply.answer.code for reply in replies] == [MemberCode.SUCCESS]
    assert follower.leader == "n1"


def test_a_candidate_has_its_own_vote_on_disk_before_it_counts_another() -> None:
    candidate = member((0, 2), end=4, vote="n1")
    candidate.tick(LATER)
    (ask, _) = taken(candidate, SendRequest)
    assert ask.request.term == 4
    candidate.answered(ask.number, VoteAnswer(4, VoteVerdict.ACCEPT), LATER)
    assert candidate.role is MemberRole.LEADER
    kinds = [type(action) for action in candidate.actions]
    assert kinds.index(Save) < kinds.index(RoleChanged)
    saves = [action for action in candidate.actions if isinstance(action, Save)]
    assert (saves[-1].term, saves[-1].vote) == (4, "n0")


def test_a_candidate_gives_no_vote_in_the_term_in_which_it_asks() -> None:
    candidate = member((0, 2), end=4, vote="n1")
    candidate.tick(LATER)
    candidate.receive("a", Vote(4, "n2", 4, 2), LATER)
    assert taken(candidate, Respond)[0].answer.verdict is VoteVerdict.REJECT_ALREADY_VOTED


def test_a_peer_that_never_takes_the_term_is_not_asked_without_a_pause() -> None:
    leader = elected((0, 2), end=4)
    asked, heartbeat = 0, Timing().heartbeat
    for now in range(LATER, LATER + heartbeat):
        leader.tick(now)
        for ask in taken(leader, SendRequest):
            if isinstance(ask.request, LeaderHeartbeat) and ask.peer == "n1":
                asked += 1
                answer = HeartbeatAnswer(MemberCode.TERM_NOT_READY, -1)
                leader.answered(ask.number, answer, now)
    assert 50 < asked < 200  # it is, soon: it takes the term a few milliseconds later
