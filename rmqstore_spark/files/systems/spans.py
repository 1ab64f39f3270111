"""Plans reads: joins small ranges of a file into few reads, and limits the memory of each read.

`RangeFiles` does so for files that another machine has, where each read is a request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.systems.base import FileRange, Int64Array, UInt8Array
from rmqstore_spark.layout import kernel

# A request costs tens of milliseconds; in that time a connection moves far more than this.
_REQUEST_GAP: Final = 64 << 10

# Length of a request (a little more if ranges were joined), and so of the memory it takes.
_REQUEST_BYTES: Final = 8 << 20

# Requests that are made together ask for so many bytes.
_AT_ONCE_BYTES: Final = 32 << 20

# A store process answers requests for so many files.
_AT_ONCE: Final = 4096


class Runs(NamedTuple):
    """Large reads, and where each range lies in them once they are joined.

    Attributes:
        offsets: i8[m], where each read starts, ascending.
        lengths: i8[m], bytes of each read.
        groups: i8[m], the group of each read.
        positions: i8[n], where each of the n ranges begins in the joined reads.
    """

    offsets: Int64Array
    lengths: Int64Array
    groups: Int64Array
    positions: Int64Array


def plan_runs(
    offsets: Int64Array,
    lengths: Int64Array,
    groups: Int64Array,
    *,
    max_gap: int,
    max_waste: int,
) -> Runs:
    """Join ranges that lie close together into larger reads.

    Ranges may overlap, repeat, and come in any order. Ranges that touch or overlap are always
    joined. Gaps are read from the smallest up, until the allowed number of bytes is used up.

    Args:
        offsets: i8[n], where each range starts.
        lengths: i8[n], bytes of each, none negative.
        groups: i8[n], the file of each; it must grow with the offset. Groups are never joined.
        max_gap: widest gap to read, in bytes.
        max_waste: bytes of gaps that may be read per byte of the ranges.
    """
    if len(offsets) > 1 and bool((offsets[1:] < offsets[:-1]).any()):
        order = np.argsort(offsets, kind="stable")
        runs = plan_runs(
            offsets[order], lengths[order], groups[order], max_gap=max_gap, max_waste=max_waste
        )
        positions = np.empty_like(runs.positions)
        positions[order] = runs.positions
        return runs._replace(positions=positions)
    if not len(offsets):
        return Runs(offsets, lengths, groups, offsets)
    covered = np.maximum.accumulate(offsets + lengths)
    gaps = offsets[1:] - covered[:-1]
    limit = _widest_gap(gaps, max_gap, max_waste * int(lengths.sum()))
    first = np.flatnonzero((gaps > limit) | (groups[1:] != groups[:-1])) + 1
    first = np.concatenate([np.zeros(1, np.int64), first])
    last = np.append(first[1:], len(offsets)) - 1
    run_offsets = offsets[first]
    run_lengths = covered[last] - run_offsets
    shift = np.cumsum(run_lengths) - run_lengths - run_offsets
    return Runs(
        run_offsets, run_lengths, groups[first], offsets + np.repeat(shift, last - first + 1)
    )


def _widest_gap(gaps: Int64Array, max_gap: int, budget: int) -> int:
    """Return the widest gap to read, so that all gaps up to it fit into the budget."""
    small = gaps[(gaps > 0) & (gaps <= max_gap)]
    if int(small.sum()) <= budget:
        return max_gap
    small.sort()
    fitting = int(np.searchsorted(np.cumsum(small), budget, side="right"))
    # Leave out all gaps as wide as the first one that does not fit.
    return int(small[fitting]) - 1


def slices_of_size(sizes: npt.NDArray[np.integer], *, rows: int, size: int) -> Iterator[slice]:
    """Cut n ranges into slices of at most `rows` ranges and `size` bytes, but at least one range.

    Args:
        sizes: n, bytes of each range.
        rows: most ranges of a slice.
        size: most bytes of a slice with more than one range.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + size, side="right"))
        last = min(max(last, first + 1), first + rows)
        yield slice(first, last)
        first = last


