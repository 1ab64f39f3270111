"""Decode and encode extension units of a ConsumeQueue: data that does not fit into a tagsCode.

    size 2 | tagsCode 8 | storeTimestamp 8 | bitMapSize 2 | bit map        big-endian, signed

A unit has no fixed length. Its entry holds its address in place of a tagsCode, so a batch of units
is decoded at the offsets that the entries give, never by walking the file. A size of -1 closes a
file. See docs/format.md, "A ConsumeQueue entry"; upstream `ConsumeQueueExt`, which calls its
content "not important": the record itself can replace a lost unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.buffers import BytesLike, octets, records_at
from rmqstore_spark.layout.kernel.reference.entries import LAST_ADDRESS

UNIT_HEAD_DTYPE: Final = np.dtype(
    [("size", ">i2"), ("tagsCode", ">i8"), ("storeTimestamp", ">i8"), ("bitMapSize", ">i2")]
)
_HEAD_SIZE: Final = UNIT_HEAD_DTYPE.itemsize
MAX_UNIT_SIZE: Final = 32_767

END_OF_FILE: Final = (-1).to_bytes(2, "big", signed=True)
"""Written where the next unit would not fit; 4 bytes are always reserved for it."""

_ADDRESS_BASE: Final = np.int64(-(2**63))


@dataclass(frozen=True)
class ExtUnit:
    """An extension unit.

    Attributes:
        tags_code: Java's hash of the message's tags.
        store_timestamp: the message's storeTimestamp, milliseconds.
        bit_map: bit map of the filters that the message passes; empty if there are no filters.
    """

    tags_code: int
    store_timestamp: int
    bit_map: bytes

    @property
    def size(self) -> int:
        """Bytes of the unit in its file."""
        return _HEAD_SIZE + len(self.bit_map)


def is_ext_address(tags_code: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which tagsCode values are addresses of units."""
    found: npt.NDArray[np.bool_] = np.asarray(tags_code) <= LAST_ADDRESS
    return found


def ext_offset(addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the offsets in the files of `consumequeue_ext` at which these units begin."""
    offsets: npt.NDArray[np.int64] = np.asarray(addresses, np.int64) ^ _ADDRESS_BASE
    return offsets


def ext_address(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the addresses of the units that begin at these offsets."""
    addresses: npt.NDArray[np.int64] = np.asarray(offsets, np.int64) | _ADDRESS_BASE
    return addresses


def decode_units(
    data: BytesLike, offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """Decode the heads of the units that begin at `offsets` in `data`.

    Returns:
        heads: one `UNIT_HEAD_DTYPE` per offset; zeros where there is no unit.
        valid: whether there is a whole unit with consistent sizes.
    """
    heads, valid = records_at(data, UNIT_HEAD_DTYPE, offsets)
    size = heads["size"].astype(np.int64)
    bit_map_size = heads["bitMapSize"].astype(np.int64)
    valid &= (bit_map_size >= 0) & (size == _HEAD_SIZE + bit_map_size)
    valid &= size <= octets(data).size - np.where(valid, offsets, 0)
    heads[~valid] = np.zeros((), UNIT_HEAD_DTYPE)
    return heads, valid


def decode_unit(data: BytesLike, offset: int = 0, *, file: str = "") -> ExtUnit:
    """Decode the unit that begins at `offset` in `data`.

    Raises:
        CorruptStoreError: there is no whole unit with consistent sizes; the message names `file`.
    """
    heads, valid = decode_units(data, np.array([offset], np.int64))
    if not valid[0]:
        raise CorruptStoreError(
            "no extension unit of a ConsumeQueue entry begins here", file=file, offset=offset
        )
    _, tags_code, store_timestamp, bit_map_size = heads[0].item()
    start = offset + _HEAD_SIZE
    bit_map = octets(data)[start : start + bit_map_size].tobytes()
    return ExtUnit(tags_code, store_timestamp, bit_map)


def encode_units(
    tags_code: npt.ArrayLike, store_timestamp: npt.ArrayLike, bit_maps: pa.Array[Any]
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Encode one unit per element, one after the other.

    Args:
        tags_code: int64.
        store_timestamp: int64, milliseconds.
        bit_maps: binary; a null counts as empty.

    Returns:
        data: the units.
        offsets: int64 of n + 1, where each begins in `data`, and the end.

    Raises:
        ValueError: a bit map is too long for a unit.
    """
    maps = pc.fill_null(bit_maps.cast(pa.large_binary()), b"")
    sizes = pc.binary_length(maps).to_numpy(zero_copy_only=False)
    if sizes.size and sizes.max() > MAX_UNIT_SIZE - _HEAD_SIZE:
        raise ValueError(f"a bit map of {sizes.max()} bytes is too long for a unit")
    heads = np.empty(sizes.size, UNIT_HEAD_DTYPE)
    heads["size"] = sizes + _HEAD_SIZE
    heads["tagsCode"] = tags_code
    heads["storeTimestamp"] = store_timestamp
    heads["bitMapSize"] = sizes
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes + _HEAD_SIZE, out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    starts = offsets[:-1, None] + np.arange(_HEAD_SIZE)
    is_bit_map = np.ones(data.size, np.bool_)
    is_bit_map[starts] = False
    data[starts] = heads.view(np.uint8).reshape(sizes.size, _HEAD_SIZE)
    data[is_bit_map] = _contents(maps)
    return data.tobytes(), offsets


def _contents(column: pa.Array[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values of a large_binary column without nulls, concatenated."""
    _, offset_buffer, data_buffer = column.buffers()
    if offset_buffer is None or data_buffer is None:
        return np.empty(0, np.uint8)
    first, last = np.frombuffer(
        memoryview(offset_buffer), np.int64, len(column) + 1, 8 * column.offset
    )[[0, -1]]
    return np.frombuffer(memoryview(data_buffer), np.uint8)[first:last]
