"""DLedger's log entries and index, written as a broker writes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmqstore_spark.layout.dledger import (
    ENTRY_HEADER_DTYPE,
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC,
    INDEX_UNIT_DTYPE,
)


def encode_entry_headers(
    index: npt.ArrayLike, term: npt.ArrayLike, position: npt.ArrayLike, body_length: npt.ArrayLike
) -> bytes:
    """Encode one header per entry as a broker writes it: without checksums.

    Args:
        index: int64, numbers of the entries.
        term: int64; a scalar applies to all.
        position: int64, position of each header in the whole log.
        body_length: int32, bytes of each CommitLog record.
    """
    numbers = np.asarray(index, np.int64)
    headers = np.zeros(numbers.shape, ENTRY_HEADER_DTYPE)
    headers["magic"] = ENTRY_MAGIC
    headers["size"] = np.asarray(body_length, np.int64) + ENTRY_HEADER_SIZE
    headers["index"] = numbers
    headers["term"] = term
    headers["position"] = position
    headers["bodyLength"] = body_length
    return headers.tobytes()


def encode_index_units(
    position: npt.ArrayLike, size: npt.ArrayLike, index: npt.ArrayLike, term: npt.ArrayLike
) -> bytes:
    """Encode one unit per entry; see `IndexUnit`.

    Args:
        position: int64.
        size: int32.
        index: int64.
        term: int64; a scalar applies to all.
    """
    numbers = np.asarray(index, np.int64)
    units = np.empty(numbers.shape, INDEX_UNIT_DTYPE)
    units["magic"] = ENTRY_MAGIC
    units["position"] = position
    units["size"] = size
    units["index"] = numbers
    units["term"] = term
    return units.tobytes()
