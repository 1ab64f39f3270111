"""Removes old segments, and what queues and index hold of them, in a thread.

A round removes segments of the log, the oldest first, then the files of queues and index that lie
wholly before the log's new beginning. It may be interrupted at any point: a segment is only removed
when nothing but the log knows its messages, and the next round, or the next opening, continues.

    archive the segments (if there is an archive) -> flush queues, index, checkpoint, ledger
    -> for each segment: remove its name, flush the folder, move the log's minimum offset
    -> remove files of queues, move their minimum offsets -> remove index files

The flush keeps what would otherwise be lost with the segments: the queues' next offsets, and the
commits whose markers expire. (Upstream: DefaultMessageStore.CleanCommitLogService,
CleanConsumeQueueService.)
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.batches.batches import Batches
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher, QueueFlusher
from rmqstore_spark.engine.expiry.rule import Aged, Rule, SteadyClock, stored_before
from rmqstore_spark.engine.expiry.segments import NeededSegments, OldSegments
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.transactions.transactions import Transactions
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.durable import remove_file

if TYPE_CHECKING:
    from rmqstore_spark.engine.expiry.archive import Archive

_log = logging.getLogger(__name__)

_FIRST_ROUND: Final = 6  # intervals after the start
_AGAIN_S: Final = 0.1


@dataclass(frozen=True)
class Expirable:
    """What an order to expire segments would remove, or has still to remove.

    Attributes:
        segments: the segments, the oldest first.
        is_working: whether an order is being carried out.
        remark: why the last round left segments that were due, or, if there is no order, why an
            order would leave some; empty if there is no such reason.
    """

    segments: tuple[Aged, ...]
    is_working: bool
    remark: str


class Expiry:
    """The thread that removes old segments. Its methods may be called from any thread.

    Args:
        store: the open store.
        dispatcher: writes queues and index.
        flusher: flushes them.
        admission: measures the disk.
        batches: has the ledger of commits.
        transactions: their half messages do not expire while they wait.
    """

    def __init__(
        self,
        store: OpenStore,
        dispatcher: Dispatcher,
        flusher: QueueFlusher,
        admission: Admission,
        batches: Batches,
        transactions: Transactions,
    ) -> None:
        config = store.config
        self._store = store
        self._config = config
        self._flusher = flusher
        self._admission = admission
        self._batches = batches
        self._rule = Rule.of(config)
        self._clock = SteadyClock(store.clock, lambda: time.monotonic_ns() // 1_000_000)
        self._listing = threading.Lock()
        self._old = OldSegments(store.log, store.path, store.log_folder, dispatcher)
        self._closing = threading.Event()
        self._needed = NeededSegments(store, transactions, self._old.done, self._closing.is_set)
        self._archive: Archive | None = None
        if config.archive_to:
            from rmqstore_spark.engine.expiry.archive import Archive  # needs fsspec: slow to load

            self._archive = Archive(config.archive_to, store)
        self._changed = threading.Condition()
        self._before = 0
        self._remark = ""
        self._cleaned_until = 0
        self._expired_segments = self._expired_bytes = self._failures = 0
        self._thread = threading.Thread(target=self._run, name="rmqstore-expiry", daemon=True)
        self._thread.start()

    def reading(self, path: str) -> AbstractContextManager[None]:
        """Mark the file at a path, relative to the store, as being read by a client."""
        return self._needed.uses.reading(path)

    def expirable(self, before: int) -> Expirable:
        """Return the segments all of whose messages were stored before a time.

        A segment counts as old as the first message of the segment after it.

        Args:
            before: milliseconds since the epoch.

        Raises:
            RmqStoreError: the log's folder or a file cannot be read.
        """
        with self._changed:
            is_working, remark = self._before > 0, self._remark
        segments = self._oldest(before)
        if segments and not (is_working or remark):
            remark = self._needed.awaited(segments, has_room=not self._is_crowded())
        return Expirable(tuple(segments), is_working, remark)

    def order(self, before: int) -> None:
        """Begin to remove what `expirable` returns, at once and at any hour; returns at once.

        Args:
            before: milliseconds since the epoch.
        """
        with self._changed:
            self._before = max(self._before, before)
            self._remark = ""
            self._changed.notify_all()

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        archive = self._archive
        return {
            "expiredSegments": self._expired_segments,
            "expiredBytes": self._expired_bytes,
            "archivedSegments": archive.segments if archive else 0,
            "archivedBytes": archive.bytes if archive else 0,
            "expiryFailures": self._failures,
            "expiryRemark": self._remark,
        }

    def close(self) -> None:
        """Stop the thread. A copy to the archive is aborted, and begins again after the start."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._thread.join()

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        wait = _FIRST_ROUND * self._config.clean_resource_interval
        self._check_archive()
        while True:
            with self._changed:
                self._changed.wait_for(self._is_wanted, wait / 1000)
                before = self._before
            if self._closing.is_set():
                return
            wait = self._config.clean_resource_interval
            try:
                is_done = self._round(before)
            except AssertionError as error:
                self._fail(self._admission.health.fail_wrong_state(error))
                with self._changed:
                    self._before = 0
                return
            except Exception as error:  # noqa: BLE001 - the next round tries again
                self._fail(error)
                is_done = True
            with self._changed:
                if is_done and self._before == before:
                    self._before = 0
            if before and not is_done:
                self._closing.wait(_AGAIN_S)

    def _check_archive(self) -> None:
        """Tell early if it cannot be used: the first segment may expire at night."""
        if self._archive is None:
            return
        try:
            self._archive.check()
        except Exception as error:  # noqa: BLE001 - it may be reached when a segment expires
            self._fail(error)

    def _is_wanted(self) -> bool:
        return self._closing.is_set() or self._before > 0

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._remark = str(error)
        kind = "" if isinstance(error, RmqStoreError | OSError) else f"{type(error).__name__}: "
        _log.warning("Old segments are kept for now: %s%s", kind, error)

    def _round(self, before: int) -> bool:
        """Do a round. Return whether an order, if there is one, is carried out."""
        due = self._due(before)
        is_kept = False
        if due:
            is_kept = self._remove(due)
        else:
            self._remark = ""
        self._clean()
        return not due or is_kept

    def _oldest(self, before: int, at_least: int = 0) -> list[Aged]:
        with self._listing:
            return self._old.oldest(before, at_least)

    def _due(self, before: int) -> list[Aged]:
        now = self._clock()
        hour = time.localtime(self._store.clock() / 1000).tm_hour
        disk = self._admission.disk_used_ratio
        if not before and not self._rule.is_time(hour, disk):
            return []
        most = self._rule.at_once
        segments = self._oldest(max(before, self._rule.before(now)), most)
        due = self._rule.select(segments, now, hour, disk)
        by_hand = stored_before(segments, before)
        if not due and not by_hand and disk > self._rule.look_above and self._rule.reserved_ms:
            _log.warning("The disk is %.0f%% full, and no segment may expire.", 100 * disk)
        return max(due, by_hand[:most], key=len)

    def _remove(self, due: Sequence[Aged]) -> bool:
        """Remove segments. Return whether nothing can go, because of messages that wait."""
        forced_from = self._forced_from(due)
        found = self._needed.unneeded(due, has_room=not self._is_crowded())
        due, self._remark = found.segments, found.remark
        if self._archive is not None and due:
            self._archive.keep(due, self._closing)
        if self._closing.is_set() or not due:
            return found.waits
        self._flusher.flush(sync_index=True)
        self._batches.save_before_expiry()
        reach("expiry.before_remove")
        for segment in due:
            if segment.start >= forced_from and not self._is_still_forced():
                break
            if lost := found.lost_with(segment):
                if not self._is_crowded() or self._needed.keeps(found, segment):
                    break
                _log.warning(
                    "The disk is %.0f%% full: the segment %020d expires, although it or one before "
                    "it has %s.", 100 * self._admission.disk_used_ratio, segment.start, lost,
                )  # fmt: skip
            self._store.log.expire(segment.start)
            self._expired_segments += 1
            self._expired_bytes += segment.end - segment.start
            _log.info("The segment %020d has expired.", segment.start)
            reach("expiry.after_segment")
            if self._closing.wait(self._config.delete_commit_log_files_interval / 1000):
                break
        return False

    def _forced_from(self, due: Sequence[Aged]) -> int:
        """Return the start of the first segment that expires only because the disk is full."""
        before = max(self._rule.before(self._clock()), self._before)
        old = stored_before(due, before)
        return old[-1].end if old else due[0].start

    def _is_still_forced(self) -> bool:
        self._admission.look_at_disk()
        return self._rule.is_forced(self._admission.disk_used_ratio)

    def _is_crowded(self) -> bool:
        """Return whether the disk is too full to keep what waits to be delivered.

        A store that refuses messages delivers none either: what waits could keep it full for ever.
        """
        return self._is_still_forced() or self._admission.lacks_disk

    def _clean(self) -> None:
        """Remove the files of queues and index before the log's first byte."""
        begin = self._store.log.min_offset
        if begin <= self._cleaned_until:
            return
        queues, indexes = self._store.queues, self._store.indexes
        for topic, numbers in queues.ranges().items():
            for queue_id in numbers:
                removed = queues.expire(topic, queue_id, begin)
                pause = self._config.delete_consume_queue_files_interval if removed else 0
                if self._closing.wait(pause / 1000):
                    return
        for path in indexes.old_files(begin) if indexes is not None else ():
            if self._archive is not None:
                self._archive.keep_index(path, self._closing)
            if self._closing.is_set():
                return
            remove_file(path)
            reach("expiry.after_index_file")
            _log.info("The index file %s has expired.", os.path.basename(path))
        self._flusher.flush()
        self._cleaned_until = begin
