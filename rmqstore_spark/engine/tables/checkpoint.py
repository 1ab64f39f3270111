"""The checkpoint of an open store: the times up to which its files are flushed.

It is rewritten in place, as a broker does. Its fields lie in one sector, so a power cut leaves the
old ones or the new ones. A store without a checkpoint is recovered from the beginning of the log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained, replace_file, write_all
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.checkpoint import CHECKPOINT_SIZE, Checkpoint


class CheckpointKeeper:
    """Holds a store's checkpoint and writes it. Thread-safe; only `reset` moves a time back.

    The times are storeTimestamps of published messages. Up to `physic`, all messages are flushed to
    the log. Up to `logics`, their queue entries are flushed. `index` is the time of the last
    message in the newest index file that is full and flushed.

    Args:
        store: the store directory.

    Attributes:
        value: the checkpoint that is written next.
        existed: whether the store has a readable checkpoint.
    """

    def __init__(self, store: str) -> None:
        self.path = os.path.join(store, "checkpoint")
        self._lock = threading.Lock()
        self.existed, self.value = _read(self.path)
        self._written = self.value
        self._limit: int | None = None

    def advance(self, *, physic: int = 0, logics: int = 0, index: int = 0) -> None:
        """Advance the times, in milliseconds. Values below the current ones are ignored."""
        self._change(max, physic, logics, index)

    def reset(self, *, physic: int, logics: int, index: int) -> None:
        """Set all times, as after a recovery that cut the log."""
        self._change(lambda _, given: given, physic, logics, index)

    def lower(self, timestamp: int) -> None:
        """Lower the times that are above one, in milliseconds."""
        self._change(min, timestamp, timestamp, timestamp)

    def hold(self, limit: int) -> None:
        """Write no time above a limit, in milliseconds, until `release`."""
        with self._lock:
            self._limit = limit

    def release(self) -> None:
        """Write all times again."""
        with self._lock:
            self._limit = None

    def _change(
        self, choose: Callable[[int, int], int], physic: int, logics: int, index: int
    ) -> None:
        with self._lock:
            old = self.value
            self.value = replace(
                old,
                physic_msg_timestamp=choose(old.physic_msg_timestamp, physic),
                logics_msg_timestamp=choose(old.logics_msg_timestamp, logics),
                index_msg_timestamp=choose(old.index_msg_timestamp, index),
            )

    def write(self) -> None:
        """Write the times to disk if any has changed.

        Raises:
            StoreWriteError: the file could not be written.
        """
        with self._lock:
            value = self.value if self._limit is None else _lowered(self.value, self._limit)
            if value == self._written and self.existed:
                return
            data = value.encode()
            if self.existed:
                _rewrite(self.path, data)
            else:
                replace_file(self.path, data)
            self._written, self.existed = value, True


def _lowered(value: Checkpoint, limit: int) -> Checkpoint:
    """Return a checkpoint whose times are not above a limit."""
    return replace(
        value,
        physic_msg_timestamp=min(value.physic_msg_timestamp, limit),
        logics_msg_timestamp=min(value.logics_msg_timestamp, limit),
        index_msg_timestamp=min(value.index_msg_timestamp, limit),
    )


def _read(path: str) -> tuple[bool, Checkpoint]:
    try:
        data = LocalFiles().read(path, 0, CHECKPOINT_SIZE)
        return len(data) == CHECKPOINT_SIZE, Checkpoint.decode(data, file=path)
    except (FileNotFoundError, CorruptStoreError):
        return False, Checkpoint()


def _rewrite(path: str, data: bytes) -> None:
    with explained(path, "written"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_all(descriptor, data, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
