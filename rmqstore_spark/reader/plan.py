"""Cuts queue ranges, or the log, into splits, and reads a split of any kind: what a task runs."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.fields import MAX_RECORD_SIZE
from rmqstore_spark.reader.options import (
    KeySplit,
    LogSplit,
    QueueRange,
    QueueSplit,
    ScanSplit,
    Split,
)
from rmqstore_spark.reader.queue import read_entry_bytes
from rmqstore_spark.reader.rows.read import read_log_split, read_queue_split
from rmqstore_spark.reader.rows.scan import read_scan_split
from rmqstore_spark.reader.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.reader.options import ReadOptions


_SAMPLE: Final = 256
_LEAST_SAMPLE: Final = 16
_SAMPLED: Final = 1 << 14
"""Entries at each end of a range that estimate its bytes: fewer of each if there are many ranges,
of which the sum matters."""
_MOST_SIZE: Final = 2.0**62
_DENSE: Final = 0.25
_LONG: Final = 16 << 20  # bytes of the log that are worth a separate split
_WORTH: Final = 4 << 20  # bytes that outweigh what a task costs by itself
_FEW: Final = 1 << 16  # messages whose entries are read to cut between them
_FEW_EACH: Final = 64  # messages of a split that are few enough for that

MOST_SPLITS: Final = 100_000
"""How many splits ranges, or the log, are cut into at most."""


@dataclass(frozen=True)
class PlanLimits:
    """Limits on the number and size of splits.

    Attributes:
        min_partitions: minimum number of splits, if there are that many messages. Each has some.
        max_records: maximum number of messages in a split.
        max_bytes: approximate maximum number of bytes of the log in a split.
        multiple: cut a part of the log into a multiple of so many splits, so that tasks that run at
            the same time also end at the same time. Splits stay long enough to be worth a task.
    """

    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int = 256 << 20
    multiple: int = 1

    def splits_of(self, size: int) -> int:
        """Return the number of splits for so many bytes of the log."""
        least = max(1, -(-size // self.max_bytes))
        even = -(-least // self.multiple) * self.multiple
        return max(least, min(even, size // _WORTH), self.min_partitions or 1)


def _require_few(splits: int, limits: PlanLimits) -> None:
    """Refuse a plan of more splits than any cluster has use for: limits were meant otherwise.

    Raises:
        OptionError: it would have too many.
    """
    if splits <= MOST_SPLITS:
        return
    remedies = []
    if limits.max_bytes < PlanLimits.max_bytes or limits == PlanLimits(multiple=limits.multiple):
        remedies.append(f"raise maxBytesPerPartition ({limits.max_bytes} bytes)")
    if limits.max_records is not None:
        remedies.append(f"raise maxRecordsPerPartition ({limits.max_records})")
    if limits.min_partitions is not None:
        remedies.append(f"lower minPartitions ({limits.min_partitions})")
    raise OptionError(
        f"The query would be cut into {splits} partitions, and at most {MOST_SPLITS} can be "
        f"planned: {' or '.join(remedies)}."
    )


@dataclass(frozen=True)
class _Extent:
    """A queue range, the stretch of the log that holds it, and an estimate of its bytes."""

    range: QueueRange
    first: int
    last: int
    size: int


def average_size(store: Store, wanted: QueueRange) -> float:
    """Estimate the bytes of a record of a range: the mean of its first and last records."""
    return sum(extent.size for extent in _extents(store, [wanted])) / max(1, wanted.count)


def _extents(
    store: Store, ranges: Iterable[QueueRange], *, covering: bool = False
) -> list[_Extent]:
    """Return the extents of the ranges that are not empty.

    Args:
        covering: where the entries at an end of a range are damaged, and do not state its position,
            its extent reaches to that end of the log. Otherwise it is that of the other entries.
    """
    wanted = [each for each in ranges if each.count]
    if not wanted:
        return []
    long = sum(each.count > 2 * _LEAST_SAMPLE for each in wanted)
    count = max(_LEAST_SAMPLE, min(_SAMPLE, _SAMPLED // max(1, long)))
    samples = [
        (number, store.queue(each.topic, each.queue_id), first, end)
        for number, each in enumerate(wanted)
        for first, end in _samples(each, count)
    ]
    data = read_entry_bytes([(queue, first, end) for _, queue, first, end in samples])
    queue_format = store.directory.queue_format
    entries = queue_format.decode(b"".join(data))
    numbers = np.array([number for number, *_ in samples])
    parts = np.repeat(np.arange(len(samples)), [end - first for *_, first, end in samples])
    # Reading reports damaged entries. The estimate ignores them. Void ones say where a range lies.
    sound = queue_format.is_message(entries) | queue_format.is_void(entries)
    sound &= entries["size"] <= MAX_RECORD_SIZE
    entries, parts = entries[sound], parts[sound]
    owners = numbers[parts]
    counts = np.bincount(owners, minlength=len(wanted))
    totals = np.bincount(owners, entries["size"], minlength=len(wanted))
    places = np.clip(
        entries["physicalOffset"].astype(np.int64), store.log.min_offset, store.log.file_end
    )
    ends = np.minimum(places + entries["size"], store.log.file_end)
    behind = np.cumsum(counts)
    held = np.flatnonzero(counts)
    first, last, size = np.zeros((3, len(wanted)), np.int64)
    first[held] = places[(behind - counts)[held]]
    last[held] = ends[behind[held] - 1]
    rows = np.array([each.count for each in wanted], np.float64)
    size[held] = np.minimum(totals[held] / counts[held] * rows[held], _MOST_SIZE)
    if covering:
        is_told = np.bincount(parts, minlength=len(samples)) > 0
        every = np.arange(len(wanted))
        first[~is_told[np.searchsorted(numbers, every)]] = store.log.min_offset
        last[~is_told[np.searchsorted(numbers, every, "right") - 1]] = store.log.file_end
    extents = zip(wanted, first.tolist(), last.tolist(), size.tolist(), strict=True)
    return [_Extent(*extent) for extent in extents]


def _samples(wanted: QueueRange, count: int) -> list[tuple[int, int]]:
    """Return so many of the first and the last offsets of a range; all of a short one."""
    if wanted.count <= 2 * count:
        return [(wanted.start, wanted.end)]
    return [(wanted.start, wanted.start + count), (wanted.end - count, wanted.end)]


def plan(
    store: Store,
    ranges: Sequence[QueueRange],
    limits: PlanLimits = PlanLimits(),
    by: Literal["auto", "queue", "commitlog"] = "auto",
) -> list[Split]:
    """Plan a read of some queue ranges.

    `auto` reads along the log if there is more than one queue, and the ranges make up much of the
    log between their ends. Otherwise it reads by queue.
    """
    if by == "commitlog" and limits.max_records is not None:
        raise OptionError(
            "maxRecordsPerPartition does not work with planBy=commitlog, which splits the log by "
            "bytes. Use maxBytesPerPartition, or planBy=queue."
        )
    extents = _extents(store, ranges)
    if by == "commitlog" or (by == "auto" and _goes_along_the_log(extents, limits)):
        return list(_along_the_log(store, extents, limits))
    return list(_by_queue(extents, limits))


def _goes_along_the_log(extents: list[_Extent], limits: PlanLimits) -> bool:
    if len(extents) < 2 or limits.max_records is not None:
        return False
    span = max(e.last for e in extents) - min(e.first for e in extents)
    return sum(e.size for e in extents) >= _DENSE * span


def plan_by_size(
    ranges: Iterable[tuple[QueueRange, int]], limits: PlanLimits = PlanLimits()
) -> list[QueueSplit]:
    """Plan splits that are ranges of one queue each, from an estimate of each range's bytes."""
    return _by_queue([_Extent(each, 0, 0, size) for each, size in ranges if each.count], limits)


