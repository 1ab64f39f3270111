"""Fills in the columns that messages lack."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.record.encode import RECORD_COLUMNS

__all__ = ["record_columns"]

_NEEDED = frozenset({"topic", "body"})
_DECIDED = ("queueOffset", "physicalOffset", "storeTimestamp")


def record_columns(batch: pa.RecordBatch, now: int, host: str) -> pa.RecordBatch:
    """Return messages with all columns of a record.

    Args:
        batch: some of RECORD_COLUMNS, without nulls; topic and body are required. Columns that the
            store sets (offsets, storeTimestamp, storeHost) are ignored.
        now: default of bornTimestamp, milliseconds.
        host: default of bornHost; and storeHost.

    Raises:
        OptionError: a column is missing or unknown, or holds an invalid value.
    """
    names = set(batch.schema.names)
    if missing := sorted(_NEEDED - names):
        raise OptionError(f"A batch of messages has no column {', '.join(missing)}.")
    if unknown := sorted(names - set(RECORD_COLUMNS)):
        known = ", ".join(RECORD_COLUMNS)
        raise OptionError(
            f"A batch of messages has the unknown column {', '.join(unknown)}. Known "
            f"columns: {known}."
        )
    rows = len(batch)
    hosts = pa.repeat(pa.scalar(host), rows)
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    given.update({name: pa.array(np.zeros(rows, np.int64)) for name in _DECIDED}, storeHost=hosts)
    given.setdefault("bornHost", hosts)
    given.setdefault("bornTimestamp", pa.array(np.full(rows, now, np.int64)))
    arrays = [_column(name, kind, given.get(name), rows) for name, kind in RECORD_COLUMNS.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(RECORD_COLUMNS))


def _column(name: str, kind: pa.DataType, given: pa.Array | None, rows: int) -> pa.Array:
    if given is None:
        return pa.repeat(pa.scalar(b"" if pa.types.is_binary(kind) else 0, kind), rows)
    if given.null_count:
        raise OptionError(f"The column {name} has {given.null_count} nulls.")
    try:
        return given.cast(kind)
    except pa.ArrowException as error:
        raise OptionError(f"The column {name} is not of type {kind}: {error}.") from error
