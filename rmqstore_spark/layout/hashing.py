"""Java's `String.hashCode`, for whole columns, and the hash of an index key.

A string's hash is `sum(unit[i] * 31**(n-1-i)) mod 2**32` over its n UTF-16 code units, as a signed
32-bit integer. 31 has an inverse modulo 2**32, so the sums of all strings of a batch come out of
one running sum over all their code units, weighted by powers of that inverse.

See docs/format.md, "A ConsumeQueue entry" (tagsCode) and "An IndexFile" (keyHash).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["index_key_hash", "java_hash_code", "java_hash_code_str"]

_BASE: Final = 31
_INVERSE: Final = pow(_BASE, -1, 1 << 32)

_BLOCK_BYTES: Final = 1 << 16
"""Strings are taken in blocks of about this much UTF-8, so that all temporaries stay in cache."""


def java_hash_code(strings: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[np.int32]:
    """`String.hashCode` of every string.

    Args:
        strings: any Arrow string type; a null counts as no string and gives 0.
    """
    chunks = strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]
    hashes = [_hash_chunk(chunk) for chunk in chunks]
    return np.concatenate(hashes) if hashes else np.empty(0, np.int32)


def java_hash_code_str(text: str) -> int:
    """`String.hashCode` of one string."""
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    code = 0
    for unit in units.tolist():
        code = (code * _BASE + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def index_key_hash(
    topic: str | pa.Array[Any], keys: Sequence[str] | pa.Array[Any]
) -> npt.NDArray[np.int32]:
    """What an IndexFile knows each key by: `abs(hashCode(topic + "#" + key))`.

    Args:
        topic: one topic for all keys, or one a key.
        keys: the keys.

    Returns:
        Never negative: 0 where `abs` overflows, as `IndexFile.indexKeyHashMethod` has it.
    """
    column: Any = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    hashes = np.abs(java_hash_code(pc.binary_join_element_wise(topic, column, "#")))
    hashes[hashes < 0] = 0
    return hashes


def _hash_chunk(chunk: pa.Array[Any]) -> npt.NDArray[np.int32]:
    if not pa.types.is_large_string(chunk.type):
        chunk = chunk.cast(pa.large_string())
    count = len(chunk)
    hashes = np.zeros(count, np.int32)
    _, offset_buffer, data_buffer = chunk.buffers()
    if count == 0 or offset_buffer is None or data_buffer is None:
        return hashes
    offsets = np.frombuffer(memoryview(offset_buffer), np.int64, count + 1, chunk.offset * 8)
    data = np.frombuffer(memoryview(data_buffer), np.uint8)
    cuts = np.arange(int(offsets[0]), int(offsets[-1]), _BLOCK_BYTES)
    rows = np.unique(np.append(np.searchsorted(offsets, cuts, "right") - 1, count))
    for first, last in pairwise(rows.tolist()):
        block = offsets[first : last + 1]
        hashes[first:last] = _hash_block(data[block[0] : block[-1]], block - block[0])
    if chunk.null_count:
        hashes[chunk.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _hash_block(
    utf8: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Hashes of the strings that lie between neighbouring `bounds` in `utf8`."""
    units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    if utf8.size and utf8.max() >= 0x80:  # not all ASCII
        units, bounds = _utf16_units(utf8, bounds)
    else:
        units = utf8
    inverses, powers = _powers(units.size + 1)
    running = np.zeros(units.size + 1, np.uint32)
    np.cumsum(units * inverses[: units.size], dtype=np.uint32, out=running[1:])
    ends = bounds[1:]
    # a string that is empty has a sum of 0, whatever power it is multiplied by
    sums = running[ends] - running[bounds[:-1]]
    return (sums * powers[np.maximum(ends - 1, 0)]).view(np.int32)


def _utf16_units(
    utf8: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The UTF-16 code units of UTF-8 strings, and the same bounds counted in units."""
    try:
        text = utf8.tobytes().decode()
    except UnicodeDecodeError:
        return _utf16_units_of_damaged(utf8, bounds)
    first_unit = np.zeros(utf8.size + 1, np.int64)
    characters = (utf8 & 0xC0) != 0x80  # all but continuation bytes
    surrogate_pairs = utf8 >= 0xF0  # the first byte of four
    np.cumsum(characters.view(np.int8) + surrogate_pairs.view(np.int8), out=first_unit[1:])
    return np.frombuffer(text.encode("utf-16-le"), "<u2"), first_unit[bounds]


def _utf16_units_of_damaged(
    utf8: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The same where some bytes are no UTF-8: they become U+FFFD, as Java decodes them."""
    strings = [
        utf8[start:end].tobytes().decode("utf-8", "replace").encode("utf-16-le")
        for start, end in pairwise(bounds.tolist())
    ]
    ends = np.cumsum([0, *(len(string) // 2 for string in strings)], dtype=np.int64)
    return np.frombuffer(b"".join(strings), "<u2"), ends


def _power_table(base: int, size: int) -> npt.NDArray[np.uint32]:
    """base**0 .. base**(size-1) modulo 2**32."""
    table = np.full(size, base, np.uint32)
    table[0] = 1
    return np.cumprod(table, dtype=np.uint32)


_TABLE_SIZE: Final = 2 * _BLOCK_BYTES
_INVERSES: Final = _power_table(_INVERSE, _TABLE_SIZE)
_POWERS: Final = _power_table(_BASE, _TABLE_SIZE)


def _powers(size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Tables of at least `size` powers of 31's inverse and of 31."""
    if size <= _TABLE_SIZE:
        return _INVERSES, _POWERS
    return _power_table(_INVERSE, size), _power_table(_BASE, size)
