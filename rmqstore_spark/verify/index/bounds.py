"""Lists the index files of a store, and finds how many slots and keys each holds."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import FileInfo, Files, join
from rmqstore_spark.layout.index.format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    ENTRY_SIZE,
    HEADER_SIZE,
    IndexHeader,
    entry_position,
    geometry,
)
from rmqstore_spark.layout.index.geometry import infer_slots
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.report import Severity
from rmqstore_spark.verify.snapshot import IndexBounds

__all__ = ["find_index"]

_BLOCK: Final = 1 << 16


def find_index(
    store: Store, vouched_time: int, findings: Findings, *, open_end: bool
) -> tuple[IndexBounds, ...]:
    """Read the headers of a store's index files.

    Args:
        vouched_time: a file whose last record was stored up to this time is completely on disk.
        open_end: a broker has the store open, or was killed. A broker creates a file before it sets
            its length, so a file can be empty.
        findings: collects the problems.
    """
    files, folder = store.directory.files, store.directory.index_folder
    found, skipped = store.directory.index_files()
    for stray in skipped:
        findings.note("stray-file", (stray.path, None), stray.reason)
    bounds = []
    for info in found:
        path = join(folder, info.name)
        if info.size < HEADER_SIZE:
            severity: Severity = "note" if open_end else "error"
            text = "the file ends inside its header"
            findings.say(severity, "index-header", (path, info.size), text)
        else:
            with suppress(FileNotFoundError):  # it expired after it was listed
                bounds.append(_look(files, path, info, vouched_time))
    usual = Counter((b.size, b.slots) for b in bounds if b.slots)
    return tuple(b if b.slots else _like_the_others(files, b, usual) for b in bounds)


def _look(files: Files, path: str, info: FileInfo, vouched_time: int) -> IndexBounds:
    def read(offset: int, length: int) -> bytes:
        return files.read(path, offset, length)

    header = IndexHeader.decode(read(0, HEADER_SIZE), file=path)
    slots = infer_slots(info.size, read) or 0
    keys = max(0, header.index_count - 1) if slots else 0
    vouched = header.end_timestamp <= vouched_time
    return IndexBounds(path, info.size, slots, header, keys, vouched)


def _like_the_others(
    files: Files, bounds: IndexBounds, usual: Counter[tuple[int, int]]
) -> IndexBounds:
    """Give a file with an unusable header the number of slots of other files of its size."""
    candidates = [slots for (size, slots), _ in usual.most_common() if size == bounds.size]
    if bounds.size == entry_position(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        candidates.append(DEFAULT_SLOTS)
    for slots in candidates:
        keys = _written(files, bounds, slots)
        if keys:
            return replace(bounds, slots=slots, keys=keys)
    return bounds


def _written(files: Files, bounds: IndexBounds, slots: int) -> int:
    """Return the number of the last entry that is not all zeros; 0 if there is none."""
    try:
        last = geometry(bounds.size, slots)
    except CorruptStoreError:
        return 0
    while last > 1:
        first = max(1, last - _BLOCK)
        data = files.read(bounds.path, entry_position(slots, first), (last - first) * ENTRY_SIZE)
        written = np.flatnonzero(np.frombuffer(data, np.uint8))
        if len(written):
            return first + int(written[-1]) // ENTRY_SIZE
        last = first
    return 0
