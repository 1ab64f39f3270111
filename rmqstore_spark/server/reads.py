"""Streams byte ranges of the store's files to a reader, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.server.budget import Budget
from rmqstore_spark.server.flight.blockbatch import ranges_message
from rmqstore_spark.server.view import StoreView, ViewError
from rmqstore_spark.wire.failures import DENIED, NOT_FOUND
from rmqstore_spark.wire.messages import RangesRequest

__all__ = ["MOST_BYTES", "MOST_RANGES", "range_messages"]

MOST_BYTES: Final = 256 << 20
"""Maximum bytes of all ranges of one request."""

MOST_RANGES: Final = 65_536

_PIECE: Final = 2 << 20
_ROOM_SECONDS: Final = 20.0
_FARTHEST: Final = 1 << 62


def range_messages(
    view: StoreView, request: RangesRequest, budget: Budget
) -> Iterator[tuple[bytes, list[bytes | memoryview]]]:
    """Read the ranges of a request; see `wire.protocol`.

    Args:
        view: the store's files.
        request: the file and the ranges to read.
        budget: the bytes on their way to clients. A message takes its share until the next one is
            requested, and must not be held for longer.

    Yields:
        Record batches in their wire format: the flatbuffer, and the parts of the body.

    Raises:
        OverBudgetError: messages to other clients used up the budget for too long.
        ViewError: the file does not exist, or the ranges are too many or too long.
    """
    offsets = np.array(request.offsets, np.int64)
    lengths = np.array(request.lengths, np.int64)
    if len(offsets) > MOST_RANGES or int(lengths.sum()) > MOST_BYTES:
        raise ViewError(
            DENIED,
            f"A request may have {MOST_RANGES} ranges and {MOST_BYTES} bytes in all; this one "
            f"has {len(offsets)} ranges of {int(lengths.sum())} bytes.",
        )
    if len(offsets) and int(offsets.max()) > _FARTHEST:
        raise ViewError(NOT_FOUND, f"No file reaches as far as offset {int(offsets.max())}.")
    starts, sizes, last = _pieces(offsets, lengths)
    with view.open(request.path) as descriptor:
        for first, end in _batches(sizes):
            there = slice(first, end)
            size = int(sizes[there].sum())
            with budget.use(size, _ROOM_SECONDS):
                out = np.empty(size, np.uint8)
                got = view.read(request.path, descriptor, starts[there], sizes[there], out)
                yield ranges_message(out, got, last[there])
                del out  # free it before the next wait for room


def _pieces(
    offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Split long ranges into pieces: their starts, their sizes, whether each ends its range."""
    counts = np.maximum(-(-lengths // _PIECE), 1)
    total = int(counts.sum())
    nth = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(offsets, counts) + nth * _PIECE
    sizes = np.minimum(np.repeat(lengths, counts) - nth * _PIECE, _PIECE).astype(np.int32)
    last = nth == np.repeat(counts, counts) - 1
    return starts, sizes, last


def _batches(sizes: npt.NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Group pieces into runs of about `_PIECE` bytes, as pairs of the first and the end."""
    groups = np.cumsum(sizes.astype(np.int64)) // _PIECE
    cuts = np.flatnonzero(np.diff(groups)) + 1
    yield from pairwise([0, *cuts.tolist(), len(sizes)] if len(sizes) else [])
