"""A backfill that was ended anywhere continues, and no row is missing or duplicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.pipelines.parquet.output import Output
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from tests.pipelines.running import (
    Killed,
    data_files,
    killed_after,
    read_back,
    run_backfill,
    run_half,
    run_here,
    run_only,
)
from tests.support.sampling import one_in
from tests.support.stores.expected import backed_rows

Golden = Callable[[str], Path]
Row = dict[str, Any]

OPTIONS = ("--maxRecordsPerPartition", "15")


@pytest.fixture
def store(golden: Golden) -> Path:
    return golden("tiny") / "store"


@pytest.fixture
def expected(golden: Golden) -> list[Row]:
    return backed_rows(golden("tiny"))


def check(output: Path, expected: list[Row]) -> None:
    rows = read_back(output)
    for row in rows:
        del row["brokerName"], row["date"]
    assert rows == expected
    # The next reader of the folder finds nothing of the attempts.
    assert not (output / "_backfill" / "attempts").exists()
    assert (output / "_SUCCESS").exists()


@pytest.mark.fault
def test_a_kill_after_any_change_to_the_output(
    store: Path, expected: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_after(10**9, monkeypatch) as tried:
        run_backfill(store, tmp_path / "whole", *OPTIONS)
    check(tmp_path / "whole", expected)
    assert tried[0] > 30
    for operations in one_in(4, range(tried[0])):
        output = tmp_path / str(operations)
        with killed_after(operations, monkeypatch), pytest.raises(Killed):
            run_backfill(store, output, *OPTIONS)
        assert not (output / "_SUCCESS").exists()
        run_backfill(store, output, *OPTIONS)
        check(output, expected)


@pytest.mark.fault
def test_kills_one_after_the_other(
    store: Path, expected: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(200):
        # A few more than are needed to clean up after the previous run.
        try:
            with killed_after(17, monkeypatch):
                run_backfill(store, tmp_path / "out", *OPTIONS)
        except Killed:
            continue
        break
    check(tmp_path / "out", expected)


def test_finished_pieces_are_not_done_again(
    store: Path, expected: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        run_backfill(store, tmp_path / "out", *OPTIONS, run=run_half)
    assert data_files(tmp_path / "out") == []
    run_backfill(store, tmp_path / "out", *OPTIONS, run=run_only([2, 3]))
    assert "2 of 4 pieces are already finished" in capsys.readouterr().out
    check(tmp_path / "out", expected)


def test_an_attempt_that_lost_a_byte_is_done_again(
    store: Path, expected: list[Row], tmp_path: Path
) -> None:
    def fail(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        run_here(work, task)
        raise Killed

    with pytest.raises(Killed):
        run_backfill(store, tmp_path / "out", *OPTIONS, run=fail)
    # A machine that lost its power can leave a file shorter than it was written.
    victim = next((tmp_path / "out" / "_backfill" / "attempts").rglob("*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1])
    run_backfill(store, tmp_path / "out", *OPTIONS)
    check(tmp_path / "out", expected)


@pytest.mark.parametrize("winner", [0, 1])
def test_tasks_that_run_twice(
    winner: int, store: Path, expected: list[Row], tmp_path: Path
) -> None:
    def twice(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        return [(run_here([item], task) + run_here([item], task))[winner] for item in work]

    run_backfill(store, tmp_path / "out", *OPTIONS, run=twice)
    check(tmp_path / "out", expected)


def test_a_task_of_a_driver_that_was_believed_dead(
    store: Path, expected: list[Row], tmp_path: Path
) -> None:
    late: list[Any] = []

    def forgotten(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        late.extend([work, task])
        raise Killed

    with pytest.raises(Killed):
        run_backfill(store, tmp_path / "out", *OPTIONS, run=forgotten)
    run_backfill(store, tmp_path / "out", *OPTIONS)
    run_here(*late)
    assert len(read_back(tmp_path / "out")) == len(expected)
    run_backfill(store, tmp_path / "out", *OPTIONS)
    check(tmp_path / "out", expected)


@pytest.mark.parametrize("first", ["own tasks", "the other run"])
def test_two_runs_at_the_same_time(
    first: str, store: Path, expected: list[Row], tmp_path: Path
) -> None:
    def overtaken(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        done = run_here(work, task) if first == "own tasks" else []
        run_backfill(store, tmp_path / "out", *OPTIONS)
        return done or run_here(work, task)

    run_backfill(store, tmp_path / "out", *OPTIONS, run=overtaken)
    check(tmp_path / "out", expected)


def test_a_published_file_that_was_changed_is_told(store: Path, tmp_path: Path) -> None:
    run_backfill(store, tmp_path / "out", *OPTIONS)
    file = data_files(tmp_path / "out")[0]
    file.write_bytes(b"")
    with pytest.raises(RmqStoreError, match="files of the output were changed or removed"):
        run_backfill(store, tmp_path / "out", *OPTIONS)


def test_another_file_system(store: Path, expected: list[Row], tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    run_backfill(store, "memory://backfill/out", *OPTIONS)
    try:
        fs.get("/backfill/out", str(tmp_path / "out"), recursive=True)
    finally:
        fs.rm("/backfill", recursive=True)
    check(tmp_path / "out", expected)


def test_the_first_commit_counts_on_another_file_system() -> None:
    first, second = Output("memory://commits/out"), Output("memory://commits/out")
    try:
        assert first.commit([]) == []
        assert second.commit([]) == []
        assert first.committed() == []
    finally:
        fsspec.filesystem("memory").rm("/commits", recursive=True)
