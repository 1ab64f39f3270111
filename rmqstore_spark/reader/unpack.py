"""Compressed bodies of a batch, unpacked within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptRecordError
from rmqstore_spark.layout.compression import MAX_UNPACKED, decompress
from rmqstore_spark.layout.constants import COMPRESSED_FLAG
from rmqstore_spark.layout.record import Records
from rmqstore_spark.layout.spans import Spans

__all__ = ["decompressed"]

_MAX_BATCH = 64 << 20


def decompressed(
    records: Records,
) -> Iterator[tuple[npt.NDArray[np.int64], Spans | None, dict[int, str]]]:
    """The bodies of n records, compressed ones unpacked, in groups of bounded size.

    Yields:
        The rows of a group, in order and without those that failed; their bodies (None where no
        record of the batch is compressed: the stored ones serve); why rows failed, by row.
    """
    packed = (records.sys_flag & COMPRESSED_FLAG) != 0
    if not packed.any():
        yield np.arange(len(records)), None, {}
        return
    first = 0
    while first < len(records):
        last, unpacked, failed = _unpack_group(records, packed, first)
        rows = np.setdiff1d(np.arange(first, last), list(failed))
        yield rows, _mixed(records, rows, unpacked), failed
        first = last


def _unpack_group(
    records: Records, packed: npt.NDArray[np.bool_], first: int
) -> tuple[int, dict[int, bytes], dict[int, str]]:
    """Unpack from a row on until the group is full; gives one past its last row."""
    body = records.body
    unpacked: dict[int, bytes] = {}
    failed: dict[int, str] = {}
    total = 0
    for row in (np.flatnonzero(packed[first:]) + first).tolist():
        start = int(body.starts[row])
        stored = body.buffer[start : start + int(body.lengths[row])]
        try:
            unpacked[row] = decompress(stored, int(records.sys_flag[row]), MAX_UNPACKED)
        except CorruptRecordError as error:
            failed[row] = error.cause
            continue
        total += len(unpacked[row])
        if total > _MAX_BATCH:
            return row + 1, unpacked, failed
    return len(records), unpacked, failed


def _mixed(records: Records, rows: npt.NDArray[np.int64], unpacked: dict[int, bytes]) -> Spans:
    """Bodies of some rows: the unpacked ones where there are any, else the stored ones."""
    body = records.body.take(rows)
    targets = np.searchsorted(rows, list(unpacked))
    sizes = np.array([len(plain) for plain in unpacked.values()], np.int32)
    body.starts[targets] = len(body.buffer) + np.cumsum(sizes, dtype=np.int64) - sizes
    body.lengths[targets] = sizes
    extra = np.frombuffer(b"".join(unpacked.values()), np.uint8)
    return Spans(np.concatenate([body.buffer, extra]), body.starts, body.lengths)
