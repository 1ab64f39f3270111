"""Decides which segments expire: a pure function of the segments, the clock and the disk.

See docs/operate.md, "Expiry and archives" (upstream: DefaultMessageStore.CleanCommitLogService,
MappedFileQueue.deleteExpiredFileByTime). It differs from a broker's rule in two points. A segment
is as old as the first message of the segment after it, not as its file's modification time, which a
copy changes. And where a broker would refuse messages before it deletes young segments, those are
deleted at any hour.

The time is that of `SteadyClock`: a clock that is set forward by mistake must not delete messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

from rmqstore_spark.engine.config.store_config import StoreConfig

_log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_SLACK_MS: Final = 60_000
_PROOF_MS: Final = 3_600_000


class Aged(NamedTuple):
    """A segment, and when its messages were stored.

    Attributes:
        start: physical offset of its first byte.
        end: one past its last byte.
        stored_from: storeTimestamp of its first message, milliseconds; -1 if it is not readable.
        stored_until: that of the first message of the next segment, so no message here is newer.
    """

    start: int
    end: int
    stored_from: int
    stored_until: int


@dataclass(frozen=True)
class Rule:
    """When segments expire.

    Attributes:
        reserved_ms: how long messages are kept; 0 for ever.
        hours: hours of the day in which segments expire.
        look_above: used part of the disk above which segments expire at any hour.
        force_above: used part above which they expire whatever their age.
        at_once: most segments of a round.
    """

    reserved_ms: int
    hours: frozenset[int]
    look_above: float
    force_above: float
    at_once: int

    @classmethod
    def of(cls, config: StoreConfig) -> Rule:
        """Return the rule of a configuration."""
        force = config.disk_space_clean_forcibly_ratio if config.clean_file_forcibly_enable else 1.0
        return cls(
            config.file_reserved_time * _HOUR_MS,
            frozenset(int(hour) for hour in config.delete_when.split(";")),
            min(config.disk_max_used_space_ratio / 100, force),
            force,
            config.delete_physic_files_batch_max,
        )

    def select(self, segments: Sequence[Aged], now: int, hour: int, disk: float) -> list[Aged]:
        """Return the segments that expire now, the oldest first.

        Args:
            segments: the oldest that may expire, ascending and without the last one of the log;
                later ones may be left out behind `at_once`, and behind one that is too young.
            now: milliseconds since the epoch.
            hour: the hour of the day in local time.
            disk: used part of the store's disk, 0 to 1.
        """
        if not self.is_time(hour, disk):
            return []
        if self.is_forced(disk):
            return list(segments[: self.at_once])
        return stored_before(segments, self.before(now))[: self.at_once]

    def is_time(self, hour: int, disk: float) -> bool:
        """Return whether any segment may expire in this hour, as full as the disk is."""
        return bool(self.reserved_ms) and (hour in self.hours or disk > self.look_above)

    def before(self, now: int) -> int:
        """Return the time before which messages were stored that are old enough to expire."""
        return now - self.reserved_ms + 1 if self.reserved_ms else 0

    def is_forced(self, disk: float) -> bool:
        """Return whether segments expire whatever their age."""
        return bool(self.reserved_ms) and disk > self.force_above


def stored_before(segments: Sequence[Aged], time: int) -> list[Aged]:
    """Return the first segments, as long as all their messages were stored before a time.

    A segment behind a younger one stays, so that the log keeps no gap.
    """
    return list(takewhile(lambda one: one.stored_until < time, segments))


class SteadyClock:
    """A clock whose jumps forward count only after an hour. It may go back at any time.

    A jump is a step of more than a minute that the time since the start does not explain. Not
    thread-safe.

    Args:
        clock: returns milliseconds since the epoch.
        running: returns milliseconds since any moment; never jumps.
    """

    def __init__(self, clock: Callable[[], int], running: Callable[[], int]) -> None:
        self._clock = clock
        self._running = running
        self._lead = clock() - running()  # of the clock before the running time
        self._jumped_at: int | None = None

    def __call__(self) -> int:
        """Return milliseconds since the epoch, without jumps that are not an hour old."""
        running = self._running()
        lead = self._clock() - running
        if lead <= self._lead + _SLACK_MS:
            self._lead, self._jumped_at = lead, None
        elif self._jumped_at is None:
            self._jumped_at = running
            _log.warning(
                "The clock was set forward by %d s. Segments expire by the new time in an hour.",
                (lead - self._lead) // 1000,
            )
        elif running - self._jumped_at >= _PROOF_MS:
            self._lead, self._jumped_at = lead, None
        return running + self._lead
