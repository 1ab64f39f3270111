"""The outcome of a put, in RocketMQ's terms (`PutMessageStatus`, `ResponseCode`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import I8

__all__ = ["STATES", "PutResult", "PutStatus"]

STATES: Final = ("RUNNING", "DISK_FULL", "SLAVE", "READ_ONLY", "FAILED", "CLOSED")
"""The states of a store. It accepts messages only in the first one. READ_ONLY is the state of one
that another process writes."""


class PutStatus(str, Enum):
    """The outcome of a put. `is_stored` says whether the messages are in the log."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGECACHE_BUSY = "OS_PAGECACHE_BUSY"
    TOPIC_NOT_EXIST = "TOPIC_NOT_EXIST"
    NO_PERMISSION = "NO_PERMISSION"

    def __str__(self) -> str:
        return self.value

    @property
    def is_stored(self) -> bool:
        """Whether the messages are in the log, if perhaps not on disk or at a slave yet."""
        return self in (
            PutStatus.PUT_OK,
            PutStatus.FLUSH_DISK_TIMEOUT,
            PutStatus.FLUSH_SLAVE_TIMEOUT,
            PutStatus.SLAVE_NOT_AVAILABLE,
        )

    @property
    def is_transient(self) -> bool:
        """Whether the same put may succeed a little later."""
        return self in (
            PutStatus.OS_PAGECACHE_BUSY,
            PutStatus.CREATE_MAPEDFILE_FAILED,
            PutStatus.SERVICE_NOT_AVAILABLE,
        )


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class PutResult:
    """The outcome of a put of n messages: all of them are stored, or none.

    Attributes:
        status: the outcome.
        rows: n; 0 if nothing is stored.
        physical_offset: n, where each record starts in the log.
        queue_offset: n, each message's offset in its queue.
        remark: why the put failed, and what to do; empty for PUT_OK.
        end_offset: where the log ended after the last message.
        store_host: address and port in the records.
        is_open: the store failed while the messages were being written to disk. Only its next
            opening shows whether they are in the log. If put again, they may be stored twice.
    """

    status: PutStatus
    rows: int = 0
    physical_offset: I8 = field(default_factory=_NONE.copy)
    queue_offset: I8 = field(default_factory=_NONE.copy)
    remark: str = ""
    end_offset: int = 0
    store_host: bytes = b""
    is_open: bool = False

    @property
    def ok(self) -> bool:
        """Whether the status is PUT_OK."""
        return self.status is PutStatus.PUT_OK

    def with_status(self, status: PutStatus, remark: str, *, is_open: bool = False) -> PutResult:
        """Return a result for the same messages with another outcome."""
        return replace(self, status=status, remark=remark, is_open=is_open)

    def of_row(self, row: int) -> PutResult:
        """Return the outcome of one message; the whole result if at most one is stored."""
        if self.rows <= 1:
            return self
        return PutResult(
            self.status,
            1,
            self.physical_offset[row : row + 1],
            self.queue_offset[row : row + 1],
            self.remark,
            self.end_offset,
            self.store_host,
            self.is_open,
        )

    def msg_ids(self) -> list[str]:
        """Return the offset message id of each message."""
        host = self.store_host.hex().upper()
        return [f"{host}{at:016X}" for at in self.physical_offset.tolist()]
