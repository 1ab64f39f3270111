"""Compares the offsets of consumer groups with the ends of their queues."""

from __future__ import annotations

from typing import Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import join
from rmqstore_spark.reader.groups import offsets_past_end
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.snapshot import Snapshot

_FILE: Final = "consumerOffset.json"
_UNKNOWN_ENDS: Final = ("missing-queue", "no-queues")


def check_progress(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Note offsets past the ends of queues: the log may have lost what was consumed.

    While a broker writes, offsets are newer than the snapshot. In a DLedger group they may be ahead
    of what is known to be committed. The ends of batch queues, and of those in RocksDB, are not
    known here, nor those of missing queues if the log has records of any.
    """
    directory = store.directory
    if snapshot.being_written or store.log.dledger is not None or directory.has_rocksdb_queues:
        return
    try:
        table = (directory.config(_FILE) or {}).get("offsetTable", {})
    except CorruptStoreError:
        return  # said by the check of the configuration
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in snapshot.queues}
    is_complete = findings.totals.keys().isdisjoint(_UNKNOWN_ENDS)
    later = "; a start may complete it from the log" if snapshot.killed else ""
    for past in offsets_past_end(table, ends, snapshot.configured_topics or ()):
        route = past.topic, past.queue_id
        if route in snapshot.batch_queues or not (is_complete or route in ends):
            continue
        findings.note(
            "group-offset", (join(store.path, "config", _FILE), None),
            f"group {past.group} is at offset {past.offset} of {past.topic}/{past.queue_id}, which "
            f"ends at {past.max_offset}{later}",
        )  # fmt: skip
