"""Writes bytes as upper-case hex, for whole columns at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.spans import U1

_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_HEX_PAIRS: Final = np.stack([np.repeat(_HEX, 16), np.tile(_HEX, 16)], axis=1).reshape(-1)
_PAIRS: Final = np.ascontiguousarray(_HEX_PAIRS).view(np.uint16)


def hex_columns(head: bytes, tails: U1) -> pa.StringArray:
    """Return n texts: the same head, and a tail each.

    Args:
        head: bytes.
        tails: n rows of bytes.
    """
    count = len(tails)
    first = 2 * len(head)
    width = first + 2 * tails.shape[1]
    data = np.empty((count, width), np.uint8)
    data[:, :first] = np.frombuffer(head.hex().upper().encode(), np.uint8)
    data[:, first:] = _PAIRS[tails].view(np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
