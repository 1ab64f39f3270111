"""The protocol: names of actions, schemas, acknowledgements, tickets.

This is version 4 of the protocol, which uses Arrow Flight:

- *Actions* (`DoAction`): one request in JSON, and one answer in JSON; those of `query` and
  `transaction-checks` are Arrow IPC streams.
- *Blocks* (`DoExchange`; the descriptor's command is a `StreamCommand`): each record batch of
  BLOCK_SCHEMA has one row, a block of encoded records. Its metadata is the block's number, counted
  from 0. The answer to each block is metadata, an `Acknowledgement`. A transient refusal
  (`failures.TRANSIENT`) is the last answer: no later block is stored, and the client ends the
  stream. The metadata FINISH without a batch finishes the stream; for a stage, the answer is its
  `StageInfo`. A stream that ends without FINISH is aborted.
- *Reading* (`DoGet`; the ticket is a `RangesRequest`): batches of RANGES_SCHEMA with the bytes of
  the ranges, in order. Each range has one or more pieces; the last of them has `last` set.

The header `rmqstore-store` of a call names the store that it is about. A call without it is about
the only store of the process.

A refusal is an error of Flight with a `Refusal` in its extra info, or, within a stream of blocks,
the status of an acknowledgement.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.status import PutStatus
from rmqstore_spark.wire.codec import MessageError

__all__ = [
    "BLOCK_SCHEMA",
    "FINISH",
    "MAX_ANSWER",
    "MAX_REQUEST",
    "PROTOCOL",
    "RANGES_SCHEMA",
    "STORE_HEADER",
    "Acknowledgement",
    "Actions",
    "block_batch",
    "block_number",
    "number_bytes",
]

PROTOCOL: Final = 4
STORE_HEADER: Final = "rmqstore-store"

BLOCK_SCHEMA: Final = pa.schema([pa.field("records", pa.binary(), nullable=False)])
RANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("last", pa.bool_(), nullable=False),
    ]
)

FINISH: Final = b"finish"

_NUMBER: Final = struct.Struct("<q")
_HEAD: Final = struct.Struct("<qqBBH")
"""The head of an acknowledgement: number, rows, flags, bytes of the status, bytes of the remark."""
_WITH_OFFSETS: Final = 1
_OPEN: Final = 2
_MAX_REMARK: Final = 4096


class Actions:
    """Names of the actions."""

    OPEN: Final = "open"
    CREATE_TOPIC: Final = "create-topic"
    DELETE_TOPIC: Final = "delete-topic"
    TOPICS: Final = "topics"
    OFFSETS: Final = "offsets"
    COMMIT_OFFSETS: Final = "commit-offsets"
    COMMIT: Final = "commit"
    ABORT: Final = "abort"
    FLUSH: Final = "flush"
    EXPIRE: Final = "expire"
    END_TRANSACTIONS: Final = "end-transactions"
    TRANSACTION_CHECKS: Final = "transaction-checks"
    PROMOTE: Final = "promote"
    DEMOTE: Final = "demote"
    STATS: Final = "stats"
    STOP: Final = "stop"
    QUERY: Final = "query"
    LIST: Final = "list"
    WALK: Final = "walk"
    INFO: Final = "info"


MAX_REQUEST: Final = {
    Actions.COMMIT: 4 << 20,
    Actions.ABORT: 4 << 20,
    Actions.COMMIT_OFFSETS: 4 << 20,
    Actions.END_TRANSACTIONS: 1 << 20,
    Actions.OPEN: 256 << 10,
}
"""Maximum bytes of a request by action; 64 KiB for all others."""

MAX_ANSWER: Final = 64 << 20
"""Maximum bytes of an answer that a client reads."""


def block_batch(data: Any) -> pa.RecordBatch:
    """Wrap a block in a record batch, without a copy.

    Args:
        data: bytes-like, the contiguous records; less than 2 GiB.
    """
    buffer = pa.py_buffer(data)
    bounds = pa.py_buffer(np.array([0, buffer.size], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, buffer])
    return pa.RecordBatch.from_arrays([column], schema=BLOCK_SCHEMA)


def number_bytes(number: int) -> bytes:
    """Encode a block's number as metadata."""
    return _NUMBER.pack(number)


def block_number(metadata: bytes) -> int:
    """Decode a block's number from its metadata.

    Raises:
        MessageError: the metadata is not a number.
    """
    if len(metadata) != _NUMBER.size:
        raise MessageError(f"a block's metadata has {_NUMBER.size} bytes, not {len(metadata)}")
    number: int = _NUMBER.unpack(metadata)[0]
    return number


@dataclass(frozen=True)
class Acknowledgement:
    """The answer to one block.

    Attributes:
        number: the block's number.
        status: PUT_OK, or RocketMQ's status for the failure. FLUSH_DISK_TIMEOUT and similar ones
            mean that the block is in the log, but is not known to be on disk.
        rows: number of its records that are in the log or in the stage.
        remark: what to do about a status other than PUT_OK.
        queue_offset, physical_offset: int64[rows] if they were requested.
        is_open: whether it is unknown if the block is in the log. Only the next opening of the
            store decides that, so the block must not be sent again automatically.
    """

    number: int
    status: str
    rows: int
    remark: str = ""
    queue_offset: npt.NDArray[np.int64] | None = None
    physical_offset: npt.NDArray[np.int64] | None = None
    is_open: bool = False

    @property
    def is_ok(self) -> bool:
        """Whether the block is stored as the store's configuration promises."""
        return self.status == PutStatus.PUT_OK

    def to_bytes(self) -> bytes:
        """Encode the acknowledgement: head (little-endian numbers), status, remark, int64 offsets.

        It is not JSON, which takes ten times as long: a client that sends messages one by one gets
        an answer to each.
        """
        queue_offset, physical_offset = self.queue_offset, self.physical_offset
        flags = _OPEN if self.is_open else 0
        offsets = b""
        if queue_offset is not None and physical_offset is not None:
            offsets = queue_offset.astype("<i8").tobytes() + physical_offset.astype("<i8").tobytes()
            flags |= _WITH_OFFSETS
        status, remark = self.status.encode(), self.remark.encode()[:_MAX_REMARK]
        head = _HEAD.pack(self.number, self.rows, flags, len(status), len(remark))
        return b"".join((head, status, remark, offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> Acknowledgement:
        """Decode an acknowledgement.

        Raises:
            MessageError: the bytes are not an acknowledgement.
        """
        if len(data) < _HEAD.size:
            raise MessageError("an acknowledgement is cut off")
        number, rows, flags, status_size, remark_size = _HEAD.unpack_from(data)
        has_offsets = bool(flags & _WITH_OFFSETS)
        remark_at = _HEAD.size + status_size
        end = remark_at + remark_size
        if number < 0 or rows < 0 or flags & ~(_OPEN | _WITH_OFFSETS) or not status_size:
            raise MessageError("an acknowledgement has impossible numbers")
        if len(data) != end + (16 * rows if has_offsets else 0):
            raise MessageError(f"an acknowledgement of {rows} rows has {len(data)} bytes")
        try:
            status = data[_HEAD.size : remark_at].decode("ascii")
        except UnicodeDecodeError:
            raise MessageError("the status of an acknowledgement is not a word") from None
        remark = data[remark_at:end].decode("utf-8", "replace")
        is_open = bool(flags & _OPEN)
        if not has_offsets:
            return cls(number, status, rows, remark, is_open=is_open)
        both = np.frombuffer(data, "<i8", offset=end).astype(np.int64)
        return cls(number, status, rows, remark, both[:rows], both[rows:], is_open)
