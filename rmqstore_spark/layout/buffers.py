"""What the decoders of this floor take as bytes, and how they look at them without a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BytesLike", "octets", "records_at", "records_in"]

BytesLike = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def octets(data: BytesLike) -> npt.NDArray[np.uint8]:
    """A view of `data`, contiguous and of any length, as unsigned bytes."""
    return np.frombuffer(data, np.uint8)


def records_in(data: BytesLike, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """A view of the whole `dtype` records in `data`; a part record at its end is left out.

    Args:
        data: any length, contiguous.
        dtype: a packed structured type.
    """
    view = octets(data)
    return view[: view.size // dtype.itemsize * dtype.itemsize].view(dtype)


def records_at(
    data: BytesLike, dtype: np.dtype[np.void], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """Copies of the `dtype` records that begin at `offsets` in `data`.

    Returns:
        records: one an offset; zeros where `data` does not hold it.
        inside: whether `data` holds it.
    """
    raw = octets(data)
    at = np.asarray(offsets, np.int64)
    inside = (at >= 0) & (at <= raw.size - dtype.itemsize)
    packed = np.zeros((at.size, dtype.itemsize), np.uint8)
    packed[inside] = raw[at[inside, None] + np.arange(dtype.itemsize)]
    return packed.view(dtype).reshape(at.size), inside
