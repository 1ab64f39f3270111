"""Computes Java's hash of many short strings that are scattered in one buffer.

The strings become the rows of a table, right-aligned and padded with zeros on the left. The product
of this table and the powers of 31 holds their hashes: leading zeros add nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.index.hashing import java_hash_code
from rmqstore_spark.layout.spans import I8, U1, Spans, string_array

__all__ = ["POWERS", "hash_spans", "tails"]

_WIDEST: Final = 96
_BASE: Final = 31

U4 = npt.NDArray[np.uint32]


def _powers() -> U4:
    table = np.full(1 << 16, _BASE, np.uint32)
    table[0] = 1
    return np.cumprod(table, dtype=np.uint32)


POWERS: Final = _powers()
"""31**0, 31**1, ... modulo 2**32."""


def tails(buffer: U1, ends: I8, width: int) -> npt.NDArray[np.uint8]:
    """Return the last bytes before each of n positions in a buffer: a table of n rows.

    Args:
        ends: n positions, each at least `width`.
    """
    rows = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return rows[ends - width].view(np.uint8).reshape(len(ends), width)


def hash_spans(spans: Spans) -> tuple[U4, npt.NDArray[np.bool_]]:
    """Compute `String.hashCode` of the string in each of n spans; 0 for an empty or missing string.

    Returns:
        The hashes modulo 2**32, and which strings are not ASCII (their UTF-16 units are not bytes).
    """
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
    table = tails(spans.buffer, ends[rows], width)
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
