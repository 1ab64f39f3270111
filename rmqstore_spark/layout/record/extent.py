"""How far a Spark batch reaches in the log, as its first record says it.

A client's message has the preparedTransactionOffset 0, and a broker writes none that is negative.
So in the first record of a batch, this field is the physical offset at which the batch ends,
negated. Brokers and consumers ignore it there. A copy of the log needs it: the rest of the batch
may never arrive (docs/format.md, "A block that is not published yet").
"""

from __future__ import annotations

import numpy as np

from rmqstore_spark.layout.constants import BORNHOST_V6_FLAG, STOREHOST_V6_FLAG
from rmqstore_spark.layout.fields import PREPARED_OFFSET_AT, SYS_FLAG_LAST, V6_EXTRA
from rmqstore_spark.layout.record.format import Records
from rmqstore_spark.layout.spans import I8, U1


def write_batch_end(data: U1, start: int, end: int) -> None:
    """Write into a record that a batch begins with it.

    Args:
        data: uint8, changed in place.
        start: where the record starts in it.
        end: physical offset at which the batch ends.
    """
    flag = int(data[start + SYS_FLAG_LAST])
    wide = bool(flag & BORNHOST_V6_FLAG) + bool(flag & STOREHOST_V6_FLAG)
    at = start + PREPARED_OFFSET_AT + wide * V6_EXTRA
    data[at : at + 8] = np.frombuffer((-end).to_bytes(8, "big", signed=True), np.uint8)


def batch_ends(records: Records, physical_offset: I8) -> I8:
    """Return where the batches end that begin with records.

    Args:
        records: n records.
        physical_offset: n, where each starts in the log.

    Returns:
        n physical offsets; 0 for a record with which no batch begins. A record that names an end
        before its own begins none.
    """
    ends = -records.prepared_transaction_offset
    return np.where(ends >= physical_offset + records.store_size, ends, 0)