class RangeFiles(ABC):
    """Reads files by requests for ranges, of which many can be made together.

    Ranges that lie close together become one request; the bytes between them are dropped. The
    methods are those of `Files`.
    """

    is_local = False
    max_gap = 4096
    max_waste = 1
    block = 64 << 10
    stretch = _AT_ONCE_BYTES  # a request costs more than a cache gains

    @abstractmethod
    def _ask(self, requests: Sequence[FileRange]) -> Iterator[bytes]:
        """Make requests together; yield the bytes of each, fewer only at the end of the file."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return the bytes of a range; fewer only at the end of the file."""
        return next(self._ask([FileRange(path, offset, length)])) if length > 0 else b""

    def read_many(self, ranges: Sequence[FileRange]) -> Sequence[bytes]:
        """Read ranges of several files; see `Files.read_many`."""
        return list(self._answers(ranges))

    def read_into(self, path: str, offset: int, out: UInt8Array) -> int:
        """Fill `out` and return the bytes read; fewer only at the end of the file."""
        return self._fill(_cut([FileRange(path, offset, len(out))]), out)

    def read_spans(
        self, path: str, offsets: Int64Array, lengths: Int64Array, out: UInt8Array
    ) -> int:
        """Read ranges of one file into `out`, one after the other; see `Files.read_spans`."""
        if not len(offsets):
            return 0
        # A request ends where its window ends; otherwise it could grow as long as the whole file.
        windows = offsets // _REQUEST_BYTES
        runs = plan_runs(offsets, lengths, windows, max_gap=_REQUEST_GAP, max_waste=_REQUEST_GAP)
        requests = [
            FileRange(path, *each)
            for each in zip(runs.offsets.tolist(), runs.lengths.tolist(), strict=True)
        ]
        if len(requests) == len(offsets):
            done = self._fill(_cut(requests), out)
            return int(np.searchsorted(np.cumsum(lengths), done, side="right"))
        begins = np.cumsum(runs.lengths) - runs.lengths
        firsts: list[int] = np.searchsorted(runs.positions, begins).tolist()
        places = runs.positions - np.repeat(begins, np.diff([*firsts, len(offsets)]))
        at = 0
        for first, last, data in zip(
            firsts, [*firsts[1:], len(offsets)], self._answers(requests), strict=True
        ):
            got = np.frombuffer(data, np.uint8)
            whole = int(np.count_nonzero(places[first:last] + lengths[first:last] <= len(got)))
            until = first + whole
            at += _pack(got, places[first:until], lengths[first:until], out[at:])
            if until < last:
                return until
        return len(offsets)

    def _answers(self, requests: Sequence[FileRange]) -> Iterator[bytes]:
        """Yield the bytes of each request, in order; fewer only at the end of the file."""
        for part in asked_together(requests):
            yield from self._ask(part)

    def _fill(self, requests: Sequence[FileRange], out: UInt8Array) -> int:
        """Read ranges into `out`, one after the other; return the bytes before the first gap."""
        done = 0
        for (_, _, length), data in zip(requests, self._answers(requests), strict=True):
            out[done : done + len(data)] = np.frombuffer(data, np.uint8)
            done += len(data)
            if len(data) < length:
                break
        return done


def asked_together(requests: Sequence[FileRange]) -> Iterator[Sequence[FileRange]]:
    """Group requests into those that are made together."""
    sizes = np.array([length for _, _, length in requests], np.int64)
    for part in slices_of_size(sizes, rows=_AT_ONCE, size=_AT_ONCE_BYTES):
        yield requests[part]


def _cut(ranges: Iterable[FileRange]) -> list[FileRange]:
    """Cut ranges into requests."""
    return [
        FileRange(path, offset + at, min(_REQUEST_BYTES, length - at))
        for path, offset, length in ranges
        for at in range(0, length, _REQUEST_BYTES)
    ]


def _pack(data: UInt8Array, starts: Int64Array, lengths: Int64Array, out: UInt8Array) -> int:
    """Copy ranges of `data` into `out`, one after the other; return the bytes copied."""
    if not len(starts):
        return 0
    offsets = np.empty(len(starts) + 1, np.int32)
    kernel.active.gather(data, starts, lengths.astype(np.int32), offsets, out)
    return int(offsets[-1])
