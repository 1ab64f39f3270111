"""The streaming copy: each message once, over restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore_spark.pipelines.running import follow_to_the_end
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
        "--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "100 milliseconds",
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
