"""Verification as a job has the same findings as in one process, and an exit code for them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore_spark.datasource.sources.store import StoreSpec
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.pipelines.running import run_tasks
from rmqstore_spark.pipelines.tasks import VerifyTask
from rmqstore_spark.pipelines.verify_store import JOB, Runner, verify_stores
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import Findings, Unit, VerifyReport, make_plan, verify
from tests.pipelines.processes import ROOT, SPARK_SUBMIT, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]


def run_here(
    description: str, work: Sequence[Sequence[Unit]], task: VerifyTask
) -> Iterable[Findings]:
    """Do what Spark would: send the task to each piece of work, and its findings back."""
    sent: VerifyTask = pickle.loads(pickle.dumps(task))
    return [pickle.loads(pickle.dumps(sent(pickle.loads(pickle.dumps(item))))) for item in work]


def verified(run: Runner, *command: str) -> list[VerifyReport]:
    return [report for _, report in verify_stores(JOB.parse(list(command)), run)]


@pytest.mark.parametrize("name", ["basic", "dledger", "lmq", "trimmed-raw", "unclean-crc"])
def test_pieces_elsewhere_find_the_same(golden: Golden, name: str) -> None:
    with Store.open(golden(name) / "store") as store:
        assert verified(run_here, str(golden(name) / "store")) == [verify(store)]


def test_damage_is_found(damaged: Path) -> None:
    (report,) = verified(run_here, str(damaged))
    assert report.totals == {"body-crc": 1}


def test_several_stores_and_a_log_in_several_folders(golden: Golden) -> None:
    store = golden("multipath") / "store"
    (report,) = verified(run_here, str(store), "--storePathCommitLog", f"{store}/clA,{store}/clB")
    assert report.ok
    assert report.counts["records"] == 400
    both = f"{golden('tiny')}/store,{golden('batch')}/store"
    assert [r.counts["records"] for r in verified(run_here, both)] == [60, 1228]


def test_on_spark(session: SparkSession, damaged: Path, golden: Golden) -> None:
    paths = f"{damaged},{golden('tiny')}/store"
    reports = verified(partial(run_tasks, session), paths, "--list", "1")
    assert [report.totals for report in reports] == [{"body-crc": 1}, {}]
    with Store.open(damaged) as store:
        assert reports[0] == verify(store, listed=1)


def test_an_executor_that_does_not_see_the_store(golden: Golden, tmp_path: Path) -> None:
    with Store.open(golden("tiny") / "store") as store:
        plan = make_plan(store)
    task = VerifyTask(StoreSpec(str(tmp_path / "elsewhere"), None), plan.snapshot)
    with pytest.raises(RmqStoreError, match="accessible to all executors"):
        task(plan.units)


@pytest.mark.parametrize("levels", ["", "soon"])
def test_wrong_delay_levels(levels: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        JOB.parse(["store", "--delay-levels", f"1s {levels or '5'}"])
    assert raised.value.code == 2
    assert "is not a delay" in capsys.readouterr().err


@pytest.mark.slow
def test_as_a_program(damaged: Path, golden: Golden, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.verify_store", str(damaged), "--json"],
        cwd=ROOT, env=environment(), check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["ok"], document["totals"]) == (False, {"body-crc": 1})

    submitted = subprocess.run(
        [SPARK_SUBMIT, "--master", "local[2]", str(ROOT / "jobs" / "verify_store.py"),
         str(golden("tiny") / "store")],
        cwd=tmp_path, env=environment(), check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stdout.splitlines()[-1] == "0 error(s), 0 note(s)"

    missing = subprocess.run(
        [sys.executable, "-m", "jobs.verify_store", str(tmp_path / "nowhere")],
        cwd=ROOT, env=environment(), check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert missing.returncode == 2
    assert str(tmp_path / "nowhere") in missing.stderr
    assert missing.stdout == ""
