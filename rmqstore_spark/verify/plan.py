"""Plans a verification: takes a snapshot of the store, and cuts the work into units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.deletions import deleted_ends
from rmqstore_spark.layout.checkpoint import GRACE_MS
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS, delays
from rmqstore_spark.reader.log.commitlog import LogSegment
from rmqstore_spark.reader.queue import Queue
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import LISTED, Findings, place_of
from rmqstore_spark.verify.index.files import find_index
from rmqstore_spark.verify.log.end import find_verified_end, readable_checkpoint
from rmqstore_spark.verify.snapshot import (
    DLedgerUnits,
    EntriesUnit,
    IndexEntriesUnit,
    IndexFileUnit,
    LogUnit,
    QueueBounds,
    QueuesUnit,
    Snapshot,
    TailUnit,
    Unit,
)
from rmqstore_spark.verify.store_files import (
    check_configuration,
    check_reach,
    check_segments,
    check_topics,
    configured_topics,
)

_QUEUES_AT_ONCE: Final = 256
_ENTRIES_AT_ONCE: Final = 1 << 20
_ALWAYS: Final = 1 << 62


@dataclass(frozen=True)
class Plan:
    """The plan of a verification.

    Attributes:
        snapshot: the store as all units see it.
        units: the units, which can be checked in any order and on any machine.
        findings: the problems found while planning.
    """

    snapshot: Snapshot
    units: tuple[Unit, ...]
    findings: Findings


def make_plan(
    store: Store,
    *,
    delay_levels: str = DELAY_LEVELS,
    listed: int = LISTED,
    unit_bytes: int = 256 << 20,
) -> Plan:
    """Plan the verification of a store.

    Args:
        delay_levels: the broker's `messageDelayLevel`.
        listed: how many problems of each kind are listed.
        unit_bytes: bytes of the log in a unit, which has at least one file.
    """
    findings = Findings(listed)
    checkpoint = readable_checkpoint(store)
    being_written = store.is_being_written
    killed = not store.is_closed_cleanly and not being_written
    # A broker does not trust the last seconds before its checkpoint: it dispatches their records
    # again.
    vouched = (
        min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - GRACE_MS
        if checkpoint
        else 0
    )
    indexed = checkpoint.index_msg_timestamp if checkpoint else 0
    # Read the index before the queues: a broker writes it after them, so it then holds nothing that
    # the queues lack.
    index = find_index(
        store, indexed if killed else _ALWAYS, findings, open_end=being_written or killed
    )
    queues = tuple(_bounds(queue, findings) for queue in store.queues())
    log_end = find_verified_end(store, queues)
    topics = configured_topics(store)
    snapshot = Snapshot(
        begin=store.min_offset,
        end=log_end.end,
        file_end=_file_end(store),
        being_written=being_written,
        killed=killed,
        vouched_time=vouched if killed else _ALWAYS,
        queues=queues,
        index=index,
        batch_queues=frozenset(
            (topic, n) for topic, ids in store.directory.batch_queues().queues.items() for n in ids
        ),
        configured_topics=None if topics is None else frozenset(topics),
        deleted=deleted_ends(store.directory.files, store.path),
        delays=delays(delay_levels),
        listed=listed,
    )
    _look_at_state(store, snapshot, findings)
    check_reach(store, snapshot, findings)
    check_configuration(store, findings)
    check_topics(snapshot.queues, topics, store, findings)
    units: list[Unit] = list(_log_units(store, snapshot.end, unit_bytes))
    log_files = store.log.dledger or store.log.plain
    if log_files.end_offset > snapshot.end and not being_written:
        units.append(TailUnit(snapshot.end, log_files.end_offset, log_end.cause))
    units += _queue_units(store, snapshot)
    units += [IndexFileUnit(n, bounds.size) for n, bounds in enumerate(index)]
    if store.log.dledger is not None:
        units.append(DLedgerUnits(0))
    return Plan(snapshot, tuple(units), findings)


def _bounds(queue: Queue, findings: Findings) -> QueueBounds:
    try:
        return QueueBounds(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)
    except RmqStoreError as error:
        findings.error("unreadable", place_of(error), str(error))
        first = queue.first_slot
        return QueueBounds(queue.topic, queue.queue_id, first, first)


def _file_end(store: Store) -> int:
    """Return where the last file of the log ends. A crash can leave it short."""
    plain = store.log.plain
    if store.log.dledger is not None or not len(plain):
        return store.log.file_end
    return max(plain[-1].start + plain.segment_size, plain.end_offset)


def _log_units(store: Store, end: int, unit_bytes: int) -> Iterator[LogUnit]:
    """Group adjacent files of one kind into units, until each is large enough."""
    unit: tuple[int, LogSegment] | None = None
    for segment in store.log.segments():
        if segment.start >= end:
            break
        if unit is not None:
            start, last = unit
            apart = last.end != segment.start or last.lead != segment.lead
            if apart or last.end - start >= unit_bytes:
                yield LogUnit(start, last.end)
                unit = None
        unit = (segment.start if unit is None else unit[0], segment)
    if unit is not None:
        yield LogUnit(unit[0], min(unit[1].end, end))


def _queue_units(store: Store, snapshot: Snapshot) -> Iterator[QueuesUnit]:
    count = len(snapshot.queues)
    for first in range(0, count, _QUEUES_AT_ONCE):
        last = min(first + _QUEUES_AT_ONCE, count)
        files = [
            store.queue(bounds.topic, bounds.queue_id).segments
            for bounds in snapshot.queues[first:last]
        ]
        yield QueuesUnit(first, last, sum(s.size for segments in files for s in segments))


def _look_at_state(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Check the state of the store, and the files of its log."""
    abort = (f"{store.path}/abort", None)
    if snapshot.being_written:
        findings.note(
            "state", abort,
            "a broker or store process has the store open: the log is verified up to the newest "
            f"record that the queues know, which ends at {snapshot.end}",
        )  # fmt: skip
    elif snapshot.killed:
        text = "the broker or store process was killed: it repairs the store when it starts again"
        if store.directory.never_served:
            text = (
                "a member that served no clients was here, and may have been closed in order: "
                "a broker or store process builds the queues when it starts"
            )
        findings.note("state", abort, text)
    for log in (store.log.plain, store.log.dledger):
        if log is not None:
            check_segments(log, findings, "log-file", growing=snapshot.being_written)
            for start, end in log.gaps:
                findings.flaw(start, end)
    for skipped in store.directory.topology.skipped:
        findings.note("stray-file", (skipped.path, None), skipped.reason)
    if store.log.dledger is None and store.directory.is_member:
        findings.note(
            "state", (store.path, None),
            "the store is that of a member of a DLedger group, which has no entries yet",
        )  # fmt: skip
    if not snapshot.queues and store.needs_queues(snapshot.end):
        _note_no_queues(store, snapshot, findings)


