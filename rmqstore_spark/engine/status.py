"""What becomes of a put, in RocketMQ's words (`PutMessageStatus`, `ResponseCode`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import I8

__all__ = ["STATES", "PutResult", "PutStatus"]

STATES: Final = ("RUNNING", "DISK_FULL", "SLAVE", "FAILED", "CLOSED")
"""What state a store can be in; it takes messages in the first one alone."""


class PutStatus(str, Enum):
    """The outcome of a put; `is_stored` tells whether the messages are in the log."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
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
        """Whether the messages are in the log (FLUSH_DISK_TIMEOUT: perhaps not on disk yet)."""
        return self in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)

    @property
    def is_transient(self) -> bool:
        """Whether the same put can succeed a little later."""
        return self in (
            PutStatus.OS_PAGECACHE_BUSY,
            PutStatus.CREATE_MAPEDFILE_FAILED,
            PutStatus.SERVICE_NOT_AVAILABLE,
        )


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class PutResult:
    """The outcome of a put of n messages; all of them are stored, or none is.

    Attributes:
        status: what became of them.
        rows: n; 0 where nothing is stored.
        physical_offset: n, where each record starts in the log.
        queue_offset: n, each message's offset in its queue.
        remark: why, in a sentence that says what to do; empty for PUT_OK.
        end_offset: where the log ended behind the last of them.
        store_host: address and port in their records.
        is_open: whether they are in the log only the store's next opening tells, since it failed
            when they were on their way to the disk. Put again, they may be there twice.
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
        """The same messages with another outcome."""
        return replace(self, status=status, remark=remark, is_open=is_open)

    def of_row(self, row: int) -> PutResult:
        """The outcome for one of the messages; the whole where none or one is stored."""
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
        """The offset message id of each message."""
        host = self.store_host.hex().upper()
        return [f"{host}{at:016X}" for at in self.physical_offset.tolist()]
