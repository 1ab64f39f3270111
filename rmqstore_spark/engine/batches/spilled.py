"""Staged records in files beside the log, for which there was no memory.

    <store>/rmqstore/staging/<id>/records    encoded records, contiguous
    <store>/rmqstore/staging/<id>/rows       16 bytes a record: `ROW_DTYPE`
    <store>/rmqstore/staging/<id>/keys       8 bytes a key of the index: `KEY_DTYPE`

Nothing is flushed, and nothing outlives the process. A checksum of what was written is compared
when it is read back.

The records of stages that are gone stay as spare files, for the next stages to write over: the
pages of such a file are in memory. A write over them takes half of the time of a write into a new
file, or a tenth if a virtual machine has to get new pages from its host. Nothing reads what a spare
file holds.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.batches.staged_records import (
    KEY_DTYPE,
    PORTION_BYTES,
    PORTION_ROWS,
    ROW_DTYPE,
    Keys,
    Rows,
    StagedBlock,
)
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.durable import FILE_MODE, FOLDER_MODE, write_all
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.spans import U1

_LEAST: Final = 1 << 20
_MOST: Final = 512 << 20
"""Bytes of all spare files."""
_RECORDS: Final = "records"
_NEW: Final = os.O_CREAT | os.O_EXCL
_READ_BYTES: Final = 256 << 10
"""Bytes of one read: its checksum is computed while it is in the processor's cache."""


