"""Holds one task attempt's records beside the log, until a commit moves them into it.

    <store>/rmqstore/staging/<id>/records    encoded records, contiguous
    <store>/rmqstore/staging/<id>/rows       16 bytes a record: `ROW_DTYPE`
    <store>/rmqstore/staging/<id>/keys       8 bytes a key of the index: `KEY_DTYPE`

Blocks are checked and their keys hashed on receipt, while they are in the processor's cache, so a
commit need not look at them again. Of the written records, only a table of portions is held in
memory. Nothing is flushed, and nothing outlives the process: a commit that misses a stage is
refused, and Spark replays the batch.

Locking: each stage has a lock over its files. The lock of `Staging` may be taken inside it, never
the other way round.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.batches.staged_records import (
    KEY_DTYPE,
    ROW_DTYPE,
    Keys,
    Portion,
    Rows,
    StagedRange,
)
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.failure_counts import Failures
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.durable import FILE_MODE, FOLDER_MODE, write_all
from rmqstore_spark.files.handles import HandleCache
from rmqstore_spark.layout.record.block import Block, Route, body_sizes, index_hashes
from rmqstore_spark.layout.spans import I4, U1
from rmqstore_spark.types import StageInfo

__all__ = ["PORTION_BYTES", "Stage", "StageRoom"]

PORTION_BYTES: Final = 8 << 20
"""The most bytes of a portion, unless it is a single record."""

_PORTION_ROWS: Final = 1 << 16
_READ_BYTES: Final = 256 << 10
"""Bytes of one read: its checksum is computed while it is in the processor's cache."""


class StageRoom(Protocol):
    """What a stage needs of `Staging`."""

    @property
    def indexed(self) -> bool:
        """Whether the store keeps an index."""
        ...

    @property
    def failures(self) -> Failures:
        """Counts blocks that were not staged."""
        ...

    def clock(self) -> int:
        """Return the time in milliseconds."""
        ...

    def reserve(self, stage: Stage, count: int) -> None:
        """Count bytes that are about to be written; raises RefusedError if they are too many."""
        ...

    def forget(self, stage: Stage, why: str) -> None:
        """Remove a stage that has closed itself."""
        ...

    def discard(self, stage: Stage) -> None:
        """Remove a stage whose writer went away."""
        ...


