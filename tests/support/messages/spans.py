"""Spans of texts, as they lie in a record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.record.properties import split_properties
from rmqstore_spark.layout.spans import Spans, text_pool

__all__ = ["decode_properties", "spans_of"]

_AHEAD = 128
"""Bytes in front of the first span, as a record has before its first property."""


def spans_of(strings: list[str]) -> Spans:
    """Return the span of each string in a new buffer."""
    pool = text_pool(["#" * _AHEAD, *strings])
    return pool.take(np.arange(1, len(strings) + 1))


def decode_properties(spans: Spans) -> pa.MapArray:
    """Return the properties of n records as Arrow maps."""
    return split_properties(spans)[0]
