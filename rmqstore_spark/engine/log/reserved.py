"""A block that is written beyond the end of the log while others append before it.

The bytes of a large batch take long to write and to flush. They get a place ahead of the log's
end, with some room before it. Puts go into that room, so the log ends before the block for every
reader and for recovery, whatever of the block is on disk. Publishing fills up what is left of the
room, and shows the block (`CommitLogWriter.publish_reserved`).

The block is written through descriptors of its own, by one thread and without the append lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.open_segments import write_chunks, zeros_backwards
from rmqstore_spark.engine.log.placement import Placement, blank_head, pieces_to_write
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.files.durable import explained, start_write_back, sync_data
from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.fields import MAGIC_PLACE, MIN_RECORD_SIZE
from rmqstore_spark.layout.spans import I8, U1

_OPEN_FILES: Final = 8


class ReservedBlock:
    """A block beyond the log's end. Its segments exist when it is written.

    Args:
        files: the files of the log's segments.
        begin: physical offset where the block begins.
        limit: physical offset up to which others may append.

    Attributes:
        begin, limit: these.
        over: set when the block is published or given up.
        hidden_at: physical offset of the record whose magic code is zero; -1 before `hide`.
        magic: its magic code.
    """

    def __init__(self, files: SegmentFiles, begin: int, limit: int) -> None:
        self._files = files
        self._open: dict[int, int] = {}
        self.begin = begin
        self.limit = limit
        self.over = threading.Event()
        self.hidden_at = -1
        self.magic = b""

    def hide(self, placement: Placement, data: U1, start: int) -> None:
        """Write the head of the block's first record with a zero magic code, before the rest.

        Args:
            placement: of the block's first portion.
            data: uint8, the bytes of that portion; the first record's magic is zeroed in it.
            start: where that record starts in it.

        Raises:
            StoreWriteError: the write failed: `erase` the portion.
        """
        assert placement.begin == self.begin, (
            f"a batch was placed at {placement.begin}, and {self.begin} is reserved for it"
        )
        self.hidden_at = int(placement.physical[0])
        magic = data[start:][MAGIC_PLACE]
        self.magic = magic.tobytes()
        magic[:] = 0
        if placement.begin in placement.blanks:
            self._write(placement.begin, [blank_head(placement.begin, self._files.size)])
        self._write(self.hidden_at, [data[start : start + MIN_RECORD_SIZE].data])

    def write(self, placement: Placement, data: U1, starts: I8) -> None:
        """Write a portion after the head that hides it, later segments first.

        The disk begins to write it at once, so that the flush of the block has less to wait for.

        Args:
            placement: of this portion.
            data: uint8, its bytes.
            starts: n offsets into it.

        Raises:
            StoreWriteError: the write failed: `erase` this portion and those written before.
        """
        pieces = list(pieces_to_write(placement, data, starts, self._files.size))
        for at, chunks in reversed(pieces):
            self._write(at, chunks)
        for piece in placement.pieces:
            at = piece.begin % self._files.size
            start_write_back(self._descriptor(piece.begin - at), at, piece.end - piece.begin)

    def erase(self, placement: Placement) -> None:
        """Overwrite with zeros what was written of a placement.

        Raises:
            StoreWriteError: the write failed.
        """
        for piece in reversed(placement.pieces):
            for at, zeros in zeros_backwards(piece.begin, piece.end):
                self._write(at, [zeros])
        for at in reversed(placement.blanks):
            self._write(at, [bytes(BLANK_SIZE)])

    def flush(self) -> None:
        """Flush the block.

        Raises:
            StoreWriteError: the flush failed. It is unknown what is on disk.
        """
        reach("flush.before_sync")
        with explained(self._files.folder, "flushed"):
            for start in sorted(self._open):
                sync_data(self._open[start])

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _write(self, at: int, chunks: Sequence[memoryview | bytes]) -> None:
        write_chunks(self._descriptor(at - at % self._files.size), self._files, at, chunks)

    def _descriptor(self, start: int) -> int:
        descriptor = self._open.get(start)
        if descriptor is None:
            if len(self._open) >= _OPEN_FILES:
                self.flush()
                self.close()
            descriptor = self._open[start] = self._files.open(start)
        return descriptor
