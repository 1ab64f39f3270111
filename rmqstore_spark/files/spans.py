"""Plans reads: joins small ranges of a file into few reads, and limits the memory of each read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmqstore_spark.files.base import Int64Array


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
