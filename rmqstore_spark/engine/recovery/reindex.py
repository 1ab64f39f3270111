"""Surveys the index of a store that is opened: which files are valid, and which keys are missing.

A broker that was killed drops the index files that its checkpoint does not vouch for, and rebuilds
only what recovery walks over. It does not notice a lost `index/`. Here, the index holds all keys of
the log afterwards. The newest file continues after its last record. A part of the log that no file
covers gets a separate file, named between its neighbours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from rmqstore_spark.engine.dispatch.indexes import IndexFiles, IndexShape
from rmqstore_spark.engine.recovery.redispatch import LogBlock
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import explained, sync_folder
from rmqstore_spark.files.systems.base import Files
from rmqstore_spark.layout.index.format import (
    ENTRY_SIZE,
    HEADER_SIZE,
    IndexHeader,
    decode_entries,
    entry_position,
    geometry,
)
from rmqstore_spark.layout.index.geometry import infer_slots, slots_match
from rmqstore_spark.layout.record.block import index_hashes
from rmqstore_spark.layout.spans import I4
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head

_BLOCK: Final = 1 << 12  # entries


@dataclass(frozen=True)
class _File:
    """An existing index file.

    Attributes:
        read: returns a number of bytes from an offset on.
        header: None if it has none.
        shape: None if unknown.
    """

    name: str
    read: Callable[[int, int], bytes]
    header: IndexHeader | None
    shape: IndexShape | None


@dataclass(frozen=True)
class _Known:
    """A valid index file.

    Attributes:
        keys_of_first: how many keys of its first record it has; others are in the file before.
        keys_of_last: how many keys of its last record it has.
    """

    name: str
    shape: IndexShape
    header: IndexHeader
    keys_of_first: int
    keys_of_last: int


@dataclass(frozen=True)
class IndexGap:
    """A part of the log whose keys no index file holds.

    Attributes:
        start: physical offset of its first record.
        end: physical offset one past its last.
        skip: how many keys of the first record are already in the index.
        held: how many keys of the record at `end`, its last ones, are in the next index file.
        last: name of the index file before it; "" for none.
        after: header of that file.
        before: name of the index file after it; "" for none.
    """

    start: int
    end: int
    skip: int
    held: int
    last: str
    after: IndexHeader | None
    before: str


@dataclass
class IndexSurvey:
    """The state of the index.

    Attributes:
        kept: names of the valid files.
        removed: names of the invalid files, with the reason.
        gaps: parts of the log without a file, ascending. The last one is the end of the log, and
            always present.
        shape: capacity of the existing files, or of new ones.
        resume: capacity of the last file, if new keys go into it.
    """

    shape: IndexShape
    kept: list[str] = field(default_factory=list)
    removed: dict[str, str] = field(default_factory=dict)
    gaps: list[IndexGap] = field(default_factory=list)
    resume: IndexShape | None = None


def survey_index(
    directory: StoreDirectory,
    log: CommitLog,
    end: int,
    *,
    shape: IndexShape,
    vouched: int | None,
    complete_end: int = 0,
    rebuild: bool = False,
) -> IndexSurvey:
    """Survey all index files.

    Args:
        directory: the store.
        log: its log, which ends at `end`.
        shape: capacity of new files, if the existing ones do not show it.
        vouched: the checkpoint's indexMsgTimestamp if the store was killed. A file that ends later,
            or is not full, is not known to be on disk. None after a clean stop.
        complete_end: the index is known to hold every key below this physical offset.
        rebuild: keep no file, and use nothing of a file but its shape.
    """
    survey = IndexSurvey(shape)
    known: list[_Known] = []
    for info in directory.index_files()[0]:
        path = os.path.join(directory.index_folder, info.name)
        file = _read(directory.files, path, info.size, survey.shape)
        # A file's replacement gets its shape: a broker has one setting for all files.
        survey.shape = file.shape or survey.shape
        found = "the index is rebuilt" if rebuild else _judge(file, log, end, vouched)
        if isinstance(found, str):
            survey.removed[info.name] = found
            continue
        survey.kept.append(info.name)
        if found is not None:
            known.append(found)
    _find_gaps(survey, known, log, end, complete_end if not survey.removed else 0)
    if known and known[-1].name == max(survey.kept) and _has_room(known[-1]):
        survey.resume = known[-1].shape
    return survey


def remove_files(directory: StoreDirectory, survey: IndexSurvey) -> None:
    """Delete the invalid index files."""
    for name in survey.removed:
        path = os.path.join(directory.index_folder, name)
        with explained(path, "removed"):
            os.unlink(path)
    if survey.removed:
        sync_folder(directory.index_folder)


class KeyFeed:
    """Inserts the keys of log blocks into an index.

    Args:
        indexes: the index.
        skip: how many keys of the first record are already in the index.
    """

    def __init__(self, indexes: IndexFiles, skip: int = 0) -> None:
        self._indexes = indexes
        self._skip = skip
        self.keys = 0

    def feed_edge(self, part: LogBlock, held: int) -> None:
        """Insert the keys of a single record, except the last `held` ones."""
        block = part.block
        hashes, rows = index_hashes(block.data, block.starts, block.sizes)
        missing = max(len(hashes) - held, 0)
        self._put(part, hashes[:missing], rows[:missing])

    def feed(self, part: LogBlock) -> None:
        """Insert the keys of a block's records."""
        block = part.block
        hashes, rows = index_hashes(block.data, block.starts, block.sizes)
        of_first = int(np.count_nonzero(rows == 0)) if self._skip else 0
        begin = min(self._skip, of_first)
        self._skip = 0
        self._put(part, hashes[begin:], rows[begin:])

    def _put(self, part: LogBlock, hashes: I4, rows: I4) -> None:
        self.keys += len(hashes)
        offsets, times = part.physical_offset[rows], part.records.store_timestamp[rows]
        self._indexes.insert(hashes, offsets, times)


