"""The delayed messages that wait at a member of a group that follows, and delivers none itself.

The file of a leader of ours is copied (`tables.followed`). While it stands still, as under a leader
of RocketMQ, the log is read as the next leader would (`log_progress`), each part of it once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rmqstore_spark.engine.delay.delay_offsets import DelayOffsets, oldest_undelivered
from rmqstore_spark.engine.delay.log_progress import progress_in_log
from rmqstore_spark.engine.open_store import OpenStore


class _Seen(NamedTuple):
    """Progress that is in no file; see `LevelProgress`."""

    offsets: Mapping[int, int]
    log_offset: int | None


class FollowedDelays:
    """The delayed messages that wait at a follower. Threads can share it.

    Args:
        store: the open store.
        done: returns the physical offset before which all of the log is on disk and in queues.
        is_over: whether nobody needs an answer any more.
    """

    def __init__(
        self, store: OpenStore, done: Callable[[], int], is_over: Callable[[], bool]
    ) -> None:
        self._store = store
        self._done = done
        self._is_over = is_over
        self._seen = _Seen({}, None)
        self._told: int | None = None
        self._reading = threading.Lock()

    def oldest(self, file: DelayOffsets, until: int) -> int | None:
        """Return the physical offset of the oldest message that may wait; None if none does.

        Args:
            file: the file with the offsets.
            until: only those before this physical offset are asked for. All of them are in queues.

        Raises:
            RmqStoreError: the log cannot be read.
        """
        with self._reading:
            known = self._known(file)
            oldest, end = self._oldest(known), self._done()
            told, self._told = self._told, file.log_offset
            is_told = told is not None and self._told != told
            is_read = known.log_offset is not None and known.log_offset >= end
            if oldest is None or oldest >= until or is_told or is_read:
                return oldest
            found = progress_in_log(self._store, known, end, self._is_over)
            if found is None:
                return oldest
            levels = {*known.offsets, *range(1, len(self._store.config.delays) + 1)}
            offsets = {n: max(known.offsets.get(n, 0), found.get(n, 0)) for n in levels}
            self._seen = _Seen(offsets, end)
            return self._oldest(self._seen)

    def _known(self, file: DelayOffsets) -> _Seen:
        """Return what file and log have told: what one of them counts was delivered."""
        seen = self._seen
        levels = {*file.offsets, *seen.offsets}
        offsets = {n: max(file.offsets.get(n, 0), seen.offsets.get(n, 0)) for n in levels}
        ends = [end for end in (file.log_offset, seen.log_offset) if end is not None]
        return _Seen(offsets, max(ends, default=None))

    def _oldest(self, known: _Seen) -> int | None:
        return oldest_undelivered(self._store.queues, len(self._store.config.delays), known.offsets)
