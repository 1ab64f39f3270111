"""Fills up unused room in the middle of the log with records that no queue and no index holds.

A log is a chain of records: where nobody has put any, something has to lead to the next one. These
have the type of a rolled-back half message, a topic of their own and a body of zeros, so a broker
steps over them (upstream: CommitLogDispatcherBuildConsumeQueue, IndexService.buildIndex). See
docs/format.md, "A block that is not published yet".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.layout.constants import (
    FILLER_TOPIC,
    MAGIC_V1,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK_TYPE,
)
from rmqstore_spark.layout.fields import HEAD_SIZE, head_layout
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import string_array

_TAIL: Final = bytes([len(FILLER_TOPIC)]) + FILLER_TOPIC.encode() + bytes(2)
MIN_FILLER: Final = HEAD_SIZE + len(_TAIL)
"""Bytes of the smallest such record."""
_MOST: Final = 1 << 20


def fillers(begin: int, end: int, store_timestamp: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes that make records of zeros, and the physical offset of each piece.

    Args:
        begin, end: the room, in one segment; nothing, or at least `MIN_FILLER` bytes.
        store_timestamp: storeTimestamp of the records, milliseconds.

    Raises:
        ValueError: the room is too small for a record.
    """
    if 0 < end - begin < MIN_FILLER:
        raise ValueError(f"{end - begin} bytes at {begin} are too few for a record")
    while begin < end:
        size = min(end - begin, _MOST)
        if 0 < end - begin - size < MIN_FILLER:
            size -= MIN_FILLER
        head = np.zeros((), head_layout())
        head["totalSize"], head["magicCode"] = size, MAGIC_V1 & 0xFFFFFFFF
        head["bodyLength"] = size - MIN_FILLER
        head["bodyCRC"] = _crc_of_zeros(size - MIN_FILLER)
        head["physicalOffset"], head["sysFlag"] = begin, TRANSACTION_ROLLBACK_TYPE
        head["bornTimestamp"] = head["storeTimestamp"] = store_timestamp
        yield begin, head.tobytes()
        yield begin + size - len(_TAIL), _TAIL
        begin += size


@lru_cache(8)
def _crc_of_zeros(size: int) -> int:
    return isal_zlib.crc32(bytes(size)) & 0x7FFFFFFF


def without_fillers(records: Records) -> npt.NDArray[np.int64] | None:
    """Return the rows of the records that are not such; None if none is."""
    rows = ((records.sys_flag & TRANSACTION_MASK) == TRANSACTION_ROLLBACK_TYPE).nonzero()[0]
    if not len(rows):
        return None
    topics = string_array(records.topic.take(rows))
    return np.delete(np.arange(len(records)), rows[topics.to_numpy(False) == FILLER_TOPIC])
