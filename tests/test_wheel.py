"""What a user gets from a wheel: in an environment of its own, away from the sources."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes.jvm import QUICK_JVM
from tools.java import find_java

ROOT = Path(__file__).resolve().parents[1]

PUT = """
import subprocess
import rmqstore_spark
with rmqstore_spark.embedded("store") as endpoint:
    subprocess.run(["bin/rmqstore", "put", endpoint, "-t", "orders"], check=True, input=b"hello")
"""
READ = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("rmqstore").load(STORE).select("topic", "body").collect()
print([(row.topic, bytes(row.body)) for row in rows])
"""


class Installed(NamedTuple):
    """An environment that has the wheel, and what its programs are started with."""

    folder: Path
    variables: dict[str, str]

    def run(self, *command: str, code: int = 0, text: str | None = None) -> str:
        """Run a program of the environment; returns what it printed on both streams."""
        program = self.folder / "bin" / command[0]
        done = subprocess.run(
            [str(program), *command[1:]], cwd=self.folder, env=self.variables, input=text,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder))
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = dist.glob("*.whl")
    run("env", f"PYTHON={sys.executable}", "tools/venv.sh", str(folder))
    # With a PYTHONPATH that leads here, pip would find the package installed already.
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel))
    run("env", "-u", "PYTHONPATH", *pip)
    hidden = ("PYTHON", "SPARK_", "PYSPARK_", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    python = str(folder / "bin" / "python")
    java = {"JAVA_HOME": str(find_java()), "SPARK_SUBMIT_OPTS": QUICK_JVM}
    return Installed(folder, {**variables, **java, "PYSPARK_PYTHON": python})


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(installed: Installed) -> None:
    has_kernel = "from rmqstore_spark.layout import kernel; print(kernel.COMPILED)"
    assert installed.run("python", "-c", has_kernel).strip() == "True"
    assert "verify" in installed.run("rmqstore", "--help")
    assert "1 message(s) put" in installed.run("python", "-c", PUT)
    assert "hello" in installed.run("rmqstore", "read", "-c", "body", "store")

    job = ("python", "-m", "rmqstore_spark.pipelines.backfill", "store", "out")
    assert "pip install 'rmqstore-spark[spark]'" in installed.run(*job, code=1)
    source = ("python", "-c", "from rmqstore_spark import RmqStoreDataSource")
    assert "pip install 'rmqstore-spark[spark]'" in installed.run(*source, code=1)

    # pyspark takes a minute to install: lend that of this environment, after its own packages.
    lent = Path(sysconfig.get_path("purelib"))
    (site,) = installed.folder.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")
    read = READ.replace("STORE", repr(str(installed.folder / "store")))
    assert "[('orders', b'hello')]" in installed.run("python", "-c", read)
    installed.run(*job)
    assert list((installed.folder / "out").rglob("*.parquet"))


@pytest.mark.slow
def test_the_sdist_has_what_a_build_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kernel = "rmqstore_spark/layout/kernel/c"
    assert {f"{kernel}/{path.name}" for path in (ROOT / kernel).iterdir()} <= names
    assert {"README.md", "LICENSE", "Makefile", "jobs/backfill.py"} <= names
