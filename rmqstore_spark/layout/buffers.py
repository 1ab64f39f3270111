"""What the decoders of this floor take as bytes, and how they look at them without a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BytesLike", "octets", "records_in"]

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
