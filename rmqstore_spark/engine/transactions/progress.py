"""How far transactions are done, as a broker keeps it, and how often each was checked.

The consumer group CID_RMQ_SYS_TRANS has the offset of the oldest half message that waits, and that
of the first op message that may end a later one. So a broker that opens the store continues there.
`config/transactionChecks.json`, which a broker ignores, has the number of checks of each half
message (`checks`), and the physical offset up to which each commit has its op message
(`logOffset`). If it is lost, checks are counted from 0, and more of the log is read at the next
start.

A commit appends the message, then the op message. If the process is killed between the two writes,
or a power cut leaves only the first, the message itself tells that its half message is done: it
names that in preparedTransactionOffset, and `recall` finds it. (A broker checks such a transaction
again, and a producer that commits it again doubles the message.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import numpy as np

from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.layout.constants import (
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
)
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.log.walk import Stretch, walk_log
from rmqstore_spark.reader.store import Store
from rmqstore_spark.reader.transactions import Found, Transaction, find_transactions

_STEP: Final = 256


class OpNotes:
    """Which op messages may end half messages that are not before all that wait.

    It notes groups of op messages rather than each.
    """

    def __init__(self) -> None:
        self._notes: deque[tuple[int, int, int]] = deque()  # first op, count, last half
        self._end = 0

    def add(self, offsets: I8, halves: I8) -> None:
        """Note op messages, ascending.

        Args:
            offsets: n, their offsets.
            halves: n, the last half message that each ends.
        """
        for first in range(0, len(offsets), _STEP):
            part = slice(first, first + _STEP)
            begin, count = int(offsets[first]), len(offsets[part])
            last = int(np.max(halves[part]))
            if self._notes and self._notes[-1][1] + count <= _STEP:
                begin, before, highest = self._notes.pop()
                count, last = before + count, max(last, highest)
            self._notes.append((begin, count, last))
        if len(offsets):
            self._end = int(offsets[-1]) + 1

    def begin(self, oldest: int) -> int:
        """Return the offset before which all op messages end half messages before one.

        Args:
            oldest: the offset of that half message; later calls give no lower one.
        """
        while self._notes and self._notes[0][2] < oldest:
            self._notes.popleft()
        return self._notes[0][0] if self._notes else self._end


def save_progress(
    file: ConfigFile,
    groups: ConsumerOffsets,
    half: int,
    op: int,
    checks: Mapping[int, int],
    log_offset: int,
) -> None:
    """Write the progress; afterwards it is on disk. Used by one thread at a time.

    Args:
        file: `config/transactionChecks.json`.
        groups: the offsets of consumer groups.
        half: offset of the oldest half message that waits, or one past the last.
        op: offset of the first op message that may end one from there on.
        checks: the number of checks by half message.
        log_offset: the log is on disk up to there, and has an op message for each commit.

    Raises:
        CorruptStoreError, StoreWriteError: the progress could not be written.
    """
    groups.commit(TRANS_GROUP, {TRANS_HALF_TOPIC: {0: half}, TRANS_OP_HALF_TOPIC: {0: op}})
    counts = {str(offset): count for offset, count in checks.items()}
    value = {"checks": counts, "logOffset": log_offset}
    if value != file.value:
        file.replace(value)


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
