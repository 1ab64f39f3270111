"""What a member asks of its driver, in order.

A driver carries actions out one after the other. What a `Save` says is on disk before anything
behind it is done. `Write`, `Cut` and `Restart` may be done without waiting: when all of them up to
a number are on disk, the driver says so with `GroupMember.flushed`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

from rmqstore_spark.consensus.messages import Answer, LedgerEntry, Request


class MemberRole(enum.Enum):
    """`MemberState.Role`."""

    FOLLOWER = enum.auto()
    CANDIDATE = enum.auto()
    LEADER = enum.auto()


class Save(NamedTuple):
    """Put the term and who has this member's vote in it on disk, now.

    Attributes:
        is_voter: False as long as this member may have forgotten what it voted for and stored.
    """

    term: int
    vote: str | None
    is_voter: bool


class Write(NamedTuple):
    """Put entries behind the ledger's end."""

    number: int
    entries: tuple[LedgerEntry, ...]


class Cut(NamedTuple):
    """Forget the entries behind `end`."""

    number: int
    end: int


class Restart(NamedTuple):
    """Forget all entries; the next one that is written is its first."""

    number: int


class SendRequest(NamedTuple):
    """Send a request. Its answer, with `number`, goes to `GroupMember.answered`."""

    peer: str
    number: int
    request: Request


class Respond(NamedTuple):
    """Answer the request that came with this token."""

    token: object
    answer: Answer


class CommittedUpTo(NamedTuple):
    """Entries up to this index are committed, and on this member's disk."""

    index: int  # type: ignore[assignment]  # nobody looks for values in it


class RoleChanged(NamedTuple):
    """This member has another role, term or leader. A new leader appends an entry of its term."""

    role: MemberRole
    term: int
    leader: str | None


class Stop(NamedTuple):
    """Going on could lose what was acknowledged: stop, and say why."""

    cause: str


class CutRefused(NamedTuple):
    """A leader wanted what is behind an entry cut, of which some may be acknowledged.

    It may have asked long ago.
    """

    leader: str
    index: int  # type: ignore[assignment]


class BeginRefused(NamedTuple):
    """A leader's first entry is behind the end of this ledger.

    What is between them may have expired, and nobody but the leader says that it was committed.
    """

    leader: str
    index: int  # type: ignore[assignment]


Action: TypeAlias = (
    Save
    | Write
    | Cut
    | Restart
    | SendRequest
    | Respond
    | CommittedUpTo
    | RoleChanged
    | Stop
    | CutRefused
    | BeginRefused
)
