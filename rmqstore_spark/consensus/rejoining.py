"""What a member that lost its files, or never had any, must learn before it may vote.

Before the loss it may have voted, in a term that it does not know, and acknowledged entries that it does not
have: its vote could make a leader of one that lacks them. So it asks the others as a candidate of the
lowest term does, until a quorum of them has told their terms: whatever it once agreed to, one of these
knows. If none of them has an entry, the group is new. Otherwise it waits for a leader of such a term, and
votes again when it has all that this leader has committed.
"""

from __future__ import annotations

from rmqstore_spark.consensus.messages import LONGER_LEDGER, Verdict, VoteAnswer

_TELLS_NOTHING = frozenset({Verdict.REJECT_UNKNOWN_LEADER, Verdict.REJECT_UNEXPECTED_LEADER})


class Rejoining:
    """What the others have told. `members` is the size of the group."""

    def __init__(self, members: int) -> None:
        self._needed = members // 2 + 1
        self._terms: dict[str, int] = {}
        self._has_entries: set[str] = set()

    def note(self, peer: str, answer: VoteAnswer) -> None:
        """Take the answer of a voter to a request with an empty ledger."""
        if answer.verdict in _TELLS_NOTHING:
            return
        self._terms[peer] = max(answer.term, self._terms.get(peer, -1))
        if answer.verdict in LONGER_LEDGER:
            self._has_entries.add(peer)

    @property
    def term(self) -> int | None:
        """The highest term that this member can have voted in; None as long as that is not known."""
        return max(self._terms.values()) if len(self._terms) >= self._needed else None

    @property
    def is_new_group(self) -> bool:
        """Whether none of those who told has an entry, once enough of them have."""
        return self.term is not None and not self._has_entries
