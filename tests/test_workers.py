"""The Python of Spark's workers: chosen where the user has not, named where it lacks packages."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import sysconfig
import textwrap
import venv
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pyspark
import pytest

import rmqstore_spark
from rmqstore_spark.base import workers
from rmqstore_spark.datasource.source import RmqStoreDataSource
from rmqstore_spark.errors import InstallationError
from tests.pipelines.processes import ROOT, environment

PATIENCE = 300
SESSION = """
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF").getOrCreate()
    )
"""
CHOSEN = "import os; print(os.environ.get('PYSPARK_PYTHON'))"
HERE = "from rmqstore_spark.base.workers import use_this_python as choose; choose();"
IN_JOBS = "from rmqstore_spark.pipelines.running import prepare_environment as choose; choose();"


def without_a_choice(folder: Path) -> dict[str, str]:
    """An environment that names no Python, and whose `python3` lacks the package."""
    broken = folder / "bin" / "python3"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    given = environment()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        del given[name]
    return {**given, "PATH": f"{broken.parent}:{given['PATH']}", "PYTHONPATH": str(ROOT)}


def run(script: str, env: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_program_with_an_embedded_store_needs_no_setting(tmp_path: Path) -> None:
    script = f"""
        import rmqstore_spark
        store = rmqstore_spark.embedded("store")
        endpoint = store.start()
    {textwrap.indent(SESSION, "    ")}
        rows = spark.range(3).selectExpr("cast(id AS string) AS body", "'orders' AS topic")
        rows.write.format("rmqstore").option("endpoint", endpoint).mode("append").save()
        read = spark.read.format("rmqstore").option("endpoint", endpoint).load()
        print(sorted(bytes(row.body).decode() for row in read.select("body").collect()))
    """
    assert "['0', '1', '2']" in run(script, without_a_choice(tmp_path), tmp_path)


@pytest.mark.slow
def test_a_python_without_the_packages_is_told_at_once(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    script = f"""{SESSION}
    rows = spark.range(1).selectExpr("'a' AS body")
    for ask in (
        lambda: spark.read.format("rmqstore").load("/x"),
        lambda: rows.write.format("rmqstore").mode("append").save(),
    ):
        try:
            ask()
        except Exception as error:
            print(str(error).splitlines()[0])
            print("frames:", str(error).count('File "'))
    """
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = bare
    lines = run(script, env, tmp_path).splitlines()
    assert len(lines) == 4
    for sentence, frames in (lines[:2], lines[2:]):
        assert f"Spark runs its workers with {bare}, and that Python has no " in sentence
        assert " pyarrow" in sentence
        assert "Install rmqstore-spark there, with its dependencies, or set PYSPARK" in sentence
        assert frames == "frames: 0"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("17.0.0", "pyarrow 17.0.0, where 18 is needed"),
        ("18.0.0", ""),
        ("19.0.0.dev1+g12", ""),
        (None, ""),
    ],
)
def test_an_old_pyarrow_is_told(tmp_path: Path, version: str | None, told: str) -> None:
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").touch()
    if version:
        (tmp_path / f"pyarrow-{version}.dist-info").mkdir()
    script = """
        from rmqstore_spark.errors import InstallationError
        from rmqstore_spark.base.workers import check_packages
        try:
            check_packages()
        except InstallationError as error:
            print(error)
    """
    said = run(script, {**environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"}, tmp_path)
    assert said.count(f"and that Python has {told}. Install") == bool(told)
    assert bool(said) == bool(told)


def test_the_packages_and_their_versions_are_those_of_the_distribution() -> None:
    needed = dict(
        re.findall(
            r"^([\w-]+)>=([\d.]+)", "\n".join(requires("rmqstore-spark") or []), re.MULTILINE
        )
    )
    for name, oldest in workers._PACKAGES.items():
        assert needed[name] == ".".join(map(str, oldest))


@pytest.mark.slow
def test_executors_whose_python_lacks_a_package_are_told(
    tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    """Planning has it, and tasks do not: so it is on a cluster with differing nodes."""
    lent = tmp_path / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("isal"):
            (lent / entry.name).symlink_to(entry)
    venv.create(tmp_path / "executor", symlinks=True)
    (site,) = (tmp_path / "executor").glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")
    executor = tmp_path / "executor" / "bin" / "python"
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
        case "$*" in
            *pyspark.sql.worker*) exec {sys.executable} "$@" ;;
            *) exec {executor} "$@" ;;
        esac
        """
    )
    python.chmod(0o755)
    script = f"""{SESSION}
    try:
        spark.read.format("rmqstore").load({str(golden("tiny") / "store")!r}).collect()
    except Exception as error:
        print(error)
    """
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = str(python)
    said = run(script, env, tmp_path)
    assert f"Spark runs its workers with {executor}, and that Python has no isal. " in said
    assert 'File "' not in said


