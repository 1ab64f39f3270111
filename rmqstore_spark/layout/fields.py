"""Where the fields of a CommitLog record lie: the one table of them, in front of its body.

See docs/format.md, "A CommitLog record". An IPv6 host has 12 bytes more than an IPv4 host. So a
field begins `V6_EXTRA` bytes later for each IPv6 host before it. The compiled kernel has the same
places in `kernel/c/records.h`; tests compare the two.
"""

from __future__ import annotations

from typing import Final

import numpy as np

HOST_SIZE: Final = 8
"""Bytes of an IPv4 host: address 4, port 4."""
HOST_V6_SIZE: Final = 20
V6_EXTRA: Final = HOST_V6_SIZE - HOST_SIZE


def head_layout(*, born_v6: bool = False, store_v6: bool = False) -> np.dtype[np.void]:
    """Return the fields of a record up to its body."""
    return np.dtype(
        [
            ("totalSize", ">i4"),
            ("magicCode", ">u4"),
            ("bodyCRC", ">i4"),
            ("queueId", ">i4"),
            ("flag", ">i4"),
            ("queueOffset", ">i8"),
            ("physicalOffset", ">i8"),
            ("sysFlag", ">i4"),
            ("bornTimestamp", ">i8"),
            ("bornHost", "u1", (HOST_V6_SIZE if born_v6 else HOST_SIZE,)),
            ("storeTimestamp", ">i8"),
            ("storeHost", "u1", (HOST_V6_SIZE if store_v6 else HOST_SIZE,)),
            ("reconsumeTimes", ">i4"),
            ("preparedTransactionOffset", ">i8"),
            ("bodyLength", ">i4"),
        ]
    )


_FIELDS: Final = dict(head_layout().fields or {})


def _at(name: str) -> int:
    return int(_FIELDS[name][1])


def _place(name: str) -> slice:
    kind, at = _FIELDS[name][:2]
    return slice(at, at + kind.itemsize)


# Bytes from a record's begin. They hold if the hosts before the field are IPv4.
MAGIC_AT: Final = _at("magicCode")
BODY_CRC_AT: Final = _at("bodyCRC")
QUEUE_ID_AT: Final = _at("queueId")
FLAG_AT: Final = _at("flag")
QUEUE_OFFSET_AT: Final = _at("queueOffset")
PHYSICAL_OFFSET_AT: Final = _at("physicalOffset")
SYS_FLAG_AT: Final = _at("sysFlag")
BORN_TIMESTAMP_AT: Final = _at("bornTimestamp")
BORN_HOST_AT: Final = _at("bornHost")
STORE_TIMESTAMP_AT: Final = _at("storeTimestamp")
STORE_HOST_AT: Final = _at("storeHost")
RECONSUME_TIMES_AT: Final = _at("reconsumeTimes")
PREPARED_OFFSET_AT: Final = _at("preparedTransactionOffset")
BODY_LENGTH_AT: Final = _at("bodyLength")

SYS_FLAG_LAST: Final = SYS_FLAG_AT + 3
"""The byte of sysFlag with its lowest bits: compression, transaction, width of the hosts."""

TOTAL_SIZE_PLACE: Final = _place("totalSize")
MAGIC_PLACE: Final = _place("magicCode")
PHYSICAL_OFFSET_PLACE: Final = _place("physicalOffset")

HEAD_SIZE: Final = head_layout().itemsize
"""Bytes of a record up to its body, with IPv4 hosts."""
LONGEST_HEAD_SIZE: Final = HEAD_SIZE + 2 * V6_EXTRA

MIN_RECORD_SIZE: Final = HEAD_SIZE + 3
"""Bytes of a record with IPv4 hosts and empty texts: topicLength takes 1, propertiesLength 2."""
MAX_RECORD_SIZE: Final = 1 << 24
"""No broker writes a larger record (bodies are limited to 4 MiB by default)."""
