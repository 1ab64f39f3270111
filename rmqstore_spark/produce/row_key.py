"""Makes UNIQ_KEY of a row that Spark writes, the same one when the row is written again.

    hash of the write and partition 16 | row 6 | 0 4 | 0 2

in upper-case hex. This has the form of the id of a client with an IPv6 address (`uniq_key`). Its
time is the beginning of the month: a row that is written again later must get the same id.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.produce.hexadecimal import hex_columns

_HASH_BYTES: Final = 16
_ROW_BYTES: Final = 6
_ZEROS: Final = 6


class RowKeys:
    """Makes the ids of the rows of a partition, one after the other.

    Args:
        name: of the write and the partition, among all.
    """

    def __init__(self, name: str) -> None:
        self._head = blake2b(name.encode(), digest_size=_HASH_BYTES).digest()
        self._next = 0

    def take(self, count: int) -> pa.StringArray:
        """Make the ids of the next `count` rows."""
        serial = np.arange(self._next, self._next + count, dtype=">u8").view(np.uint8)
        self._next += count
        rows = serial.reshape(count, 8)[:, 8 - _ROW_BYTES :]
        tail = np.zeros((count, _ROW_BYTES + _ZEROS), np.uint8)
        tail[:, :_ROW_BYTES] = rows
        return hex_columns(self._head, tail)
