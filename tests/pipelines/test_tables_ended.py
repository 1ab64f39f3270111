"""A backfill into a table that was ended anywhere, or that meets others: each row is there once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.pipelines.parquet.output import RunFolder
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from rmqstore_spark.pipelines.tables.delta import DeltaTable
from rmqstore_spark.pipelines.tables.iceberg import IcebergTable
from rmqstore_spark.pipelines.tables.table import ConflictError, DataFile
from tests.pipelines.lakehouse import FORMATS, LakeHouse, rows_of
from tests.pipelines.processes import ROOT
from tests.pipelines.running import Killed, killed_after, run_backfill, run_half, run_here, run_only
from tests.support.sampling import one_in
from tests.support.stores.expected import backed_rows

Golden = Callable[[str], Path]
Row = dict[str, Any]

OPTIONS = ("--maxRecordsPerPartition", "15")

STEPS = (
    "first attempt finished",
    "all attempts finished",
    "before the commit",
    "after the commit",
    "attempts removed",
)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeHouse:
    return LakeHouse(request.param, tmp_path / "lake")


@pytest.fixture
def store(golden: Golden) -> Path:
    return golden("tiny") / "store"


@pytest.fixture
def expected(golden: Golden) -> list[Row]:
    return backed_rows(golden("tiny"))


def check(lake: LakeHouse, expected: list[Row], commits: int = 1) -> None:
    rows = rows_of(lake.read())
    for row in rows:
        del row["brokerName"], row["date"]
    assert rows == expected
    assert lake.commits() == commits


def leftovers(lake: LakeHouse) -> set[Path]:
    """Return files of Parquet that the table does not have."""
    known = {Path(name.removeprefix("file://")) for name in lake.files()}
    return set(lake.data.rglob("*.parquet")) - known


@pytest.mark.fault
@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_each_step(
    step: str, store: Path, lake: LakeHouse, expected: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    program = """
import os, signal, sys
from rmqstore_spark.pipelines.parquet.output import RunFolder
from rmqstore_spark.pipelines.tables.delta import DeltaTable
from rmqstore_spark.pipelines.tables.iceberg import IcebergTable
from tests.pipelines.running import run_backfill

step = sys.argv[1]

