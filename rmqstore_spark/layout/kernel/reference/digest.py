"""Hashes that tell contents apart, in NumPy: part of `plain`.

The hash of a span adds up its words of eight bytes, each mixed with its place. Arithmetic is modulo
2**64. The formula is in docs/format.md, "A block that is not published yet".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.buffers import windows
from rmqstore_spark.layout.kernel.reference.spans import (
    I4,
    I8,
    U1,
    byte_index,
    require_inside,
)

__all__ = ["content_hashes", "digest"]

U8 = npt.NDArray[np.uint64]

_WORD: Final = 8
_AT_ONCE: Final = 1 << 20
"""Bytes whose words are mixed together, so that temporary arrays stay small."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_HOST_BITS: Final = 0x30  # whether the hosts are IPv6
_SEPARATOR: Final = 2
_PASSING: Final = np.frombuffer(b"UNIQ_KEY\1", np.uint8)


def content_hashes(buffer: U1, starts: I8, lengths: I4, out: U8) -> None:
    """Hash n spans; 0 for an empty one.

    Args:
        out: n out.
    """
    if len(lengths) != len(starts) or len(out) != len(starts):
        raise ValueError("an output array is too small")
    require_inside(buffer, starts, lengths)
    out[:] = 0
    rows = np.flatnonzero(lengths > 0)
    group = (np.cumsum(lengths[rows], dtype=np.int64) - 1) // _AT_ONCE
    cuts = np.flatnonzero(np.diff(group)) + 1
    for part in np.split(rows, cuts):
        out[part] = _hashes(buffer, starts[part], lengths[part].astype(np.int64))


def _hashes(buffer: U1, starts: I8, lengths: I8) -> U8:
    """Hash spans, none of them empty."""
    words = -(-lengths // _WORD)
    ends = np.cumsum(words)
    begins = ends - words
    padded = np.zeros(int(ends[-1]) * _WORD if len(ends) else 0, np.uint8)
    padded[byte_index(begins * _WORD, lengths)] = buffer[byte_index(starts, lengths)]
    place = np.arange(1, len(padded) // _WORD + 1) - np.repeat(begins, words)
    mixed = _finalized(padded.view("<u8") + place.astype(np.uint64) * _GOLDEN)
    return _finalized(_sums(mixed, begins, ends) + lengths.astype(np.uint64))


def digest(data: U1, starts: I8, ints: I4) -> tuple[int, int]:
    """Add up a hash of each record: of what is the same when its row is written again.

    That is the stored body, the topic, the properties in any order but UNIQ_KEY, the flag,
    reconsumeTimes, and the sysFlag without the bits of the hosts.

    Args:
        starts: n, where each record begins.
        ints: (14, n), its fields, as `parse` has found them.

    Returns:
        Two sums, of different hashes.
    """
    body, topic = np.empty(len(starts), np.uint64), np.empty(len(starts), np.uint64)
    content_hashes(data, starts + ints[7], ints[8], body)
    content_hashes(data, starts + ints[9], ints[10], topic)
    flag = ints[4].astype(np.uint32).astype(np.uint64)
    numbers = flag | ints[6].astype(np.uint32).astype(np.uint64) << np.uint64(32)
    kinds = (ints[5] & ~_HOST_BITS).astype(np.uint32).astype(np.uint64)
    one = _finalized(body + topic)
    one = _finalized(one + _hash_of_properties(data, starts + ints[11], ints[12]))
    one = _finalized(one + numbers)
    one = _finalized(one + kinds + _GOLDEN)
    other = _finalized(one + _GOLDEN)
    return int(one.sum(dtype=np.uint64)), int(other.sum(dtype=np.uint64))


def _hash_of_properties(data: U1, starts: I8, lengths: I4) -> U8:
    """Add up the hashes of each record's properties, but for UNIQ_KEY."""
    texts = data[byte_index(starts, lengths)]
    ends = np.cumsum(lengths, dtype=np.int64)
    cuts = np.flatnonzero(texts == _SEPARATOR)
    # Between two neighbours among the rows' bounds and the separators lies one property.
    begin = np.sort(np.concatenate([ends - lengths, cuts + 1]))
    size = np.sort(np.concatenate([ends, cuts])) - begin
    hashes = np.empty(len(begin), np.uint64)
    content_hashes(texts, begin, size.astype(np.int32), hashes)
    long = np.flatnonzero(size >= len(_PASSING))
    passing = (windows(texts, begin[long], len(_PASSING)) == _PASSING).all(axis=1)
    hashes[long[passing]] = 0
    last = np.searchsorted(cuts, ends) + np.arange(1, len(ends) + 1)
    return _sums(hashes, np.concatenate([np.zeros(1, np.int64), last[:-1]]), last)


def _sums(values: U8, begins: I8, ends: I8) -> U8:
    """Return the sum of each range of values."""
    running = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, dtype=np.uint64, out=running[1:])
    sums: U8 = running[ends] - running[begins]
    return sums


def _finalized(x: U8) -> U8:
    """Mix the bits of numbers: the finalizer of SplitMix64."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
