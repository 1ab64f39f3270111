"""How long members wait for each other, in milliseconds; the defaults are DLedger's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ROUNDS: Final = 3000


@dataclass(frozen=True)
class Timing:
    """Intervals of a member.

    Attributes:
        heartbeat: from one heartbeat of a leader to the next.
        leaks: after how many heartbeats without one a follower becomes a candidate, and a leader
            that hears no quorum steps down.
        vote_wait: how long a candidate waits for votes, at least; up to one and a half of it.
        rounds: how long any candidate of the group does, at most; RocketMQ's do so for up to 3 s.
        round_gap, round_spread: from one round of votes to the next: the first, and up to the
            second more.
        push_wait: after how long entries that nobody acknowledged are pushed again.
        compare_wait: the same of a comparison.
        retry: how long a leader waits after an error.
        tell: after how long a leader that has nothing to push tells of another commit index.
        idle: how often it tells of the same one.
        window: how many pushes may be without an answer.
        batch: entries in a push, at most.
    """

    heartbeat: int = 2000
    leaks: int = 3
    vote_wait: int = 2000
    rounds: int = _ROUNDS
    round_gap: int = 300
    round_spread: int = 700
    push_wait: int = 1000
    compare_wait: int = 3000
    retry: int = 500
    tell: int = 10
    idle: int = 1000
    window: int = 64
    batch: int = 1024

    @classmethod
    def of(cls, heartbeat: int) -> Timing:
        """Return the times of elections for an interval of heartbeats, as DLedger has them."""
        return cls(
            heartbeat=heartbeat,
            vote_wait=heartbeat,
            rounds=max(_ROUNDS, heartbeat * 3 // 2),
            round_gap=heartbeat * 3 // 20,
            round_spread=heartbeat * 7 // 20,
        )

    @property
    def silence(self) -> int:
        """How long nothing may be heard before it counts as a failure."""
        return self.heartbeat * self.leaks