@pytest.mark.parametrize("script", [HERE, IN_JOBS], ids=["embedded", "jobs"])
def test_a_choice_is_respected(tmp_path: Path, script: str) -> None:
    env = without_a_choice(tmp_path)
    assert run(script + CHOSEN, env, tmp_path).strip() == sys.executable
    chosen = {**env, "PYSPARK_PYTHON": "/opt/python"}
    assert run(script + CHOSEN, chosen, tmp_path).strip() == "/opt/python"
    submitted = {**env, "PYSPARK_GATEWAY_PORT": "1"}
    assert run(script + CHOSEN, submitted, tmp_path).strip() == "None"


def test_jobs_leave_a_cluster_alone(tmp_path: Path) -> None:
    env = without_a_choice(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master   yarn\n")
    for given in (
        {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"},
        {"PYSPARK_SUBMIT_ARGS": "--conf spark.master=k8s://host pyspark-shell"},
        {"SPARK_CONF_DIR": str(tmp_path / "conf")},
        {"SPARK_HOME": str(tmp_path)},
        {"MASTER": "spark://host:7077"},
    ):
        assert run(IN_JOBS + CHOSEN, {**env, **given}, tmp_path).strip() == "None"
    local = {"PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell", "SPARK_HOME": str(tmp_path)}
    assert run(IN_JOBS + CHOSEN, {**env, **local}, tmp_path).strip() == sys.executable


@pytest.mark.parametrize("version", ["3.5.9", "3.5.2+databricks", "2.4.8"])
def test_a_spark_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    told = rf"needs Spark 4\.0 to 4\.\d+, and the pyspark of .* is {version.replace('+', '.')}\."
    with pytest.raises(InstallationError, match=told):
        rmqstore_spark.RmqStoreDataSource  # noqa: B018 - asking is the test
    with pytest.raises(InstallationError, match=told):
        RmqStoreDataSource({"path": "/x"})


@pytest.mark.parametrize(
    "job",
    [
        ["-m", "rmqstore_spark.pipelines.stream_to_parquet"],
        ["-m", "jobs.backfill"],
        [str(ROOT / "jobs" / "replay.py")],
    ],
)
def test_a_job_on_a_spark_that_is_too_old_says_so_in_a_line(tmp_path: Path, job: list[str]) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.9'")
    done = subprocess.run(
        [sys.executable, *job, "store", "out"],
        env={**environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: rmqstore-spark needs Spark 4.0 to ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("4.0.0", 0), ("4.1.3", 0), ("4.3.7", 0), ("4.3.0.dev1", 0), ("unknown", 0),
        ("4.4.0", 1), ("4.10.0", 1), ("5.0.0", 1), ("4.4.0.dev2", 1),
    ],
)  # fmt: skip
def test_a_spark_that_is_newer_than_the_tests_is_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, told: int
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        RmqStoreDataSource({"path": "/x"})
    found = [text for text in caplog.messages if "was tested with Spark 4.0 to" in text]
    assert len(found) == told
    assert all(f"and this is {version}." in text for text in found)
