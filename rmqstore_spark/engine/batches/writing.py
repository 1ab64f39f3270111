"""Writes a Spark batch to the log: all of it becomes visible at once, or nothing does.

    under the append lock:   reserve the block's place, the queues' offsets and a time
    without it:              place the records, and the marker after them -> write hidden -> flush
    until its time is later than all that was put before it:
        without the lock:    write it again with another time -> flush
    under the append lock:   fill up the room before the block -> publish its head
    without it:              flush -> queues and index

Others append before the block until it is published, and behind it after that. Small batches leave
no room, so others wait for them. Until the head is published, the log ends before the block, for
every reader and for a broker's recovery (`batch_block`). A write that fails earlier leaves the log,
the queues' offsets and the stages as they were. If publishing itself fails, the outcome is unknown:
the store accepts nothing more, and its next start finds out from what is on disk.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import Content, WriterId, topics_with_most_rows
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender
from rmqstore_spark.engine.append.commit import Commit
from rmqstore_spark.engine.batches.batch_block import BatchBlock
from rmqstore_spark.engine.batches.marker import MARKER_ROUTE, Committed, Marker, marker_body
from rmqstore_spark.engine.batches.stage import Stage
from rmqstore_spark.engine.batches.staging import Staging
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.log.flush import FlushService
from rmqstore_spark.engine.log.placement import TooLargeError
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.errors import RefusedError, StoreWriteError
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LARGE: Final = 8 << 20
"""Bytes of a batch that leaves room for others. To wait for a smaller one takes milliseconds."""
_ROOM_PART: Final = 64
"""The part of a batch's bytes that others certainly have room for."""
_MOST_ROOM: Final = 64 << 20
_FIRST_PACE: Final = 1 << 20


@dataclass(frozen=True)
class Written:
    """A batch that is on disk.

    Attributes:
        block: its records.
        committed: the commit.
        marker_offset: the offset of its marker in the markers' queue.
        begin: where the log ended before all that was appended since the commit began.
    """

    block: BatchBlock
    committed: Committed
    marker_offset: int
    begin: int


