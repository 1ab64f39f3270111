"""Finds in the log what waits, when a store is opened.

A commit appends the message, then the op message. If the process is killed between the two writes,
or a power cut leaves only the first, the message itself tells that its half message is done: it
names that in preparedTransactionOffset. (A broker checks such a transaction again, and a producer
that commits it again doubles the message.)
"""

from __future__ import annotations

import numpy as np

from rmqstore_spark.layout.constants import TRANSACTION_COMMIT_TYPE, TRANSACTION_MASK
from rmqstore_spark.reader.log.walk import Stretch, walk_log
from rmqstore_spark.reader.store import Store
from rmqstore_spark.reader.transactions import Found, Transaction, find_transactions


def recall(path: str) -> tuple[Found, list[Transaction]]:
    """Return what waits in a store, and those of it that are committed without an op message.

    Args:
        path: the store directory. All of the log is in the queues.

    Raises:
        RmqStoreError: the store cannot be read.
    """
    with Store.open(path) as store:
        found = find_transactions(store)
        return found, _committed(store, found)


def _committed(store: Store, found: Found) -> list[Transaction]:
    halves = {place.physical_offset: one for one in found.waiting for place in one.places}
    if not halves:
        return []
    begin, end = min(halves), store.scan_end()
    if found.log_offset is not None and found.log_offset <= end:
        begin = max(begin, found.log_offset)
    offsets = np.array(sorted(halves), np.int64)
    done: dict[int, Transaction] = {}
    for part in walk_log(store.log, begin, end, check_crc=False):
        if not isinstance(part, Stretch):
            continue
        records = part.records
        marked = (records.sys_flag & TRANSACTION_MASK) == TRANSACTION_COMMIT_TYPE
        marked &= np.isin(records.prepared_transaction_offset, offsets)
        for row in np.flatnonzero(marked).tolist():
            one = halves[int(records.prepared_transaction_offset[row])]
            if one.born == int(records.born_timestamp[row]):
                done[one.place.queue_offset] = one
    return list(done.values())
