"""Makes queues and index agree with the log: the second half of a recovery.

The log is walked once more, from where the walk that found its end started. The entry of each
record is written into its queue and each key into the index, unless it is there already. If a queue
or the index turns out to lack something older, the part before is walked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from rmqstore_spark.engine.dispatch.indexes import IndexFiles, IndexShape
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.recovery.clean_close import StoreState
from rmqstore_spark.engine.recovery.log_end import LogEnd
from rmqstore_spark.engine.recovery.queue_check import check_queues
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.engine.recovery.redispatch import LogBlock, QueueFeed, log_blocks
from rmqstore_spark.engine.recovery.reindex import IndexSurvey, KeyFeed, remove_files, survey_index
from rmqstore_spark.engine.recovery.whole_batches import WholeBatches, rows_of
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.engine.tables.deleted_topics import DeletedTopics
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS, delays
from rmqstore_spark.reader.log.commitlog import CommitLog

Progress: TypeAlias = Callable[[str, int, int], object]
"""Called with the current step, the bytes done and the total bytes."""

_USUAL_SHAPE: Final = IndexShape()


@dataclass(frozen=True)
class RecoverySettings:
    """What a recovery needs beside the store: of the configuration, and of its caller.

    Attributes:
        clock: returns milliseconds since the epoch.
        queue_file_size: `mappedFileSizeConsumeQueue`, for a store without queues; the default of
            the queues' format if None.
        index_shape: `maxHashSlotNum` and `maxIndexNum`, for a store without index files; None
            if the store keeps no index (`messageIndexEnable=false`).
        delay_levels: `messageDelayLevel`.
        cut: cut the log even where this removes bytes that were known to be flushed.
        is_full: the disk is known to have no room: the guard may be without content, and what was
            found need not be recorded.
        rebuild: rebuild all queues and the index from the log, even if they are valid.
        progress: called with the current step, the bytes done and the total bytes.
    """

    clock: Callable[[], int]
    queue_file_size: int | None = None
    index_shape: IndexShape | None = _USUAL_SHAPE
    delay_levels: str = DELAY_LEVELS
    cut: bool = False
    rebuild: bool = False
    is_full: bool = False
    progress: Progress = lambda *_: None


class QueuesAndIndex:
    """The queues and the index of a store whose log is consistent.

    Args:
        directory: the store.
        log: its log, which ends at `end`.
        end: the result of the walk over the log.
        survey: the survey of the queues.
        clean: whether the store was closed cleanly.
        keeper: records how far the index is sealed.
        vouched_index: the checkpoint's indexMsgTimestamp.
        settings: those of the recovery.
        is_group: whether the log is that of a group, in which a batch can lack its end.

    Attributes:
        newest: the greatest storeTimestamp that was met; 0 if none was.
        shown_end: where the log ends for readers: before a batch of a group that lacks its end.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        log: CommitLog,
        end: LogEnd,
        survey: QueueSurvey,
        *,
        clean: bool,
        keeper: CheckpointKeeper,
        vouched_index: int,
        settings: RecoverySettings,
        is_group: bool = False,
    ) -> None:
        self._is_group = is_group
        self.newest = 0
        self.shown_end = end.offset
        self.directory = directory
        self.settings = settings
        self.log = log
        self.end = end
        self.clean = clean
        self.keeper = keeper
        self._vouched = vouched_index
        self.state = StoreState.load(directory.path)
        self.deleted = DeletedTopics(directory.path)
        self.deleted.settle(log.min_offset, end.offset)
        if self.deleted.ends:
            self.deleted.finish(directory, log)
        self.queues = ConsumeQueues(
            directory.path,
            directory.queue_format,
            file_size=settings.queue_file_size,
            keep_units=not settings.rebuild,
        )
        self.check = check_queues(
            directory, log, end.start, survey, self.queues, self.state, clean=clean
        )
        self.survey: IndexSurvey | None = None
        self.made_index_files: list[str] = []
        self._opened: list[IndexFiles] = []
        self.keys = 0
        self.dropped = 0
        self._shortened = 0
        self._is_completed = settings.rebuild or self.check.incomplete
        self._delays = delays(settings.delay_levels)
        self.start = log.min_offset if self._is_completed else end.start
        self.feed = self._queue_feed(self.start == log.min_offset)

    @property
    def changed(self) -> bool:
        """Whether anything in queues or index had to be corrected."""
        survey = self.survey
        removed = bool(survey and survey.removed)
        return bool(self.feed.written or self.dropped or self._shortened or removed or self.keys)

    @property
    def absent(self) -> frozenset[tuple[str, int]]:
        """Queues that somebody has consumed from, and of which the log holds nothing."""
        return frozenset(route for route in self.check.absent if route not in self.queues)

    def bring_up(self) -> tuple[ConsumeQueues, IndexFiles | None]:
        """Make queues and index agree with the log."""
        tail, indexes = self._index()
        self._pass(tail)
        reach("recovery.after_queues")
        self.dropped = self.queues.trim()
        for topic, deleted_end in self.deleted.ends.items():  # a deletion may have been interrupted
            self._shortened += self.queues.drop_older(topic, deleted_end)
        if indexes is not None and tail is not None:
            self.made_index_files += indexes.names
            self.keys += tail[1].keys
        return self.queues, indexes

    def close(self) -> None:
        """Close the files of queues and index, if they are not to be used."""
        self.queues.close()
        for indexes in self._opened:
            indexes.close()

    def _queue_feed(self, from_begin: bool) -> QueueFeed:
        return QueueFeed(
            self.queues,
            self._delays,
            self.check.is_wanted,
            gap=self._complete,
            log_begin=self.log.min_offset,
            from_begin=from_begin,
            deleted=self.deleted.end,
            is_group=self._is_group,
        )

    def _complete(self) -> None:
        """Walk the rest of the log, because a queue lacks older entries."""
        if self._is_completed:
            return
        self._is_completed = True
        older = self._queue_feed(from_begin=True)
        start = self.end.start
        # What follows shows that the rest of a group's batch is lacking, even right before `start`.
        for part in self._blocks("queues", self.log.min_offset, start + self._is_group):
            rows = int(np.searchsorted(part.physical_offset, start))
            if rows:
                older.feed(part if rows == len(part.block) else rows_of(part, 0, rows))
        older.settle()
        self.feed.restore()
        self.feed.written += older.written
        self.feed.made |= older.made
        self.feed.unsafe |= older.unsafe

    def _index(self) -> tuple[tuple[int, KeyFeed] | None, IndexFiles | None]:
        """Survey the index and fill its gaps, except the end, which `_pass` fills."""
        store, shape = self.directory.path, self.settings.index_shape
        clock = self.settings.clock
        if shape is None:
            return None, None
        survey = self._survey(shape, rebuild=self.settings.rebuild)
        if self._is_group and len(survey.gaps) > 1:  # one could end within a batch
            survey = self._survey(shape, rebuild=True)
        self.survey = survey
        remove_files(self.directory, survey)
        reach("recovery.after_index_gone")
        for gap in survey.gaps[:-1]:
            made = IndexFiles(
                store, clock=clock, shape=survey.shape, last=gap.last, after=gap.after,
                before=gap.before,
            )  # fmt: skip
            self._opened.append(made)
            feed = KeyFeed(made, gap.skip)
            for part in self._blocks("index", gap.start, gap.end):
                feed.feed(part)
            for part in log_blocks(self.log, gap.end, gap.end + 1):
                feed.feed_edge(part, gap.held)
            made.flush(sync=True)
            made.close()
            self.made_index_files += made.names
            self.keys += feed.keys
        tail = survey.gaps[-1]
        indexes = IndexFiles(
            store, clock=clock, shape=survey.shape, last=tail.last, after=tail.after,
            on_sealed=lambda time: self.keeper.advance(index=time),
        )  # fmt: skip
        self._opened.append(indexes)
        if survey.resume is not None:
            indexes.resume(survey.resume)
        return (tail.start, KeyFeed(indexes, tail.skip)), indexes

    def _survey(self, shape: IndexShape, *, rebuild: bool) -> IndexSurvey:
        return survey_index(
            self.directory,
            self.log,
            self.end.offset,
            shape=shape,
            vouched=None if self.clean else self._vouched,
            complete_end=self.state.complete_end(self.directory),
            rebuild=rebuild,
        )

    def _pass(self, tail: tuple[int, KeyFeed] | None) -> None:
        """Walk the end of the log, for queues and index at once where both need it."""
        end = self.end.offset
        index_from = tail[0] if tail is not None else end
        if self._is_group:
            self._pass_group(min(index_from, end), None if tail is None else tail[1])
            return
        edges = sorted({self.start, min(index_from, end), end})
        for begin, stop in pairwise(edges):
            for part in self._blocks("queues and index", begin, stop):
                if begin >= self.start:
                    self.feed.feed(part)
                if tail is not None and begin >= index_from:
                    tail[1].feed(part)
        self.feed.settle()

    def _pass_group(self, index_from: int, keys: KeyFeed | None) -> None:
        """Walk the end of a group's log, where a batch may lie across the edges."""
        for part in self._blocks("queues and index", min(self.start, index_from), self.end.offset):
            count = len(part.block)
            row = int(np.searchsorted(part.physical_offset, self.start))
            if row < count:
                self.feed.feed(rows_of(part, row, count))
            row = int(np.searchsorted(part.physical_offset, index_from))
            if keys is not None and row < count:
                keys.feed(rows_of(part, row, count))
        self.feed.settle()

    def _blocks(self, what: str, begin: int, end: int) -> Iterator[LogBlock]:
        group = WholeBatches(begin) if self._is_group else None
        parts = group.read(self.log, end) if group else log_blocks(self.log, begin, end)
        for part in parts:
            self.newest = max(self.newest, int(part.records.store_timestamp.max()))
            self.settings.progress(what, part.offset - begin, end - begin)
            yield part
        if group is not None and end == self.end.offset:
            self.shown_end = group.at
        self.settings.progress(what, end - begin, end - begin)
