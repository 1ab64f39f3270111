"""Finds the messages in the body of a producer's batch; see `plain`."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["split_batch"]

_HEAD: Final = 20
_LEAST: Final = 22

U1 = npt.NDArray[np.uint8]
I4 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int64]


def split_batch(
    data: U1, body_at: I8, body_sizes: I4, properties_at: I8, properties_sizes: I4, flags: I4
) -> tuple[int, int]:
    """Find the messages of a batch, one after the other.

    Each has its size, a magic code, a CRC, its flag, and the length of its body, 4 bytes each; its
    body; the length of its properties, 2 bytes; and these (upstream: MessageDecoder.encodeMessage).

    Args:
        data: the body of the request.
        body_at, body_sizes, properties_at, properties_sizes, flags: out; as long as there may be
            messages.

    Returns:
        How many messages there are, and at which byte no message begins, or one too many; -1 if
        there is no such byte.
    """
    view, end, at = memoryview(data.data), len(data), 0
    for row in range(len(body_at)):
        if at == end:
            return row, -1
        if end - at < _LEAST:
            return row, at
        size, flag, body = (
            int.from_bytes(view[at + place : at + place + 4], "big", signed=True)
            for place in (0, 12, 16)
        )
        if not _LEAST <= size <= end - at or not 0 <= body <= size - _LEAST:
            return row, at
        after = at + _HEAD + body
        properties = int.from_bytes(view[after : after + 2], "big", signed=True)
        if properties != size - _LEAST - body:
            return row, at
        body_at[row], body_sizes[row], flags[row] = at + _HEAD, body, flag
        properties_at[row], properties_sizes[row] = after + 2, properties
        at += size
    return len(body_at), -1 if at == end else at
