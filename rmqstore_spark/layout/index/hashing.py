"""Compute Java's `String.hashCode` for whole columns, and the hash of an index key.

A string's hash is `sum(unit[i] * 31**(n-1-i)) mod 2**32` over its n UTF-16 code units, as a signed
32-bit integer.

See docs/format.md, "A ConsumeQueue entry" (tagsCode) and "An IndexFile" (keyHash).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference.hashing import key_hashes

__all__ = ["index_key_hash", "java_hash_code", "java_hash_code_str"]

_BASE: Final = 31


def java_hash_code(strings: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[np.int32]:
    """Return `String.hashCode` of every string.

    Args:
        strings: any Arrow string type; a null gives 0.
    """
    chunks = strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]
    hashes = [_hash_chunk(chunk) for chunk in chunks]
    return np.concatenate(hashes) if hashes else np.empty(0, np.int32)


def java_hash_code_str(text: str) -> int:
    """Return `String.hashCode` of one string."""
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    code = 0
    for unit in units.tolist():
        code = (code * _BASE + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def index_key_hash(
    topic: str | pa.Array[Any], keys: Sequence[str] | pa.Array[Any]
) -> npt.NDArray[np.int32]:
    """Return the hash of each key in an IndexFile: `abs(hashCode(topic + "#" + key))`.

    Args:
        topic: one topic for all keys, or one per key.
        keys: the keys.

    Returns:
        Never negative: 0 if `abs` overflows, as in `IndexFile.indexKeyHashMethod`.
    """
    column: Any = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    return key_hashes(java_hash_code(pc.binary_join_element_wise(topic, column, "#")))


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
    kernel.active.hash_texts(offsets, data, hashes)
    if chunk.null_count:
        hashes[chunk.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes
