"""The protocol: actions by name, the schema of blocks, acknowledgements, tickets.

Arrow Flight, version 2 of ours:

- *Actions* (`DoAction`): a request in JSON in, one answer in JSON out.
- *Blocks* (`DoExchange`; the descriptor's command is a `StreamCommand`): each record batch of
  BLOCK_SCHEMA has one row, a block of encoded records, and in its metadata its number, 0 and up.
  Each is answered by metadata: an `Acknowledgement`. One that refuses for a reason that passes
  (`failures.TRANSIENT`) is the last: nothing behind that block is stored, and the client ends the
  stream. The metadata FINISH without a batch ends the
  stream; for a stage the answer is its `StageInfo`. A stream that ends without it is broken off.
- *Reading* (`DoGet`; the ticket is a `RangesRequest`): batches of RANGES_SCHEMA, with the bytes of
  the ranges in order, each in one piece or several; the last piece of each has `last` set.

Whatever is refused is refused by an error of Flight with a `Refusal` in its extra info, or within
a stream of blocks by the acknowledgement's status.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.wire.codec import MessageError

__all__ = [
    "BLOCK_SCHEMA",
    "FINISH",
    "MAX_ANSWER",
    "MAX_REQUEST",
    "PROTOCOL",
    "PUT_OK",
    "RANGES_SCHEMA",
    "Acknowledgement",
    "Actions",
    "block_batch",
    "block_number",
    "number_bytes",
]

PROTOCOL: Final = 2
PUT_OK: Final = "PUT_OK"

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
"""Of an acknowledgement: number, rows, flags, bytes of the status, bytes of the remark."""
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
    COMMIT: Final = "commit"
    ABORT: Final = "abort"
    FLUSH: Final = "flush"
    STATS: Final = "stats"
    STOP: Final = "stop"
    QUERY: Final = "query"
    LIST: Final = "list"
    WALK: Final = "walk"
    INFO: Final = "info"


MAX_REQUEST: Final = {Actions.COMMIT: 4 << 20, Actions.ABORT: 4 << 20, Actions.OPEN: 256 << 10}
"""Bytes of a request by action; 64 KiB for all others."""

MAX_ANSWER: Final = 64 << 20
"""Bytes of an answer that a client reads."""


def block_batch(data: Any) -> pa.RecordBatch:
    """A block as it is sent, without a copy.

    Args:
        data: bytes-like, the records one behind the other; under 2 GiB.
    """
    buffer = pa.py_buffer(data)
    bounds = pa.py_buffer(np.array([0, buffer.size], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, buffer])
    return pa.RecordBatch.from_arrays([column], schema=BLOCK_SCHEMA)


def number_bytes(number: int) -> bytes:
    """A block's number as its metadata."""
    return _NUMBER.pack(number)


def block_number(metadata: bytes) -> int:
    """The number that a block's metadata tells.

    Raises:
        MessageError: it is no number.
    """
    if len(metadata) != _NUMBER.size:
        raise MessageError(f"a block's metadata has {_NUMBER.size} bytes, not {len(metadata)}")
    number: int = _NUMBER.unpack(metadata)[0]
    return number


@dataclass(frozen=True)
class Acknowledgement:
    """The answer to one block.

    Attributes:
        number: of the block.
        status: PUT_OK, or RocketMQ's word for why not; FLUSH_DISK_TIMEOUT and the like say that
            the block is in the log, but not known to be on disk.
        rows: records of it that are in the log, or in the stage.
        remark: what to do about another status than PUT_OK.
        queue_offset, physical_offset: int64[rows], where they were asked for.
        is_open: whether the block is in the log only the store's next opening tells: it must not
            be sent again by itself.
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
        return self.status == PUT_OK

    def to_bytes(self) -> bytes:
        """The head (numbers, little-endian), status, remark, the offsets as int64.

        Every message of a client that sends them one by one has an answer of its own: so it is no
        JSON, which takes ten times as long.
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
        """Read one.

        Raises:
            MessageError: it is none.
        """
        if len(data) < _HEAD.size:
            raise MessageError("an acknowledgement is cut off")
        number, rows, flags, status_size, remark_size = _HEAD.unpack_from(data)
        has_offsets = bool(flags & _WITH_OFFSETS)
        remark_at = _HEAD.size + status_size
        end = remark_at + remark_size
        if number < 0 or rows < 0 or flags & ~(_OPEN | _WITH_OFFSETS) or not status_size:
            raise MessageError("an acknowledgement has numbers that none has")
        if len(data) != end + (16 * rows if has_offsets else 0):
            raise MessageError(f"an acknowledgement of {rows} rows has {len(data)} bytes")
        try:
            status = data[_HEAD.size : remark_at].decode("ascii")
        except UnicodeDecodeError:
            raise MessageError("the status of an acknowledgement is no word") from None
        remark = data[remark_at:end].decode("utf-8", "replace")
        is_open = bool(flags & _OPEN)
        if not has_offsets:
            return cls(number, status, rows, remark, is_open=is_open)
        both = np.frombuffer(data, "<i8", offset=end).astype(np.int64)
        return cls(number, status, rows, remark, both[:rows], both[rows:], is_open)
