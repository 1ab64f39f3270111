"""The stream into Delta and Iceberg tables: each message once, over restarts and repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqstore_spark.pipelines.running import follow_to_the_end, run_job
from rmqstore_spark.pipelines.stream_to_parquet import JOB, start_query
from rmqstore_spark.pipelines.tables import output
from rmqstore_spark.pipelines.tables.table import append_once
from tests.pipelines.lakehouse import FORMATS, READERS, LakeHouse, rows_of
from tests.support.stores.expected import backed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeHouse:
    return LakeHouse(request.param, tmp_path / "lake")


class Stream:
    """Runs the job on the messages that exist, with one checkpoint."""

    def __init__(self, session: SparkSession, store: Path, lake: LakeHouse) -> None:
        self._session = session
        self.checkpoint = lake.folder.parent / "checkpoint"
        self._command = [
            str(store), *lake.arguments, "--checkpoint", str(self.checkpoint),
            "--maxOffsetsPerTrigger", "400", "--includeSystemTopics", "true",
        ]  # fmt: skip

    def run(self, *options: str) -> None:
        job = JOB.parse([*self._command, *options])
        follow_to_the_end(lambda: start_query(self._session, job))


@pytest.fixture
def stream(session: SparkSession, golden: Golden, lake: LakeHouse) -> Stream:
    return Stream(session, golden("live") / "store", lake)


def check(lake: LakeHouse, golden: Path) -> None:
    rows = rows_of(lake.read())
    for row in rows:
        assert row.pop("brokerName") in ("b1", "b2", golden.name)
        assert row.pop("date") == row["storeTimestamp"].date()
    assert rows == backed_rows(golden)


@pytest.mark.spark_versions_more
def test_each_message_is_written_once(
    stream: Stream, lake: LakeHouse, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.run()
    batches = capsys.readouterr().out.splitlines()
    assert len(batches) > 1
    assert lake.commits() == len(batches)
    check(lake, golden("live"))
    stream.run()
    assert capsys.readouterr().out == ""
    assert lake.commits() == len(batches)
    counts = {len(lake.read(reader)) for reader in READERS}
    assert counts == {len(backed_rows(golden("live")))}


@pytest.mark.spark_versions_more
def test_a_batch_whose_end_spark_has_not_noted(
    stream: Stream, lake: LakeHouse, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.run()
    commits = lake.commits()
    capsys.readouterr()
    # A kill after the table's commit leaves the checkpoint like this.
    noted = stream.checkpoint / "commits"
    last = max(int(path.name) for path in noted.iterdir() if path.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (noted / name).unlink(missing_ok=True)
    stream.run()
    assert f"batch {last}: the table has it already\n" in capsys.readouterr().out
    assert lake.commits() == commits
    check(lake, golden("live"))


@pytest.mark.spark_versions_more
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_a_driver_that_ends_at_the_commit(
    when: str,
    stream: Stream,
    lake: LakeHouse,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    append = append_once

    def ends(table: Any, files: Sequence[Any], application: str, version: int) -> bool:
        if version == 1 and when == "before the commit":
            raise RuntimeError("the driver ends")
        appended = append(table, files, application, version)
        if version == 1:
            raise RuntimeError("the driver ends")
        return appended

    with monkeypatch.context() as patch:
        patch.setattr(output, "append_once", ends)
        with pytest.raises(Exception, match="the driver ends"):
            stream.run()
    assert lake.commits() == (1 if when == "before the commit" else 2)
    stream.run()
    check(lake, golden("live"))


def test_another_stream_appends(
    stream: Stream, session: SparkSession, lake: LakeHouse, golden: Golden, tmp_path: Path
) -> None:
    stream.run()
    command = [
        str(golden("tiny") / "store"), *lake.arguments, "--checkpoint", str(tmp_path / "second"),
    ]  # fmt: skip
    follow_to_the_end(lambda: start_query(session, JOB.parse(command)))
    assert len(lake.read()) == len(backed_rows(golden("live"))) + len(backed_rows(golden("tiny")))


def test_a_table_that_does_not_fit_is_told(
    stream: Stream, lake: LakeHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.run()
    assert run_job(lambda: stream.run("--schema", "body string")) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: The table ")
    assert "body is binary there, and string here" in error


def test_an_error_at_the_commit_is_told(
    stream: Stream,
    lake: LakeHouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(table: Any, files: Sequence[Any], application: str, version: int) -> None:
        raise OSError("the disk is full")

    for kind in ("delta", "iceberg"):
        monkeypatch.setattr(
            f"rmqstore_spark.pipelines.tables.{kind}.{kind.capitalize()}Table.append",
            lambda self, *args: fail(self, *args),
        )
    assert run_job(stream.run) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: The table ")
    assert "could not be written: OSError: the disk is full" in error
    assert error.count("\n") == 1
