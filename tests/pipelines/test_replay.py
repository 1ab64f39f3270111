"""Replays into a store process: each message once, in the order of its queue (promise 2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from rmqstore_spark.pipelines import tasks
from rmqstore_spark.pipelines.replay import JOB, main, replay
from rmqstore_spark.pipelines.running import run_job
from tests.pipelines.processes import kill_when, submit
from tests.pipelines.replaying import LIVE_ROWS, found, wanted
from tests.pipelines.running import run_backfill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.datasource.sink.serving import Served

Golden = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]

COPIES = [f"r_{name}" for name in ("Batch", "Delay", "Order", "Topic", "Tran")]
MAP = ("--map", "Live*=r_*")


def run(session: SparkSession, *command: str) -> int:
    """Run the job in this process's session; returns the exit code."""
    return run_job(lambda: replay(session, JOB.parse(list(command))))


Start = Callable[[str], "Served"]


@pytest.fixture
def target(serve: Callable[..., Served]) -> Served:
    """An empty store with its process."""
    return serve("target")


@pytest.fixture
def target_until(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start the process of an empty store that gets no further than a failpoint, once."""

    def start(failpoint: str) -> Served:
        with monkeypatch.context() as patch:
            patch.setenv("RMQSTORE_FAILPOINT", failpoint)
            return serve("target")

    return start


@pytest.mark.fault
@pytest.mark.spark_versions
@pytest.mark.parametrize("place", ["commit.before_write", "commit.after_sync"])
def test_a_store_that_is_killed_meanwhile(
    golden: Golden,
    session: SparkSession,
    target_until: Start,
    tmp_path: Path,
    capsys: Capture,
    place: str,
) -> None:
    target = target_until(f"{place}:2")
    command = [
        str(golden("live") / "store"), target.endpoint, "--checkpoint", str(tmp_path / "c"), *MAP,
        "--maxOffsetsPerTrigger", "400", "--write", "retries=0",
    ]  # fmt: skip
    assert run(session, *command) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("error: ")
    assert target.endpoint.removeprefix("rmq://") in said.err

    target.restart()
    assert run(session, *command) == 0
    # The interrupted batch was committed or not, by the place; if not, it is repeated.
    assert found(target, COPIES) == wanted(golden("live"), "r_")
    assert run(session, *command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"0 message(s) replayed to {target.endpoint}"
    )
    assert found(target, COPIES) == wanted(golden("live"), "r_")


def test_parquet_at_a_rate_and_again(
    golden: Golden,
    session: SparkSession,
    target: Served,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "_ROWS_AT_ONCE", 400)
    run_backfill(golden("live") / "store", tmp_path / "lake")
    command = [
        str(tmp_path / "lake"), target.endpoint, "--checkpoint", str(tmp_path / "c"), *MAP,
        "--parquet", "--rate", "500",
    ]  # fmt: skip
    begun = time.monotonic()
    assert run(session, *command) == 0
    assert time.monotonic() - begun >= LIVE_ROWS / 500
    assert capsys.readouterr().out.endswith(
        f"{LIVE_ROWS} message(s) replayed to {target.endpoint}\n"
    )
    assert target.commits() == 3
    assert found(target, COPIES) == wanted(golden("live"), "r_")
    # As if the job had been killed after the store's commit, and before it recorded that.
    (tmp_path / "c" / "done" / "1").unlink()
    assert run(session, *command) == 0
    assert target.commits() == 3
    assert found(target, COPIES) == wanted(golden("live"), "r_")


@pytest.mark.fault
@pytest.mark.parametrize("place", ["commit.before_write", "commit.after_sync"])
def test_a_store_that_is_killed_while_parquet_is_replayed(
    golden: Golden,
    session: SparkSession,
    target_until: Start,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    monkeypatch.setattr(tasks, "_ROWS_AT_ONCE", 450)
    target = target_until(f"{place}:2")
    run_backfill(golden("live") / "store", tmp_path / "lake")
    command = [
        str(tmp_path / "lake" / "topic=LiveTopic"), target.endpoint, "--parquet", *MAP,
        "--checkpoint", str(tmp_path / "c"), "--write", "retries=0",
    ]  # fmt: skip
    assert run(session, *command) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    target.restart()
    assert run(session, *command) == 0
    whole = wanted(golden("live"), "r_")
    assert found(target, ["r_Topic"]) == {
        at: rows for at, rows in whole.items() if "Topic" in at[0]
    }

    assert run(session, *command, "--map", "*=other") == 2
    assert "replay with other arguments" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_job_goes_on_by_spark_submit(
    golden: Golden, target_until: Start, tmp_path: Path
) -> None:
    target = target_until("commit.before_write:3:stop")
    arguments = [
        str(golden("live") / "store"), target.endpoint, "--checkpoint", str(tmp_path / "c"), *MAP,
        "--maxOffsetsPerTrigger", "200",
    ]  # fmt: skip
    store = psutil.Process(target.process.pid)
    kill_when(lambda: store.status() == psutil.STATUS_STOPPED, "jobs.replay", arguments)
    store.resume()  # the batch that was under way may be committed yet, and no other
    assert target.commits() in (2, 3)
    said = submit("replay", arguments, tmp_path)
    assert f"message(s) replayed to {target.endpoint}" in said
    assert found(target, COPIES) == wanted(golden("live"), "r_")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--map", "orders"], "--map must be OLD=NEW"),
        (["--write", "preserv=true"], "preserv"),
        (["--write", "preserve"], "--write must be NAME=VALUE"),
        (["--parquet", "--write", "txnAppId=a", "--write", "txnVersion=1"], "txnAppId"),
    ],
)
def test_wrong_options_need_no_spark(options: list[str], words: str, capsys: Capture) -> None:
    assert main(["/store", "rmq://127.0.0.1:1", "--checkpoint", "/none", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


@pytest.mark.parametrize("rate", ["0", "0.5", "inf", "nan", "fast"])
def test_a_rate_that_is_none(rate: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["/store", "rmq://127.0.0.1:1", "--checkpoint", "/none", "--rate", rate])
    assert "must be a number of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 1, "does not exist"),
        (["--parquet"], 2, "is not a readable folder of Parquet files: [PATH_NOT_FOUND]"),
        (["--parquet", "--subscribe", "a"], 2, "remove subscribe"),
    ],
)
def test_what_is_not_there(
    session: SparkSession, tmp_path: Path, options: list[str], code: int, words: str,
    capsys: Capture,
) -> None:  # fmt: skip
    command = [str(tmp_path / "none"), "rmq://127.0.0.1:1", "--checkpoint", str(tmp_path / "c")]
    assert run(session, *command, *options) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not (tmp_path / "c").exists()