def _read(files: Files, path: str, size: int, usual: IndexShape) -> _File:
    """Read an index file's header, and find out its shape."""
    name, read = os.path.basename(path), partial(files.read, path)
    try:
        header = IndexHeader.decode(read(0, HEADER_SIZE), file=path)
    except CorruptStoreError:
        return _File(name, read, None, None)
    if header.index_count <= 1:
        is_new = header.index_count >= 0 and header.hash_slot_count == 0
        return _File(name, read, header, usual if is_new and size == usual.file_size else None)
    slots: int | None = usual.slots
    if not slots_match(size, header, usual.slots, read):
        slots = infer_slots(size, read)
    shape = None if slots is None else IndexShape(slots, geometry(size, slots))
    return _File(name, read, header, shape)


def _judge(file: _File, log: CommitLog, end: int, vouched: int | None) -> _Known | str | None:
    """Return what a file holds, or why it is invalid; None if it holds nothing of the log."""
    header, shape = file.header, file.shape
    if header is None:
        return "it has no header"
    if header.index_count <= 1:
        if shape is None or vouched is not None:
            return "it holds no key"
        return _Known(file.name, shape, header, 0, 0)
    if vouched is not None and header.end_timestamp > vouched:
        return "the checkpoint does not cover it"
    if shape is None:
        return "its header does not agree with its entries"
    if vouched is not None and header.next_entry < shape.entries:
        return "it was not full, and so not flushed"
    if header.end_phy_offset < log.min_offset:
        return None
    if header.end_phy_offset >= end:
        return "it has keys of records after the log's end"
    for offset, time in (
        (header.begin_phy_offset, header.begin_timestamp),
        (header.end_phy_offset, header.end_timestamp),
    ):
        record = record_head(log, offset) if offset >= log.min_offset else None
        if offset >= log.min_offset and (record is None or int(record.store_timestamp[0]) != time):
            return "the log has another record where it begins or ends"
    first = _keys_of_first(file.read, shape, header)
    last = _keys_of_last(file.read, shape, header)
    return _Known(file.name, shape, header, first, last)


def _keys_of_first(
    read: Callable[[int, int], bytes], shape: IndexShape, header: IndexHeader
) -> int:
    """Return how many keys of its first record a file holds."""
    first = 1
    while first < header.index_count:
        count = min(_BLOCK, header.index_count - first)
        data = read(entry_position(shape.slots, first), count * ENTRY_SIZE)
        others = np.flatnonzero(decode_entries(data)["phyOffset"] != header.begin_phy_offset)
        if len(others):
            return first - 1 + int(others[0])
        first += count
    return first - 1


def _keys_of_last(read: Callable[[int, int], bytes], shape: IndexShape, header: IndexHeader) -> int:
    """Return how many keys of its last record a file holds."""
    count, last = 0, header.index_count - 1
    while last > 0:
        first = max(1, last - _BLOCK + 1)
        data = read(entry_position(shape.slots, first), (last - first + 1) * ENTRY_SIZE)
        others = np.flatnonzero(decode_entries(data)["phyOffset"] != header.end_phy_offset)
        if len(others):
            return count + (last - first) - int(others[-1])
        count, last = count + last - first + 1, first - 1
    return count


def _find_gaps(
    survey: IndexSurvey, known: list[_Known], log: CommitLog, end: int, complete_end: int
) -> None:
    """Find the gaps of the index, from the headers of its files in the order of their names."""
    at, skip = log.min_offset, 0
    last, after = "", None
    for file in known:
        header = file.header
        first, held_until = map(log.unit_start, (header.begin_phy_offset, header.end_phy_offset))
        gap_end = min(first, end)
        if max(at, complete_end) < gap_end:
            held = file.keys_of_first
            survey.gaps.append(IndexGap(at, gap_end, skip, held, last, after, file.name))
        if held_until >= at:
            begins_within = first == held_until == at
            skip = file.keys_of_last + (skip if begins_within else 0)
            at = held_until
        last, after = file.name, header
    newest = max(survey.kept, default="")
    if newest > last:
        last = newest  # a file without keys: the next one comes after it
    if complete_end > at:
        at, skip = min(complete_end, end), 0
    survey.gaps.append(IndexGap(at, end, skip, 0, last, after, ""))


def _has_room(file: _Known) -> bool:
    return file.header.next_entry < file.shape.entries
