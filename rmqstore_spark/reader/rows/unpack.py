"""Decompresses the bodies of a batch within a memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptRecordError, OptionError
from rmqstore_spark.layout.compression import MAX_UNPACKED, BodyTooLargeError, decompress
from rmqstore_spark.layout.constants import COMPRESSED_FLAG
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import Spans

_NO_LIMIT: Final = 1 << 62


class Allowance:
    """Limits the memory that the messages of one read take.

    Args:
        most: maximum bytes of all batches together; by default there is no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _NO_LIMIT if most is None else most
        self.left = self._most

    def take(self, size: int) -> None:
        """Count a batch.

        Raises:
            OptionError: the batches take more than the limit.
        """
        self.left -= size
        if self.left < 0:
            raise self.exceeded()

    def exceeded(self) -> OptionError:
        """Return the error for messages that take more than the limit."""
        return OptionError(
            f"the messages found need more than {self._most} bytes. Request fewer, for example "
            "of a shorter time."
        )


def decompressed(
    records: Records, batch_bytes: int, allowance: Allowance
) -> Iterator[tuple[npt.NDArray[np.int64], Spans | None, dict[int, str]]]:
    """Decompress the compressed bodies of n records, in groups of limited size.

    Args:
        records: the n records.
        batch_bytes: a group is complete when its decompressed bodies have more bytes than this.
        allowance: the memory that the read has left. A body that does not fit is not decompressed.

    Yields:
        The rows of a group, in order and without those that failed; their bodies, or None if no
        record is compressed and the stored bodies can be used; the causes of failed rows, by row.

    Raises:
        OptionError: the allowance is used up.
    """
    packed = (records.sys_flag & COMPRESSED_FLAG) != 0
    if not packed.any():
        yield np.arange(len(records)), None, {}
        return
    first = 0
    while first < len(records):
        last, unpacked, failed = _unpack_group(records, packed, first, batch_bytes, allowance)
        rows = np.setdiff1d(np.arange(first, last), list(failed))
        yield rows, _bodies(records, rows, unpacked), failed
        first = last


def _unpack_group(
    records: Records,
    packed: npt.NDArray[np.bool_],
    first: int,
    batch_bytes: int,
    allowance: Allowance,
) -> tuple[int, dict[int, bytes], dict[int, str]]:
    """Decompress from a row on until the group is full. The first result is the group's end."""
    body = records.body
    unpacked: dict[int, bytes] = {}
    failed: dict[int, str] = {}
    total = 0
    for row in (np.flatnonzero(packed[first:]) + first).tolist():
        start = int(body.starts[row])
        stored = body.buffer[start : start + int(body.lengths[row])]
        most = min(MAX_UNPACKED, allowance.left - total)
        try:
            unpacked[row] = decompress(stored, int(records.sys_flag[row]), most)
        except CorruptRecordError as error:
            if isinstance(error, BodyTooLargeError) and most < MAX_UNPACKED:
                raise allowance.exceeded() from None
            failed[row] = error.cause
            continue
        total += len(unpacked[row])
        if total > batch_bytes:
            return row + 1, unpacked, failed
    return len(records), unpacked, failed


def _bodies(records: Records, rows: npt.NDArray[np.int64], unpacked: dict[int, bytes]) -> Spans:
    """Return the bodies of some rows: decompressed if they were compressed, else as stored.

    Empties `unpacked`, so that no more than two copies of large bodies exist at a time.
    """
    targets = np.searchsorted(rows, list(unpacked))
    sizes = np.array([len(plain) for plain in unpacked.values()], np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    joined = np.frombuffer(b"".join(unpacked.values()), np.uint8)
    unpacked.clear()
    if len(targets) == len(rows):
        return Spans(joined, starts, sizes, settled=True)
    body = records.body.take(rows)
    body.starts[targets] = len(body.buffer) + starts
    body.lengths[targets] = sizes
    return Spans(np.concatenate([body.buffer, joined]), body.starts, body.lengths)