def die(kind, name, before=False, after=False):
    method = getattr(kind, name)
    def dying(*arguments, **named):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        method(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(kind, name, dying)

if step == "first attempt finished":
    die(RunFolder, "finish_attempt", after=True)
elif step == "all attempts finished":
    die(RunFolder, "decide", before=True)
elif step == "attempts removed":
    die(RunFolder, "remove_attempts", after=True)
else:
    for kind in (DeltaTable, IcebergTable):
        die(kind, "append", before=step.startswith("before"), after=step.startswith("after"))
run_backfill(*sys.argv[2:])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, step, str(store), *lake.arguments, *OPTIONS],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    committed = step in STEPS[3:]
    assert lake.commits() == committed

    def counted(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        assert not committed
        assert len(work) == (3 if step == STEPS[0] else 0)
        return run_here(work, task)

    run_backfill(store, *lake.arguments, *OPTIONS, run=counted)
    check(lake, expected)
    assert ("already finished." in capsys.readouterr().out) is True
    assert leftovers(lake) == set()
    run_backfill(store, *lake.arguments, *OPTIONS, run=counted if committed else run_here)
    check(lake, expected)


@pytest.mark.fault
def test_an_end_after_any_change_to_the_files(
    store: Path, expected: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    lake: LakeHouse,
) -> None:  # fmt: skip
    with killed_after(10**9, monkeypatch) as tried:
        run_backfill(store, *lake.arguments, *OPTIONS)
    check(lake, expected)
    assert tried[0] > 20
    for operations in one_in(4, range(tried[0])):
        other = LakeHouse(lake.to, tmp_path / str(operations))
        with killed_after(operations, monkeypatch), pytest.raises(Killed):
            run_backfill(store, *other.arguments, *OPTIONS)
        run_backfill(store, *other.arguments, *OPTIONS)
        check(other, expected)
        run_backfill(store, *other.arguments, *OPTIONS)
        check(other, expected)


def test_finished_pieces_are_not_done_again(
    store: Path, expected: list[Row], lake: LakeHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        run_backfill(store, *lake.arguments, *OPTIONS, run=run_half)
    assert len(lake.read()) == 0
    run_backfill(store, *lake.arguments, *OPTIONS, run=run_only([2, 3]))
    assert "2 of 4 pieces are already finished" in capsys.readouterr().out
    check(lake, expected)


def test_files_that_were_removed_are_written_again(
    store: Path, expected: list[Row], lake: LakeHouse
) -> None:
    def fail(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        run_here(work, task)
        raise Killed

    with pytest.raises(Killed):
        run_backfill(store, *lake.arguments, *OPTIONS, run=fail)
    # A table's cleaning removes files that are in no commit.
    next(iter(leftovers(lake))).unlink()
    run_backfill(store, *lake.arguments, *OPTIONS)
    check(lake, expected)


@pytest.mark.parametrize("winner", [0, 1])
def test_tasks_that_run_twice(
    winner: int, store: Path, expected: list[Row], lake: LakeHouse
) -> None:
    def twice(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        return [(run_here([item], task) + run_here([item], task))[winner] for item in work]

    run_backfill(store, *lake.arguments, *OPTIONS, run=twice)
    check(lake, expected)
    assert leftovers(lake) == set()


@pytest.mark.parametrize("first", ["own tasks", "the other run"])
def test_two_runs_at_the_same_time(
    first: str, store: Path, expected: list[Row], lake: LakeHouse
) -> None:
    def overtaken(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        done = run_here(work, task) if first == "own tasks" else []
        run_backfill(store, *lake.arguments, *OPTIONS)
        return done or run_here(work, task)

    run_backfill(store, *lake.arguments, *OPTIONS, run=overtaken)
    check(lake, expected)


def test_attempts_that_a_faster_run_has_removed(
    store: Path, expected: list[Row], lake: LakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        done = run_here(work, task)
        with monkeypatch.context() as patch:
            # It looked before these attempts were finished.
            patch.setattr(RunFolder, "finished_attempts", lambda folder: [])
            run_backfill(store, *lake.arguments, *OPTIONS)
        assert leftovers(lake) == set()
        return done

    run_backfill(store, *lake.arguments, *OPTIONS, run=overtaken)
    check(lake, expected)


def append_of(lake: LakeHouse) -> Any:
    return (DeltaTable if lake.to == "delta" else IcebergTable).append


def patch_append(lake: LakeHouse, monkeypatch: pytest.MonkeyPatch, append: Any) -> None:
    kind = DeltaTable if lake.to == "delta" else IcebergTable
    monkeypatch.setattr(kind, "append", append)


def test_two_runs_that_commit_at_the_same_time(
    store: Path, expected: list[Row], lake: LakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run commits after this one has looked, and before it commits."""
    original = append_of(lake)
    conflicts: list[ConflictError] = []

    def overtaken(table: Any, files: Sequence[DataFile], application: str, version: int) -> None:
        patch_append(lake, monkeypatch, original)
        run_backfill(store, *lake.arguments, *OPTIONS)
        try:
            original(table, files, application, version)
        except ConflictError as error:
            conflicts.append(error)
            raise

    patch_append(lake, monkeypatch, overtaken)
    run_backfill(store, *lake.arguments, *OPTIONS)
    assert len(conflicts) == 1
    check(lake, expected)


def test_others_append_at_the_same_time(
    store: Path, expected: list[Row], lake: LakeHouse, golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    original = append_of(lake)
    others = iter(["basic", "live"])

    def overtaken(table: Any, files: Sequence[DataFile], application: str, version: int) -> None:
        for name in others:
            patch_append(lake, monkeypatch, original)
            run_backfill(golden(name) / "store", *lake.arguments)
            patch_append(lake, monkeypatch, overtaken)
            break
        original(table, files, application, version)

    patch_append(lake, monkeypatch, overtaken)
    run_backfill(store, *lake.arguments, *OPTIONS)
    monkeypatch.undo()
    run_backfill(store, *lake.arguments, *OPTIONS)
    rows = rows_of(lake.read())
    ours = [row for row in rows if row["brokerName"] == "tiny"]
    assert [row["queueOffset"] for row in ours] == [row["queueOffset"] for row in expected]
    assert {row["brokerName"] for row in rows} >= {"tiny", "basic"}


def test_a_lost_answer(
    store: Path, expected: list[Row], lake: LakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = append_of(lake)

    def lost(table: Any, files: Sequence[DataFile], application: str, version: int) -> None:
        original(table, files, application, version)
        raise OSError("the connection was reset")

    patch_append(lake, monkeypatch, lost)
    run_backfill(store, *lake.arguments, *OPTIONS)
    monkeypatch.undo()
    run_backfill(store, *lake.arguments, *OPTIONS)
    check(lake, expected)


def test_a_commit_that_fails_is_told_and_can_be_repeated(
    store: Path, expected: list[Row], lake: LakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: Any, files: Sequence[DataFile], application: str, version: int) -> None:
        raise OSError("the disk is full")

    patch_append(lake, monkeypatch, fail)
    with pytest.raises(RmqStoreError, match="could not be written: OSError: the disk is full"):
        run_backfill(store, *lake.arguments, *OPTIONS)
    monkeypatch.undo()
    assert lake.commits() == 0
    run_backfill(store, *lake.arguments, *OPTIONS)
    check(lake, expected)


def test_a_table_that_others_always_change(
    store: Path, lake: LakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def conflict(table: Any, files: Sequence[DataFile], application: str, version: int) -> None:
        tries.append(version)
        raise ConflictError

    monkeypatch.setattr("rmqstore_spark.pipelines.tables.table._SHORTEST_PAUSE", 0)
    patch_append(lake, monkeypatch, conflict)
    with pytest.raises(RmqStoreError, match="was changed by others each of 20 times"):
        run_backfill(store, *lake.arguments, *OPTIONS)
    assert len(tries) == 20


def test_a_table_whose_columns_change_meanwhile(store: Path, lake: LakeHouse) -> None:
    def changed(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        if lake.to == "delta":
            lake.delta().alter.add_columns(
                deltalake.Field("price", deltalake.schema.PrimitiveType("integer"))
            )
        else:
            with lake.iceberg().update_schema() as change:
                change.union_by_name(pa.schema([pa.field("price", pa.int32())]))
        return run_here(work, task)

    with pytest.raises(OptionError, match=r"price is int.* there, and missing here"):
        run_backfill(store, *lake.arguments, *OPTIONS, run=changed)
    assert lake.commits() == 0


def test_snapshots_expire_and_the_table_still_knows(
    store: Path, expected: list[Row], lake: LakeHouse, golden: Golden
) -> None:
    """Of the backfill's own commit nothing is left in the history."""
    run_backfill(store, *lake.arguments, *OPTIONS)
    run_backfill(golden("basic") / "store", *lake.arguments)
    if lake.to == "delta":
        lake.delta().create_checkpoint()
        lake.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        lake.delta().create_checkpoint()
        lake.delta().cleanup_metadata()
    else:
        table = lake.iceberg()
        table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
        assert len(lake.iceberg().snapshots()) == 1
    rows = len(lake.read())
    (lake.data / "_backfill").rename(lake.folder / "elsewhere")
    run_backfill(store, *lake.arguments, *OPTIONS)
    assert len(lake.read()) == rows > len(expected)
