"""Drivers that are killed, and tasks that are run again, on Spark as it is (promise 2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.datasource.sink.serving import Served
from tests.datasource.sink.test_sink_stream import FILES, ROWS, TOPIC, arriving, bodies
from tools.java import find_java

__all__ = ["arriving"]

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.fault]


def drive(
    store: Served, folder: Path, files: Path, die: str = "", starts: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run a driver until it ends, or is killed."""
    given = {
        "endpoint": store.endpoint, "arriving": str(files), "checkpoint": str(folder / "c"),
        "folder": str(folder), "die": die, "starts": starts,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tests.datasource.sink.driver", json.dumps(given)],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("moment", ["after staging", "before commit", "after commit"])
def test_a_driver_that_is_killed_and_started_again(
    served: Served, arriving: Path, tmp_path: Path, moment: str
) -> None:
    killed = drive(served, tmp_path, arriving, moment)
    assert killed.returncode == -9, killed.stderr
    committed = 3 if moment == "after commit" else 2
    assert served.commits() == committed
    assert served.bodies(TOPIC, least=committed * ROWS) == bodies(committed * ROWS)
    again = drive(served, tmp_path, arriving)
    assert "ended" in again.stdout, again.stderr
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES


def test_tasks_that_fail_when_they_have_staged_are_run_again(
    served: Served, arriving: Path, tmp_path: Path
) -> None:
    done = drive(served, tmp_path, arriving, "tasks")
    assert "ended" in done.stdout, done.stderr
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES


def test_each_commit_succeeds_and_spark_is_told_that_it_failed(
    served: Served, arriving: Path, tmp_path: Path
) -> None:
    done = drive(served, tmp_path, arriving, "commit fails", starts=FILES + 1)
    assert done.stdout.split("\n").count("failed: True") == FILES, done.stdout + done.stderr
    assert "ended" in done.stdout
    assert served.bodies(TOPIC, least=FILES * ROWS) == bodies()
    assert served.commits() == FILES
    assert Counter(served.bodies(TOPIC).values()) == {1: FILES * ROWS}
