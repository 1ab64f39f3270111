"""Link keys into an IndexFile's chains, in NumPy: part of `plain`."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1

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
