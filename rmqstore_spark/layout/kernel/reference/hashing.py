"""Hash texts as Java does, contents, and the keys of an index: part of `plain`.

31 has an inverse modulo 2**32. So the hashes of all texts of a batch follow from one running sum
over all their UTF-16 code units, weighted by powers of that inverse.

The hash that tells the content of a span from any other adds up its words of eight bytes, each
mixed with its place. Arithmetic is modulo 2**64. The formula is in docs/format.md, "A block that is
not published yet".
"""

from __future__ import annotations

from itertools import pairwise
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


_MAX_TIME_DIFF: Final = 2**31 - 1


def link_keys(
    slots: I4,
    start: int,
    key_hash: I4,
    phy_offset: I8,
    store_timestamp: I8,
    begin_timestamp: int,
    entries: U1,
) -> int:
    """Link n new keys into their chains, with the same result as inserting them one by one.

    Args:
        slots: big-endian, at least one; changed in place.
        start: the number of the first new entry, at least 1.
        begin_timestamp: value in the file's header before the first of them.
        entries: n * 20 bytes, out: the entries from number `start` on.

    Returns:
        The number of slots that were unused before.
    """
    n = len(key_hash)
    if len(phy_offset) != n or len(store_timestamp) != n or len(entries) != 20 * n:
        raise ValueError("the arrays differ in number")
    if not len(slots) or start < 1 or start > 2**31 - 1 - n:
        raise ValueError("there are no slots, or no such numbers")
    if not n:
        return 0
    previous, fresh = _link(slots, key_hash, np.arange(start, start + n))
    rows = entries.view([("hash", ">i4"), ("offset", ">i8"), ("time", ">i4"), ("back", ">i4")])
    rows["hash"], rows["offset"], rows["back"] = key_hash, phy_offset, previous
    rows["time"] = _time_diff(store_timestamp, begin_timestamp, first=start == 1)
    return fresh


def _link(slots: I4, key_hash: I4, numbers: I8) -> tuple[I8, int]:
    """Set the slots; return the previous number of each entry, and how many slots were unused."""
    slot = key_hash % len(slots)
    by_slot = np.argsort(slot, kind="stable")
    sorted_slot, sorted_number = slot[by_slot], numbers[by_slot]
    opens = np.ones(len(slot), np.bool_)
    opens[1:] = sorted_slot[1:] != sorted_slot[:-1]
    closes = np.roll(opens, -1)

    held = slots[sorted_slot[opens]].astype(np.int64)
    # A slot that leads past the newest entry is left over from a crash, and counts as unused.
    held[(held < 0) | (held >= sorted_number[opens])] = 0
    chained = np.empty_like(sorted_number)
    chained[1:] = sorted_number[:-1]
    chained[opens] = held
    slots[sorted_slot[closes]] = sorted_number[closes]

    previous = np.empty_like(chained)
    previous[by_slot] = chained
    return previous, int(np.count_nonzero(held == 0))


def _time_diff(store_timestamp: I8, begin_timestamp: int, *, first: bool) -> I8:
    """Return whole seconds since the file's begin, as the header holds it at each key."""
    begin = np.full(len(store_timestamp), begin_timestamp, np.int64)
    if first:
        # The first key is measured from the previous file, and sets the begin for the others.
        begin[1:] = store_timestamp[0]
    seconds = np.clip((store_timestamp - begin) // 1000, 0, _MAX_TIME_DIFF)
    seconds[begin <= 0] = 0
    return seconds


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
