"""Compressed bodies, as producers send them."""

from __future__ import annotations

from rmqstore_spark.layout.constants import COMPRESSED_FLAG, COMPRESSION_TYPE_SHIFT


def flags_of_type(kind: int) -> int:
    """Return the sysFlag bits of a body that is compressed with this type."""
    return COMPRESSED_FLAG | kind << COMPRESSION_TYPE_SHIFT
