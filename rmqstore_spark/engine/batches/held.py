"""Staged records in memory, and the memory that all stages share (`stagingMemoryBytes`).

A large block is received into pages of that memory (`StagingMemory.block`), and stays in them when
it is staged. Smaller ones are copied, and put together.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.batches.staged_records import (
    KEY_DTYPE,
    PORTION_ROWS,
    ROW_DTYPE,
    Keys,
    Rows,
    StagedBlock,
)
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.spans import U1

_TOGETHER_BYTES: Final = 1 << 20
"""Blocks are put together up to this size."""

_MAPPED: Final = 2 << 20
"""Bytes from which an array has pages of its own. NumPy asks for huge pages, of which a part is not
used, and keeps what is freed: that would not count towards `stagingMemoryBytes`."""

_PAGES: Final = 512 << 10
"""Pages are taken in multiples of this, so that the next stages can use them too."""

T = TypeVar("T", bound=np.generic)


def _in_pages(size: int) -> int:
    """Return the bytes of the pages for so many bytes."""
    return -(-size // _PAGES) * _PAGES


class StagingMemory:
    """Counts the bytes that stages hold in memory, and keeps their pages for the next. Thread-safe.

    New pages cost several times as much as copying records into them.

    Args:
        most: bytes of all stages together, and of the pages that are kept.

    Attributes:
        used: bytes that stages hold.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        self._kept: deque[mmap.mmap] = deque()
        # A collection of garbage can return a block's pages at any time, also while it is held.
        self._lock = threading.RLock()

    def try_take(self, count: int) -> bool:
        """Take bytes if there is room; return whether there was."""
        with self._lock:
            if self.used + count > self._most:
                return False
            self.used += count
            return True

    def give_back(self, count: int) -> None:
        """Give back bytes that were taken."""
        with self._lock:
            self.used -= count

    @property
    def kept(self) -> int:
        """Bytes of the pages that no stage holds."""
        return sum(map(len, self._kept))

    def pages(self, size: int) -> mmap.mmap:
        """Return pages: kept ones if there are any of this size. The caller has taken the bytes.

        Raises:
            MemoryError: the system has no memory for them.
        """
        with self._lock, suppress(IndexError):
            for _ in range(len(self._kept)):
                pages = self._kept.popleft()
                if len(pages) == size:
                    return pages
                self._kept.append(pages)
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError from error

    def keep(self, pages: mmap.mmap) -> None:
        """Keep pages whose bytes were given back. Nobody uses them any more."""
        with self._lock:
            self._kept.append(pages)

    def block(self, size: int) -> U1:
        """Return room for a block that is going to be staged; a large one has pages.

        They are kept as soon as nobody uses the array any more.

        Args:
            size: its bytes.

        Raises:
            MemoryError: the system has no memory for it.
        """
        if size < _TOGETHER_BYTES:
            return np.empty(size, np.uint8)
        pages = self.pages(_in_pages(size))
        array = np.frombuffer(pages, np.uint8)
        weakref.finalize(array, self._take_back, pages).atexit = False
        return array[:size]

    def _take_back(self, pages: mmap.mmap) -> None:
        self.keep(pages)
        self.make_room()

    def make_room(self) -> None:
        """Return pages that no stage holds to the system, until the rest is within the limit."""
        with self._lock:
            while self._kept and self.used + self.kept > self._most:
                self._kept.popleft()

    def drop(self) -> None:
        """Return the pages that no stage holds to the system."""
        with self._lock:
            self._kept.clear()


