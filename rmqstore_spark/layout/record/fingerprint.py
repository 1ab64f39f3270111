"""Tell two records apart without reading their bodies.

Records of the same size at the same place can be different messages: those of a store that was
wiped and filled again, of a topic that was created again, of a fork. The bytes around the body tell
them apart: times of birth and storage, hosts, the CRC of the body, topic and properties (FORMAT, "A
CommitLog record"). A copy of a log has the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from rmqstore_spark.layout.constants import (
    BORNHOST_V6_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    STOREHOST_V6_FLAG,
)
from rmqstore_spark.layout.fields import BODY_LENGTH_AT, LONGEST_HEAD_SIZE, SYS_FLAG_AT, V6_EXTRA

_DIGITS: Final = 12
_START: Final = struct.Struct(f">ii{SYS_FLAG_AT - 8}xi")  # totalSize, magicCode, sysFlag


def _body(head: bytes, size: int) -> tuple[int, int] | None:
    """Return where the body of a record begins and ends; None if no record begins so."""
    if len(head) < min(LONGEST_HEAD_SIZE, size) or len(head) < BODY_LENGTH_AT + 4:
        return None
    total, magic, flags = _START.unpack_from(head)
    if total != size or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    at = BODY_LENGTH_AT
    at += V6_EXTRA * (bool(flags & BORNHOST_V6_FLAG) + bool(flags & STOREHOST_V6_FLAG))
    if at + 4 > len(head):
        return None
    length = int.from_bytes(head[at : at + 4], "big", signed=True)
    begin = at + 4
    return (begin, begin + length) if 0 <= length <= size - begin else None


def body_end(head: bytes, size: int) -> int | None:
    """Return where the body of a record ends, counted from the record's begin.

    Args:
        head: the first LONGEST_HEAD_SIZE bytes of the record, or all of a shorter one.
        size: bytes of the record.

    Returns:
        The place; None if no record begins here.
    """
    body = _body(head, size)
    return None if body is None else body[1]


def fingerprint(head: bytes, tail: bytes, size: int) -> str:
    """Return the fingerprint of a record: 12 hex digits of SHA-256 of all but its body.

    Args:
        head: the first LONGEST_HEAD_SIZE bytes of the record or more, or all of a shorter one.
        tail: what follows the body (from `body_end` on).
        size: bytes of the record.

    Returns:
        The fingerprint; "" if no record begins here, as when it is damaged.
    """
    body = _body(head, size)
    if body is None or len(tail) != size - body[1]:
        return ""
    return hashlib.sha256(head[: body[0]] + tail).hexdigest()[:_DIGITS]
