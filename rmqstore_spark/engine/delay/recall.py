"""Finds in the log which delayed messages were delivered.

Each copy names the message that waited (`copies`), and a broker's resembles it (`brokers_copies`).
So a process that was killed has delivered what the log has copies of, whatever it could still write
to `config/delayOffset.json`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rmqstore_spark.engine.delay.brokers_copies import BrokersCopies
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.recovery.redispatch import LogBlock, log_blocks
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.layout.buffers import values_at
from rmqstore_spark.layout.constants import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC
from rmqstore_spark.layout.fields import (
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
)
from rmqstore_spark.layout.record.properties import find_properties
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.log.commitlog import CommitLog

"""Bytes of a record up to the end of its physicalOffset."""
_MOST_AT_ONCE = 1 << 20


def delivered(
    store: str, queues: ConsumeQueues, start: int, end: int, *, by_brokers: bool
) -> Iterator[dict[int, int]]:
    """Walk over a part of the log; yield how far levels were delivered in each stretch of it.

    Args:
        store: the store directory.
        queues: its queues.
        start: physical offset at which a record begins, or the log.
        end: where the log ends.
        by_brokers: also find what brokers delivered, of the messages of this part.

    Yields:
        The offset behind the last message that was delivered, by level.

    Raises:
        RmqStoreError: the log cannot be read.
    """
    files = LocalFiles()
    try:
        log = CommitLog(StoreDirectory(files, store).commit_log())
        copies = BrokersCopies()
        for part in log_blocks(log, max(start, log.min_offset), end):
            if by_brokers:
                copies.note(part)
            yield dict(_levels(queues, log, _sources(part)))
        yield dict(_ends(queues, *copies.delivered()))
    finally:
        files.close()


def _sources(part: LogBlock) -> I8:
    """Return the physical offsets of the messages of which a stretch of the log has copies."""
    marks = part.records.prepared_transaction_offset
    rows = np.flatnonzero(marks > 0)
    if not len(rows):
        return rows
    waits = [n for n, route in enumerate(part.block.routes) if route.topic == SCHEDULE_TOPIC]
    rows = rows[~np.isin(part.block.route_of[rows], waits)]
    properties = part.records.take(rows).properties
    named = find_properties(properties, (PROPERTY_REAL_TOPIC,))[PROPERTY_REAL_TOPIC]
    found: I8 = marks[rows[named.lengths >= 0]] - 1
    return found


def _levels(queues: ConsumeQueues, log: CommitLog, sources: I8) -> Iterator[tuple[int, int]]:
    """Yield a level and the offset behind the last of its messages among some."""
    sources = sources[log.covers(sources, np.full(len(sources), SYS_FLAG_AT, np.int32))]
    if not len(sources):
        return
    data, at = log.read_entries(sources, np.full(len(sources), SYS_FLAG_AT, np.int32), None)
    queue_id = values_at(data, np.dtype(">i4"), at + QUEUE_ID_AT).astype(np.int64)
    offset = values_at(data, np.dtype(">i8"), at + QUEUE_OFFSET_AT).astype(np.int64)
    own = values_at(data, np.dtype(">i8"), at + PHYSICAL_OFFSET_AT).astype(np.int64) == sources
    yield from _ends(queues, queue_id[own], offset[own], sources[own])


def _ends(
    queues: ConsumeQueues, queue_id: I8, offset: I8, sources: I8
) -> Iterator[tuple[int, int]]:
    """Yield a level and the offset behind the last of its messages among n.

    Args:
        queues: the queues, which say which messages they hold.
        queue_id, offset: n, where each is.
        sources: n, their physical offsets.
    """
    for number in np.unique(queue_id).tolist():
        rows = queue_id == number
        known = _known(queues, number, offset[rows], sources[rows])
        if len(known):
            yield number + 1, int(known.max()) + 1


def _known(queues: ConsumeQueues, queue_id: int, offsets: I8, sources: I8) -> npt.NDArray[np.int64]:
    """Return those offsets at which the queue holds the given messages."""
    end = queues.max_offset(SCHEDULE_TOPIC, queue_id)
    inside = (offsets >= queues.min_offset(SCHEDULE_TOPIC, queue_id)) & (offsets < end)
    offsets, sources = offsets[inside], sources[inside]
    if not len(offsets):
        return offsets
    first, last = int(offsets.min()), int(offsets.max())
    first = max(first, last - _MOST_AT_ONCE)
    entries = queues.read(SCHEDULE_TOPIC, queue_id, first, last - first + 1)
    near = (offsets >= first) & (offsets < first + len(entries))
    offsets, sources = offsets[near], sources[near]
    held = entries["physicalOffset"].astype(np.int64)[offsets - first]
    found: I8 = offsets[held == sources]
    return found
