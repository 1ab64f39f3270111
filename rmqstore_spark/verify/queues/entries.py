"""Locates queue entries, and checks the extension units that they name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.layout.consumequeue import ENTRY_SIZE
from rmqstore_spark.layout.consumequeue_ext import UNIT_HEAD_DTYPE, ext_offset
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.verify.findings import Place

__all__ = ["entry_place", "wrong_units"]


def entry_place(queue: Queue, slot: int, byte: int = 0) -> Place:
    """Return the file and offset of an entry; the queue's folder if no file holds the entry.

    Args:
        slot: the entry's offset in its queue.
        byte: offset in the entry.
    """
    try:
        segment = queue.segments.locate(slot * ENTRY_SIZE)
    except (SegmentExpiredError, CorruptStoreError):
        return ", ".join(queue.segments.folders), None
    return segment.path, slot * ENTRY_SIZE - segment.start + byte


def wrong_units(ext: Segments | None, addresses: I8, codes: I8, times: I8) -> npt.NDArray[np.bool_]:
    """Return which addresses do not lead to the extension unit of their record.

    Args:
        ext: the files of a queue's extension units; None if it has none.
        addresses: n addresses that entries hold in place of a tagsCode.
        codes: n tagsCodes of the records.
        times: n storeTimestamps of the records.
    """
    wrong = np.ones(len(addresses), np.bool_)
    if ext is None:
        return wrong
    offsets = ext_offset(addresses)
    width = UNIT_HEAD_DTYPE.itemsize
    there = np.flatnonzero(ext.covers(offsets, np.full(len(offsets), width)))
    there = there[np.argsort(offsets[there], kind="stable")]
    if not len(there):
        return wrong
    buffer, at = ext.read_entries(offsets[there], np.full(len(there), width))
    raw = np.lib.stride_tricks.sliding_window_view(buffer, width)[at]
    heads = np.ascontiguousarray(raw).view(UNIT_HEAD_DTYPE)[:, 0]
    wrong[there] = (
        (heads["size"] != width + heads["bitMapSize"].astype(np.int64))
        | (heads["tagsCode"] != codes[there])
        | (heads["storeTimestamp"] != times[there])
    )
    return wrong
