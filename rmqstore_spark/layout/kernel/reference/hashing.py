"""Compute Java's `String.hashCode` of many texts, in NumPy: part of `plain`.

31 has an inverse modulo 2**32. So the hashes of all texts of a batch follow from one running sum
over all their UTF-16 code units, weighted by powers of that inverse.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1

_BASE: Final = 31
_INVERSE: Final = pow(_BASE, -1, 1 << 32)

_BLOCK_BYTES: Final = 1 << 16
"""UTF-8 bytes per block of texts, so that all temporary arrays stay in the cache."""


def hash_texts(offsets: I8, data: U1, out: I4) -> None:
    """Hash n texts of UTF-8; invalid UTF-8 counts as U+FFFD, as Java decodes it.

    Args:
        offsets: n + 1: text i lies from offsets[i] to offsets[i + 1] - 1.
        data: the texts.
        out: n out.
    """
    if len(offsets) != len(out) + 1:
        raise ValueError("the arrays differ in number")
    if offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise ValueError("a span lies outside its buffer")
    cuts = np.arange(int(offsets[0]), int(offsets[-1]), _BLOCK_BYTES)
    rows = {0, *(np.searchsorted(offsets, cuts, "right") - 1).tolist(), len(out)}
    for first, last in pairwise(sorted(rows)):
        block = offsets[first : last + 1]
        out[first:last] = _hash_block(data[block[0] : block[-1]], block - block[0])


def key_hashes(hashes: I4) -> I4:
    """Return the hashes as an index stores them: `abs`, and 0 if that overflows."""
    absolute: I4 = np.abs(hashes)
    absolute[absolute < 0] = 0
    return absolute


def _hash_block(
    utf8: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Return the hashes of the strings that lie between neighbouring `bounds` in `utf8`."""
    units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    if utf8.size and utf8.max() >= 0x80:  # not all ASCII
        units, bounds = _utf16_units(utf8, bounds)
    else:
        units = utf8
    inverses, powers = _powers(units.size + 1)
    running = np.zeros(units.size + 1, np.uint32)
    np.cumsum(units * inverses[: units.size], dtype=np.uint32, out=running[1:])
    ends = bounds[1:]
    # An empty string has a sum of 0, whatever power it is multiplied by.
    sums = running[ends] - running[bounds[:-1]]
    return (sums * powers[np.maximum(ends - 1, 0)]).view(np.int32)


def _utf16_units(
    utf8: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Return the UTF-16 code units of UTF-8 strings, and the same bounds counted in units."""
    begins = bounds[:-1]
    if ((utf8[begins[begins < utf8.size]] & 0xC0) == 0x80).any():  # in the middle of a character
        return _utf16_units_of_damaged(utf8, bounds)
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
    """Do the same for invalid UTF-8, which becomes U+FFFD, as Java decodes it."""
    strings = [
        utf8[start:end].tobytes().decode("utf-8", "replace").encode("utf-16-le")
        for start, end in pairwise(bounds.tolist())
    ]
    ends = np.cumsum([0, *(len(string) // 2 for string in strings)], dtype=np.int64)
    return np.frombuffer(b"".join(strings), "<u2"), ends


def _power_table(base: int, size: int) -> npt.NDArray[np.uint32]:
    """Return base**0 .. base**(size-1) modulo 2**32."""
    table = np.full(size, base, np.uint32)
    table[0] = 1
    return np.cumprod(table, dtype=np.uint32)


_TABLE_SIZE: Final = 2 * _BLOCK_BYTES
_INVERSES: Final = _power_table(_INVERSE, _TABLE_SIZE)
_POWERS: Final = _power_table(_BASE, _TABLE_SIZE)


def _powers(size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return tables of at least `size` powers of 31's inverse and of 31."""
    if size <= _TABLE_SIZE:
        return _INVERSES, _POWERS
    return _power_table(_INVERSE, size), _power_table(_BASE, size)
