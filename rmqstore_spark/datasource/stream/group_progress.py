"""Record a stream's progress as the offsets of a consumer group.

The offsets are for those who watch the query; it restarts from its checkpoint. So whatever keeps
them from being recorded is told, and does not stop the query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from rmqstore_spark.datasource.offsets import Offsets, QueueKey
from rmqstore_spark.datasource.sources.source import Clock, GroupCommits, Source
from rmqstore_spark.errors import RmqStoreError, ServiceError

_log = logging.getLogger("rmqstore_spark")

_PAUSE: Final = 30.0
"""Seconds until one that has not answered is told again."""
_QUIET: Final = 600.0
"""Seconds between two warnings about the same store."""


class GroupProgress:
    """The offsets of one consumer group at the sources of a stream."""

    def __init__(self, group: str, sources: Sequence[Source], clock: Clock) -> None:
        self._recorders = {
            source.broker_name: _Recorder(group, source.commits(), clock) for source in sources
        }

    def record(self, reached: Offsets, silent: AbstractSet[str]) -> None:
        """Move the offsets of the group to those of a finished micro-batch.

        What cannot be recorded is logged, and tried again at later calls.

        Args:
            reached: the next offsets to read.
            silent: brokers that do not answer: they are told at a later call.
        """
        wanted: dict[str, dict[QueueKey, int]] = {}
        for key, mark in reached.items():
            if key.broker in self._recorders and key.broker not in silent:
                wanted.setdefault(key.broker, {})[key] = mark.next
        for broker, offsets in wanted.items():
            self._recorders[broker].record(offsets)

    def close(self) -> None:
        """Close the connections."""
        for recorder in self._recorders.values():
            recorder.commits.close()


class _Recorder:
    """Records the offsets of a group at one source, as far as that is possible."""

    def __init__(self, group: str, commits: GroupCommits, clock: Clock) -> None:
        self._group = group
        self.commits = commits
        self._clock = clock
        self._recorded: dict[QueueKey, int] = {}
        self._again_at = clock()
        self._failures = 0
        self._warn_at = clock()

    def record(self, offsets: Mapping[QueueKey, int]) -> None:
        """Record next offsets. Those that have not changed since are not sent again."""
        new = {key: offset for key, offset in offsets.items() if self._recorded.get(key) != offset}
        if not new or self._clock() < self._again_at:
            return
        queues: dict[str, dict[int, int]] = {}
        for key, offset in new.items():
            queues.setdefault(key.topic, {})[key.queue_id] = offset
        try:
            self.commits.commit_offsets(self._group, queues)
        except RmqStoreError as error:
            if isinstance(error, ServiceError):
                self._again_at = self._clock() + _PAUSE
            self._tell(error)
            return
        self._recorded.update(new)
        if self._failures:
            _log.warning("The progress of the consumer group %s is recorded again.", self._group)
            self._failures = 0

    def _tell(self, error: RmqStoreError) -> None:
        """Warn of what could not be recorded: once, and then from time to time."""
        self._failures += 1
        now = self._clock()
        if self._failures > 1 and now < self._warn_at:
            return
        self._warn_at = now + _QUIET
        _log.warning(
            "The progress of the consumer group %s could not be recorded (%d times in a row). %s "
            "The query continues, and a restart continues from its checkpoint; only those who "
            "watch the group see an older position.",
            self._group, self._failures, f"{str(error).rstrip('.')}.",
        )  # fmt: skip
