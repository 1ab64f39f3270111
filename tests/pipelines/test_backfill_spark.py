"""The backfill with Spark: the folder has the same rows as the source."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from rmqstore_spark.pipelines.backfill import JOB, through_dataframe
from rmqstore_spark.pipelines.parquet.files import Partition
from rmqstore_spark.pipelines.running import run_job, run_tasks
from tests.pipelines.running import data_files, run_backfill
from tests.support.stores.expected import backed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Golden = Callable[[str], Path]

STORES = ("basic", "flags", "live")
"""Unusual topics, null and empty keys, compressed bodies."""


def comparable(rows: DataFrame) -> DataFrame:
    """Turn maps into sorted lists, because chispa cannot sort maps."""
    from pyspark.sql import functions as sf

    entries = sf.array_sort(sf.map_entries("properties"))
    return rows.withColumn("properties", entries).withColumn("keys", sf.to_json("keys"))


def assert_same_rows(written: DataFrame, source: DataFrame) -> None:
    """Check that a folder has the rows of the source, except for the date."""
    from pyspark.sql import functions as sf

    wrong = written.where("date IS DISTINCT FROM to_date(storeTimestamp)")
    assert wrong.count() == 0
    assert_df_equality(
        comparable(written.drop("date")).withColumn("body", sf.sha2("body", 256)),
        comparable(source).withColumn("body", sf.sha2("body", 256)),
        ignore_row_order=True,
        ignore_column_order=True,
        ignore_nullable=True,
    )


@pytest.fixture
def stores(golden: Golden) -> str:
    """Several golden stores as one path."""
    return json.dumps([str(golden(name) / "store") for name in STORES])


def test_the_folder_reads_as_the_source_does(
    stores: str, golden: Golden, session: SparkSession, tmp_path: Path
) -> None:
    run_backfill(
        stores, tmp_path / "out", "--includeSystemTopics", "true", "--minPartitions", "8",
        run=partial(run_tasks, session, "backfill"),
    )  # fmt: skip
    written = session.read.parquet(str(tmp_path / "out"))
    source = session.read.format("rmqstore").option("includeSystemTopics", "true").load(stores)
    assert_same_rows(written, source)
    assert written.count() == sum(len(backed_rows(golden(name))) for name in STORES)


def test_through_a_dataframe(
    golden: Golden, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(golden("live") / "store")
    command = [store, str(tmp_path / "out"), "--through-dataframe", "orc", "--compression", "zlib"]
    through_dataframe(session, JOB.parse(command), "orc")
    assert_same_rows(
        session.read.orc(str(tmp_path / "out")), session.read.format("rmqstore").load(store)
    )
    assert capsys.readouterr().out.startswith("981 rows")
    assert all(path.suffixes[-2:] == [".zlib", ".orc"] for path in tmp_path.rglob("part-*.orc"))


def test_errors_of_tasks_are_told(
    damaged: Path, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = partial(run_tasks, session, "backfill")
    assert run_job(lambda: run_backfill(damaged, tmp_path / "out", run=run)) == 1
    assert data_files(tmp_path / "out") == []
    error = capsys.readouterr().err
    assert error.startswith("error: a body does not match its bodyCRC in ")
    assert error.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_full_disk_is_told(
    golden: Golden, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(small)], check=True)
    try:
        run = partial(run_tasks, session, "backfill")
        store = golden("live") / "store"
        assert run_job(lambda: run_backfill(store, small / "out", run=run), [str(small)]) == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert capsys.readouterr().err == (
        f"error: {small}/out/_backfill/attempts cannot be written: No space left on device. Free "
        "some space there, and repeat the command.\n"
    )


def test_what_a_dataframe_cannot_be_written_to_is_told(
    golden: Golden, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(output: Path, kind: str) -> int:
        job = JOB.parse([str(golden("tiny") / "store"), str(output), "--through-dataframe", kind])
        return run_job(lambda: through_dataframe(session, job, kind), job.places())

    assert run(tmp_path / "out", "parchment") == 2
    assert run(tmp_path, "parquet") == 2
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "out", "parquet") == 1
    unknown, exists, not_a_folder = capsys.readouterr().err.splitlines()
    assert unknown.startswith("error: --through-dataframe must be a format that this Spark can ")
    assert exists == f"error: {tmp_path} exists already. Use a new folder."
    assert not_a_folder.startswith(f"error: {tmp_path / 'file'}")


def test_folders_are_named_as_spark_names_them(session: SparkSession) -> None:
    topics = [f"a{chr(code)}b" for code in range(1, 0x100)] + ["%RETRY%cg_1", "%DLQ%cg", "主题"]
    assert session._jvm is not None
    utils = session._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    for topic in topics:
        folder = Partition(topic, 0).folder
        assert folder == f"topic={utils.escapePathName(topic)}/date=1970-01-01"
        assert utils.unescapePathName(folder.split("/")[0].removeprefix("topic=")) == topic
