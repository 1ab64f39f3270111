"""Flushes the CommitLog in a thread, once for all waiting puts.

Under SYNC_FLUSH a put waits for the flush that covers it. While a flush runs, other puts gather,
and share the next one (upstream GroupCommitService). Under ASYNC_FLUSH the log is flushed at
intervals (upstream FlushRealTimeService). A flush that fails is the last one: what is on disk then
is unknown, and a second try could succeed without having written anything (upstream continues, and
answers PUT_OK).

The flush mark records how far the log is on disk. It is only a witness: a store opens without
it, and where it cannot be written, as on a full disk, the old one stays, which says less, and
nothing wrong.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.counters import Histogram
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import explained, replace_file, write_all
from rmqstore_spark.files.names import FLUSH_MARK_NAME, OWN_FOLDER
from rmqstore_spark.layout.checkpoint import FLUSH_MARK_SIZE, FlushMark

_log = logging.getLogger(__name__)


class FlushService:
    """Flushes a log. Thread-safe.

    Args:
        log: the log.
        checkpoint: records the storeTimestamp up to which all messages are on disk.
        config: the interval.
        health: fails with the error that ended flushing.
    """

    def __init__(
        self,
        log: CommitLogWriter,
        checkpoint: CheckpointKeeper,
        config: StoreConfig,
        health: Health,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._interval = config.flush_interval_commit_log / 1000
        self._health = health
        self.latency = Histogram()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[tuple[int, threading.Lock]] = []  # (offset, gate)
        # Wakes a single thread: a lock costs far less than a condition.
        self._bell = _closed_gate()
        self._closing = False
        self._failure: StoreWriteError | None = None
        self._thread = threading.Thread(target=self._run, name="rmqstore-flush", daemon=True)
        self._thread.start()

    def wait(self, offset: int, timeout: float) -> bool:
        """Wait until the log is on disk up to an offset.

        Args:
            offset: physical offset.
            timeout: seconds.

        Returns:
            Whether the log was flushed in time.

        Raises:
            StoreWriteError: flushing has failed permanently.
        """
        with self._lock:
            if not self._is_decided(offset):
                mine = offset, _closed_gate()
                self._waiting.append(mine)
                self._ring()
            else:
                mine = None
        if mine is not None and not mine[1].acquire(timeout=timeout):
            with self._lock, suppress(ValueError):  # `_wake` may just have removed it
                self._waiting.remove(mine)
        if self._log.flushed_offset >= offset:
            return True
        if self._failure is not None:
            raise self._failure
        return False

    def flush(self) -> int:
        """Flush now, in the calling thread.

        Returns:
            The physical offset up to which the log is on disk.

        Raises:
            StoreWriteError: the flush failed, now or before.
        """
        with self._turn:
            if self._failure is not None:
                raise self._failure
            timestamp = self._log.last_timestamp
            begin = time.monotonic()
            try:
                flushed = self._log.flush()
                assert self._log.min_offset <= flushed <= self._log.max_offset, (
                    f"a flush up to {flushed} does not end within the log, which has "
                    f"{self._log.min_offset} to {self._log.max_offset}"
                )
            except StoreWriteError as error:
                self._failure = error
                self._health.fail(error)
                raise
            except AssertionError as error:
                self._failure = self._health.fail_wrong_state(error)
                raise self._failure from error
            finally:
                self._wake()
            self.latency.observe(time.monotonic() - begin)
            if flushed > self._log.min_offset:  # else no message has this time
                self._checkpoint.advance(physic=timestamp)
            return flushed

    def lower_time(self, timestamp: int) -> None:
        """Let records with times before those in the log follow, as from a clock that went back.

        The checkpoint says that all messages up to a time are on disk. So its times are lowered
        first, on disk too.

        Args:
            timestamp: milliseconds; no record that follows has an earlier one.

        Raises:
            StoreWriteError: the checkpoint could not be written.
        """
        with self._turn:
            self._log.last_timestamp = timestamp
            self._checkpoint.lower(timestamp)
            self._checkpoint.write()

    def close(self) -> None:
        """Stop the thread, without another flush."""
        with self._lock:
            self._closing = True
            self._ring()
        self._thread.join()

    # ---- parts ---------------------------------------------------------------------------------

    def _is_decided(self, offset: int) -> bool:
        return self._log.flushed_offset >= offset or self._failure is not None

    def _ring(self) -> None:
        """Wake the thread. The caller holds the lock."""
        if self._bell.locked():
            self._bell.release()

    def _wake(self) -> None:
        """Wake the puts that need not wait any longer."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if self._is_decided(one[0]):
                    one[1].release()
                else:
                    self._waiting.append(one)

    def _run(self) -> None:
        while True:
            rang = self._bell.acquire(timeout=self._interval)
            if self._closing or self._failure is not None:
                return
            if self._waiting if rang else self._is_due():
                try:
                    self.flush()
                except StoreWriteError:
                    return
                except Exception as error:  # noqa: BLE001 - else flushing would end unnoticed
                    self._failure = StoreWriteError(f"the CommitLog could not be flushed: {error}")
                    self._health.fail(self._failure)
                    self._wake()
                    return

    def _is_due(self) -> bool:
        return self._log.max_offset > self._log.flushed_offset


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


class FlushMarkKeeper:
    """Writes the flush mark of a store. The methods belong to one thread at a time.

    Args:
        store: the store directory.
        segment_size: bytes of a segment.
    """

    def __init__(self, store: str, segment_size: int) -> None:
        self._path = os.path.join(store, OWN_FOLDER, FLUSH_MARK_NAME)
        self._segment_size = segment_size
        self._descriptor = -1

    def begin(self, offset: int) -> None:
        """Set the mark durably, also to a lower offset than before, and keep the file open.

        Args:
            offset: physical offset at which the recovered log ends.

        Raises:
            StoreWriteError: the mark on disk lies after the offset, and cannot be replaced.
        """
        before = load_mark(self._path)
        mark = FlushMark(offset, self._segment_size)
        try:
            if before != mark:
                replace_file(self._path, mark.encode())
            with explained(self._path, "opened"):
                flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags)
        except StoreWriteError as error:
            if before is not None and before.offset > offset:
                raise
            self._give_up(error)

    def advance(self, offset: int) -> None:
        """Write that the log is on disk up to an offset."""
        if self._descriptor < 0:
            return
        try:
            with explained(self._path, "written"):
                write_all(self._descriptor, FlushMark(offset, self._segment_size).encode(), 0)
        except StoreWriteError as error:
            self.close()
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: StoreWriteError) -> None:
        _log.warning(
            "%s Until the next start nothing records how far the log is flushed. If its end is "
            "lost after a kill, less shows that.",
            error,
        )


def load_mark(path: str) -> FlushMark | None:
    """Return the flush mark in a file; None if there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            return FlushMark.decode(file.read(FLUSH_MARK_SIZE + 1))
    except OSError:
        return None
