"""Streams byte ranges of the store's files to a reader, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.server.budget import Budget
from rmqstore_spark.server.view import StoreView, ViewError
from rmqstore_spark.wire.protocol import DENIED, NOT_FOUND, pieces_head
from rmqstore_spark.wire.reading import RangesRequest
from rmqstore_spark.wire.transport import FileSpan, Part

MOST_BYTES: Final = 256 << 20
"""Maximum bytes of all ranges of one request."""

MOST_RANGES: Final = 65_536

MOST_FILES: Final = 4096
"""Maximum files of one request."""

_PIECE: Final = 2 << 20
_LEAST_SPAN: Final = 64 << 10
_ROOM_SECONDS: Final = 20.0
_FARTHEST: Final = 1 << 62


def check_request(request: RangesRequest) -> None:
    """Check the bounds of a request; do so before anything is held for it.

    Raises:
        ViewError: the files or ranges are too many, or too long.
    """
    files, ranges, size = len(request.paths), len(request.offsets), sum(request.lengths)
    if ranges > MOST_RANGES or size > MOST_BYTES or files > MOST_FILES:
        raise ViewError(
            DENIED,
            f"A request may have {MOST_RANGES} ranges of {MOST_FILES} files and {MOST_BYTES} bytes "
            f"in all; this one has {ranges} ranges of {files} files, and {size} bytes.",
        )
    farthest = max(request.offsets, default=0)
    if farthest > _FARTHEST:
        raise ViewError(NOT_FOUND, f"No file reaches as far as offset {farthest}.")


def range_answers(view: StoreView, request: RangesRequest, budget: Budget) -> Iterator[list[Part]]:
    """Read the ranges of a request; see `wire.protocol`.

    Args:
        view: the store's files.
        request: the files and the ranges to read, checked by `check_request`.
        budget: the bytes on their way to clients. An answer takes its share until the next one is
            requested, and must not be held for longer.

    Yields:
        The parts of an answer's body: the lengths of pieces, and their bytes, or where in a file
        these are.

    Raises:
        OverBudgetError: answers to other clients used up the budget for too long.
        ViewError: a file does not exist.
    """
    offsets = np.array(request.offsets, np.int64)
    lengths = np.array(request.lengths, np.int64)
    starts, sizes, last, ranges = _pieces(offsets, lengths)
    numbers = np.repeat(np.arange(len(request.paths)), request.counts)[ranges]
    with _Reading(view, request.paths) as reading:
        for first, end in _batches(sizes):
            there = slice(first, end)
            size = int(sizes[there].sum())
            if end - first == 1 and size >= _LEAST_SPAN:
                span = reading.span(int(numbers[first]), int(starts[first]), size)
                if span is not None:
                    yield [pieces_head(np.array([size]), last[there]), span]
                    continue
            with budget.use(size, _ROOM_SECONDS):
                out = np.empty(size, np.uint8)
                got = reading.read(numbers[there], starts[there], sizes[there], out)
                size = int(got.sum())
                yield [pieces_head(got, last[there]), memoryview(out[:size])]  # type: ignore[arg-type]
                del out  # free it before the next wait for room


class _Reading:
    """Reads pieces of files, one file after the other, and holds the last one open.

    Args:
        view: the store's files.
        paths: the files.
    """

    def __init__(self, view: StoreView, paths: Sequence[str]) -> None:
        self._view = view
        self._paths = paths
        self._opened = ExitStack()
        self._number = -1
        self._descriptor = -1

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(
        self,
        numbers: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.int64]:
        """Read pieces into a buffer, one after the other.

        Args:
            numbers: n, the number of each piece's file, ascending.
            starts, sizes: n, the pieces.
            out: the buffer, as long as all pieces together.

        Returns:
            The bytes read of each piece; see `StoreView.read`.
        """
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        got, at = np.empty(len(numbers), np.int64), 0
        for begin, end in pairwise(bounds):
            there = slice(begin, end)
            path = self._open(int(numbers[begin]))
            room = out[at : at + int(sizes[there].sum())]
            got[there] = self._view.read(path, self._descriptor, starts[there], sizes[there], room)
            at += int(got[there].sum())
        return got

    def span(self, number: int, start: int, size: int) -> FileSpan | None:
        """Return a piece as a part of its file, to be sent from there; None if it must be read."""
        path = self._open(number)
        if not self._view.is_as_on_disk(path, self._descriptor, start, size):
            return None
        return FileSpan(self._descriptor, start, size)

    def _open(self, number: int) -> str:
        if number != self._number:
            self._opened.close()
            self._descriptor = self._opened.enter_context(self._view.open(self._paths[number]))
            self._number = number
        return self._paths[number]


def _pieces(
    offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.int64]
]:
    """Split long ranges into pieces.

    Returns:
        Of each piece: its start, its size, whether it ends its range, and the range's number.
    """
    counts = np.maximum(-(-lengths // _PIECE), 1)
    total = int(counts.sum())
    ranges = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(offsets, counts) + nth * _PIECE
    sizes = np.minimum(np.repeat(lengths, counts) - nth * _PIECE, _PIECE).astype(np.int32)
    last = nth == np.repeat(counts, counts) - 1
    return starts, sizes, last, ranges


def _batches(sizes: npt.NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Group pieces into runs of about `_PIECE` bytes, as pairs of the first and the end."""
    groups = np.cumsum(sizes.astype(np.int64)) // _PIECE
    cuts = np.flatnonzero(np.diff(groups)) + 1
    yield from pairwise([0, *cuts.tolist(), len(sizes)] if len(sizes) else [])
