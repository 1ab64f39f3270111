"""Reads the CommitLog alone, in physical order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.errors import CorruptRecordError, RmqStoreError
from rmqstore_spark.layout.record.filler import without_fillers
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.walk import Flaw, Stretch, walk_log
from rmqstore_spark.reader.options import ReadOptions, ScanSplit
from rmqstore_spark.reader.rows.decoder import Decoder
from rmqstore_spark.reader.rows.read import QueueSource

_log = logging.getLogger(__name__)


def read_scan_split(
    store: QueueSource, split: ScanSplit, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Read all records that begin in a stretch of the log.

    The stretch must begin where a record begins (in a DLedger log, where an entry begins). A search
    for the next record could be misled by a body that was made to look like one.

    Raises:
        CorruptRecordError: the log is damaged before whole records, and the mode is FAILFAST.
        CorruptStoreError: files are missing at its end, and the mode is FAILFAST.
        SegmentExpiredError: a file has expired.
    """
    log = store.log
    decoder = Decoder(store.broker_name, options, log.place)
    reaches_end = split.end >= log.file_end
    for item in walk_log(
        log,
        split.start,
        split.end,
        check_crc=options.check_crc,
        is_damage=lambda flaw: flaw.offset < store.published_end(),
    ):
        if not isinstance(item, Flaw):
            yield from _batches(decoder, item, split, options)
            continue
        is_open_end = item.empty and store.is_open_end(item.offset)
        is_end = item.offset < split.end and (item.resumes is None or is_open_end)
        known = min(store.known_end(), split.end) if is_end else 0
        if item.empty and _is_written_since(log, item):
            # Records were written here after the walk passed. The scan ends with the newest of them
            # that a queue names.
            known = min(store.known_end(), split.end)
            yield from read_scan_split(store, replace(split, start=item.offset, end=known), options)
            return
        if is_end:
            # No published record follows. If a queue names one there, it is lost.
            reaches_end = False
            if known > item.offset:
                report_flaw(log, replace(item, resumes=known), split.end, options)
            break
        report_flaw(log, item, split.end, options)
    if reaches_end:
        _require_the_rest(store, options)


def _require_the_rest(store: QueueSource, options: ReadOptions) -> None:
    """Raise or log it if files are missing at the end of the log."""
    log = store.log
    try:
        known = store.known_end()
    except RmqStoreError as error:
        _log.warning("Whether files are missing at the end of the log cannot be told: %s", error)
        return
    if known > log.file_end:
        store.refresh(topology=False)  # it may have grown since
    if known <= log.file_end:
        return
    missing = log.ends_before(known)
    if options.mode == "FAILFAST":
        raise missing
    _log.warning("DROPMALFORMED: left out the end of the log: %s", missing)


def _is_written_since(log: CommitLog, flaw: Flaw) -> bool:
    """Return whether a whole record is now where the walk found nothing."""
    return isinstance(next(walk_log(log, flaw.offset, flaw.offset + 1), None), Stretch)


def report_flaw(log: CommitLog, flaw: Flaw, end: int, options: ReadOptions) -> None:
    """Raise or log the damage at a flaw. The end of the log is not damage.

    Args:
        end: the offset where the walk had to end.

    Raises:
        CorruptRecordError: whole records follow the flaw, and the mode is FAILFAST.
        SegmentExpiredError: a file is missing there, and `fail_on_data_loss` is set.
    """
    if flaw.resumes is None or flaw.offset >= end:
        return  # the log ends here
    if flaw.missing:
        if options.fail_on_data_loss:
            raise log.gone(flaw.offset)
        _log.warning("failOnDataLoss=false: skipped %d bytes: %s", flaw.resumes - flaw.offset, flaw)
        return
    file, at = log.place(flaw.offset)
    error = CorruptRecordError(flaw.cause, file=file, offset=at)
    if options.mode == "FAILFAST":
        raise error
    _log.warning(
        "DROPMALFORMED: left out %d bytes of the log: %s", flaw.resumes - flaw.offset, error
    )


def _batches(
    decoder: Decoder, stretch: Stretch, split: ScanSplit, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    records, offsets = stretch.records, stretch.offsets
    rows = without_fillers(records)
    if rows is not None:
        records, offsets = records.take(rows), offsets[rows]
    if split.topics is not None:
        rows = _of_topics(records, split.topics)
        records, offsets = records.take(rows), offsets[rows]
    for first in range(0, len(records), options.batch_rows):
        rows = np.arange(first, min(first + options.batch_rows, len(records)))
        yield from decoder.decode(records.take(rows), expected_offset=offsets[rows])


def _of_topics(records: Records, topics: frozenset[str]) -> npt.NDArray[np.int64]:
    names = string_array(records.topic).dictionary_encode()
    wanted = np.array([name in topics for name in names.dictionary.to_pylist()], np.bool_)
    return np.flatnonzero(wanted[names.indices.to_numpy()])
