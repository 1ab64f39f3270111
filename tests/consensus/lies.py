"""What no peer that keeps the rules says, as a member gets it: its driver has seen to the rest.

A driver refuses broken frames, other groups, numbers that do not fit into a long, and entries whose
record is damaged, that do not follow each other, or that are not where its log would have them
(`is_placed`). What is left must not make a member break a promise: past and future terms, unknown
members, ledgers that end beyond the leader's, commit indexes and entries of those that do not lead,
all refusals.

No protocol without signatures can see through a peer that claims to lead in a later term and makes
others cut their ledgers, that claims to have what it has not, or not to have what it has.
"""

from __future__ import annotations

import random
from typing import Any, Final

from rmqstore_spark.consensus.member import GroupMember
from rmqstore_spark.consensus.messages import (
    Answer,
    HeartbeatAnswer,
    LeaderHeartbeat,
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    PushType,
    Request,
    Vote,
    VoteAnswer,
    VoteVerdict,
)
from tests.consensus.simulator import SIZE

_STRANGER: Final = "n9"
_FAR: Final = 1 << 40
_REFUSALS: Final[list[VoteVerdict]] = [
    verdict for verdict in VoteVerdict if verdict is not VoteVerdict.ACCEPT
]
_FAILURES: Final[list[MemberCode]] = [code for code in MemberCode if code is not MemberCode.SUCCESS]
_WITH_ENTRIES: Final = (PushType.APPEND, PushType.COMPARE, PushType.TRUNCATE)


def falsehood(chance: random.Random, liar: str, member: GroupMember) -> Request:
    """Return a request of a liar to a member."""
    kind = chance.randrange(4)
    term = _term(chance, member)
    who = chance.choice((liar, member.me, _STRANGER))
    if kind == 0:
        return Vote(term, who, _index(chance, member), chance.choice((-1, term, _FAR)))
    if kind == 1:
        return LeaderHeartbeat(term, who)
    leads = who == liar and term >= member.term
    if kind == 2:
        return Push(PushType.COMMIT, term + leads, who, -1, -1, _index(chance, member))
    first = max(_index(chance, member), 0)
    terms = [_term(chance, member) for _ in range(chance.randint(1, 3))]
    entries = tuple(
        LedgerEntry(first + at, of, (first + at) * SIZE, SIZE, -1) for at, of in enumerate(terms)
    )
    what = PushType.APPEND if leads else chance.choice(_WITH_ENTRIES)
    last = entries[-1].index
    commit = _index(chance, member)
    return Push(what, term + leads, who, first, last, commit, first, entries)


def answered_falsely(chance: random.Random, member: GroupMember) -> tuple[int, Answer]:
    """Return a false answer to a question of a member, and the number of that question."""
    term = _term(chance, member)
    asked: dict[int, tuple[str, Request]] = member._asked
    if not asked or not member.is_voter:
        return 0, HeartbeatAnswer(MemberCode.SUCCESS, term)
    number = chance.choice(list(asked))
    request: Any = asked[number][1]
    if type(request) is Vote:
        return number, VoteAnswer(term, chance.choice(_REFUSALS))
    if type(request) is LeaderHeartbeat:
        return number, HeartbeatAnswer(chance.choice(list(MemberCode)), term)
    code = chance.choice(_FAILURES)
    begin, end = _index(chance, member), _index(chance, member)
    if request.type is PushType.COMMIT:
        code = chance.choice(list(MemberCode))
    elif request.type is PushType.COMPARE:
        begin, end = chance.choice((-1, 0)), chance.choice((request.last + 1, _FAR))
        if code is MemberCode.INCONSISTENT_STATE:
            code = MemberCode.SUCCESS
    return number, PushAnswer(request.type, code, term, request.last, begin, end)


def is_placed(push: Push) -> bool:
    """Whether a driver lets the entries of a push through."""
    first = push.first
    return all(
        entry.index == first + at and entry.position == entry.index * SIZE
        for at, entry in enumerate(push.entries)
    )


def _term(chance: random.Random, member: GroupMember) -> int:
    return max(member.term + chance.choice((-2, -1, 0, 1, 2, 1000, 1 << 40)), 0)


def _index(chance: random.Random, member: GroupMember) -> int:
    end = member.ledger.end
    return chance.choice((-1, 0, member.commit, end, end + 1, end + 2, _FAR))
