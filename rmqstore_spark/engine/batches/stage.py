"""Holds one task attempt's records, until a commit moves them into the log.

They are held in memory (`held`) while there is some that stages may use (`stagingMemoryBytes`), and
in files beside the log (`spilled`) after that. One stage can have portions of both kinds.

Blocks are checked and their keys hashed on receipt, while they are in the processor's cache, so a
commit need not look at them again. Nothing outlives the process: a commit that misses a stage is
refused, and Spark replays the batch.

Locking: each stage has a lock over its portions. The lock of `Staging` may be taken inside it,
never the other way round.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import StageInfo
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.batches.held import HeldPortion, StagingMemory
from rmqstore_spark.engine.batches.spilled import SpareFiles, SpilledPortion, SpillFiles
from rmqstore_spark.engine.batches.staged_records import KEY_DTYPE, ROW_DTYPE, StagedBlock
from rmqstore_spark.engine.counters import Failures
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.record.block import (
    Block,
    Route,
    add_up,
    body_sizes,
    digest_text,
    index_hashes,
)
from rmqstore_spark.layout.spans import I4, U1


class StageRoom(Protocol):
    """What a stage needs of `Staging`.

    Attributes:
        indexed: whether the store keeps an index.
        memory: the memory that all stages share.
        spares: files that new stages write over.
        failures: counts blocks that were not staged.
        clock: returns the time in milliseconds.
    """

    indexed: bool
    memory: StagingMemory
    spares: SpareFiles
    failures: Failures
    clock: Callable[[], int]

    def reserve(self, stage: Stage, count: int) -> None:
        """Count bytes that are about to be staged; raises RefusedError if they are too many."""
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
        portions: the portions so far, in the order of the records; none once it is removed.
        touched: time of the last write, milliseconds.
        finished: whether it takes no more records.
        topics: the rows of each topic; a delayed message counts for the one it is due in.
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
        self.portions: list[HeldPortion | SpilledPortion] = []
        self.touched = room.clock()
        self.finished = False
        self.topics: Counter[str] = Counter()
        self._room = room
        self._admission = admission
        self._folder = folder
        self._lock = threading.Lock()
        self._numbers: dict[Route, int] = {}
        self._rows = self._bytes = self._body_bytes = self._checksum = 0
        self._sums = (0, 0)
        self._closed_because = ""
        self._files = SpillFiles(folder, room.spares)

    def room(self, size: int) -> U1:
        """Return uint8[size] for a block to append, from the memory of stages.

        Raises:
            MemoryError: the system has no memory for it.
        """
        return self._room.memory.block(size)

    def append(self, data: U1, *, given: bool = False) -> int:
        """Append a block of encoded records: all of it or nothing.

        Args:
            data: uint8, contiguous records.
            given: nobody uses the array any more, so the stage may keep it instead of a copy.

        Returns:
            The number of records in the stage.

        Raises:
            BlockError: a record is invalid.
            RefusedError: the stage is closed, or would be too large; or it could not be written,
                and is removed.
        """
        with self._room.failures.counting():
            return self._append(data, given)

    def _append(self, data: U1, is_given: bool) -> int:
        # A long stage must not fill the disk. Topics are created when it is committed.
        given = self._admission.check_clients(data, creates=False, digested=True)
        sums = add_up(self._sums, given)  # as it was given: a replay can find other delay levels
        block = self._admission.scheduled(given) if given.delayed else given
        keys = self._hashed(block)
        bodies = int(body_sizes(block).sum(dtype=np.int64))
        with self._lock:
            self._require_open()
            rows = np.empty(len(block), ROW_DTYPE)
            self._room.reserve(self, len(block.data) + rows.nbytes + keys.nbytes)
            rows["size"], rows["tagsCode"] = block.sizes, block.tags_code
            routes = self._route_numbers(block)[block.route_of]
            rows["route"] = np.where(block.queued, routes, ~routes)
            reach("stage.before_write")
            try:
                self._add(StagedBlock(block.data, rows, keys), is_given)
            except OSError as error:
                why = f"discarded because it could not be written: {error.strerror}"
                self._close(f"it was {why}")
                self._room.forget(self, why)
                text = (
                    f"The stage {self.stage_id} was {why} ({self._folder}). Nothing of it is in "
                    "the store: make room, and write the batch again."
                )
                raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE) from error
            self._body_bytes += bodies
            self._sums = sums
            self._count_topics(given)
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
            self.stage_id,
            self._rows,
            self._bytes,
            self._body_bytes,
            self._checksum,
            digest_text(self._sums),
        )

    def remove(self, because: str) -> None:
        """Close and delete the stage. The caller removes it from the table of stages."""
        with self._lock:
            self._close(because)

    def _close(self, because: str) -> None:
        if self._closed_because:
            return
        self._closed_because = because
        for portion in self.portions:
            portion.release()
        self.portions = []
        self._files.remove()

    def _require_open(self) -> None:
        why = self._closed_because or ("it is finished" if self.finished else "")
        if why:
            text = f"The stage {self.stage_id} accepts no records: {why}."
            raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL)

    def _route_numbers(self, block: Block) -> I4:
        """Return the block's routes as numbers of the stage's table."""
        for route in block.routes:
            if route not in self._numbers:
                self._numbers[route] = len(self.routes)
                self.routes.append(route)
        return np.array([self._numbers[route] for route in block.routes], np.int32)

    def _count_topics(self, block: Block) -> None:
        counts = np.bincount(block.route_of, minlength=len(block.routes))
        for route, count in zip(block.routes, counts.tolist(), strict=True):
            self.topics[route.topic] += count

    def _hashed(self, block: Block) -> npt.NDArray[np.void]:
        """Return the keys of a block, with the block's row numbers."""
        if not self._room.indexed:
            return np.empty(0, KEY_DTYPE)
        hashes, rows = index_hashes(block.data, block.starts, block.sizes)
        keys = np.empty(len(hashes), KEY_DTYPE)
        keys["hash"], keys["row"] = hashes, rows
        return keys

    def _add(self, block: StagedBlock, is_given: bool) -> None:
        """Add a block: to the last portion if that has room, else to portions of its own."""
        for piece in block.pieces():
            if not (self.portions and self.portions[-1].append(piece)):
                is_whole = is_given and piece is block
                held = HeldPortion.try_hold(self._room.memory, piece, given=is_whole)
                self.portions.append(held or SpilledPortion(self._files, piece))
            size = len(piece.records)
            self._checksum = isal_zlib.crc32_combine(self._checksum, piece.checksum, size)
            self._rows += len(piece.rows)
            self._bytes += size
