"""What the members of a group say to each other. See `DLedgerRpcService` and its requests.

Indexes count entries from 0; an empty ledger begins at 0 and ends at -1. Terms count from 0.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeAlias

MOST_TERM: Final = (1 << 62) - 1
"""A term beyond would leave no room for those that follow."""


class MemberCode(enum.IntEnum):
    """`DLedgerResponseCode`, as far as members use it."""

    SUCCESS = 200
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_LEADER = 409
    TERM_NOT_READY = 416


class VoteVerdict(enum.Enum):
    """`VoteResponse.RESULT`."""

    ACCEPT = enum.auto()
    REJECT_UNKNOWN_LEADER = enum.auto()
    REJECT_UNEXPECTED_LEADER = enum.auto()
    REJECT_EXPIRED_VOTE_TERM = enum.auto()
    REJECT_ALREADY_VOTED = enum.auto()
    REJECT_ALREADY_HAS_LEADER = enum.auto()
    REJECT_TERM_NOT_READY = enum.auto()
    REJECT_TERM_SMALL_THAN_LEDGER = enum.auto()
    REJECT_EXPIRED_LEDGER_TERM = enum.auto()
    REJECT_SMALL_LEDGER_END_INDEX = enum.auto()
    REJECT_TAKING_LEADERSHIP = enum.auto()


LONGER_LEDGER: Final = frozenset(
    {VoteVerdict.REJECT_EXPIRED_LEDGER_TERM, VoteVerdict.REJECT_SMALL_LEDGER_END_INDEX}
)
"""Verdicts of those whose ledger is ahead of the candidate's."""


class LedgerEntry(NamedTuple):
    """One entry of a ledger.

    Attributes:
        index: its number.
        term: of the leader that wrote it.
        position: of its header in the whole log.
        size: bytes of header and body.
        body: what the driver needs to store it; members never look into it.
    """

    index: int  # type: ignore[assignment]  # nobody looks for values in it
    term: int
    position: int
    size: int
    body: object


class Vote(NamedTuple):
    """A candidate asks for a vote (51001).

    Attributes:
        term: in which it wants to lead.
        candidate: who asks.
        end_index, end_term: of its last entry; -1 if it has none.
    """

    term: int
    candidate: str
    end_index: int
    end_term: int


class VoteAnswer(NamedTuple):
    """What a voter says.

    Attributes:
        term: its own.
        verdict: what it says to the candidate.
        end: index of its last entry; -1 if it has none, or is RocketMQ's and does not say.
    """

    term: int
    verdict: VoteVerdict
    end: int = -1


class LeaderHeartbeat(NamedTuple):
    """A leader is alive (51002)."""

    term: int
    leader: str


class HeartbeatAnswer(NamedTuple):
    """`term` counts with `MemberCode.EXPIRED_TERM` only."""

    code: MemberCode
    term: int


class PushType(enum.Enum):
    """`PushEntryRequest.Type`."""

    APPEND = enum.auto()
    COMMIT = enum.auto()
    COMPARE = enum.auto()
    TRUNCATE = enum.auto()


class Push(NamedTuple):
    """A leader's entries, or what they are compared with (51004).

    Attributes:
        type: what to do with them.
        term, leader: who pushes.
        first, last: the indexes of the entries: one if they are compared or cut; -1 for COMMIT.
        commit: the leader's commit index.
        begin: index of the first entry that the leader has; -1: it is RocketMQ's, and does not say.
        entries: filled in by the driver that sends, which reads them from its ledger.
    """

    type: PushType
    term: int
    leader: str
    first: int
    last: int
    commit: int
    begin: int = -1
    entries: tuple[LedgerEntry, ...] = ()


class PushAnswer(NamedTuple):
    """What a follower says; `begin` and `end` are those of its ledger, `last` the request's."""

    type: PushType
    code: MemberCode
    term: int
    last: int
    begin: int
    end: int


Request: TypeAlias = Vote | LeaderHeartbeat | Push
Answer: TypeAlias = VoteAnswer | HeartbeatAnswer | PushAnswer
