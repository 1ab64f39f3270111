"""Verifies a store: plans, checks the units, checks the entries that are left over, reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rmqstore_spark.errors import RmqStoreError, SegmentExpiredError
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import LISTED, Findings, place_of
from rmqstore_spark.verify.index.check import check_index_entries, check_index_file
from rmqstore_spark.verify.log.check import check_log, check_tail
from rmqstore_spark.verify.log.dledger import check_units
from rmqstore_spark.verify.plan import Plan, left_over, make_plan
from rmqstore_spark.verify.queues.check import check_entries, check_queues
from rmqstore_spark.verify.queues.match import older_text
from rmqstore_spark.verify.queues.void import check_void
from rmqstore_spark.verify.report import VerifyReport
from rmqstore_spark.verify.snapshot import (
    DLedgerUnits,
    EntriesUnit,
    IndexEntriesUnit,
    IndexFileUnit,
    LogUnit,
    QueuesUnit,
    Snapshot,
    TailUnit,
    Unit,
)
from rmqstore_spark.verify.store_files import check_checkpoint, check_progress

Progress = Callable[[int, int], object]
"""Called with the bytes done and the total bytes."""

Work = Callable[[Snapshot, Sequence[Unit]], Iterable[Findings]]
"""Checks units and returns their findings, preferably in the order of the units."""


def verify(
    store: Store,
    *,
    progress: Progress | None = None,
    delay_levels: str = DELAY_LEVELS,
    listed: int = LISTED,
) -> VerifyReport:
    """Check everything in a store that can be checked. Nothing is changed.

    Args:
        progress: called from time to time with the bytes done and the total bytes.
        delay_levels: the broker's `messageDelayLevel`, which determines the due times in the queues
            of delayed messages.
        listed: how many problems of each kind are listed; the others are counted.

    Raises:
        StoreAccessError: permission to list a folder is denied.
        ValueError: `delay_levels` is not a valid `messageDelayLevel`.
    """
    plan = make_plan(store, delay_levels=delay_levels, listed=listed)
    total = sum(unit.size for unit in plan.units)
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done = min(done + size, total)
        if progress is not None:
            progress(done, total)

    def work(snapshot: Snapshot, units: Sequence[Unit]) -> Iterable[Findings]:
        for unit in units:
            yield check_unit(store, snapshot, unit, report)

    return verify_plan(store, plan, work)


def verify_plan(store: Store, plan: Plan, work: Work) -> VerifyReport:
    """Run a plan.

    Args:
        work: checks units, in this process or on other machines.
    """
    snapshot, findings = plan.snapshot, plan.findings
    for part in work(snapshot, plan.units):
        findings.merge(part)
    _note_displaced(store, snapshot, findings)
    check_void(store, snapshot, findings)
    later, units = left_over(snapshot, findings)
    for part in work(later, units):
        findings.merge(part)
    check_checkpoint(store, snapshot, findings)
    check_progress(store, snapshot, findings)
    if not snapshot.being_written:  # a broker writes the index after the queues
        _note_unindexed(store, findings)
    findings.counts["bytes"] = sum(unit.size for unit in plan.units)
    return VerifyReport(
        findings.problems,
        findings.totals,
        findings.errors,
        {name: count for name, count in sorted(findings.counts.items()) if count},
        snapshot.begin,
        snapshot.end,
        snapshot.being_written,
        findings.torn_tail,
    )


def _note_displaced(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Note records whose slot rightly belongs to another record."""
    for number, slot, offset in findings.displaced:
        if next(findings.queues.missing(number, slot, slot + 1), None) is None:
            bounds = snapshot.queues[number]
            text = older_text(f"{bounds.topic}/{bounds.queue_id}", slot)
            findings.note("older-than-queue", store.log.place(offset), text)


def _note_unindexed(store: Store, findings: Findings) -> None:
    keys = findings.counts["unindexedKeys"]
    if keys:
        findings.note(
            "unindexed", (store.directory.index_folder, None),
            f"{keys} keys of records are in no index file: a broker does not find them",
        )  # fmt: skip


def check_unit(
    store: Store,
    snapshot: Snapshot,
    unit: Unit,
    progress: Callable[[int], None] = lambda _: None,
) -> Findings:
    """Check a unit. What cannot be read becomes a finding, not an error.

    Args:
        progress: called with the number of bytes done since the last call.
    """
    findings = Findings(snapshot.listed)
    reported = 0

    def report(size: int) -> None:
        nonlocal reported
        reported += size
        progress(size)

    try:
        _check(store, snapshot, unit, findings, report)
    except SegmentExpiredError as error:
        _note_gone(store, snapshot, unit, findings, error)
    except (RmqStoreError, FileNotFoundError) as error:
        _give_up(unit, findings)
        findings.error("unreadable", place_of(error), str(error))
    progress(unit.size - reported)
    return findings


def _check(
    store: Store,
    snapshot: Snapshot,
    unit: Unit,
    findings: Findings,
    progress: Callable[[int], None],
) -> None:
    if isinstance(unit, LogUnit):
        check_log(store, snapshot, unit, findings, progress)
    elif isinstance(unit, TailUnit):
        check_tail(store.log, unit, findings)
    elif isinstance(unit, QueuesUnit):
        check_queues(store, snapshot, unit, findings)
    elif isinstance(unit, IndexFileUnit):
        check_index_file(store, snapshot, unit, findings)
    elif isinstance(unit, DLedgerUnits):
        check_units(store, snapshot.end, findings)
    elif isinstance(unit, EntriesUnit):
        check_entries(store, snapshot, unit, findings)
    elif isinstance(unit, IndexEntriesUnit):
        check_index_entries(store, snapshot, unit, findings)


def _give_up(unit: Unit, findings: Findings) -> None:
    if isinstance(unit, LogUnit):
        findings.flaw(unit.start, unit.end)


def _note_gone(
    store: Store, snapshot: Snapshot, unit: Unit, findings: Findings, error: SegmentExpiredError
) -> None:
    """Report a file that disappeared: it expired if the log now begins later, else it was lost."""
    _give_up(unit, findings)
    store.refresh(topology=False)
    if store.min_offset > snapshot.begin:
        findings.note("expired", place_of(error), "the file expired while it was verified")
    else:
        findings.error("unreadable", place_of(error), str(error))
