"""Decides which segments expire: a pure function of the segments, the clock and the disk.

See docs/operate.md, "Expiry and archives" (upstream: DefaultMessageStore.CleanCommitLogService,
MappedFileQueue.deleteExpiredFileByTime). It differs from a broker's rule in two points. A segment
is as old as the first message of the segment after it, not as its file's modification time, which a
copy changes. And where a broker would refuse messages before it deletes young segments, those are
deleted at any hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from rmqstore_spark.engine.config.store_config import StoreConfig

_HOUR_MS = 3_600_000


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


class Moment(NamedTuple):
    """What the rule depends on besides the segments.

    Attributes:
        now: milliseconds since the epoch.
        hour: the hour of the day in local time.
        disk: used part of the store's disk, 0 to 1.
    """

    now: int
    hour: int
    disk: float


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

    def select(self, segments: Sequence[Aged], moment: Moment) -> list[Aged]:
        """Return the segments that expire now, the oldest first.

        Args:
            segments: all that may expire, ascending and without the last one of the log.
            moment: the time, and how full the disk is.
        """
        if not self.reserved_ms or not self._is_time(moment):
            return []
        due = moment.now - self.reserved_ms
        if self.is_forced(moment.disk):
            return list(segments[: self.at_once])
        return stored_before(segments, due + 1)[: self.at_once]

    def is_forced(self, disk: float) -> bool:
        """Return whether segments expire whatever their age."""
        return bool(self.reserved_ms) and disk > self.force_above

    def _is_time(self, moment: Moment) -> bool:
        return moment.hour in self.hours or moment.disk > self.look_above


def stored_before(segments: Sequence[Aged], time: int) -> list[Aged]:
    """Return the first segments, as long as all their messages were stored before a time.

    A segment behind a younger one stays, so that the log keeps no gap.
    """
    return list(takewhile(lambda one: one.stored_until < time, segments))
