"""Checks that void entries belong to records of Spark batches without their rest.

Where such a part of a batch ends is known only behind it, perhaps in another unit. So the units
keep which records have void entries and where these parts lie, and this compares them afterwards.
"""

from __future__ import annotations

import numpy as np

from rmqstore_spark.errors import TopicNotFoundError
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.reader.log.end import record_head
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings, Place
from rmqstore_spark.verify.queues.judge import entry_place
from rmqstore_spark.verify.snapshot import Snapshot


def check_void(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Report void entries of other records.

    Records with which the log begins may have them: the first records of their batch, which say
    where it ends, may have expired.

    Args:
        findings: those of all units of the log.
    """
    torn = np.array(_joined(findings.torn) or [(0, 0)], np.int64)
    runs = np.array(findings.void, np.int64).reshape(-1, 2)
    first, last = runs[:, 0], runs[:, 1]
    at = np.maximum(np.searchsorted(torn[:, 0], first, side="right") - 1, 0)
    ends = torn[at, 1]
    begins_inside = (first >= torn[at, 0]) & (first < ends)
    wrong = ~(begins_inside & (last < ends))
    if len(first) and store.log.unit_start(int(first.min())) == snapshot.begin:
        wrong[np.argmin(first)] = False
    outside = np.where(begins_inside, ends, first)

    def text(row: int) -> str:
        return (
            f"the entry of the record at {int(outside[row])} is void, but it is not part of a "
            "Spark batch without its rest"
        )

    findings.each(
        "error", "tags-code", wrong, lambda row: _entry_of(store, int(outside[row])), text
    )


def _joined(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches, ascending, each of which begins behind the one before."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _entry_of(store: Store, offset: int) -> Place:
    """Return the place of the entry of a record; that of the record if it has none of its own."""
    record = record_head(store.log, offset)
    if record is None:
        return store.log.place(offset)
    topic = string_array(record.topic)[0].as_py()
    try:
        queue = store.queue(topic, int(record.queue_id[0]))
    except TopicNotFoundError:
        return store.log.place(offset)
    return entry_place(queue, int(record.queue_offset[0]), "tagsCode")