def _note_no_queues(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    place = (f"{store.path}/consumequeue", None)
    if store.directory.has_rocksdb_queues:
        findings.note("no-queues", place, "the queues are in RocksDB, which is not checked")
    elif snapshot.batch_queues:
        findings.note("no-queues", place, "there are only batch queues, which are not checked")
    else:
        findings.say(
            "note" if snapshot.killed else "error", "no-queues", place,
            "there are no queues: they are built from the log when a store process starts",
        )  # fmt: skip


def left_over(snapshot: Snapshot, findings: Findings) -> tuple[Snapshot, tuple[Unit, ...]]:
    """Return the units that remain after those of a plan: entries that no record matched.

    Returns:
        The snapshot for these units, and the units.
    """
    units: list[Unit] = []
    for number, bounds in enumerate(snapshot.queues):
        missing = findings.queues.missing(number, bounds.min_offset, bounds.max_offset)
        for start, end in missing:
            units += [
                EntriesUnit(number, first, min(first + _ENTRIES_AT_ONCE, end))
                for first in range(start, end, _ENTRIES_AT_ONCE)
            ]
    for number, file in enumerate(snapshot.index):
        for start, end in findings.index.missing(number, 1, file.keys + 1):
            units += [
                IndexEntriesUnit(number, first, min(first + _ENTRIES_AT_ONCE, end))
                for first in range(start, end, _ENTRIES_AT_ONCE)
            ]
    return replace(snapshot, flaws=tuple(findings.flaws)), tuple(units)
