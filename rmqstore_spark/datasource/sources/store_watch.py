"""Track which queues of a store a stream reads, and how far they reach, at low cost.

An idle query asks many times a second. Each time, only one or two positions of the log are checked
(`LogGrowth`). When those have changed, the queues of the new records are checked until they hold
them, because a record is dispatched to its queue some time after it was written. All queues are
checked if it is not known which ones the new records belong to, then again at growing intervals,
and every 30 seconds in any case. Topics and queues are listed when the log has grown, at most once
a second. The queues' own folders are listed from time to time, to find queues that were deleted and
recreated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.table import QueueOptions
from rmqstore_spark.datasource.sources.queues import chosen_queues, topics_of
from rmqstore_spark.datasource.sources.source import ChosenQueue, Clock, Source, SourceWatch
from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.reader.growth import LogGrowth
from rmqstore_spark.reader.queue_ends import last_entries

if TYPE_CHECKING:
    from rmqstore_spark.layout.queues.format import QueueFormat
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store

_LISTING: Final = 1.0
_REMOTE_LISTING: Final = 5.0
_REMOTE_LOOK: Final = 1.0
_LONGEST: Final = 30.0
# Records that are not in their queues after so many seconds may never get there.
_PATIENCE: Final = 3.0
# The wait between two rounds over the queues, as a multiple of a round's duration: at most a fifth
# of a core while messages arrive, and very little while none do.
_BUSY: Final = 4
_IDLE: Final = 100
_RELIST: Final = 500


class _Awaited(NamedTuple):
    """The end that a queue will have, and how long to check it for that."""

    end: int
    until: float


class StoreWatch(SourceWatch):
    """The queues of a store, followed as `Source.follow` says."""

    def __init__(self, chosen: QueueOptions, source: Source, store: Store, clock: Clock) -> None:
        self._chosen = chosen
        self._source = source
        self._store = store
        self._clock = clock
        self._local = store.directory.files.is_local
        self._tip = LogGrowth(store)
        self.queues: dict[QueueKey, ChosenQueue] = {}
        self._reach: dict[QueueKey, int] = {}
        now = clock()
        self._looked = self._listed = self._topology = self._moved = self._checked = now
        self._relist_at = self._cost = 0.0
        self._grown = self._is_urgent = False
        self._awaited: dict[QueueKey, _Awaited] = {}
        self._awaited_next = now
        self.relists = 0
        self.check()

    def look(self) -> bool:
        """Check the log, and the queues if it is time; return whether they changed."""
        now = self._clock()
        if not self._local and now - self._looked < _REMOTE_LOOK:
            return False
        self._looked = now
        if now - self._listed >= (_LISTING if self._local else _REMOTE_LISTING):
            self._listed = now
            self._store.refresh(topology=False)
        if self._tip.moved():
            self._moved, self._grown = now, True
            self._await_named(now)
        arrived = self._check_awaited(now)
        since = now - self._checked
        if self._is_urgent:
            due = since >= _BUSY * self._cost
        else:
            quiet = max(0.1, (now - self._moved) / 2)
            due = since >= max(_IDLE * self._cost, min(_LONGEST, quiet))
        relist = due and now >= self._relist_at
        return (due and self.check(relist=relist)) or arrived or relist

    def _await_named(self, now: float) -> None:
        """Note which queues the new records will come into. If unknown, check all queues."""
        named = self._tip.named()
        self._is_urgent |= not named
        for (topic, queue_id), end in named.items():
            if self._chosen.wants_queue(topic, queue_id):
                key = QueueKey(self._store.broker_name, topic, queue_id)
                if key in self._awaited:
                    end = max(end, self._awaited[key].end)
                self._awaited[key] = _Awaited(end, now + _PATIENCE)

    def _check_awaited(self, now: float) -> bool:
        """Check the queues that new records will come into. Return whether any changed."""
        if not self._awaited or now < self._awaited_next:
            return False
        begin = self._clock()
        changed = False
        if begin - self._topology >= _LISTING and self._awaited.keys() - self.queues.keys():
            changed = self._find_queues()
        there = [key for key in self._awaited if key in self.queues]
        changed |= self._refresh(there)
        for key, awaited in list(self._awaited.items()):
            chosen = self.queues.get(key)
            if chosen is not None and chosen.queue.max_offset >= awaited.end:
                del self._awaited[key]
            elif now > awaited.until:
                del self._awaited[key]
                self._is_urgent = True
        if changed and self._reach:
            self._tip.dispatched(max(self._reach.values()))
        took = self._clock() - begin
        self._awaited_next = now + (1 + _BUSY) * took
        return changed

    def check(self, *, relist: bool = False) -> bool:
        """Check all queues; return whether any was added, removed or changed.

        Args:
            relist: list all folders again.
        """
        begin = self._clock()
        self.relists += relist
        grown, self._grown, self._is_urgent = self._grown, False, False
        changed = False
        if not self.queues or relist or (grown and begin - self._topology >= _LISTING):
            changed = self._find_queues()
        # A queue that was checked early in this round may lack a record that came before those
        # which others got later. What they held before the round is in all queues by its end.
        known = max(self._reach.values(), default=0)
        changed |= self._refresh(list(self.queues), relist=relist)
        if self._reach:
            newest = max(self._reach.values())
            self._is_urgent = known == 0 < newest
            self._tip.dispatched(newest, all_before=min(known or newest, newest))
        self._checked = self._clock()
        took = self._checked - begin
        if relist or not self._relist_at:
            self._relist_at = self._checked + max(_LONGEST, _RELIST * took)
        else:
            self._cost = took
        return changed

    def _refresh(self, keys: Sequence[QueueKey], *, relist: bool = False) -> bool:
        """Check queues; return whether any changed."""
        queues = [self._store.queue(key.topic, key.queue_id) for key in keys]
        found = zip(keys, queues, self._store.refresh_queues(queues, relist=relist), strict=True)
        news = {key: queue for key, queue, is_new in found if is_new or key not in self._reach}
        self._reach.update(zip(news, self._ends(list(news.values())), strict=True))
        return bool(news)

    def _ends(self, queues: Sequence[Queue]) -> Iterator[int]:
        """Yield the physical offset after the last record of each queue; 0 for an empty one."""
        held = [queue for queue in queues if queue.max_offset > queue.min_offset]
        ends = _ends_of_last(self._store.directory.queue_format, held)
        for queue in queues:
            yield next(ends) if queue.max_offset > queue.min_offset else 0

    def _find_queues(self) -> bool:
        """List topics and queues; return whether other queues are there than before."""
        self._topology = self._clock()
        self._store.refresh(offsets=False)
        found = {
            chosen.key: chosen for chosen in chosen_queues(self._chosen, topics_of([self._source]))
        }
        changed = found.keys() != self.queues.keys()
        self.queues = found
        self._reach = {key: end for key, end in self._reach.items() if key in found}
        return changed


def _ends_of_last(queue_format: QueueFormat, queues: Sequence[Queue]) -> Iterator[int]:
    """Yield the physical offset after the last record of queues that are not empty.

    It only helps to look at the right position: 0 for those whose last entries cannot be used.
    """
    try:
        entries = last_entries(queue_format, queues)
    except (SegmentExpiredError, CorruptStoreError):
        if len(queues) == 1:
            yield 0
        else:
            for queue in queues:
                yield from _ends_of_last(queue_format, [queue])
        return
    live = queue_format.is_message(entries) | queue_format.is_void(entries)
    ends = entries["physicalOffset"].astype(np.int64) + entries["size"]
    yield from np.where(live, ends, 0).tolist()
