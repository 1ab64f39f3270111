"""How far a follower is behind its master.

The protocol does not tell where the master's log ends. But a master sends what it has without
pausing. So a follower that waits for more has everything, and one that does not wait knows from the
storeTimestamp of its newest record how many seconds it is behind. The master's broker says where
its log ends, if the follower may ask it (`haMasterRemotingAddress`). Otherwise the bytes that are
missing are an estimate, from those that the master stored in a second. What is not known yet is
None.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

STATES: Final = ("CONNECTING", "CHECKING", "FOLLOWING", "STOPPED")
"""What a follower does. STOPPED: it cannot continue until somebody acts."""

_SPAN_S: Final = 10.0
_SAMPLE_S: Final = 0.2
_SURE_S: Final = 2.0
_SURE_MS: Final = 2000


@dataclass(frozen=True)
class Standing:
    """How far a follower is behind its master.

    Attributes:
        state: one of STATES.
        end: physical offset up to which the log is held.
        behind_seconds: how much older the newest record held is than what the master has at most;
            0 if nothing is missing, None if there is no record yet, or if that cannot be told yet.
        behind_bytes: the bytes that are missing; 0 if nothing is, None if not even an estimate is
            possible.
        bytes_per_second: how fast the log grew in the last seconds.
        received: bytes of the log that were received since the start.
        connects: how often a connection was made.
        error: why the last connection ended, why the follower stopped, or what it may mean that
            the master sends nothing.
        is_complete: whether nothing is missing.
        answers: whether the master took the last connection, which then was of no use.
    """

    state: str
    end: int
    behind_seconds: float | None
    behind_bytes: int | None
    bytes_per_second: float
    received: int
    connects: int
    error: str
    is_complete: bool
    answers: bool

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until nothing is missing; None if that is not foreseeable."""
        if self.is_complete:
            return 0.0
        missing, rate = self.behind_bytes, self.bytes_per_second
        return missing / rate if missing and rate else None

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        return {
            "replicationState": self.state,
            "replicationComplete": int(self.is_complete),
            "replicationLagBytes": self.behind_bytes,
            "replicationLagSeconds": self.behind_seconds,
            "replicationReceivedBytes": self.received,
            "replicationConnects": self.connects,
            "replicationError": self.error,
        }


class Progress:
    """What a follower notes while it works. The follower's threads write, all others read.

    Args:
        clock: returns milliseconds since the epoch, as storeTimestamps count.
        end: returns the physical offset up to which the log is held.
        newest: returns the storeTimestamp of the newest record that is held, 0 for none.
    """

    def __init__(
        self, clock: Callable[[], int], end: Callable[[], int], newest: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._end = end
        self._newest = newest
        self._lock = threading.Lock()
        self._state = "CONNECTING"
        self._error = ""
        self._answers = False
        self._caught_up = False
        self._complete_at = 0
        self._following_since = 0.0
        self._master_end = 0
        self._received = 0
        self._connects = 0
        self._samples: deque[tuple[float, int, int]] = deque()

    def connecting(self, error: str, *, answers: bool) -> None:
        """Note that there is no connection, and why the last one ended; see `Standing`."""
        with self._lock:
            self._state, self._caught_up = "CONNECTING", False
            self._error, self._answers = error, answers

    @property
    def is_following(self) -> bool:
        """Whether there is a connection, and the master's log continues the one held."""
        return self._state == "FOLLOWING"

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._state in ("CHECKING", "FOLLOWING")

    def connected(self) -> None:
        """Note that there is a connection."""
        with self._lock:
            self._state = "CHECKING"
            self._connects += 1

    def silent(self, meaning: str) -> None:
        """Note what it may mean that the master sends nothing."""
        with self._lock:
            self._error = meaning

    def following(self) -> None:
        """Note that the master's log continues the one held."""
        with self._lock:
            self._state, self._error = "FOLLOWING", ""
            self._following_since = time.monotonic()

    def stopped(self, error: str) -> None:
        """Note that the follower cannot continue."""
        with self._lock:
            self._state, self._caught_up = "STOPPED", False
            self._error = error

    def arrived(self) -> None:
        """Note that bytes of the log have arrived, and are not in the store yet."""
        with self._lock:
            self._caught_up = False

    def took(self, size: int) -> None:
        """Note that bytes of the log have arrived and are in the store."""
        now = time.monotonic()
        with self._lock:
            self._caught_up = False
            self._received += size
            if not self._samples or now - self._samples[-1][0] >= _SAMPLE_S:
                self._samples.append((now, self._received, self._newest()))
                self._forget(now)

    def waits(self) -> None:
        """Note that the master has sent all it has."""
        with self._lock:
            if self._state == "FOLLOWING":
                self._caught_up = True
                self._complete_at = self._clock()

    def master_ends(self, offset: int) -> None:
        """Note a physical offset up to which the master's log reaches, as its broker says."""
        self._master_end = offset

    def standing(self) -> Standing:
        """Return how things stand now."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            behind = 0.0 if self._caught_up else self._behind(now)
            rate, stored_rate = self._rates(now)
            return Standing(
                self._state, self._end(), behind, self._missing(behind, stored_rate), rate,
                self._received, self._connects, self._error, self._caught_up, self._answers,
            )  # fmt: skip

    def _behind(self, now: float) -> float | None:
        """Return how much older the newest record is than what the master has at most."""
        is_new = self._state == "CHECKING" or now - self._following_since < _SURE_S
        if is_new and not self._complete_at:
            return None  # an idle master has nothing newer, and a moment shows it
        since = max(self._newest(), self._complete_at)
        return max(0, self._clock() - since) / 1000 if since else None

    def _missing(self, behind: float | None, stored_rate: float | None) -> int | None:
        """Return the bytes that are missing; None if that is not known."""
        if self._caught_up:
            return 0
        named = self._master_end - self._end()
        if named > 0:
            return named
        return None if behind is None or stored_rate is None else int(behind * stored_rate)

    def _forget(self, now: float) -> None:
        while len(self._samples) > 1 and now - self._samples[0][0] > _SPAN_S:
            self._samples.popleft()

    def _rates(self, now: float) -> tuple[float, float | None]:
        """Return the bytes received in a second, and those that the master stored in one.

        The latter is None until enough was received to tell: what a master stored within
        milliseconds says nothing of hours.
        """
        if not self._samples:
            return 0.0, None
        began, before, first_time = self._samples[0]
        size = self._received - before
        rate = size / (now - began) if now - began > _SAMPLE_S else 0.0
        stored_ms = self._newest() - first_time
        is_sure = now - began >= _SURE_S and stored_ms >= _SURE_MS
        return rate, size * 1000 / stored_ms if is_sure else None