class BatchWriter:
    """Writes batches, one at a time.

    Args:
        store: the open store.
        staging: gets stages back of which nothing was appended.
        admission: checks the store's state, and the queues of a batch.
        appender, flusher: append to the log, and flush it.

    Attributes:
        puts_per_ms: bytes that others put in a millisecond, lately.
    """

    def __init__(
        self,
        store: OpenStore,
        staging: Staging,
        admission: Admission,
        appender: Appender,
        flusher: FlushService,
    ) -> None:
        self._log = store.log
        self._segment_size = store.log.segment_size
        self._host_text, self._host = store.config.host
        self._staging = staging
        self._admission = admission
        self._appender = appender
        self._flusher = flusher
        self.puts_per_ms = 0
        self._pace = _FIRST_PACE  # bytes in a millisecond of a large batch, until it is published

    def write(
        self, writer: WriterId, content: Content, stages: Sequence[Stage], identity: str
    ) -> Written:
        """Append stages, and the marker of their commit. Returns once they are on disk.

        Their portions are still read then, to put the records into queues and index: `finish`.

        Args:
            writer: who commits.
            content: what the stages hold.
            stages: claimed; they are given back if nothing was appended.
            identity: of the client.

        Raises:
            RefusedError: nothing was appended.
            StoreWriteError: it is unknown whether the batch will be in the log after a restart.
        """
        with ExitStack() as undo:
            undo.callback(self._staging.give_back, stages)
            commit = self._reserve(stages)
            undo.callback(self._give_up, commit)
            block = BatchBlock(commit, self._segment_size, self._host)
            undo.callback(block.close)
            undo.callback(self._take_back, block)
            begun = time.monotonic()
            with self._failing_if_wrong():
                committed, marker_offset = self._place(block, writer, content, stages, identity)
                self._write(block)
            self._learn_pace(block.bytes, begun)
            for renewed in count():
                if self._publish_in_time(commit, block, writer, undo):
                    break
                # More time each time: on a disk that gets slower, this must end too.
                span = _ms_since(begun) * (2 + renewed) // 2
                with self._appender.ending_commit():
                    commit = self._appender.renew_time(commit, span)
                begun = time.monotonic()
                with self._failing_if_wrong():
                    committed = replace(committed, time=commit.timestamp)
                    marker = self._marker(writer, content, stages, committed)
                    block.renew_time(commit.timestamp, marker)
                    self._write(block)
        self._flush_head(block, writer)
        return Written(block, committed, marker_offset, commit.begin)

    def finish(self, block: BatchBlock) -> None:
        """Wait for queues and index, which read the stages. If that fails, the next start does."""
        try:
            if self._appender.await_dispatched(block.end):
                reach("commit.after_dispatch")
        except StoreWriteError as error:
            self._admission.fail(error)
        finally:
            block.close()

    @contextmanager
    def _failing_if_wrong(self) -> Iterator[None]:
        """Let the store fail, as the append lock does, if an invariant does not hold."""
        try:
            yield
        except AssertionError as error:
            wrong = self._admission.health.fail_wrong_state(error)
            status = PutStatus.SERVICE_NOT_AVAILABLE
            raise RefusedError(str(wrong), status, is_open=True) from error

    def _reserve(self, stages: Sequence[Stage]) -> Commit:
        """Reserve the place of a block, with room before it for as much as is put meanwhile."""
        size = sum(stage.info.bytes for stage in stages)
        room = span = 0
        if size >= _LARGE:
            span = max(1, size // self._pace)
            put = self.puts_per_ms * span
            room = min(size // _ROOM_PART + 2 * put, _MOST_ROOM, self._segment_size // 4)
        routes = {route for stage in stages for route in stage.routes} | {MARKER_ROUTE}
        with self._appender.appending(patient=True):
            self._admission.check_state()
            return self._appender.begin_commit(routes, room, span)

    def _give_up(self, commit: Commit) -> None:
        """Let others append in place of a block that is not written, or erased."""
        if self._admission.failure is not None:
            return  # it may not be erased, and nothing is appended any more
        try:
            with self._appender.ending_commit():
                self._appender.give_up_commit(commit)
        except StoreWriteError as error:
            self._admission.fail(error)

    def _place(
        self,
        block: BatchBlock,
        writer: WriterId,
        content: Content,
        stages: Sequence[Stage],
        identity: str,
    ) -> tuple[Committed, int]:
        """Place the records of stages, and their marker.

        Returns:
            The commit, and the queue offset of its marker.
        """
        try:
            for stage in stages:
                block.add(stage)
            assert block.rows == content.rows, (
                f"{writer} has {content.rows} rows, and its stages hold {block.rows}"
            )
            # Creates topics, so it comes last. Where delayed messages wait is not for clients;
            # `Admission.scheduled` put them there.
            routes = (route for stage in stages for route in stage.routes)
            self._admission.check_routes([r for r in routes if r.topic != SCHEDULE_TOPIC])
            # A batch without rows begins where the log ends before its marker.
            begin = block.begin if block.rows else block.end
            kept = replace(content, topics=topics_with_most_rows(content.topics))
            size, stored = block.bytes, block.timestamp
            committed = Committed(writer.number, kept, size, begin, block.end, stored, identity)
            marker_offset = block.next_offsets[MARKER_ROUTE]
            block.add(self._marker(writer, content, stages, committed))
        except TooLargeError as error:
            text = f"{writer} cannot be committed: {error}."
            raise RefusedError(text, PutStatus.MESSAGE_ILLEGAL) from error
        return replace(committed, marker=block.last), marker_offset

    def _marker(
        self, writer: WriterId, content: Content, stages: Sequence[Stage], committed: Committed
    ) -> Marker:
        stored = committed.time
        assert stored is not None, "a batch that is written now has a time"
        ids = tuple(stage.stage_id for stage in stages)
        size, begin = committed.bytes, committed.physical_offset
        body = marker_body(writer, content, size, begin, stored, ids, committed.identity)
        return Marker(writer, body, self._host_text, stored)

    def _write(self, block: BatchBlock) -> None:
        """Write and flush the block, hidden. If that fails, erase what was written.

        Raises:
            RefusedError: the write or the flush failed.
        """
        try:
            with self._appender.appending(patient=True):
                self._appender.reserve_until(block.end)
            block.write()
            reach("commit.before_sync")
            block.flush()
            reach("commit.before_publish")
        except StoreWriteError as error:
            if error.errno not in _NO_ROOM or self._log.failure is not None:
                self._admission.fail(error)
            self._erase(block)
            text = f"Nothing was committed: {error}"
            raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE) from error

    def _take_back(self, block: BatchBlock) -> None:
        """Erase what was written of a block that is not published, unless the store has failed.

        Nothing more is written in a wrong state. The next start cuts the hidden block off.
        """
        if self._admission.failure is None:
            self._erase(block)

    def _erase(self, block: BatchBlock) -> None:
        try:
            if block.erase():
                block.flush()
        except StoreWriteError as error:
            self._admission.fail(error)
        except BaseException as error:
            # What is left would come back to life once other records end where it begins.
            text = f"a batch that was not committed could not be erased: {error!r}"
            self._admission.fail(StoreWriteError(text))
            raise

    def _learn_pace(self, size: int, begun: float) -> None:
        """Note how long the block of a batch took. Too late costs more than too early."""
        if size >= _LARGE:
            pace = size // _ms_since(begun)
            self._pace = max(1, min(pace, (self._pace + pace) // 2))

    def _publish_in_time(
        self, commit: Commit, block: BatchBlock, writer: WriterId, undo: ExitStack
    ) -> bool:
        """Make the block part of the log, unless its time is not later than that of others.

        Args:
            commit, block, writer: what is published.
            undo: what is to be done if it is not.

        Returns:
            Whether it is part of the log.
        """
        time.sleep(max(0, commit.time.due - time.monotonic()))
        # Room was enough for the block, so it is published whatever has become scarce since.
        with self._appender.ending_commit():
            self._admission.require_alive()
            if self._appender.is_overtaken(commit):
                return False
            undo.pop_all()
            self._publish(commit, block, writer)
        return True

    def _publish(self, commit: Commit, block: BatchBlock, writer: WriterId) -> None:
        """Make the block part of the log. Needs the append lock."""
        try:
            self._appender.publish_commit(commit, block.end, block.next_offsets, block.jobs())
            assert self._log.max_offset == block.end, (
                f"{writer} ends at {block.end}, and the log at {self._log.max_offset}"
            )
            reach("commit.after_publish")
        except BaseException as error:
            block.close()
            if isinstance(error, StoreWriteError):
                raise self._unknown(writer, error) from error
            if not isinstance(error, AssertionError):  # which the append lock takes care of
                self._admission.fail(StoreWriteError(f"{writer} is published in part: {error!r}"))
            raise

    def _flush_head(self, block: BatchBlock, writer: WriterId) -> None:
        """Flush the head of the published block."""
        try:
            self._flusher.flush()
            reach("commit.after_sync")
        except StoreWriteError as error:
            block.close()
            raise self._unknown(writer, error) from error

    def _unknown(self, writer: WriterId, error: StoreWriteError) -> StoreWriteError:
        self._admission.fail(error)
        return StoreWriteError(
            f"It is unknown whether {writer} was committed: {error} Restart the store "
            "process, then commit again: records that are in the log by then are not "
            "written twice."
        )


def _ms_since(begun: float) -> int:
    return max(1, round((time.monotonic() - begun) * 1000))
