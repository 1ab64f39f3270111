"""The outcome of a put of messages, and the states of a store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.leader_term import LeaderTerm
from rmqstore_spark.layout.spans import I8

STATES: Final = ("RUNNING", "DISK_FULL", "SLAVE", "READ_ONLY", "FAILED", "CLOSED")
"""The states of a store. It accepts messages only in the first one. READ_ONLY is the state of one
that another process writes."""


_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
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
        term: the term in which the messages were proposed to a group; None without one.
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
    term: LeaderTerm | None = None

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
            self.term,
        )

    def msg_ids(self) -> list[str]:
        """Return the offset message id of each message."""
        host = self.store_host.hex().upper()
        return [f"{host}{at:016X}" for at in self.physical_offset.tolist()]
