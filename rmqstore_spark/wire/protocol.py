"""The protocol: actions by name, the schema of blocks, acknowledgements, tickets.

Arrow Flight, version 1 of ours:

- *Actions* (`DoAction`): a request in JSON in, one answer in JSON out.
- *Blocks* (`DoExchange`; the descriptor's command is a `StreamCommand`): each record batch of
  BLOCK_SCHEMA has one row, a block of encoded records, and in its metadata its number, 0 and up.
  Each is answered by metadata: an `Acknowledgement`. The metadata FINISH without a batch ends the
  stream; for a stage the answer is its `StageInfo`. A stream that ends without it is broken off.
- *Reading* (`DoGet`; the ticket is a `RangesRequest`): batches of RANGES_SCHEMA, with the bytes of
  the ranges in order, each in one piece or several; the last piece of each has `last` set.

Whatever is refused is refused by an error of Flight with a `Refusal` in its extra info, or within
a stream of blocks by the acknowledgement's status.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.wire.codec import AtMost, MessageError, decode, encode

__all__ = [
    "BLOCK_SCHEMA",
    "FINISH",
    "MAX_ANSWER",
    "MAX_REQUEST",
    "PROCESS_HEADER",
    "PROTOCOL",
    "PUT_OK",
    "RANGES_SCHEMA",
    "Acknowledgement",
    "Actions",
    "block_batch",
    "block_number",
    "number_bytes",
]

PROTOCOL: Final = 1
PUT_OK: Final = "PUT_OK"

BLOCK_SCHEMA: Final = pa.schema([pa.field("records", pa.binary(), nullable=False)])
RANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("last", pa.bool_(), nullable=False),
    ]
)

FINISH: Final = b"finish"

PROCESS_HEADER: Final = "x-rmqstore-process"
"""Header with the client's process id."""

_NUMBER: Final = struct.Struct("<q")
_HEAD: Final = struct.Struct("<i")
_MAX_HEAD: Final = 64 << 10


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
class _Head:
    number: int
    status: Annotated[str, AtMost(64)]
    rows: int
    remark: Annotated[str, AtMost(4096)] = ""
    results: bool = False


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
    """

    number: int
    status: str
    rows: int
    remark: str = ""
    queue_offset: npt.NDArray[np.int64] | None = None
    physical_offset: npt.NDArray[np.int64] | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the block is stored as the store's configuration promises."""
        return self.status == PUT_OK

    def to_bytes(self) -> bytes:
        """The length of the head, the head in JSON, the offsets as little-endian int64."""
        queue_offset, physical_offset = self.queue_offset, self.physical_offset
        offsets = b""
        if queue_offset is not None and physical_offset is not None:
            offsets = queue_offset.astype("<i8").tobytes() + physical_offset.astype("<i8").tobytes()
        head = encode(_Head(self.number, self.status, self.rows, self.remark, bool(offsets)))
        return b"".join((_HEAD.pack(len(head)), head, offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> Acknowledgement:
        """Read one.

        Raises:
            MessageError: it is none.
        """
        if len(data) < _HEAD.size:
            raise MessageError("an acknowledgement is cut off")
        length: int = _HEAD.unpack_from(data)[0]
        if not 0 < length <= min(len(data) - _HEAD.size, _MAX_HEAD):
            raise MessageError("the head of an acknowledgement is longer than itself")
        offsets = data[_HEAD.size + length :]
        head = decode(_Head, data[_HEAD.size : _HEAD.size + length], most=_MAX_HEAD)
        if len(offsets) != (16 * head.rows if head.results else 0):
            raise MessageError(f"an acknowledgement of {head.rows} rows has {len(offsets)} bytes")
        if not head.results:
            return cls(head.number, head.status, head.rows, head.remark)
        both = np.frombuffer(offsets, "<i8").astype(np.int64)
        return cls(
            head.number, head.status, head.rows, head.remark, both[: head.rows], both[head.rows :]
        )