def _by_queue(extents: list[_Extent], limits: PlanLimits) -> list[QueueSplit]:
    total = sum(e.range.count for e in extents)
    pieces = [_pieces(extent, limits, total) for extent in extents]
    if sum(pieces) - len(pieces) > MOST_SPLITS:  # each queue has at least one
        _require_few(sum(pieces), limits)
    return [
        split
        for extent, count in zip(extents, pieces, strict=True)
        for split in _cut(extent, count)
    ]


def _pieces(extent: _Extent, limits: PlanLimits, total: int) -> int:
    """Return how many splits a range is cut into, of so many messages in all ranges."""
    wanted = extent.range
    pieces = max(1, -(-extent.size // limits.max_bytes))
    if limits.max_records is not None:
        pieces = max(pieces, -(-wanted.count // limits.max_records))
    if limits.min_partitions is not None:
        pieces = max(pieces, -(-limits.min_partitions * wanted.count // total))
    return min(pieces, wanted.count)


def _cut(extent: _Extent, pieces: int) -> Iterable[QueueSplit]:
    wanted = extent.range
    for k in range(pieces):
        start = wanted.start + wanted.count * k // pieces
        end = wanted.start + wanted.count * (k + 1) // pieces
        part = QueueRange(wanted.topic, wanted.queue_id, start, end)
        yield QueueSplit(part, extent.size * part.count // wanted.count)


def plan_by_keys(
    store: Store, ranges: Iterable[QueueRange], limits: PlanLimits = PlanLimits()
) -> list[Split]:
    """Plan splits for the messages of some ranges that have one of the keys of the read.

    A stretch of the log that index files cover becomes one split. Long stretches without an index
    are read whole, along the log, and are cut into several splits.
    """
    from rmqstore_spark.reader.key_search import index_pieces

    extents = _extents(store, ranges, covering=True)
    if not extents:
        return []
    at = store.log.unit_start(min(e.first for e in extents))
    end = max(e.last for e in extents)
    splits: list[Split] = []
    for piece in index_pieces(store, at, end):
        if piece.index is None and piece.end - piece.start >= _LONG:
            splits += _key_split(extents, at, piece.start)
            splits += _along_the_log(store, extents, limits, piece.start, piece.end)
            _require_few(len(splits), limits)
            at = piece.end
    return splits + _key_split(extents, at, end)


def _key_split(extents: list[_Extent], start: int, end: int) -> list[Split]:
    inside = tuple(e.range for e in extents if e.first < end and e.last > start)
    return [KeySplit(start, end, inside)] if inside and start < end else []


def _along_the_log(
    store: Store,
    extents: list[_Extent],
    limits: PlanLimits,
    begin: int | None = None,
    end: int | None = None,
) -> list[LogSplit]:
    """Cut the log from `begin` to `end` into splits; by default all that the extents cover."""
    if not extents:
        return []
    whole = begin is None
    begin = min(min(e.first, e.last) for e in extents) if begin is None else begin
    end = max(max(e.first, e.last) for e in extents) if end is None else end
    edges = _edges(store, extents, limits, begin, end)
    count = len(edges) - 1
    inside: list[list[tuple[QueueRange, bool, bool]]] = [[] for _ in range(count)]
    for extent in extents:
        first = bisect.bisect_right(edges, extent.first) - 1
        last = bisect.bisect_left(edges, extent.last) - 1
        if whole:  # a damaged entry may name any offset, but each range must be in some split
            first = min(first, count - 1)
            last = max(last, first)
        for k in range(max(first, 0), min(last, count - 1) + 1):
            inside[k].append((extent.range, k > first, k < last))
    return [
        LogSplit(
            edges[k],
            edges[k + 1],
            tuple(wanted for wanted, _, _ in parts),
            tuple(n for n, (_, continued, _) in enumerate(parts) if continued),
            tuple(n for n, (_, _, unfinished) in enumerate(parts) if unfinished),
        )
        for k, parts in enumerate(inside)
        if parts
    ]


def _edges(
    store: Store, extents: list[_Extent], limits: PlanLimits, begin: int, end: int
) -> Sequence[int]:
    """Return where splits begin and end: at equal distances, or so that each has a message.

    Short splits could fall between the messages of the ranges. So if `min_partitions` asks for
    short ones, they begin at messages.
    """
    count = limits.splits_of(store.log.held_bytes(begin, end))
    messages = sum(extent.range.count for extent in extents)
    if limits.min_partitions is None or messages > max(_FEW, _FEW_EACH * count):
        _require_few(count, limits)
        return store.log.cuts(begin, end, count)
    wanted = [
        (store.queue(e.range.topic, e.range.queue_id), e.range.start, e.range.end) for e in extents
    ]
    queue_format = store.directory.queue_format
    entries = queue_format.decode(b"".join(read_entry_bytes(wanted)))
    places = entries["physicalOffset"][queue_format.is_message(entries)].astype(np.int64)
    places = np.unique(places)
    places = places[(places >= begin) & (places < end)]
    if not len(places):
        return [begin, end]
    count = min(count, len(places))
    _require_few(count, limits)
    firsts = places[np.arange(1, count, dtype=np.int64) * len(places) // count]
    return [begin, *firsts.tolist(), end]


def plan_scan(store: Store, topics: frozenset[str] | None = None) -> list[ScanSplit]:
    """Plan a scan of the log, one split per file: only at its start is a record known to begin."""
    last = store.scan_end()
    splits = [
        ScanSplit(segment.start, min(segment.end, last), topics)
        for segment in store.log.segments()
        if segment.start < last
    ]
    if not len(store.log) and store.known_end():  # reading reports that all files are missing
        splits.append(ScanSplit(last, last, topics))
    return splits


def read_split(store: Store, split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read the rows of a split (see `plan`).

    Raises:
        SegmentExpiredError: messages of the split have expired, and `fail_on_data_loss` is set.
        CorruptStoreError: the log is damaged, and the mode is FAILFAST.
    """
    if isinstance(split, QueueSplit):
        return read_queue_split(store, split, options)
    if isinstance(split, LogSplit):
        return read_log_split(store, split, options)
    if isinstance(split, KeySplit):
        from rmqstore_spark.reader.key_read import read_key_split  # few reads search for keys

        return read_key_split(store, split, options)
    return read_scan_split(store, split, options)
