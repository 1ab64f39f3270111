"""The protocol: codes and statuses, login, acknowledgements, answers with ranges of files.

This is version 6 of the protocol, which uses the frames of RocketMQ's remoting (`remoting.codec`)
with codes of its own. A request has the field `store`, which names the store that it is about; a
request without it is about the only store of the process. Requests on one connection are handled
one after the other. A request is one of:

- *An action*: the body is JSON, and so is that of the answer; those of QUERY and TRANSACTION_CHECKS
  are Arrow IPC streams.
- *A stream of blocks*, begun by BLOCKS, whose body is a `StreamCommand`. It has no answer; BLOCKs
  follow, each with a block of encoded records as its body, and with its number, counted from 0, as
  its `opaque`. The answer to each is an `Acknowledgement`. A transient refusal (`TRANSIENT`) is the
  last answer: no later block is stored, and the client ends the connection. FINISH ends the stream,
  and the connection can be used again. The end of a stage is answered with its `StageInfo`; that of
  puts, which are all acknowledged, is not answered. A stream that ends without FINISH is aborted.
- *A reading*: READ, whose body is a `RangesRequest`. Its answers hold pieces of the ranges, in
  order; each range has one or more, of which the last is marked (`pieces_head`).

A client with an account first sends LOGIN, with the field `AccessKey` and no body. The answer is a
challenge, or empty if nobody needs to log in. A second LOGIN answers a challenge, and holds for the
connection: it shows that the client knows the secret of the account, without sending it. Its body
is a nonce, and the HMAC-SHA256, with the secret as its key, of a text that nothing else signs, the
nonce, the challenge, and the SHA-256 of the server's certificate if the connection is encrypted. So
an answer counts for one challenge, and for the server that the client has found. Without TLS,
others on the way can use the connection.

A refusal is an answer whose field `status` is one of those below; its remark says what to do. It is
the last of a stream.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.errors import FrameError
from rmqstore_spark.wire.codec import MessageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PROTOCOL: Final = 7
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
"""Maximum bytes of an answer that a client reads, if it is not one to READ."""

MAX_FRAME: Final = 1 << 31
"""Maximum bytes of a frame: other limits are those of requests, and of clients."""


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
    import numpy as np  # an action of a command needs no arrays

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
        import numpy as np  # as above

        both = np.frombuffer(data, "<i8", offset=end).astype(np.int64)
        return cls(number, status, rows, remark, both[:rows], both[rows:], is_open)


BUSY: Final = PutStatus.OS_PAGECACHE_BUSY
"""RocketMQ's status of a store that gets more than it can write. Nothing was stored: try again."""

UNAVAILABLE: Final = PutStatus.SERVICE_NOT_AVAILABLE
"""The store accepts nothing: it is stopping, its disk failed, or it has too many clients."""

FAILED: Final = "SYSTEM_ERROR"
"""RocketMQ's status for a bug. Whether the call had an effect is unknown."""

ILLEGAL: Final = PutStatus.MESSAGE_ILLEGAL
"""The data sent can never be stored."""

NOT_FOUND: Final = "NOT_FOUND"
"""The store has no such file, topic or stage."""

DENIED: Final = PutStatus.NO_PERMISSION
"""The store does not serve what was requested, or not to this account."""

UNAUTHENTICATED: Final = "UNAUTHENTICATED"
"""No account is logged in, or the login failed."""

TRANSIENT: Final = frozenset({BUSY, UNAVAILABLE, PutStatus.CREATE_MAPEDFILE_FAILED})
"""Nothing was stored, and the same request can succeed a little later."""

REPEATABLE: Final = TRANSIENT | {PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE}
"""The same call can succeed a little later.

A commit that lacks a slave is stored: repeating it waits for one again, and writes nothing.
"""


NONCE_BYTES: Final = 32
_PURPOSE: Final = b"rmqstore login\0"


class Prover(Protocol):
    """Knows the secret."""

    def proof(self, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message."""


def fingerprint(certificate: bytes | None) -> bytes:
    """Return what stands for a server's certificate (DER); nothing without one."""
    return hashlib.sha256(certificate).digest() if certificate else b""


def login_answer(challenge: bytes, prover: Prover, server: bytes) -> bytes:
    """Return the answer to a challenge.

    Args:
        challenge: what the server sent.
        prover: has the secret.
        server: fingerprint of its certificate; empty on a plain connection.

    Raises:
        FrameError: it is not a challenge.
    """
    if len(challenge) != NONCE_BYTES:
        raise FrameError(f"a challenge has {len(challenge)} bytes")
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + prover.proof(_PURPOSE + nonce + challenge + server)


def asked_to_prove(challenge: bytes, answer: bytes, server: bytes) -> tuple[bytes, bytes]:
    """Return the message that an answer must have signed, and what it says that its HMAC is."""
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    return _PURPOSE + nonce + challenge + server, proof
