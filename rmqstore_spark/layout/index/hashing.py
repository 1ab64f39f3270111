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
from rmqstore_spark.layout.buffers import windows
from rmqstore_spark.layout.kernel.reference.hashing import key_hashes
from rmqstore_spark.layout.spans import Spans, string_array

__all__ = ["POWERS", "hash_spans", "index_key_hash", "java_hash_code", "java_hash_code_str"]

U4 = npt.NDArray[np.uint32]

_BASE: Final = 31
_WIDEST: Final = 96
_SHORT: Final = 40


def _powers() -> U4:
    table = np.full(1 << 16, _BASE, np.uint32)
    table[0] = 1
    return np.cumprod(table, dtype=np.uint32)


POWERS: Final = _powers()
"""31**0, 31**1, ... modulo 2**32."""


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
    if len(units) <= _SHORT:  # where calls of NumPy cost more than the steps
        for unit in units.tolist():
            code = code * _BASE + unit
        code &= 0xFFFFFFFF
        return code - (1 << 32) if code >> 31 else code
    for at in range(0, len(units), len(POWERS)):
        part = units[at : at + len(POWERS)]
        own = int((part * POWERS[: len(part)][::-1]).sum(dtype=np.uint32))
        code = (code * pow(_BASE, len(part), 1 << 32) + own) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def hash_spans(spans: Spans) -> tuple[U4, npt.NDArray[np.bool_]]:
    """Compute `String.hashCode` of the string in each of n spans; 0 for an empty or missing string.

    Short strings that are scattered in a buffer are hashed without copying them to an array.

    Returns:
        The hashes modulo 2**32, and which strings are not ASCII (their UTF-16 units are not bytes).
    """
    # The strings become the rows of a table, right-aligned and padded with zeros on the left. The
    # product of this table and the powers of 31 holds their hashes: leading zeros add nothing.
    hashes = np.zeros(len(spans), np.uint32)
    wide = np.zeros(len(spans), np.bool_)
    lengths = np.maximum(spans.lengths, 0)
    longest = int(lengths.max()) if len(spans) else 0
    if not longest:
        return hashes, wide
    width = min(longest, _WIDEST)
    ends = spans.starts + lengths
    easy = (lengths <= width) & (ends >= width)
    rows = np.flatnonzero(easy) if not easy.all() else slice(None)
    table = windows(spans.buffer, ends[rows] - width, width)
    if int(lengths.min()) < width:
        table = table * (np.arange(width) >= (width - lengths[rows])[:, None])
    hashes[rows] = np.einsum("ij,j->i", table.astype(np.uint32), POWERS[width - 1 :: -1])
    if table.max(initial=0) >= 0x80:
        wide[rows] = (table >= 0x80).any(axis=1)
    hard = np.flatnonzero(wide | ~easy)
    if len(hard):
        texts = spans.take(hard)
        hashes[hard] = java_hash_code(string_array(texts)).view(np.uint32)
        wide[hard] = [not text.as_py().isascii() for text in string_array(texts).fill_null("")]
    return hashes, wide


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
