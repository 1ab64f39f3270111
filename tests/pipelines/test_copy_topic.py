"""Copies of a topic, within a store and into another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore_spark.pipelines.copy_topic import JOB, copy_topic, main
from rmqstore_spark.pipelines.failures import run_job
from tests.pipelines.replaying import found, wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.datasource.sink.serving import Served

Golden = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


def run(session: SparkSession, *command: str) -> int:
    """Run the job in this process's session; returns the exit code."""
    return run_job(lambda: copy_topic(session, JOB.parse(list(command))))


def test_a_topic_is_copied_within_a_store_and_on(
    golden: Golden,
    session: SparkSession,
    serve: Callable[..., Served],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    shutil.copytree(golden("live") / "store", tmp_path / "live")
    live, other = serve("live"), serve("other")
    whole = wanted(golden("live"), "Live")
    orders = {at[1]: rows for at, rows in whole.items() if at[0] == "LiveOrder"}

    assert run(session, str(live.path), "LiveOrder", live.endpoint, "--as", "Copy") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"created topic Copy with 4 queue(s) at {live.endpoint}",
        f"20 message(s) of LiveOrder copied to Copy at {live.endpoint}",
    ]
    assert found(live, ["Copy"]) == {("Copy", at): rows for at, rows in orders.items()}

    # Through the process, and run again.
    once = ("--write", "txnAppId=orders", "--write", "txnVersion=1")
    for _ in range(2):
        assert run(session, live.endpoint, "Copy", other.endpoint, *once) == 0
    assert found(other, ["Copy"]) == {("Copy", at): rows for at, rows in orders.items()}


def test_what_is_not_there(
    golden: Golden, session: SparkSession, serve: Callable[..., Served], capsys: Capture
) -> None:
    store, target = str(golden("live") / "store"), serve("target")
    for command, words in (
        (["Nothing", target.endpoint], "Topic 'Nothing' does not exist"),
        (["LiveOrder", "grpc://127.0.0.1:1", "--write", "retries=0"], "127.0.0.1:1"),
        (["LiveOrder", target.endpoint, "--subscribe", "a"], "remove --subscribe"),
        (["LiveOrder", target.endpoint, "--as", "a b"], "topic"),
    ):
        assert run(session, store, *command) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line
    assert target.client().topics() == {}


def test_wrong_options_need_no_spark(capsys: Capture) -> None:
    assert main(["/store", "T", "grpc://127.0.0.1:1", "--write", "atomic=perhaps"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
