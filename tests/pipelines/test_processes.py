"""The jobs as programs: by `python -m`, by spark-submit, and killed."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from rmqstore_spark.pipelines.running import run_tasks
from tests.pipelines.half_backfill import FINISHED, has_written_its_half
from tests.pipelines.lakehouse import FORMATS, LakeHouse, rows_of
from tests.pipelines.processes import ROOT, SPARK_SUBMIT, environment, kill_when, submit
from tests.pipelines.running import data_files, read_back, run_backfill
from tests.support.stores.expected import backed_rows, queue_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.spark_versions_more
def test_killed_backfills_go_on(
    golden: Golden, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One into files by spark-submit; those into tables in this process."""
    out = tmp_path / "out"
    lakes = [LakeHouse(to, tmp_path / to) for to in FORMATS]

    def command(output: Sequence[str]) -> list[str]:
        what = ("--maxRecordsPerPartition", "10", "--subscribe", "TopicTest,orders_v2-EU")
        return [str(golden("basic") / "store"), *output, *what]

    def have_written_their_halves() -> bool:
        attempts = [out.glob("_backfill/attempts/*.json")]
        attempts += [lake.data.glob("_backfill/*/attempts/*.json") for lake in lakes]
        return all(map(has_written_its_half, attempts))

    commands = [command([str(out)]), *(command(lake.arguments) for lake in lakes)]
    kill_when(have_written_their_halves, "tests.pipelines.half_backfill", [json.dumps(commands)])
    assert data_files(out) == []
    assert [len(lake.read()) for lake in lakes] == [0, 0]

    expected = [r for r in backed_rows(golden("basic")) if not r["topic"].startswith("%")]
    keys = list(map(queue_key, expected))
    said = submit("backfill", commands[0], tmp_path)
    assert f"{len(expected):,} rows of 8 queue(s), as many as planned" in said
    assert list(map(queue_key, read_back(out))) == keys
    for lake in lakes:
        run_backfill(*command(lake.arguments), run=partial(run_tasks, session, "backfill"))
        assert list(map(queue_key, rows_of(lake.read()))) == keys
        assert lake.commits() == 1
        for text in (said, capsys.readouterr().out):
            assert f"\n{FINISHED} of " in f"\n{text}"
            assert "pieces are already finished" in text


@pytest.mark.slow
def test_the_stream_by_spark_submit(golden: Golden, tmp_path: Path) -> None:
    command = [
        SPARK_SUBMIT, "--master", "local[1]", str(ROOT / "jobs" / "stream_to_parquet.py"),
        str(golden("live") / "store"), "copy", "--checkpoint", "checkpoint",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment() | {"SPARK_CONF_DIR": str(ROOT / "conf")},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("batch 0: 981 rows")
    # Only the warning that every JVM of Spark prints when it starts.
    assert done.stderr.splitlines() == ["WARNING: Using incubator modules: jdk.incubator.vector"]


@pytest.mark.parametrize("job", ["backfill", "stream_to_parquet", "replay", "copy_topic"])
def test_help_needs_no_spark(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"jobs.{job}", "--help"],
        cwd=ROOT, env={"PATH": os.defpath, "COLUMNS": "100"}, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert "--startingOffsets, --starting-offsets POSITION" in done.stdout
    assert done.stderr == ""


def test_tasks_load_no_command_line() -> None:
    """Every Python worker of Spark would load it too."""
    program = """
import sys
import rmqstore_spark.pipelines.tasks
import rmqstore_spark.pipelines.parquet.task
import rmqstore_spark.pipelines.tables.output
import rmqstore_spark.pipelines.tasks
print(sorted({"argparse", "click", "rich", "rmqstore_spark.cli", "typer"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


def test_tasks_run_where_the_jobs_are_not_installed(
    golden: Golden, session: SparkSession, tmp_path: Path
) -> None:
    program = """
import pickle, sys
sys.modules["jobs"] = None  # an import of it fails
task, work = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps([task(item) for item in work]))
"""

    def elsewhere(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        sent = cloudpickle.dumps((task, work))  # type: ignore[no-untyped-call]
        done = subprocess.run(
            [sys.executable, "-c", program], input=sent, check=True, capture_output=True
        )
        found: list[dict[str, Any]] = pickle.loads(done.stdout)
        return found

    run_backfill(golden("tiny") / "store", tmp_path / "out", run=elsewhere)
    assert len(read_back(tmp_path / "out")) == 60
