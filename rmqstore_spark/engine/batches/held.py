"""Staged records in memory, and the memory that all stages share (`stagingMemoryBytes`)."""

from __future__ import annotations

import threading
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.batches.staged_records import (
    PORTION_ROWS,
    Keys,
    Rows,
    StagedBlock,
)
from rmqstore_spark.files.handles import HandleCache
from rmqstore_spark.layout.spans import U1

__all__ = ["HeldPortion", "StagingMemory"]

_TOGETHER_BYTES: Final = 1 << 20
"""Blocks are put together up to this size. A larger one is a portion of its own."""

T = TypeVar("T", bound=np.generic)


class StagingMemory:
    """Counts the bytes that stages hold in memory. Thread-safe.

    Args:
        most: bytes of all stages together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that stages hold."""
        return self._used

    def try_take(self, count: int) -> bool:
        """Take bytes if there is room; return whether there was."""
        with self._lock:
            if self._used + count > self._most:
                return False
            self._used += count
            return True

    def give_back(self, count: int) -> None:
        """Give back bytes that were taken."""
        with self._lock:
            self._used -= count


class HeldPortion:
    """A portion in memory. A commit stamps its records where they are: it can do so again.

    Args:
        memory: holds `block.nbytes` for this portion.
        block: the first records, which are copied.
    """

    def __init__(self, memory: StagingMemory, block: StagedBlock) -> None:
        self._memory = memory
        self._charge = block.nbytes
        self._records = _Growing(block.records)
        self._rows = _Growing(block.rows)
        self._keys = _Growing(block.keys)

    @classmethod
    def try_hold(cls, memory: StagingMemory, block: StagedBlock) -> HeldPortion | None:
        """Return a portion with a copy of a block; None if there is no memory for it."""
        if not memory.try_take(block.nbytes):
            return None
        try:
            return cls(memory, block)
        except MemoryError:
            memory.give_back(block.nbytes)
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
        if (
            self.size + len(block.records) > _TOGETHER_BYTES
            or self.count + len(block.rows) > PORTION_ROWS
        ):
            return False
        keys = block.keys.copy()
        keys["row"] += self.count
        growth = (
            self._records.growth(block.records) + self._rows.growth(block.rows)
            + self._keys.growth(keys)
        )  # fmt: skip
        if not self._memory.try_take(growth):
            return False
        self._charge += growth
        self._records.append(block.records)
        self._rows.append(block.rows)
        self._keys.append(keys)
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
        for array in (self._records, self._rows, self._keys):
            array.clear()
        self._memory.give_back(charge)


class _Growing(Generic[T]):
    """A copy of an array that can grow.

    Attributes:
        size: how much of it is filled.
    """

    def __init__(self, first: npt.NDArray[T]) -> None:
        self._all = first.copy()
        self.size = len(first)

    @property
    def filled(self) -> npt.NDArray[T]:
        """The values."""
        return self._all[: self.size]

    def growth(self, more: npt.NDArray[T]) -> int:
        """Return the bytes by which `append` will enlarge the array."""
        return (self._capacity(len(more)) - len(self._all)) * self._all.itemsize

    def append(self, more: npt.NDArray[T]) -> None:
        capacity = self._capacity(len(more))
        if capacity > len(self._all):
            larger = np.empty(capacity, self._all.dtype)
            larger[: self.size] = self.filled
            self._all = larger
        self._all[self.size : self.size + len(more)] = more
        self.size += len(more)

    def clear(self) -> None:
        self._all = np.empty(0, self._all.dtype)
        self.size = 0

    def _capacity(self, more: int) -> int:
        """Return the length that the array needs for more values: at least twice, if it grows."""
        needed = self.size + more
        return len(self._all) if needed <= len(self._all) else max(needed, 2 * len(self._all))
