"""Appends to the CommitLog.

    commitlog/{20 digits}      segments of one size, named by the physical offset of byte 0

See docs/format.md, "A CommitLog record" (upstream: CommitLog, MappedFileQueue). The log is the
source of truth of a store: queues and index are built from it. Records are written with one
`pwrite` per batch and segment. Bytes after `max_offset` are not part of the log. After a crash,
recovery walks the log and cuts it after the last whole record.

`write` and the other methods that change the log belong to one thread at a time (the
store's append lock). `flush`, `expect` and the offsets may be used from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakSet

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.engine.log.open_segments import OpenSegments
from rmqstore_spark.engine.log.placement import Placement, blank_head, pieces_to_write
from rmqstore_spark.engine.log.published_end import PublishedEnd
from rmqstore_spark.engine.log.reserved import ReservedBlock
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import sync_folder
from rmqstore_spark.layout.constants import BLANK_SIZE
from rmqstore_spark.layout.fields import MAGIC_AT, MAGIC_PLACE
from rmqstore_spark.layout.record.filler import MIN_FILLER, fillers
from rmqstore_spark.layout.spans import I8, U1


class SegmentHolder(Protocol):
    """Holds segments of a log open."""

    def let_go(self) -> None:
        """Close a segment that has expired: its bytes take room until nobody has it open."""


class CommitLogWriter:
    """Appends records to a recovered log.

    Args:
        files: the files of its segments.
        min_offset: physical offset of its first byte.
        max_offset: physical offset of its end; everything before it is on disk.
        last_timestamp: the attribute's first value.
        on_flushed: called with each new `flushed_offset`, before anybody else learns it.

    Attributes:
        segment_size: bytes of a segment.
        min_offset: physical offset of the log's first byte.
        published: where the log ends for readers.
        made_until: physical offset at which the last existing segment ends.
        last_timestamp: a storeTimestamp in ms that no message in the log exceeds; 0 for an empty
            log. The appender advances it.
        reserved: the block that is being written beyond the log's end, if there is one.
        lead: bytes before each record: those of the header of a DLedger entry.
        term: the term in which this store leads its group and takes records; None without a group.
    """

    lead = 0

    def __init__(
        self,
        files: SegmentFiles,
        min_offset: int,
        max_offset: int,
        last_timestamp: int = 0,
        on_flushed: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._files = files
        self.segment_size = files.size
        self.min_offset = min_offset
        self.last_timestamp = last_timestamp
        self.published = PublishedEnd(max_offset)
        self._segments = OpenSegments(files, self.published, on_flushed)
        self.made_until = _existing_end(files, max_offset)
        self._holders: WeakSet[SegmentHolder] = WeakSet()
        self._adding = threading.Lock()
        self._making = threading.Lock()
        self._is_closed = False
        self._hidden_at = 0
        self._hidden_magic = b""
        self.reserved: ReservedBlock | None = None
        self.term: LeaderTerm | None = None

    @property
    def end(self) -> int:
        """The physical offset at which the next records are placed."""
        return self.published.offset

    @property
    def max_offset(self) -> int:
        """The physical offset at which the log ends."""
        return self.published.offset

    @property
    def flushed_offset(self) -> int:
        """The physical offset up to which the log is known to be on disk."""
        return self._segments.flushed_offset

    @property
    def failure(self) -> StoreWriteError | None:
        """The flush that failed, if one did. Since then it is unknown what is on disk."""
        return self._segments.failure

    @property
    def lacking(self) -> StoreWriteError | None:
        """Why the next segment could not be created when it was needed; None once it exists."""
        return self._files.lacking

    def segment_path(self, start: int) -> str:
        """Return the path of the segment that begins at a physical offset."""
        return self._files.path(start)

    def unit_start(self, offset: int) -> int:
        """Return where what a record is in begins: the record itself."""
        return offset

    def retry_segment(self) -> None:
        """Try again to create a missing segment; returns at once. For any thread."""
        self._files.retry()

    # ---- appending -----------------------------------------------------------------------------

    def expect(self, size: int) -> None:
        """Start to create the next segment if so many more bytes will need it; returns at once.

        For any thread.
        """
        if self.published.offset + size > self.made_until:
            self._files.prepare()

    def reserve_until(self, end: int) -> None:
        """Create the missing segments up to a physical offset. For any thread.

        Nothing is created once the log is closed.

        Raises:
            StoreWriteError: a segment cannot be created, as on a full disk, and nothing was
                written. If `failure` is set then, earlier writes could not be flushed.
        """
        with self._making:
            while self.made_until < end and not self._is_closed:
                start = self.made_until
                self._segments.create(start)
                self.made_until = start + self.segment_size

    def write(self, placement: Placement, data: U1, starts: I8) -> None:
        """Write records at their places. They belong to the log when this returns.

        Args:
            placement: places of all records from the log's end on, reserved.
            data: uint8, the bytes of the records.
            starts: n offsets into it; the records are contiguous.

        Raises:
            StoreWriteError: the records could not be written; the log is as it was before. `errno`
                is -1 if the part that was written could not be erased.
        """
        self._require_next(placement)
        try:
            for at, chunks in pieces_to_write(placement, data, starts, self.segment_size):
                self._segments.write(at, chunks)
        except StoreWriteError as error:
            self._take_back(placement, error)
            raise
        self._advance(placement.end)

    @property
    def room(self) -> int:
        """Bytes that may follow the log's end in its segment, before what is reserved."""
        at = self.published.offset
        limit = min(at - at % self.segment_size + self.segment_size - BLANK_SIZE, self.made_until)
        if self.reserved is not None:
            limit = min(limit, self.reserved.limit)
        return limit - at

    def write_single(self, at: int, data: bytearray | U1) -> None:
        """Write a record that was placed at the log's end, where it has `room`; see `write`."""
        assert at == self.published.offset, (
            f"records were placed at {at}, but the log ends at {self.published.offset}"
        )
        assert len(data) <= self.room, f"a record of {len(data)} bytes has no room at {at}"
        try:
            self._segments.write_one(at, data)
        except StoreWriteError as error:
            try:
                self._segments.erase(at, at + len(data))
            except StoreWriteError:
                error.errno = -1
            raise
        self._advance(at + len(data))

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at a physical offset, which must be the first of a segment."""
        assert self.min_offset == self.published.offset, (
            f"a log that holds {self.min_offset} to {self.published.offset} cannot begin elsewhere"
        )
        assert offset % self.segment_size == 0, f"no segment begins at {offset}"
        with self._making:
            self.made_until = self.min_offset = offset
        self.published.move(offset)
        self._segments.flushed_offset = offset

    def copy(self, data: U1) -> None:
        """Append records and blanks of another log, of which this one is a copy, as they are.

        Args:
            data: uint8, whole records and blanks, with the places that they get here; reserved.

        Raises:
            StoreWriteError: the bytes could not be written; otherwise as `write`.
        """
        self._copy(data, self.published.offset)
        self._advance(self.published.offset + len(data))

    def copy_hidden(self, data: U1, at: int) -> None:
        """Write bytes of another log as a block that is hidden until `publish`.

        Args:
            data: uint8, whole records and blanks, with the places that they get here; reserved.
            at: physical offset of the first byte. At the log's end, the block begins with it.

        Raises:
            StoreWriteError: the bytes could not be written; otherwise as `write`.
        """
        if at == self.published.offset:
            self._hidden_at = at
            data = data.copy()
            magic = data[MAGIC_PLACE]
            self._hidden_magic = magic.tobytes()
            magic[:] = 0
        assert at == self._hidden_at or at > self._hidden_at == self.published.offset, (
            f"hidden bytes at {at} do not follow a hidden head at the log's end, {self.max_offset}"
        )
        self._copy(data, at)
        for begin, end in self._pieces(at, len(data)):
            self._segments.start_write_back(begin, end)

    def erase_hidden(self, end: int) -> None:
        """Erase what `copy_hidden` has written. That is on disk after the next `flush`.

        Args:
            end: physical offset of the byte after it.

        Raises:
            StoreWriteError: a segment could not be removed or written.
        """
        self.remove_unused()
        self._segments.erase(self.published.offset, min(end, self.made_until))

    def _copy(self, data: U1, at: int) -> None:
        pieces = list(self._pieces(at, len(data)))
        try:
            for begin, end in pieces:
                source = data[begin - at : end - at]
                self._segments.write(begin, [source.data])
        except StoreWriteError as error:
            try:
                for begin, end in reversed(pieces):
                    self._segments.erase(begin, end)
            except StoreWriteError:
                error.errno = -1
            raise

    def _pieces(self, at: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the part in each segment of a number of bytes of the log."""
        end = at + size
        while at < end:
            stop = min(end, at - at % self.segment_size + self.segment_size)
            yield at, stop
            at = stop

    # ---- blocks that become visible as a whole (docs/format.md, "A block that is not published
    # yet")

    def reserve(self, room: int) -> ReservedBlock:
        """Reserve a place for a block beyond the log's end, after room for other records.

        Until it is published or given up, other records go into that room only.

        Args:
            room: bytes of the room, about. If they are too few for a filler, there is none.
        """
        assert self.reserved is None, "two blocks are to be written beyond the log's end"
        assert room >= 0, f"a block is to be written {-room} bytes before the log's end"
        begin = limit = self.published.offset
        if room >= 2 * MIN_FILLER:  # else it could not be filled up
            begin += room
            crossed, left = begin % self.segment_size, -begin % self.segment_size
            if crossed <= room // 2:  # the rest of a segment needs no filling up
                begin -= crossed
            elif left < BLANK_SIZE:  # and has room for a blank
                begin += left
            limit = max(begin - MIN_FILLER, limit)
        self.reserved = ReservedBlock(self._files, begin, limit)
        return self.reserved

    def publish_reserved(self, block: ReservedBlock, end: int, store_timestamp: int) -> None:
        """Make a reserved block part of the log at once. All of it must have been flushed.

        This change is on disk after the next `flush`.

        Args:
            block: the block.
            end: where the log ends then.
            store_timestamp: storeTimestamp of what fills up the room before it.

        Raises:
            StoreWriteError: the write failed. It is unknown whether the block is visible after a
                crash.
        """
        assert any(block.magic), "there is no hidden block to publish"
        at = self.published.offset
        assert at <= block.begin <= block.hidden_at < end, (
            f"a block from {block.begin} to {end} does not follow the log's end, {at}"
        )
        segment = block.begin - block.begin % self.segment_size
        if at < segment:
            self._segments.write(at, [blank_head(at, self.segment_size)])
            at = segment
        for place, data in fillers(at, block.begin, store_timestamp):
            self._segments.write(place, [data])
        reach("commit.after_filler")
        self._segments.write(block.hidden_at + MAGIC_AT, [block.magic])
        self.published.block = block.begin, end
        self._advance(end)
        self._release(block)

    def give_up(self, block: ReservedBlock) -> None:
        """Let other records be appended in place of a reserved block, of which nothing is left.

        Raises:
            StoreWriteError: a segment that was created for it could not be removed.
        """
        self._release(block)
        self.remove_unused()

    def _release(self, block: ReservedBlock) -> None:
        assert block is self.reserved, "a block is released that is not reserved"
        self.reserved = None
        block.over.set()

    def publish(self, end: int) -> None:
        """Make a hidden block part of the log at once. All of it must have been flushed.

        This change is on disk after the next `flush`.

        Args:
            end: where the log ends then.

        Raises:
            StoreWriteError: the write failed. It is unknown whether the block is visible after a
                crash.
        """
        assert any(self._hidden_magic), "there is no hidden block to publish"
        assert self.published.offset <= self._hidden_at < end, (
            f"a block from {self._hidden_at} to {end} does not follow the log's end, "
            f"{self.published.offset}"
        )
        self._segments.write(self._hidden_at + MAGIC_AT, [self._hidden_magic])
        self._hidden_magic = b""
        self._advance(end)

    # ---- flushing ------------------------------------------------------------------------------

    def flush(self) -> int:
        """Flush the log and its hidden bytes.

        Returns:
            The physical offset up to which the log is on disk now.

        Raises:
            StoreWriteError: the flush failed. From then on it is unknown what is on disk: a second
                try could succeed without having written anything.
        """
        return self._segments.flush()

    def remove_unused(self) -> None:
        """Remove the segments that lie wholly after the log's end, the last one first.

        One whose name could not be flushed lies beyond `made_until`. Left there, it would have no
        neighbour, and the next start would refuse the log.

        Raises:
            StoreWriteError: a segment could not be removed.
        """
        start = -(-self.published.offset // self.segment_size) * self.segment_size
        with self._making:
            end = max(self.made_until, _existing_end(self._files, self.made_until))
            removed = range(start, end, self.segment_size)
            if not removed:
                return
            for unused in reversed(removed):
                self._segments.remove(unused)
                self.made_until = unused
            sync_folder(self._files.folder)

    def expire(self, start: int) -> None:
        """Remove the log's first segment durably; the log begins at the next one.

        Args:
            start: physical offset of its first byte. It is not the last segment, and is flushed.

        Raises:
            StoreWriteError: the segment could not be removed, or its folder not be flushed.
        """
        assert start == self.min_offset, (
            f"the segment at {start} cannot expire: the log begins at {self.min_offset}"
        )
        assert start + self.segment_size <= self.flushed_offset, (
            f"the segment at {start} cannot expire: the log is on disk up to "
            f"{self.flushed_offset} only"
        )
        self._segments.remove(start)
        self._begins_at(start + self.segment_size)  # whether or not its name can be flushed
        reach("expiry.after_remove")
        sync_folder(self._files.folder)

    def _begins_at(self, offset: int) -> None:
        """Note that the log has lost its first segment."""
        self.min_offset = offset
        with self._adding:
            holders = list(self._holders)
        for holder in holders:
            holder.let_go()

    def tell_of_expiry(self, holder: SegmentHolder) -> None:
        """Tell an object of each segment that expires, for as long as the object exists."""
        with self._adding:
            self._holders.add(holder)

    def close(self) -> None:
        """Close all files, and remove segments that were created and never written to."""
        with self._making:
            self._is_closed = True
        self._files.close()
        self.remove_unused()
        self._segments.close()

    # ---- parts ---------------------------------------------------------------------------------

    def _require_next(self, placement: Placement) -> None:
        """Stop if records would not follow the log's end, or have no segments."""
        assert placement.begin == self.published.offset, (
            f"records were placed at {placement.begin}, but the log ends at {self.published.offset}"
        )
        assert placement.end <= self.made_until, (
            f"records up to {placement.end} have segments up to {self.made_until} only"
        )
        assert self.reserved is None or placement.end <= self.reserved.limit, (
            f"records up to {placement.end} reach into a block that is being written"
        )

    def _advance(self, end: int) -> None:
        assert self.published.offset <= end <= self.made_until, (
            f"the log cannot end at {end}: it ended at {self.max_offset}, and has segments up to "
            f"{self.made_until}"
        )
        self.published.move(end)
        if end % self.segment_size > self.segment_size // 2:
            self._files.prepare()
        self._segments.close_finished()

    def _take_back(self, placement: Placement, error: StoreWriteError) -> None:
        try:
            self._erase(placement)
        except StoreWriteError:
            error.errno = -1

    def _erase(self, placement: Placement) -> None:
        assert placement.begin >= self.published.offset, (
            f"bytes from {placement.begin} on cannot be erased: the log ends at {self.max_offset}"
        )
        for piece in reversed(placement.pieces):
            self._segments.erase(piece.begin, piece.end)
        for at in reversed(placement.blanks):
            self._segments.erase(at, at + BLANK_SIZE)


def _existing_end(files: SegmentFiles, max_offset: int) -> int:
    """Return the offset at which the last existing segment ends."""
    end = -(-max_offset // files.size) * files.size
    while os.path.exists(files.path(end)):
        end += files.size
    return end