class SpareFiles:
    """Spare files. Thread-safe.

    Args:
        folder: holds them. It is removed, with what an earlier process left in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: dict[Path, int] = {}
        self._count = 0
        self._has_folder = False
        self.drop()

    @property
    def kept(self) -> int:
        """Bytes of all spare files."""
        return sum(self._sizes.values())

    def take(self, path: Path) -> bool:
        """Move the file that was kept last to a path; return False if there is none."""
        with self._lock:
            while self._sizes:
                spare, _ = self._sizes.popitem()
                with suppress(OSError):
                    spare.rename(path)
                    return True
        return False

    def keep(self, path: Path) -> None:
        """Keep a file that nobody uses any more, if it is worth it; else leave it where it is."""
        with self._lock, suppress(OSError):
            size = os.stat(path).st_size
            if size < _LEAST or self.kept + size > _MOST:
                return
            if not self._has_folder:
                self._folder.mkdir(mode=FOLDER_MODE)
                self._has_folder = True
            spare = self._folder / str(self._count)
            self._count += 1
            path.rename(spare)
            self._sizes[spare] = size

    def drop(self) -> None:
        """Remove all spare files."""
        with self._lock:
            self._sizes.clear()
            self._has_folder = False
            shutil.rmtree(self._folder, ignore_errors=True)


class SpillFiles:
    """The files of a stage. They and their folder are created when something is written to them.

    A stage in memory has neither: to remove a folder can wait for a flush of the log.

    Args:
        folder: the folder of the stage.
        spares: files of earlier stages.
    """

    def __init__(self, folder: Path, spares: SpareFiles) -> None:
        self._folder = folder
        self._spares = spares
        self._files: tuple[_File, _File, _File] | None = None
        self._has_folder = False
        self._open = ExitStack()

    def append(
        self, block: StagedBlock, keys: npt.NDArray[np.void]
    ) -> tuple[_Range, _Range, _Range]:
        """Write a block at the end of the files; return where it is in each.

        Args:
            block: the records and their rows.
            keys: their keys.

        Raises:
            OSError: a file could not be created or written.
        """
        if self._files is None:
            self._folder.mkdir(mode=FOLDER_MODE)
            self._has_folder = True
            self._files = (self._create(_RECORDS), self._create("rows"), self._create("keys"))
        records, rows, keyed = self._files
        table, hashed = block.rows.view(np.uint8), keys.view(np.uint8)
        return (
            records.append(block.records, block.checksum),
            rows.append(table, isal_zlib.crc32(table)),
            keyed.append(hashed, isal_zlib.crc32(hashed)),
        )

    def read(self, name: str, target: U1, extent: _Range, files: HandleCache[int]) -> None:
        """Read a range of a file back.

        Args:
            name: the file.
            target: takes the bytes.
            extent: where they are.
            files: open files.

        Raises:
            RefusedError: the file no longer holds what was written into it.
        """
        path, at = f"{self._folder}/{name}", extent.at
        try:
            checksum = _read(files.get(path, _open), target, at)
            why = "" if checksum == extent.checksum else "its bytes have changed"
        except OSError as error:
            why = str(error.strerror)
        if why:
            raise RefusedError(
                f"The staged data in {path} cannot be read back at {at}: {why}. Check the disk, "
                "and run the batch again.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    def close(self) -> None:
        """Close the files; they stay."""
        self._open.close()

    def remove(self) -> None:
        """Close the files, and remove the folder of the stage."""
        self.close()
        if self._files is not None:
            self._spares.keep(self._folder / _RECORDS)
        if self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _create(self, name: str) -> _File:
        path = self._folder / name
        is_spare = name == _RECORDS and self._spares.take(path)
        return self._open.enter_context(_File(path, os.O_NOFOLLOW if is_spare else _NEW))


class SpilledPortion:
    """A portion in the files of its stage.

    Args:
        files: the files, to whose end this portion is written as long as it is the last one.
        block: the first records.

    Raises:
        OSError: a file could not be created or written.
    """

    def __init__(self, files: SpillFiles, block: StagedBlock) -> None:
        self._files = files
        self._records, self._rows, self._keys = files.append(block, block.keys)

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return self._records.size

    @property
    def count(self) -> int:
        """Number of its records."""
        return self._rows.size // ROW_DTYPE.itemsize

    def append(self, block: StagedBlock) -> bool:
        """Write more records; return False if the portion has no room for them.

        Raises:
            OSError: a file could not be written.
        """
        if (
            self.size + len(block.records) > PORTION_BYTES
            or self.count + len(block.rows) > PORTION_ROWS
        ):
            return False
        keys = block.keys.copy()
        keys["row"] += self.count
        records, rows, keyed = self._files.append(block, keys)
        self._records = self._records.joined(records)
        self._rows = self._rows.joined(rows)
        self._keys = self._keys.joined(keyed)
        return True

    def read_rows(self, files: HandleCache[int]) -> Rows:
        """Read back the sizes, queues and tags codes of the records."""
        return Rows.of(self._table("rows", self._rows, ROW_DTYPE, files))

    def read_records(self, buffer: U1, files: HandleCache[int]) -> U1:
        """Read the bytes of the records back into the buffer."""
        records = buffer[: self.size]
        self._files.read(_RECORDS, records, self._records, files)
        return records

    def read_keys(self, files: HandleCache[int]) -> Keys:
        """Read back the index keys of the records."""
        return Keys.of(self._table("keys", self._keys, KEY_DTYPE, files))

    def release(self) -> None:
        """Do nothing: the stage removes its files."""

    def _table(
        self, name: str, extent: _Range, dtype: np.dtype[np.void], files: HandleCache[int]
    ) -> npt.NDArray[np.void]:
        table = np.empty(extent.size // dtype.itemsize, dtype)
        self._files.read(name, table.view(np.uint8), extent, files)
        return table


@dataclass(frozen=True)
class _Range:
    """A range of bytes in a file.

    Attributes:
        at, size: its position, and the number of bytes.
        checksum: CRC-32 of the bytes, which is checked when they are read back.
    """

    at: int
    size: int
    checksum: int

    def joined(self, behind: _Range) -> _Range:
        """Return this range and the one right behind it."""
        checksum = isal_zlib.crc32_combine(self.checksum, behind.checksum, behind.size)
        return _Range(self.at, self.size + behind.size, checksum)


class _File:
    """A file that is written from its beginning; a context manager that closes it."""

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, FILE_MODE)
        self._size = 0

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def append(self, data: U1, checksum: int) -> _Range:
        at = self._size
        write_all(self._descriptor, data, at)
        self._size += len(data)
        return _Range(at, len(data), checksum)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _read(fd: int, target: U1, at: int) -> int:
    """Fill an array from a file; return the CRC-32 of the bytes."""
    done = checksum = 0
    while done < len(target):
        part = target[done : done + _READ_BYTES]
        got = os.preadv(fd, [part.data], at + done)
        if not got:
            raise OSError(errno.EIO, "the file is shorter than what was written to it")
        checksum = isal_zlib.crc32(part[:got], checksum)
        done += got
    return checksum
