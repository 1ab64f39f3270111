"""Zero-copy views of bytes, for the decoders of this package."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BytesLike", "octets", "records_at", "records_in"]

BytesLike = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def octets(data: BytesLike) -> npt.NDArray[np.uint8]:
    """Return `data`, contiguous and of any length, as a view of unsigned bytes."""
    return np.frombuffer(data, np.uint8)


def records_in(data: BytesLike, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return a view of the whole `dtype` records in `data`, without a partial one at the end.

    Args:
        data: any length, contiguous.
        dtype: a packed structured type.
    """
    view = octets(data)
    return view[: view.size // dtype.itemsize * dtype.itemsize].view(dtype)


def records_at(
    data: BytesLike, dtype: np.dtype[np.void], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """Return copies of the `dtype` records that begin at `offsets` in `data`.

    Returns:
        records: one per offset; zeros where `data` does not contain it.
        inside: whether `data` contains it.
    """
    raw = octets(data)
    at = np.asarray(offsets, np.int64)
    inside = (at >= 0) & (at <= raw.size - dtype.itemsize)
    packed = np.zeros((at.size, dtype.itemsize), np.uint8)
    packed[inside] = raw[at[inside, None] + np.arange(dtype.itemsize)]
    return packed.view(dtype).reshape(at.size), inside
