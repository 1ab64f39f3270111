"""The statuses with which a store process refuses a request (`wire.protocol`)."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.base.status import PutStatus

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
