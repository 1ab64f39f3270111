"""What became of a put or another request, in RocketMQ's words.

Every layer names a status by this enum. What goes over the wire is its text, or the number that
`broker.faces.remoting` gives a client of RocketMQ for it. (Upstream: PutMessageStatus,
ResponseCode.)
"""

from __future__ import annotations

from enum import Enum


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
