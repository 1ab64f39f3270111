"""Zero-copy views of bytes, for the decoders of this package."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
    records = np.zeros(at.size, dtype)
    records[inside] = values_at(raw, dtype, at[inside])
    return records, inside


def windows(
    buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.uint8]:
    """Return a copy of the `width` bytes from each of n positions on: a table of n rows.

    Args:
        buffer: contiguous.
        starts: n positions, none negative.
        width: bytes of a row.

    Raises:
        IndexError: the buffer ends before a row does.
    """
    return values_at(buffer, np.dtype(f"V{width}"), starts).view(np.uint8).reshape(-1, width)


def values_at(
    buffer: npt.NDArray[np.uint8], dtype: np.dtype[Any], starts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return copies of the values that begin at n positions, all of which the buffer contains.

    Args:
        buffer: contiguous.
        dtype: the type of the values.
        starts: n positions, none negative.

    Raises:
        IndexError: the buffer ends before a value does.
    """
    # NumPy copies the items of such an overlapping view as a whole. It would copy the rows of a
    # `sliding_window_view` byte by byte.
    count = max(0, len(buffer) - dtype.itemsize + 1)
    items = np.ndarray((count,), f"V{dtype.itemsize}", buffer, strides=(1,))
    return items[starts].view(dtype)
