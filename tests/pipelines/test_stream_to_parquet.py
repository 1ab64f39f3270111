"""The streaming copy: each message once, over restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore_spark.pipelines.running import follow_to_the_end, run_job
from rmqstore_spark.pipelines.stream_to_parquet import JOB, start_query
from tests.support.stores.expected import backed_rows, queue_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]


@pytest.mark.spark_versions
def test_each_message_is_copied_once(
    golden: Golden, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        str(golden("live") / "store"), str(tmp_path / "out"),
        "--checkpoint", str(tmp_path / "checkpoint"),
        "--maxOffsetsPerTrigger", "400", "--includeSystemTopics", "true",
    ]  # fmt: skip
    expected = backed_rows(golden("live"))
    for rows in (len(expected), 0):
        follow_to_the_end(lambda: start_query(session, JOB.parse(command)))
        lines = capsys.readouterr().out.splitlines()
        assert sum(int(line.split()[2].replace(",", "")) for line in lines) == rows
        found = session.read.parquet(str(tmp_path / "out")).collect()
        assert sorted((row.topic, row.queueId, row.queueOffset) for row in found) == sorted(
            map(queue_key, expected)
        )
        assert {row.date.isoformat() for row in found} == {"2026-11-21"}


def test_a_schema_is_followed(golden: Golden, session: SparkSession, tmp_path: Path) -> None:
    command = [
        str(golden("live") / "store"), str(tmp_path / "out"),
        "--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "100ms",
        "--schema", "body string", "--subscribe", "LiveOrder", "--compression", "snappy",
    ]  # fmt: skip
    query = start_query(session, JOB.parse(command))
    query.processAllAvailable()
    query.stop()
    found = session.read.parquet(str(tmp_path / "out"))
    assert found.columns == ["body", "topic", "date"]
    wanted = [
        row["body"].decode() for row in backed_rows(golden("live")) if "Order" in row["topic"]
    ]
    assert sorted(row.body for row in found.collect()) == sorted(wanted)


@pytest.mark.parametrize("trigger", ["foo", "10 parsecs", "-1s"])
def test_a_wrong_trigger_is_told_before_spark_starts(
    trigger: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        JOB.parse(["store", "out", "--checkpoint", "c", "--trigger", trigger])
    assert ended.value.code == 2
    assert "--trigger" in (said := capsys.readouterr().err)
    assert "an interval such as 30s" in said


@pytest.mark.parametrize("wrong", ["output", "checkpoint"])
def test_folders_that_cannot_be_made_are_told_in_one_line(
    golden: Golden,
    session: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
) -> None:
    (tmp_path / "file").touch()
    places = {"output": "out", "checkpoint": "checkpoint"} | {wrong: "file/below"}
    command = [
        str(golden("live") / "store"), str(tmp_path / places["output"]),
        "--checkpoint", str(tmp_path / places["checkpoint"]),
    ]  # fmt: skip
    parsed = JOB.parse(command)

    def run() -> int:
        return follow_to_the_end(lambda: start_query(session, parsed)).rows

    assert run_job(run, parsed.places()) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'file'}")
    assert error.endswith("Not a directory. Use another folder.\n")
    assert error.count("\n") == 1
