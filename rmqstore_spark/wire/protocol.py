"""The protocol: codes of requests, acknowledgements, answers with ranges of files.

This is version 5 of the protocol, which uses the frames of RocketMQ's remoting (`remoting.codec`)
with codes of its own. A request has the field `store`, which names the store that it is about; a
request without it is about the only store of the process. Requests on one connection are handled
one after the other. A request is one of:

- *An action*: the body is JSON, and so is that of the answer; those of QUERY and TRANSACTION_CHECKS
  are Arrow IPC streams.
- *A stream of blocks*, begun by BLOCKS, whose body is a `StreamCommand`. It has no answer; BLOCKs
  follow, each with a block of encoded records as its body, and with its number, counted from 0, as
  its `opaque`. The answer to each is an `Acknowledgement`. A transient refusal
  (`failures.TRANSIENT`) is the last answer: no later block is stored, and the client ends the
  connection. FINISH ends the stream, and the connection can be used again; for a stage, the
  answer's body is its `StageInfo`. A stream that ends without FINISH is aborted.
- *A reading*: READ, whose body is a `RangesRequest`. Its answers hold pieces of the ranges, in
  order; each range has one or more, of which the last is marked (`pieces_head`).

A client with an account first sends LOGIN, with the field `AccessKey` and no body. The answer is a
challenge, or empty if nobody needs to log in. A second LOGIN answers a challenge (`login`), and
holds for the connection.

A refusal is an answer whose field `status` is one of `failures`; its remark says what to do. It is
the last of a stream.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.wire.codec import MessageError

PROTOCOL: Final = 5
ALPN: Final = "rmqstore"
"""The protocol's name in TLS handshakes, by which a port that RocketMQ's clients share knows it."""
CODES: Final = range(970_000, 971_000)
"""The codes of all its requests."""
STORE_FIELD: Final = "store"
STATUS_FIELD: Final = "status"

_HEAD: Final = struct.Struct("<qqBBH")
"""The head of an acknowledgement: number, rows, flags, bytes of the status, bytes of the remark."""
_WITH_OFFSETS: Final = 1
_OPEN: Final = 2
_MAX_REMARK: Final = 4096


class Code(IntEnum):
    """Codes of requests; none of RocketMQ's is near."""

    LOGIN = 970_000
    OPEN = 970_001
    CREATE_TOPIC = 970_002
    DELETE_TOPIC = 970_003
    TOPICS = 970_004
    OFFSETS = 970_005
    COMMIT_OFFSETS = 970_006
    COMMIT = 970_007
    ABORT = 970_008
    FLUSH = 970_009
    EXPIRE = 970_010
    END_TRANSACTIONS = 970_011
    TRANSACTION_CHECKS = 970_012
    PROMOTE = 970_021
    DEMOTE = 970_022
    STATS = 970_013
    STOP = 970_014
    QUERY = 970_015
    LIST = 970_016
    WALK = 970_017
    INFO = 970_018
    READ = 970_020
    BLOCKS = 970_030
    BLOCK = 970_031
    FINISH = 970_032

    @property
    def text(self) -> str:
        """The name, for messages to people."""
        return self.name.lower().replace("_", "-")


SMALL_REQUEST: Final = 64 << 10
MAX_REQUEST: Final = {
    Code.LOGIN: 256,
    Code.BLOCKS: 4 << 10,
    Code.FINISH: 0,
    Code.COMMIT: 4 << 20,
    Code.ABORT: 4 << 20,
    Code.COMMIT_OFFSETS: 4 << 20,
    Code.READ: 4 << 20,
    Code.END_TRANSACTIONS: 1 << 20,
    Code.OPEN: 256 << 10,
}
"""Maximum bytes of a request's body by code; SMALL_REQUEST for all others but BLOCK."""

MAX_ANSWER: Final = 64 << 20
"""Maximum bytes of an answer that a client reads."""


def pieces_head(lengths: npt.NDArray[np.int64], last: npt.NDArray[np.bool_]) -> bytes:
    """Encode what precedes the bytes of pieces: their number, and of each its length and `last`.

    Args:
        lengths: n, the bytes of each piece, under 2 GiB.
        last: n, whether each is the last piece of its range.
    """
    words = (lengths.astype("<u4") << 1) | last
    return len(words).to_bytes(4, "little") + words.astype("<u4").tobytes()


def piece_lengths(words: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Decode the lengths of pieces, and which of them are last; see `pieces_head`."""
    found = np.frombuffer(words, "<u4")
    return (found >> 1).astype(np.int64), (found & 1).astype(np.bool_)


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
        status, remark = self.status.encode(), self.remark.encode("utf-8", "replace")[:_MAX_REMARK]
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