class Stage:
    """The staged records of one task attempt. Created by `Staging.begin`; written by one thread.

    Attributes:
        stage_id: 32 hex digits.
        owner: name of the writer, for messages.
        identity: the identity in the client's certificate; empty if there is none.
        routes: topics and queues in the order of their first record.
        portions: the portions written so far, ascending.
        touched: time of the last write, milliseconds.
        finished: whether it takes no more records.
    """

    def __init__(
        self,
        room: StageRoom,
        admission: Admission,
        stage_id: str,
        owner: str,
        folder: Path,
        identity: str = "",
    ) -> None:
        self.stage_id = stage_id
        self.owner = owner
        self.identity = identity
        self.routes: list[Route] = []
        self.portions: list[Portion] = []
        self.touched = room.clock()
        self.finished = False
        self._room = room
        self._admission = admission
        self._folder = folder
        self._lock = threading.Lock()
        self._numbers: dict[Route, int] = {}
        self._rows = self._body_bytes = self._checksum = 0
        self._closed_because = ""
        folder.mkdir(mode=FOLDER_MODE)
        with ExitStack() as made:
            self._records = made.enter_context(_Growing(folder / "records"))
            self._table = made.enter_context(_Growing(folder / "rows"))
            self._keys = made.enter_context(_Growing(folder / "keys"))
            self._files = made.pop_all()

    def append(self, data: U1) -> int:
        """Append a block of encoded records: all of it or nothing.

        Args:
            data: uint8, contiguous records.

        Returns:
            The number of records in the stage.

        Raises:
            BlockError: a record is invalid.
            RefusedError: the stage is closed, or would be too large; or it could not be written,
                and is removed.
        """
        with self._room.failures.counting():
            return self._append(data)

    def _append(self, data: U1) -> int:
        block = self._admission.check(data)  # a long stage must not fill the disk
        keys = self._hashed(block)
        bodies = int(body_sizes(block).sum(dtype=np.int64))
        with self._lock:
            self._require_open()
            rows = np.empty(len(block), ROW_DTYPE)
            self._room.reserve(self, len(data) + rows.nbytes + keys.nbytes)
            rows["size"], rows["tagsCode"] = block.sizes, block.tags_code
            routes = self._route_numbers(block)[block.route_of]
            rows["route"] = np.where(block.queued, routes, ~routes)
            reach("stage.before_write")
            try:
                self._write(data, rows, keys)
            except OSError as error:
                why = f"discarded because it could not be written: {error.strerror}"
                self._close(f"it was {why}")
                self._room.forget(self, why)
                text = f"The stage {self.stage_id} was {why} ({self._folder})."
                raise RefusedError(text, "SERVICE_NOT_AVAILABLE") from error
            self._body_bytes += bodies
            self.touched = self._room.clock()
            return self._rows

    def finish(self) -> StageInfo:
        """Close the stage for more records, so that it can be committed."""
        with self._lock:
            self._require_open()
            self.finished = True
            self._files.close()
            self.touched = self._room.clock()
            return self.info

    def discard(self) -> None:
        """Remove the stage because its writer went away, unless it is being committed."""
        self._room.discard(self)

    @property
    def info(self) -> StageInfo:
        """What the stage holds."""
        return StageInfo(
            self.stage_id, self._rows, self._records.size, self._body_bytes, self._checksum
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of its files."""
        return self._records.size + self._table.size + self._keys.size

    def read_records(self, portion: Portion, buffer: U1, files: HandleCache[int]) -> U1:
        """Read the bytes of a portion back into a buffer that is long enough.

        Args:
            portion: the portion.
            buffer: takes its bytes.
            files: the stage's open files.

        Raises:
            RefusedError: the file no longer holds what was written into it.
        """
        records = buffer[: portion.size]
        self._read(files, "records", records, portion.records)
        return records

    def read_rows(self, portion: Portion, files: HandleCache[int]) -> Rows:
        """Read back the sizes, queues and tags codes of a portion's records.

        Args:
            portion: the portion.
            files: the stage's open files.

        Raises:
            RefusedError: the file no longer holds what was written into it.
        """
        table = np.empty(portion.count, ROW_DTYPE)
        self._read(files, "rows", table.view(np.uint8), portion.rows)
        routes = table["route"]
        queued = routes >= 0
        route_of = np.where(queued, routes, ~routes)
        return Rows(table["size"].copy(), route_of, queued, table["tagsCode"].copy())

    def read_keys(self, portion: Portion, files: HandleCache[int]) -> Keys:
        """Read back the index keys of a portion's records; none if the store keeps no index.

        Args:
            portion: the portion.
            files: the stage's open files.

        Raises:
            RefusedError: the file no longer holds what was written into it.
        """
        table = np.empty(portion.keys.size // KEY_DTYPE.itemsize, KEY_DTYPE)
        self._read(files, "keys", table.view(np.uint8), portion.keys)
        return Keys(table["hash"].copy(), table["row"].copy())

    def _read(self, files: HandleCache[int], name: str, target: U1, extent: StagedRange) -> None:
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
                "SERVICE_NOT_AVAILABLE",
            )

    def remove(self, because: str) -> None:
        """Close and delete the stage. The caller removes it from the table of stages."""
        with self._lock:
            self._close(because)

    def _close(self, because: str) -> None:
        if self._closed_because:
            return
        self._closed_because = because
        if not self.finished:
            self._files.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _require_open(self) -> None:
        why = self._closed_because or ("it is finished" if self.finished else "")
        if why:
            text = f"The stage {self.stage_id} accepts no records: {why}."
            raise RefusedError(text, "MESSAGE_ILLEGAL")

    def _route_numbers(self, block: Block) -> I4:
        """Return the block's routes as numbers of the stage's table."""
        for route in block.routes:
            if route not in self._numbers:
                self._numbers[route] = len(self.routes)
                self.routes.append(route)
        return np.array([self._numbers[route] for route in block.routes], np.int32)

    def _hashed(self, block: Block) -> npt.NDArray[np.void]:
        """Return the keys of a block, with the block's row numbers."""
        if not self._room.indexed:
            return np.empty(0, KEY_DTYPE)
        hashes, rows = index_hashes(block.data, block.starts, block.sizes)
        keys = np.empty(len(hashes), KEY_DTYPE)
        keys["hash"], keys["row"] = hashes, rows
        return keys

    def _write(self, data: U1, rows: npt.NDArray[np.void], keys: npt.NDArray[np.void]) -> None:
        """Append a block, split into portions."""
        ends = np.cumsum(rows["size"], dtype=np.int64)
        key_rows = keys["row"].copy()
        first, at = 0, 0
        while first < len(rows):
            portion = self._portion(int(rows["size"][first]))
            last = int(np.searchsorted(ends, at + PORTION_BYTES - portion.size, side="right"))
            last = max(first + 1, min(last, first + _PORTION_ROWS - portion.count))
            end = int(ends[last - 1])
            records, table = data[at:end], rows[first:last].view(np.uint8)
            key_first, key_last = np.searchsorted(key_rows, (first, last)).tolist()
            keys["row"][key_first:key_last] += portion.count - first
            indexed = keys[key_first:key_last].view(np.uint8)
            self._records.append(records)
            self._table.append(table)
            self._keys.append(indexed)
            checksum = isal_zlib.crc32(records)
            self.portions[-1] = Portion(
                portion.records.grown(len(records), checksum),
                portion.rows.grown(len(table), isal_zlib.crc32(table)),
                portion.keys.grown(len(indexed), isal_zlib.crc32(indexed)),
            )
            self._checksum = isal_zlib.crc32_combine(self._checksum, checksum, len(records))
            self._rows += last - first
            first, at = last, end

    def _portion(self, size: int) -> Portion:
        """Return the portion for a record of `size` bytes."""
        last = self.portions[-1] if self.portions else None
        if last is None or last.size + size > PORTION_BYTES or last.count >= _PORTION_ROWS:
            files = (self._records, self._table, self._keys)
            self.portions.append(Portion(*(StagedRange(file.size) for file in files)))
        return self.portions[-1]


class _Growing:
    """A new file that is appended to; a context manager that closes it.

    Attributes:
        size: its bytes.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, FILE_MODE)
        self.size = 0

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def append(self, data: U1) -> None:
        write_all(self._descriptor, data, self.size)
        self.size += len(data)


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
