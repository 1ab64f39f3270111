"""Finds the index files of a store, and reads the entries of all of them as one sequence."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.systems.base import FileInfo, Files, join
from rmqstore_spark.layout.index.format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HEADER_SIZE,
    IndexEntries,
    IndexHeader,
    decode_entries,
    entry_position,
    geometry,
)
from rmqstore_spark.layout.index.geometry import infer_slots, nonzero_end
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.report import Severity
from rmqstore_spark.verify.snapshot import IndexBounds

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
    read = partial(files.read, path)
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
    start = entry_position(slots, 1)
    end = nonzero_end(partial(files.read, bounds.path), start, entry_position(slots, max(last, 1)))
    return -(-(end - start) // ENTRY_SIZE)


class IndexSequence:
    """The entries of all index files as one sequence, numbered from 0.

    Args:
        files: the file system of the index files.
        index: the index files.
    """

    def __init__(self, files: Files, index: tuple[IndexBounds, ...]) -> None:
        self._files = files
        self._index = index
        counts = np.array([bounds.keys for bounds in index], np.int64)
        self.ends: I8 = np.cumsum(counts)
        self.begins: I8 = self.ends - counts
        self._block = np.empty(0, ENTRY_DTYPE)
        self._block_at = 0

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def locate(self, numbers: I8) -> tuple[I8, I8]:
        """Return the file of each of n entries, and its number in the file, which starts at 1.

        Args:
            numbers: n numbers of the sequence, ascending.
        """
        first, last = np.searchsorted(self.ends, numbers[[0, -1]], side="right").tolist()
        if first == last:
            return np.full(len(numbers), first), numbers - self.begins[first] + 1
        files = np.searchsorted(self.ends, numbers, side="right")
        return files, numbers - self.begins[files] + 1

    def ends_of(self, file: int) -> tuple[int, int]:
        """Return the physical offsets in a file's first and last entry."""
        return self._offset(int(self.begins[file])), self._offset(int(self.ends[file]) - 1)

    def read(self, start: int, count: int) -> IndexEntries:
        """Read entries of the sequence; fewer at its end."""
        end = min(start + count, len(self))
        if end <= start:
            return self._block[:0]
        inside = self._block_at <= start and end <= self._block_at + len(self._block)
        if not inside:
            self._block = self._load(start, min(max(count, _BLOCK), len(self) - start))
            self._block_at = start
        return self._block[start - self._block_at : end - self._block_at]

    def _load(self, start: int, count: int) -> IndexEntries:
        loaded = np.zeros(count, ENTRY_DTYPE)
        done = 0
        while done < count:
            number = int(np.searchsorted(self.ends, start + done, side="right"))
            bounds = self._index[number]
            within = start + done - int(self.begins[number])
            part = min(count - done, bounds.keys - within)
            at = entry_position(bounds.slots, within + 1)
            data = self._files.read(bounds.path, at, part * ENTRY_SIZE)
            entries = decode_entries(data)
            loaded[done : done + len(entries)] = entries  # a file that is too short gives zeros
            done += part
        return loaded

    def first_at(self, offset: int) -> int:
        """Find the first entry whose record is at or past a physical offset."""
        return bisect_left(range(len(self)), offset, key=self._offset)

    def _offset(self, number: int) -> int:
        file = int(np.searchsorted(self.ends, number, side="right"))
        bounds = self._index[file]
        at = entry_position(bounds.slots, number - int(self.begins[file]) + 1)
        entries = decode_entries(self._files.read(bounds.path, at, ENTRY_SIZE))
        return int(entries["phyOffset"][0]) if len(entries) else 1 << 62
