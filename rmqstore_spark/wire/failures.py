"""How a store process refuses a request, and how its client reads the refusal.

A refusal is sent as a `Refusal` in the extra info of Flight's error. The text of the error is for
other clients.
"""

from __future__ import annotations

from typing import Final

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.status import PutStatus
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.messages import Refusal

__all__ = [
    "BUSY",
    "DENIED",
    "FAILED",
    "ILLEGAL",
    "NOT_FOUND",
    "REPEATABLE",
    "TRANSIENT",
    "UNAVAILABLE",
    "refusal_bytes",
    "refused",
]

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
"""The token is missing or wrong, or the store does not serve what was requested."""

TRANSIENT: Final = frozenset({BUSY, UNAVAILABLE, PutStatus.CREATE_MAPEDFILE_FAILED})
"""Nothing was stored, and the same request can succeed a little later."""

REPEATABLE: Final = TRANSIENT | {PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE}
"""The same call can succeed a little later.

A commit that lacks a slave is stored: repeating it waits for one again, and writes nothing.
"""

_MAX_REFUSAL: Final = 128 << 10
_MAX_MESSAGE: Final = 16 << 10


def refusal_bytes(status: str, message: str) -> bytes:
    """Encode a refusal."""
    return encode(Refusal(status, message[:_MAX_MESSAGE]))


def refused(extra: bytes | None) -> RefusedError | None:
    """Decode the refusal in an error's extra info; return None if there is none."""
    if not extra:
        return None
    try:
        refusal = decode(Refusal, extra, most=_MAX_REFUSAL)
    except MessageError:
        return None
    return RefusedError(refusal.message, refusal.status)