class HeldPortion:
    """A portion in memory. A commit stamps its records where they are: it can do so again.

    Args:
        memory: what all stages hold, this portion included.
    """

    def __init__(self, memory: StagingMemory) -> None:
        self._memory = memory
        self._charge = 0
        self._records = _Growing(np.dtype(np.uint8), memory)
        self._rows = _Growing(ROW_DTYPE, memory)
        self._keys = _Growing(KEY_DTYPE, memory)

    @classmethod
    def try_hold(
        cls, memory: StagingMemory, block: StagedBlock, *, given: bool = False
    ) -> HeldPortion | None:
        """Return a portion with a block; None if there is no memory for it.

        Args:
            memory: what all stages hold.
            block: the records.
            given: nobody else uses the array of the records: a large one is not copied.
        """
        portion = cls(memory)
        is_kept = given and len(block.records) >= _TOGETHER_BYTES
        if portion._take(block) if is_kept else portion.append(block):
            return portion
        portion.release()
        return None

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return self._records.size

    @property
    def count(self) -> int:
        """Number of its records."""
        return self._rows.size

    def append(self, block: StagedBlock) -> bool:
        """Copy more records into the portion; return False if it has no room for them."""
        size, count = self.size + len(block.records), self.count + len(block.rows)
        if self.count and (
            size > max(_TOGETHER_BYTES, self._records.capacity) or count > PORTION_ROWS
        ):
            return False
        keys = block.keys.copy()
        keys["row"] += self.count
        if not self._grow(len(block.records), len(block.rows), len(keys)):
            return False
        self._records.append(block.records)
        self._rows.append(block.rows)
        self._keys.append(keys)
        return True

    def _take(self, block: StagedBlock) -> bool:
        """Become a portion of a block, with its array; return False if there is no memory."""
        size = _in_pages(len(block.records))
        if not self._memory.try_take(size):
            return False
        self._charge += size
        self._records.take(block.records)
        if not self._grow(0, len(block.rows), len(block.keys)):
            return False
        self._rows.append(block.rows)
        self._keys.append(block.keys)
        return True

    def read_rows(self, _files: HandleCache[int]) -> Rows:
        """Return the sizes, queues and tags codes of the records."""
        return Rows.of(self._rows.filled)

    def read_records(self, _buffer: U1, _files: HandleCache[int]) -> U1:
        """Return the bytes of the records, as the portion holds them."""
        return self._records.filled

    def read_keys(self, _files: HandleCache[int]) -> Keys:
        """Return the index keys of the records."""
        return Keys.of(self._keys.filled)

    def release(self) -> None:
        """Give back the memory. The portion is empty then."""
        charge, self._charge = self._charge, 0
        self._memory.give_back(charge)
        for array in (self._records, self._rows, self._keys):
            array.clear()

    def _grow(self, size: int, rows: int, keys: int) -> bool:
        """Make room for more records; return False if there is no memory for them."""
        arrays = (self._records, size), (self._rows, rows), (self._keys, keys)
        growth = sum(array.growth(more) for array, more in arrays)
        if not self._memory.try_take(growth):
            return False
        self._charge += growth
        try:
            for array, more in arrays:
                array.grow(more)
        except MemoryError:
            return False
        self._memory.make_room()
        return True


class _Growing(Generic[T]):
    """An array that grows.

    Args:
        dtype: of its values.
        memory: has the pages of a large one.

    Attributes:
        size: how much of it is filled.
    """

    def __init__(self, dtype: np.dtype[T], memory: StagingMemory) -> None:
        self._dtype = dtype
        self._all = np.empty(0, dtype)
        self._memory = memory
        self._pages: mmap.mmap | None = None
        self.size = 0

    @property
    def capacity(self) -> int:
        """How much of it is allocated."""
        return len(self._all)

    @property
    def filled(self) -> npt.NDArray[T]:
        """The values."""
        return self._all[: self.size]

    def growth(self, more: int) -> int:
        """Return the bytes that it takes to append so many values."""
        return (self._needed(more) - self.capacity) * self._dtype.itemsize

    def grow(self, more: int) -> None:
        """Make room for more values.

        Raises:
            MemoryError: there is no memory; the array is as before.
        """
        capacity = self._needed(more)
        if capacity > self.capacity:
            larger, pages = self._allocated(capacity)
            larger[: self.size] = self.filled
            self._replace(larger, pages)

    def append(self, more: npt.NDArray[T]) -> None:
        """Append values for which there is room."""
        self._all[self.size : self.size + len(more)] = more
        self.size += len(more)

    def take(self, values: npt.NDArray[T]) -> None:
        """Have an array's values instead of those that it has."""
        self.size = len(values)
        self._replace(values, None)

    def clear(self) -> None:
        self.size = 0
        self._replace(np.empty(0, self._dtype), None)

    def _replace(self, array: npt.NDArray[T], pages: mmap.mmap | None) -> None:
        unused, self._pages = self._pages, pages
        self._all = array
        if unused is not None:
            self._memory.keep(unused)

    def _needed(self, more: int) -> int:
        """Return the capacity for more values: at least twice the present one, if it grows."""
        needed = self.size + more
        if needed <= self.capacity:
            return self.capacity
        needed = max(needed, 2 * self.capacity)
        size = needed * self._dtype.itemsize
        return needed if size < _MAPPED else _in_pages(size) // self._dtype.itemsize

    def _allocated(self, count: int) -> tuple[npt.NDArray[T], mmap.mmap | None]:
        """Return a new array, and its pages if it has pages of its own.

        Raises:
            MemoryError: the system has no memory for it.
        """
        size = count * self._dtype.itemsize
        if size < _MAPPED:
            return np.empty(count, self._dtype), None
        pages = self._memory.pages(size)
        return np.frombuffer(pages, self._dtype), pages
