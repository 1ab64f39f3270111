"""Checks the records of a log, with their queue entries and keys, and the bytes after its end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from rmqstore_spark.errors import SegmentExpiredError
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.layout.constants import MAGIC_BLANK
from rmqstore_spark.reader.log.commitlog import DLEDGER_LEAD, CommitLog
from rmqstore_spark.reader.log.end import stated_place
from rmqstore_spark.reader.log.walk import Flaw, Stretch, next_record, walk_log
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.index.match import IndexMatcher
from rmqstore_spark.verify.log.dledger import DLedgerChecker
from rmqstore_spark.verify.log.records import BatchChecker, RecordChecker
from rmqstore_spark.verify.log_batch import LogBatch, TopicNumbers
from rmqstore_spark.verify.queues.match import QueueMatcher
from rmqstore_spark.verify.report import TornTail
from rmqstore_spark.verify.snapshot import LogUnit, Snapshot, TailUnit

_MOST_FLAWS: Final = 1_000
_CHUNK = 4 << 20
_BLANK: Final = struct.Struct(">ii")


def check_log(
    store: Store,
    snapshot: Snapshot,
    unit: LogUnit,
    findings: Findings,
    progress: Callable[[int], None],
) -> None:
    """Check the records of some files of the log.

    Args:
        progress: called with the number of bytes walked since the last call.
    """
    _LogPass(store, snapshot, unit, findings).run(progress)


class _LogPass:
    """A walk over the files of a unit."""

    def __init__(self, store: Store, snapshot: Snapshot, unit: LogUnit, findings: Findings) -> None:
        self._log = store.log
        self._unit = unit
        self._findings = findings
        self._records = RecordChecker(findings)
        self._batches = BatchChecker(findings)
        self._log_end = snapshot.end
        self._queues = QueueMatcher(
            snapshot,
            store.directory.queue_format,
            lambda n: store.queue(snapshot.queues[n].topic, snapshot.queues[n].queue_id),
            findings,
        )
        self._index = IndexMatcher(snapshot, store.directory.files, unit.start, findings)
        found = store.log.segment_at(unit.start)
        self._dledger: DLedgerChecker | None = None
        if found is not None and found.lead == DLEDGER_LEAD:
            self._dledger = DLedgerChecker(store, findings)
        self._topics = TopicNumbers()
        self._flaws = 0

    def run(self, progress: Callable[[int], None]) -> None:
        """Check everything up to the end of the unit, or until too much is damaged."""
        done = self._unit.start
        # The walk does not check CRCs, so that a record with a wrong body is still checked.
        # The unit ends before any unpublished block: what looks like one in it is damage.
        start, stop = self._unit.start, self._unit.end
        for item in walk_log(self._log, start, stop, check_crc=False, is_damage=lambda _: True):
            if isinstance(item, Stretch):
                self._check(item)
                end = item.end
            elif item.offset >= self._unit.end:
                break  # `check_tail` checks the bytes after the end
            else:
                end = self._note_flaw(item)
                if self._flaws >= _MOST_FLAWS:
                    self._give_up(end)
                    break
            progress(max(0, min(end, self._unit.end) - done))
            done = max(done, min(end, self._unit.end))
        progress(self._unit.end - done)
        self._queues.finish(self._log.place)
        self._finish_batch()
        if self._dledger is not None:
            for first, stop in self._batches.torn:
                self._look_for_shown(first, stop)

    def _finish_batch(self) -> None:
        """Follow a batch that has begun into the next units."""
        stop = min(self._batches.end, self._log_end)
        for item in walk_log(
            self._log, self._unit.end, stop, check_crc=False, is_damage=lambda _: True
        ):
            if not isinstance(item, Stretch):
                self._batches.skip()  # the unit that it lies in reports it
                return
            self._batches.follow(self._batch(item))
            if not self._batches.end:
                return
        self._batches.finish(self._log_end)

    def _look_for_shown(self, first: int, stop: int) -> None:
        """Note the part of a batch whose entries are not void, between two physical offsets."""
        start, shown = self._log.unit_start(first), 0
        for item in walk_log(self._log, start, stop, check_crc=False, is_damage=lambda _: True):
            if isinstance(item, Stretch):
                shown += self._queues.count_shown(self._batch(item), stop)
        if shown:
            self._findings.note(
                "batch", self._log.place(first),
                f"{shown} record(s) of the part of a Spark batch that begins here have entries "
                "that are not void, as a broker of RocketMQ writes them: consumers get them",
            )  # fmt: skip

    def _batch(self, stretch: Stretch) -> LogBatch:
        return LogBatch(self._log, stretch.records, stretch.offsets, self._topics)

    def _check(self, stretch: Stretch) -> None:
        batch = self._batch(stretch)
        self._findings.counts["records"] += len(batch)
        self._findings.counts["recordBytes"] += int(stretch.records.store_size.sum(dtype="i8"))
        if self._dledger is not None:
            self._dledger.check(batch)
        self._records.check(batch)
        self._batches.check(batch)
        self._queues.check(batch)
        self._index.check(batch)

    def _note_flaw(self, flaw: Flaw) -> int:
        """Report a flaw. Return where the walk continues."""
        self._flaws += 1
        self._batches.skip()
        end = self._unit.end if flaw.resumes is None else flaw.resumes
        lost = min(end, self._unit.end) - flaw.offset
        self._findings.flaw(flaw.offset, end)
        self._findings.counts["damagedBytes"] += lost
        text = f"{flaw.cause}; {lost} bytes up to the next whole record cannot be read"
        self._findings.error("record", self._log.place(flaw.offset), text)
        return end

    def _give_up(self, offset: int) -> None:
        if offset < self._unit.end:
            self._findings.flaw(offset, self._unit.end)
            self._findings.error(
                "unchecked", self._log.place(offset),
                f"{_MOST_FLAWS} damaged places were found: the log was not checked from here to "
                f"{self._unit.end}",
            )  # fmt: skip


def _is_blank(segments: Segments, unit: TailUnit, last: int) -> bool:
    """Whether only the mark follows that the rest of the last segment is unused.

    The segment after it is missing: an archive ends so.
    """
    mark = np.zeros(_BLANK.size, np.uint8)
    filled = segments.read_into(unit.start, mark)
    if filled < _BLANK.size or last >= unit.start + _BLANK.size:
        return False
    size, magic = _BLANK.unpack(mark.tobytes())
    return bool(magic == MAGIC_BLANK and unit.start + size == unit.end)


def check_tail(log: CommitLog, unit: TailUnit, findings: Findings) -> None:
    """Look for bytes after the end of the log, which a crash left there."""
    segments = log.dledger if log.dledger is not None else log.plain
    last, at = -1, unit.start
    while at < unit.end:
        buffer = np.empty(min(_CHUNK, unit.end - at), np.uint8)
        try:
            filled = segments.read_into(at, buffer)
        except SegmentExpiredError:  # a file that should follow is missing
            following = segments.starts[segments.starts > at]
            if not len(following):
                break
            at = int(following[0])
            continue
        data = buffer[:filled]
        if data.any():
            last = at + int(np.flatnonzero(data)[-1])
        at += filled
    if last < 0:
        return
    segment = segments.locate(unit.start)
    if _is_blank(segments, unit, last):
        return
    stranger = stated_place(log, unit.start)
    if stranger is not None:
        findings.error(
            "log-end", (segment.path, 0),
            f"the file begins with the record of physical offset {stranger}: it is a copy of "
            "another one, and what it held is lost",
        )  # fmt: skip
    findings.torn_tail = TornTail(
        unit.start,
        segment.path,
        unit.start - segment.start,
        last + 1 - unit.start,
        unit.cause,
        next_record(log, unit.start) is not None,
    )
