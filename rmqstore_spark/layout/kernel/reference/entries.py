"""The loops over ConsumeQueue entries, in NumPy: part of `plain`.

Their compiled counterparts are in `c/entries.h`; the tests compare the two. `queue_entries`, which
builds entries, is in `block`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_spark.layout.fields import MAX_RECORD_SIZE, MIN_RECORD_SIZE
from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1

ENTRY_DTYPE: Final = np.dtype([("physicalOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])

FILLER_SIZE: Final = 2_147_483_647
"""The `size` of a filler entry: padding in the queue's first file before its first message."""

VOID_CODE: Final = 2**63 - 1
"""The tagsCode of a void entry: its record is part of a batch whose rest never came."""

LAST_ADDRESS: Final = -(2**31) - 1
"""Less than any hash of tags: tagsCodes up to this one are addresses of extension units."""


def split_entries(data: U1, offsets: I8, sizes: I4, codes: I8) -> bool:
    """Split n ConsumeQueue entries into columns.

    Args:
        data: n * 20 bytes, or more.
        offsets, sizes, codes: n out: physicalOffset, size and tagsCode of each.

    Returns:
        Whether all entries are messages (`QueueFormat.is_message`).
    """
    entries = data[: len(offsets) * ENTRY_DTYPE.itemsize].view(ENTRY_DTYPE)
    offsets[:], sizes[:] = entries["physicalOffset"], entries["size"]
    codes[:] = entries["tagsCode"]
    filler = (sizes == FILLER_SIZE) & (offsets == 0) & (codes == 0)
    return not bool(((offsets < 0) | (sizes <= 0) | (codes == VOID_CODE) | filler).any())


def pick_entries(
    data: U1,
    codes: I4 | None,
    log: tuple[int, int, int, int],
    limits: tuple[int, int, int, int],
    places: I8,
    sizes: I4,
) -> tuple[int, int, bool]:
    """Pick the entries of a queue that a consumer gets in one answer.

    Upstream: the loop of `DefaultMessageStore.getMessage`, `isTheBatchFull`.

    Args:
        data: n * 20 bytes, or up to 19 more.
        codes: hash codes of the tags that are wanted, ascending; None: all messages. An entry that
            points at an extension unit may have any of them.
        log: where the log begins and ends, the bytes of a segment, and before which offset records
            are taken to be on disk.
        limits: most records, at least 1, and most bytes; the same of records on disk. The first
            record is picked whatever its size.
        places, sizes: out, room for the most records: where they are in the log, and their bytes.

    Returns:
        How many were picked, how many entries were looked at, and whether any message was wanted,
        even one that the log cannot hold.
    """
    begin, end, segment, old = log
    most, most_bytes, most_old, most_old_bytes = limits
    n = len(data) // ENTRY_DTYPE.itemsize
    columns = np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n, np.int64)
    split_entries(data, *columns)
    place, size, code = columns[0], columns[1].astype(np.int64), columns[2]
    wanted = (place >= 0) & (size > 0) & (code != VOID_CODE)
    wanted &= ~((size == FILLER_SIZE) & (place == 0) & (code == 0))
    if codes is not None:
        wanted &= np.isin(code.astype(np.int32), codes) | (code <= LAST_ADDRESS)
    fits = (place >= begin) & (place <= end - size) & (place % segment <= segment - size)
    fits &= (size >= MIN_RECORD_SIZE) & (size <= MAX_RECORD_SIZE)
    rows = np.flatnonzero(wanted & fits)
    is_old = place[rows] < old
    too_much = np.cumsum(size[rows]) > np.where(is_old, most_old_bytes, most_bytes)
    too_much |= is_old & (np.arange(len(rows)) >= most_old)
    too_much[:1] = False
    is_cut = bool(too_much.any())
    count = min(most, int(np.argmax(too_much)) if is_cut else len(rows))
    places[:count], sizes[:count] = place[rows[:count]], size[rows[:count]]
    if count == most:
        return count, int(rows[count - 1]) + 1, True
    return count, int(rows[count]) if is_cut else n, bool(wanted.any())
