"""Spans of texts, as they lie in a record."""

from __future__ import annotations

import numpy as np

from rmqstore_spark.layout.spans import Spans, text_pool

__all__ = ["spans_of"]

_AHEAD = 128
"""Bytes in front of the first span, as a record has before its first property."""


def spans_of(strings: list[str]) -> Spans:
    """Return the span of each string in a new buffer."""
    pool = text_pool(["#" * _AHEAD, *strings])
    return pool.take(np.arange(1, len(strings) + 1))
