"""Golden stores are in order, and what a crash left in some of them is told from damage.

What must be in a store is taken from RocketMQ's own reports of it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import (
    Findings,
    VerifyReport,
    check_unit,
    make_plan,
    verify,
    verify_plan,
)
from rmqstore_spark.verify.report import KINDS
from tests.reader.test_live import writer  # noqa: F401  # a fixture
from tests.support.processes.live_writer import LiveWriter
from tests.support.stores.golden import GOLDEN_NAMES, load_entries, load_queues, load_records
from tests.support.stores.records import store_kwargs
from tests.support.stores.storebuilder import Traffic, build_store

Golden = Callable[[str], Path]

CLOSED = [name for name in GOLDEN_NAMES if not name.startswith("unclean")]
KILLED = [name for name in GOLDEN_NAMES if name.startswith("unclean")]

# What is unusual in them, and written so by RocketMQ.
NOTES = {
    "flags": {"topic-name": 1, "properties": 2},
    "v5v2topic": {"topic-name": 3},
}


def verified(golden: Golden, name: str) -> VerifyReport:
    folder = golden(name)
    with Store.open(folder / "store", **store_kwargs(folder)) as store:
        return verify(store)


def kinds(report: VerifyReport) -> dict[str, int]:
    return {kind: count for kind, count in report.totals.items() if kind != "state"}


@pytest.mark.parametrize("name", CLOSED)
def test_a_store_that_a_broker_closed_is_in_order(
    name: str, open_store: Callable[[str], Store], golden: Golden
) -> None:
    report = verify(open_store(name))
    told = load_queues(golden(name))
    assert report.ok
    assert report.problems == () or name in NOTES
    assert report.totals == NOTES.get(name, {})
    assert report.torn_tail is None
    assert not report.being_written
    assert report.log_begin == told.min_physical_offset
    assert report.log_end == told.max_physical_offset
    assert report.counts["records"] == len(load_records(golden(name)))


@pytest.mark.parametrize("name", CLOSED)
def test_each_entry_that_a_broker_reports_was_matched_with_its_record(
    name: str, golden: Golden
) -> None:
    counts = verified(golden, name).counts
    told = load_queues(golden(name))
    entries = [entry for queue in load_entries(golden(name)).values() for entry in queue]
    assert counts["entries"] == sum(queue.readable for queue in told.queues.values())
    assert counts.get("extensionUnits", 0) == sum(e.ext_size is not None for e in entries)
    indexed = sum(max(0, index.index_count - 1) for index in told.index_files)
    assert counts.get("indexEntries", 0) + counts.get("expiredIndexEntries", 0) == indexed


@pytest.mark.parametrize("name", KILLED)
def test_a_crash_is_no_damage(name: str, golden: Golden) -> None:
    report = verified(golden, name)
    told = load_queues(golden(name))
    assert report.ok
    assert report.totals["state"] == 1
    assert report.log_end == told.max_physical_offset  # after the recovery
    if name in ("unclean-crc", "unclean-tail"):
        tail = report.torn_tail
        assert tail is not None
        assert tail.physical_offset == told.max_physical_offset
        assert tail.file.endswith(f"{int(Path(tail.file).name):020d}")
        assert int(Path(tail.file).name) + tail.offset == tail.physical_offset
        assert tail.holds_records == (name == "unclean-crc")
        whole = [r for r in load_records(golden(name)) if r.physical_offset < tail.physical_offset]
        assert report.counts["records"] == len(whole)
        assert set(kinds(report)) == {"stale-entries", "checkpoint"}
    else:
        assert report.torn_tail is None
        assert report.counts["records"] == len(load_records(golden(name)))


def test_what_a_crash_lost_of_queues_is_what_a_recovery_restores(golden: Golden) -> None:
    report = verified(golden, "unclean-torn")
    entries = sum(len(queue) for queue in load_entries(golden("unclean-torn")).values())
    assert report.counts["entries"] + report.totals["undispatched"] == entries
    # The newest record's properties were zeroed: no checksum covers them, its key is still indexed.
    assert kinds(report) == {"undispatched": 3, "properties": 1, "index-entry": 1}


def test_queues_that_are_lost_are_noted(golden: Golden) -> None:
    assert kinds(verified(golden, "unclean-nocq")) == {"no-queues": 1}


def test_a_lost_checkpoint_is_noted(golden: Golden) -> None:
    assert kinds(verified(golden, "unclean-nocheckpoint")) == {"checkpoint": 1}


@pytest.mark.parametrize("name", ["tiny", "extcq", "lmq", "delayed", "dledger", "unclean-crc"])
def test_both_kernels_find_the_same(
    name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for module in (kernel.active, plain):
        monkeypatch.setattr(kernel, "active", module)
        reports.append(verified(golden, name))
    assert reports[0] == reports[1]


def test_progress_goes_up_to_the_end(golden: Golden) -> None:
    told: list[tuple[int, int]] = []
    with Store.open(golden("basic") / "store") as store:
        report = verify(store, progress=lambda done, total: told.append((done, total)))
    done = [step for step, _ in told]
    assert done == sorted(done)
    assert {total for _, total in told} == {report.counts["bytes"]}
    assert done[-1] == report.counts["bytes"]
    assert len(done) > 10


@pytest.mark.parametrize("name", ["basic", "trimmed", "dledger", "unclean-crc"])
def test_pieces_are_worked_on_anywhere_and_in_any_order(name: str, golden: Golden) -> None:
    folder = golden(name)
    with Store.open(folder / "store", **store_kwargs(folder)) as store:
        whole = verify(store)
        plan = pickle.loads(pickle.dumps(make_plan(store, unit_bytes=1)))
        assert len(plan.units) > 10

        def work(snapshot, units):  # type: ignore[no-untyped-def]
            shuffled = list(units)
            random.Random(7).shuffle(shuffled)
            for unit in shuffled:
                with Store.open(folder / "store", **store_kwargs(folder)) as other:
                    found = check_unit(other, *pickle.loads(pickle.dumps((snapshot, unit))))
                    yield pickle.loads(pickle.dumps(found))

        spread = verify_plan(store, plan, work)
    assert spread.totals == whole.totals
    assert spread.counts == whole.counts
    assert spread.torn_tail == whole.torn_tail
    assert set(spread.problems) == set(whole.problems)


def test_few_problems_are_listed_and_all_are_counted() -> None:
    findings = Findings(2)
    for number in range(5):
        findings.error("field", ("file", number), "wrong")
    findings.note("field", ("file", 9), "odd")
    other = Findings(2)
    other.error("record", ("file", 1), "wrong")
    findings.merge(other)
    assert [(p.kind, p.offset) for p in findings.problems] == [
        ("field", 0), ("field", 1), ("record", 1), ("field", 9),
    ]  # fmt: skip
    assert findings.totals == {"field": 6, "record": 1}
    with pytest.raises(KeyError):
        findings.error("a kind that the documentation does not know", ("file", 0), "wrong")
    assert findings.errors == 6


def test_the_documentation_lists_all_kinds() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "verify.md").read_text(encoding="utf-8")
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert {row[0].strip("`"): row[-1] for row in rows} == KINDS


def test_a_large_store_of_many_queues(tmp_path: Path) -> None:
    traffic = Traffic(40_000, {"a": 150, "b": 150}, (0, 300), shuffled=True)
    path = build_store(
        tmp_path / "store", traffic, segment_size=1 << 20, queue_entries=100, index=(1000, 5000)
    )
    with Store.open(path) as store:
        report = verify(store)
    assert report.totals == {}
    assert report.counts["records"] == report.counts["entries"] == 40_000
    assert report.counts["indexEntries"] == 80_000
    assert report.counts["queues"] == 300


def test_a_store_that_is_being_written_is_verified_as_far_as_its_queues_know_it(
    writer: LiveWriter,  # noqa: F811
) -> None:
    seen = set()
    for _ in range(3):
        writer.start(3000)
        for _ in range(3):
            with Store.open(writer.path) as store:
                report = verify(store)
            assert report.ok, report.problems
            assert report.being_written
            # Files can be seen that have no length yet, queues that were just made, and so on.
            assert report.totals["state"] == 1
            seen.add(report.counts["records"])
        writer.finished()
    assert len(seen) > 1


def test_an_index_file_that_was_just_made_is_no_damage(writer: LiveWriter) -> None:  # noqa: F811
    """A writer makes the file first, and then gives it its length."""
    writer.write(1000)
    path = Path(writer.path, "index", "99991231235959999")
    path.touch()
    with Store.open(writer.path) as store:
        report = verify(store)
        assert report.being_written
        assert report.ok, report.problems
        assert report.totals["index-header"] == 1
    writer.kill()  # which can leave it so
    with Store.open(writer.path) as store:
        report = verify(store)
        assert report.ok, report.problems
    Path(writer.path, "abort").unlink()
    with Store.open(writer.path) as store:
        (found,) = [p for p in verify(store).problems if p.file == str(path)]
        assert (found.kind, found.severity) == ("index-header", "error")


def test_a_queue_file_that_was_just_made_is_no_damage(writer: LiveWriter) -> None:  # noqa: F811
    writer.write(1000)
    newest = max(Path(writer.path, "consumequeue", "orders", "0").iterdir())
    newest.with_name(f"{int(newest.name) + newest.stat().st_size:020}").touch()
    with Store.open(writer.path) as store:
        report = verify(store)
        assert report.being_written
        assert report.ok, report.problems
