"""Reads the entries of all index files of a store as one sequence, in the order of the log."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_spark.files.base import Files
from rmqstore_spark.layout.index.format import (
    ENTRY_DTYPE,
    ENTRY_SIZE,
    IndexEntries,
    decode_entries,
    entry_position,
)
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.bisect import first_true
from rmqstore_spark.verify.snapshot import IndexBounds

__all__ = ["IndexLine"]

_BLOCK: Final = 1 << 16


class IndexLine:
    """The entries of all index files as one line, numbered from 0.

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
            numbers: n numbers of the line, ascending.
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
        """Read entries of the line; fewer at its end."""
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
        return first_true(0, len(self), lambda n: self._offset(n) >= offset)

    def _offset(self, number: int) -> int:
        file = int(np.searchsorted(self.ends, number, side="right"))
        bounds = self._index[file]
        at = entry_position(bounds.slots, number - int(self.begins[file]) + 1)
        entries = decode_entries(self._files.read(bounds.path, at, ENTRY_SIZE))
        return int(entries["phyOffset"][0]) if len(entries) else 1 << 62
