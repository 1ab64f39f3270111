"""How far transactions are done, as a broker keeps it, and how often each was checked.

The consumer group CID_RMQ_SYS_TRANS has the offset of the oldest half message that waits, and that
of the first op message that may end a later one. So a broker that opens the store continues there.
`config/transactionChecks.json`, which a broker ignores, has the number of checks of each half
message (`checks`), and the physical offset up to which each commit has its op message
(`logOffset`). If it is lost, checks are counted from 0, and more of the log is read at the next
start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import numpy as np

from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.layout.constants import TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.transactions import CHECKS_FILE

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


class TransactionProgress:
    """Writes the progress. Used by one thread at a time.

    Args:
        store: the store directory.
        groups: the offsets of consumer groups.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON.
    """

    def __init__(self, store: str, groups: ConsumerOffsets) -> None:
        self._file = ConfigFile(store, CHECKS_FILE)
        self._groups = groups

    def save(self, half: int, op: int, checks: Mapping[int, int], log_offset: int) -> None:
        """Write the progress; afterwards it is on disk.

        Args:
            half: offset of the oldest half message that waits, or one past the last.
            op: offset of the first op message that may end one from there on.
            checks: the number of checks by half message.
            log_offset: the log is on disk up to there, and has an op message for each commit.

        Raises:
            CorruptStoreError, StoreWriteError: the progress could not be written.
        """
        self._groups.commit(
            TRANS_GROUP, {TRANS_HALF_TOPIC: {0: half}, TRANS_OP_HALF_TOPIC: {0: op}}
        )
        value = {
            "checks": {str(offset): count for offset, count in checks.items()},
            "logOffset": log_offset,
        }
        if value != self._file.value:
            self._file.replace(value)
