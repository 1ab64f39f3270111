"""Recovers the store of a member of a group: queues and index agree with what is committed.

The member's driver has recovered the log, and knows what is committed: nothing of the log is cut
here. What queues and index have beyond that comes again when it is committed, or is gone, if the
member joins without its former log.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import Final

from rmqstore_spark.engine.lock import OpenMark, StoreGuard
from rmqstore_spark.engine.recovery.log_end import LogEnd, unclean_start
from rmqstore_spark.engine.recovery.queue_check import record_ends
from rmqstore_spark.engine.recovery.queue_survey import QueueSurvey
from rmqstore_spark.engine.recovery.queues_and_index import QueuesAndIndex, RecoverySettings
from rmqstore_spark.engine.recovery.recover import Recovered
from rmqstore_spark.engine.recovery.summary import Recovery
from rmqstore_spark.engine.recovery.whole_batches import start_outside
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.engine.tables.queue_ends import QueueEnds
from rmqstore_spark.engine.writable import refuse_other_kinds
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import make_folder
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.reader.log.commitlog import CommitLog

_log = logging.getLogger(__name__)

_FILES_OPEN: Final = 64


def member_log_of(files: LocalFiles, store: str, data_folder: str, committed: int) -> CommitLog:
    """Return the log of a member up to a position.

    Args:
        files: open its files.
        store: the store directory.
        data_folder: the folder of the group's segments.
        committed: position behind the last committed entry; 0 for none.

    Raises:
        CorruptStoreError: a segment with committed entries is missing.
    """
    plain = StoreDirectory(files, store).commit_log()
    if not committed:
        return CommitLog(plain, None, committed)
    dledger = Segments.load(files, [data_folder])
    if dledger.gaps or dledger.end_offset < committed:
        begin, end = (dledger.gaps or [(dledger.end_offset, committed)])[0]
        raise CorruptStoreError(
            f"no file holds the entries from {begin} to {end}",
            file=data_folder,
            remedy="Repair this member: docs/operate.md, A group that elects its master.",
        )
    return CommitLog(plain, dledger, committed)


def recover_member(
    store: str,
    settings: RecoverySettings,
    data_folder: str,
    committed: int,
    *,
    was_clean: bool,
) -> Recovered:
    """Recover a store whose member runs. The caller holds its lock.

    Args:
        store: the store directory.
        settings: as for `recover`.
        data_folder: the folder of the group's segments.
        committed: position behind the last committed entry.
        was_clean: whether the store was closed cleanly, before its old log was closed.

    Raises:
        CorruptStoreError: a file of queues or index does not belong to it.
        UnsupportedStoreError: the store is of a kind that can only be read.
        StoreWriteError: a file could not be written or flushed.
    """
    began = settings.clock()
    mark = OpenMark(store)
    clean = not mark.is_placed
    plain_folder = os.path.join(store, "commitlog")
    make_folder(plain_folder)
    files = LocalFiles(_FILES_OPEN)
    try:
        directory = StoreDirectory(files, store)
        refuse_other_kinds(directory, is_member=True)
        keeper = CheckpointKeeper(store)
        StoreGuard(plain_folder).place(is_full=settings.is_full)
        mark.place()
        log = member_log_of(files, store, data_folder, committed)
        directory.refresh()
        start = 0
        if len(log):
            start = log.min_offset
            if not settings.rebuild:
                start = start_outside(log, unclean_start(log, keeper.value))
        end = LogEnd(start, max(log.file_end, start), "", 0, False)
        survey = QueueSurvey(directory, log)
        ends = QueueEnds(store)
        has_queues = os.path.isdir(os.path.join(store, "consumequeue"))
        if not len(log) or (log.min_offset and not has_queues):
            ends.lack()
        if ends.are_lacking and _is_of_former_log(directory, log, survey):
            _log.warning(
                "%s: queues and index are those of a log that is gone. They are built again from "
                "what the log has or gets, from physical offset %d on.", store, log.min_offset,
            )  # fmt: skip
            for name in ("consumequeue", "index"):
                shutil.rmtree(os.path.join(store, name), ignore_errors=True)
            directory.refresh()
            survey = QueueSurvey(directory, log)
        parts = QueuesAndIndex(
            directory, log, end, survey, clean=clean, keeper=keeper,
            vouched_index=keeper.value.index_msg_timestamp, settings=settings, is_group=True,
        )  # fmt: skip
        try:
            queues, indexes = parts.bring_up()
        except BaseException:
            parts.close()
            raise
        queues.flush()
        if indexes is not None:
            indexes.flush(sync=True)
        newest = parts.newest
        index = min(max(keeper.value.index_msg_timestamp, 0), newest)
        keeper.reset(physic=newest, logics=newest, index=index)
        keeper.write()
        summary = Recovery(
            clean=was_clean, log_begin=log.min_offset, log_end=end.offset,
            walked_bytes=end.offset - start, dropped_entries=parts.dropped,
            redispatched=parts.feed.written,
            rebuilt_queues=tuple(sorted(parts.feed.made)),
            topics_without_queues=tuple(sorted(parts.feed.unsafe)),
            removed_index_files=tuple(sorted(parts.survey.removed)) if parts.survey else (),
            made_index_files=tuple(parts.made_index_files), indexed_keys=parts.keys,
            seconds=(settings.clock() - began) / 1000,
        )  # fmt: skip
        return Recovered(
            summary,
            log.min_offset,
            parts.shown_end,
            0,
            newest,
            queues,
            indexes,
            parts.absent,
            keeper,
        )
    finally:
        files.close()


def _is_of_former_log(directory: StoreDirectory, log: CommitLog, survey: QueueSurvey) -> bool:
    """Return whether the queues are those of a log that this store does not have any more.

    A log without files may get entries that begin anywhere, so queues that began earlier cannot
    be kept for it. Or the others had removed entries that this member lacked, and its log began
    again behind all that the queues name: then the store lacks the ends of queues, too.
    """
    if not directory.topology.queues:
        return False
    if not len(log):
        return True
    return bool(log.min_offset) and not record_ends(directory, log, survey)  # what has not expired
