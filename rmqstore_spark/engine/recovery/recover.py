"""Recovers a store: finds the end of the log, and makes queues and index agree with it.

The order matters, because recovery can be interrupted at any point and is then run again:

1. The log is walked and its end decided; nothing is changed. If messages that were flushed or
   dispatched are past it, and no crash explains that, the opening stops here.
2. `abort` and the guard are created: from now on a kill is an unclean stop.
3. Empty files behind the end are removed. The bytes behind it are saved under `rmqstore/cut/`, and
   wiped. If whole segments go, `rmqstore/reached` says so until the queues have forgotten them.
4. Queues are cut where the walk started, and get the entries of all records from there on; what
   is left behind their ends is wiped. Invalid index files are removed, and missing keys inserted.
5. Everything is flushed, and only then the checkpoint is written.

See docs/format.md, "Start, recovery" (upstream: DefaultMessageStore.load, recover).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rmqstore_spark.engine.dispatch.indexes import IndexFiles
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.lock import OpenMark, StoreGuard
from rmqstore_spark.engine.log.cut import CutRange, end_log
from rmqstore_spark.engine.log.flush import load_mark
from rmqstore_spark.engine.recovery.clean_close import remember
from rmqstore_spark.engine.recovery.log_end import LogEnd, find_end, unclean_start
from rmqstore_spark.engine.recovery.log_files import look_over
from rmqstore_spark.engine.recovery.log_reach import Lost, Reach, find_lost, reach_error
from rmqstore_spark.engine.recovery.queue_check import clean_start, record_ends
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.engine.recovery.queues_and_index import (
    QueuesAndIndex,
    RecoverySettings,
)
from rmqstore_spark.engine.recovery.summary import Recovery
from rmqstore_spark.engine.recovery.unpublished import Unpublished, find_unpublished
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.engine.writable import refuse_other_kinds
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import NO_ROOM, make_folder, remove_file, replace_file, sync_file
from rmqstore_spark.files.names import FLUSH_MARK_NAME, OWN_FOLDER, REACH_MARK_NAME
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.checkpoint import Checkpoint, FlushMark
from rmqstore_spark.reader.log.commitlog import CommitLog

_log = logging.getLogger(__name__)

_FILES_OPEN: Final = 64
_WRITTEN_MS: Final = 1_767_225_600_000  # 2026: an earlier clock has lost its battery
_FAR_MS: Final = 10 * 365 * 86_400_000  # no other clock is wrong by more


@dataclass(frozen=True)
class Recovered:
    """A recovered store that is ready to be written.

    Attributes:
        summary: what recovery found and did.
        log_begin: physical offset of the log's first byte; 0 for a store without a log.
        log_end: physical offset of the next record.
        segment_size: bytes of a segment; 0 for a store without a log.
        last_timestamp: storeTimestamp of the newest record that was met, milliseconds. If none was
            met, the checkpoint's; 0 for none.
        queues: all queues, flushed.
        indexes: the index, flushed; None if the store keeps none.
        absent: (topic, queueId) of queues that somebody has consumed from, and the log does not
            know.
        checkpoint: the checkpoint, as on disk.
    """

    summary: Recovery
    log_begin: int
    log_end: int
    segment_size: int
    last_timestamp: int
    queues: ConsumeQueues
    indexes: IndexFiles | None
    absent: frozenset[tuple[str, int]]
    checkpoint: CheckpointKeeper


def recover(store: str, settings: RecoverySettings) -> Recovered:
    """Recover a store so that it can be written. The caller holds its lock.

    `abort` and the guard exist afterwards; a clean close removes them.

    Args:
        store: the store directory; `commitlog/` is created if it is missing.
        settings: what is needed beside it.

    Raises:
        CorruptStoreError: the log is damaged, or ends, below what was flushed or dispatched, and no
            crash explains that; or a file does not belong to it. Nothing has been changed.
        UnsupportedStoreError: the store is of a kind that can only be read.
        StoreWriteError: a file could not be written or flushed.
    """
    return _Run(store, settings).run()


@dataclass
class _Run:
    """A single recovery."""

    store: str
    settings: RecoverySettings
    files: LocalFiles = field(default_factory=lambda: LocalFiles(_FILES_OPEN))

    def run(self) -> Recovered:
        began = self.settings.clock()
        self.clean = not OpenMark(self.store).is_placed
        self.folder = os.path.join(self.store, "commitlog")
        make_folder(self.folder)
        self.directory = StoreDirectory(self.files, self.store)
        refuse_other_kinds(self.directory)
        try:
            return self._recovered(began)
        finally:
            self.files.close()

    def _recovered(self, began: int) -> Recovered:
        clean = self.clean
        mark = load_mark(self._own(FLUSH_MARK_NAME))
        files = look_over(self.folder, mark.segment_size if mark else 0)
        keeper = CheckpointKeeper(self.store)
        self.latest = max(began, _WRITTEN_MS) + _FAR_MS
        vouched = _plausible(keeper.value, self.latest)
        with files.at_full_length():
            log = CommitLog(self.directory.commit_log())
            self.directory.refresh()
            survey = QueueSurvey(self.directory, log)
            ends = record_ends(self.directory, log, survey)
            end = self._end(log, ends, vouched, mark)
            noted = load_mark(self._own(REACH_MARK_NAME))
            known = Reach(self.directory, files, survey, mark, vouched, ends, noted)
            lost, witness = find_lost(known, log, end, clean=clean)
            if lost is not None and (end.damage or witness) and not self.settings.cut:
                raise reach_error(known, end, lost, witness)
            dead = None
            if not (clean or self.settings.cut or lost is not None):
                dead = find_unpublished(log, end.offset, vouched.physic_msg_timestamp)
        assert log.min_offset <= end.start <= end.offset <= log.file_end, (
            f"the files hold {log.min_offset} to {log.file_end}, and the walk from {end.start} on "
            f"ended at {end.offset}"
        )
        reach("recovery.before_mark")
        self._mark_open()
        reach("recovery.after_mark")
        if not clean and any(segment.start > end.offset for segment in log.plain):
            self._note(FlushMark(known.files_end, files.segment_size))
        files.remove_empty()
        cuts = end_log(
            self.store, list(log.plain), end.offset,
            cause=end.cause, now=self.settings.clock(), unpublished=dead,
        )  # fmt: skip
        reach("recovery.after_wipe")
        self._warn(end, lost, cuts, dead)
        log = CommitLog(self.directory.commit_log())
        assert end.offset <= log.file_end <= end.offset + log.plain.segment_size, (
            f"the log was cut at {end.offset}, and its files end at {log.file_end}"
        )
        if not clean:
            for segment in log.segments():
                if segment.end > end.start:
                    sync_file(segment.segment.path)
        parts = QueuesAndIndex(
            self.directory,
            log,
            end,
            survey,
            clean=clean,
            keeper=keeper,
            vouched_index=vouched.index_msg_timestamp,
            settings=self.settings,
        )
        try:
            queues, indexes = parts.bring_up()
        except BaseException:
            parts.close()
            raise
        changed = bool(cuts) or not clean or parts.changed or _is_ahead(keeper.value, end.newest)
        changed = changed or (bool(end.offset) and not keeper.existed)
        if changed:
            self._settle(keeper, end, parts, queues, indexes)
        remove_file(self._own(REACH_MARK_NAME))
        summary = Recovery(
            clean=clean,
            log_begin=log.min_offset,
            log_end=end.offset,
            walked_bytes=end.offset - end.start,
            cause=end.cause,
            cuts=cuts,
            unpublished=dead,
            lost=lost,
            dropped_entries=parts.dropped,
            redispatched=parts.feed.written,
            rebuilt_queues=tuple(sorted(parts.feed.made)),
            topics_without_queues=tuple(sorted(parts.feed.unsafe)),
            removed_index_files=tuple(sorted(parts.survey.removed)) if parts.survey else (),
            made_index_files=tuple(parts.made_index_files),
            indexed_keys=parts.keys,
            seconds=(self.settings.clock() - began) / 1000,
        )
        return Recovered(
            summary, log.min_offset, end.offset, log.plain.segment_size,
            end.newest or max(vouched.physic_msg_timestamp, 0),
            queues, indexes, parts.absent, keeper,
        )  # fmt: skip

    def _end(
        self,
        log: CommitLog,
        ends: Mapping[tuple[str, int], int],
        vouched: Checkpoint,
        mark: FlushMark | None,
    ) -> LogEnd:
        """Find the end of the log; nothing is changed."""
        named_end = 0
        if not len(log):
            return LogEnd(0, 0, "", 0, False)
        # The part of a batch that was there at an earlier start, from a broker's slave, stays.
        kept = mark.offset if mark is not None else 0
        if self.settings.cut:
            start, kept = unclean_start(log, vouched), 0
        elif self.clean:
            start, named_end = clean_start(self.directory, log, ends)
            kept = log.file_end
        else:
            start = unclean_start(log, vouched)
        if self.settings.rebuild:
            start = log.min_offset
        return find_end(
            log,
            start,
            flushed=vouched.physic_msg_timestamp,
            latest=self.latest,
            named_end=named_end,
            kept=kept,
            progress=lambda done, total: self.settings.progress("log", done, total),
        )

    def _warn(
        self, end: LogEnd, lost: Lost | None, cuts: tuple[CutRange, ...], dead: Unpublished | None
    ) -> None:
        """Say what the log no longer holds, if it was cut or ends before what was dispatched."""
        if dead is not None:
            _log.warning(
                "%s: the process was killed while it wrote a Spark batch (physical offsets %d to "
                "%d). Nobody has seen it, and Spark writes it again: its bytes were removed.",
                self.store, dead.head, dead.end,
            )  # fmt: skip
        if lost is None and not cuts:
            return
        why = "as a crash leaves it" if not self.settings.cut else "as told (--cut)"
        gone = f" Gone with what follows: {lost}." if lost is not None else ""
        kept = f" Cut off: {', '.join(cut.kept for cut in cuts)}." if cuts else ""
        _log.warning(
            "%s: the log ends at physical offset %d, %s%s.%s%s",
            self.store, end.offset, why, f" ({end.cause})" if end.cause else "", gone, kept,
        )  # fmt: skip

    def _mark_open(self) -> None:
        StoreGuard(self.folder).place(is_full=self.settings.is_full)
        OpenMark(self.store).place()

    def _own(self, name: str) -> str:
        return os.path.join(self.store, OWN_FOLDER, name)

    def _note(self, mark: FlushMark) -> None:
        """Write down how far the files reached: some go, and queues still name records there.

        If this recovery is interrupted before the queues are cut, the next takes it for no damage.
        """
        make_folder(os.path.join(self.store, OWN_FOLDER))
        try:
            replace_file(self._own(REACH_MARK_NAME), mark.encode())
        except StoreWriteError as error:
            if not (self.settings.is_full and error.errno in NO_ROOM):
                raise
            _log.warning("%s An interruption now would have to be repaired by hand.", error)

    def _settle(
        self,
        keeper: CheckpointKeeper,
        end: LogEnd,
        parts: QueuesAndIndex,
        queues: ConsumeQueues,
        indexes: IndexFiles | None,
    ) -> None:
        """Flush everything, then write the checkpoint."""
        queues.flush()
        if indexes is not None:
            indexes.flush(sync=True)
        old = keeper.value
        index = min(max(old.index_msg_timestamp, 0), end.newest)
        keeper.reset(physic=end.newest, logics=end.newest, index=index)
        reach("recovery.before_checkpoint")
        keeper.write()
        reach("recovery.after_checkpoint")
        path = self._own(FLUSH_MARK_NAME)
        mark = load_mark(path)
        if mark is not None and mark.offset > end.offset:  # the log was cut, as told
            replace_file(path, replace(mark, offset=end.offset).encode())
        index_end = end.offset if indexes is not None else 0
        try:
            remember(self.store, queues, absent=parts.absent, index_end=index_end)
        except StoreWriteError as error:
            if not (self.settings.is_full and error.errno in NO_ROOM):
                raise
            _log.warning("%s The next start looks for it again.", error)


def _plausible(checkpoint: Checkpoint, latest: int) -> Checkpoint:
    """Return the checkpoint, or one that vouches for nothing if its times are impossible."""
    times = _times(checkpoint)
    return checkpoint if min(times) >= 0 and max(times) <= latest else Checkpoint()


def _is_ahead(checkpoint: Checkpoint, newest: int) -> bool:
    """Return whether a checkpoint names times that the log has not reached."""
    times = _times(checkpoint)
    return max(times) > newest or min(times) < 0


def _times(checkpoint: Checkpoint) -> tuple[int, int, int]:
    return (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
    )
