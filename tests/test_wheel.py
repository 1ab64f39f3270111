"""What a user gets from a wheel: in an environment of its own, away from the sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution, distribution, metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from tests.support.processes.jvm import quick_java

ROOT = Path(__file__).resolve().parents[1]

PUT = """
import subprocess
import rmqstore_spark
with rmqstore_spark.embedded("store") as endpoint:
    subprocess.run(["bin/rmqstore", "put", endpoint, "-t", "orders"], check=True, input=b"hello")
"""
READ = """
import sys

from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("rmqstore").load(STORE).select("topic", "body").collect()
print([(row.topic, bytes(row.body)) for row in rows])
from rmqstore_spark.pipelines.backfill import main
sys.exit(main(["store", "out"]))  # in the same session
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
    """The wheel in an environment that has what the wheel requires, and nothing else.

    The packages are this environment's. pip finds them there, or fetches what is not.
    """
    (wheel,) = dist.glob("*.whl")
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        lend(folder, *required(PathDistribution(zipfile.Path(archive, f"{info}/")).requires))
    python = str(folder / "bin" / "python")
    return install(folder, str(wheel), sys.executable, "-m", "pip", "--python", python)


def install(folder: Path, what: str, *pip: str) -> Installed:
    """Install the package into an environment as pip does it for a user."""
    # With a PYTHONPATH that leads here, pip would find the package installed already. Of all
    # modules that it would compile, few are imported.
    run("env", "-u", "PYTHONPATH", *pip, "install", "--quiet", "--no-compile", what)
    hidden = ("PYTHON", "SPARK_", "PYSPARK_", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    python = str(folder / "bin" / "python")
    return Installed(folder, {**variables, **quick_java(), "PYSPARK_PYTHON": python})


def other_interpreters() -> dict[str, Path]:
    """The oldest and the newest Python of this machine that will do, but this one's version."""
    home = Path.home()
    folders = [
        *map(Path, os.get_exec_path()),
        *sorted(home.glob(".pyenv/versions/*/bin")),
        *sorted(home.glob(".local/share/uv/python/*/bin")),
        Path("/usr/bin"),
        Path("/usr/local/bin"),
    ]
    found: dict[str, Path] = {}
    for minor in range(10, 15):
        name = f"python3.{minor}"
        for path in (folder / name for folder in folders):
            # A version manager's shim exists whether its Python is the chosen one or not.
            if minor != sys.version_info.minor and name not in found and answers(path, minor):
                found[name] = path
    return {name: found[name] for name in [*found][:1] + [*found][1:][-1:]}


def answers(python: Path, minor: int) -> bool:
    """Whether this is a Python of that version, with what an extension's build needs."""
    if not os.access(python, os.X_OK):
        return False
    asked = (
        f"import sys, sysconfig, pathlib; sys.exit(sys.version_info[:2] != (3, {minor}) or not "
        "pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"
    )
    return subprocess.run([python, "-c", asked], capture_output=True, check=False).returncode == 0


def check_command(installed: Installed) -> None:
    """The kernel, the command and a store process work."""
    has_kernel = "from rmqstore_spark.layout import kernel; print(kernel.COMPILED)"
    assert installed.run("python", "-c", has_kernel).strip() == "True"
    assert "verify" in installed.run("rmqstore", "--help")
    assert "1 message(s) put" in installed.run("python", "-c", PUT)
    assert "hello" in installed.run("rmqstore", "read", "-c", "body", "store")


def required(requirements: list[str] | None) -> set[str]:
    """The distributions that some requirements without extras lead to."""
    found: set[str] = set()
    left = [*(requirements or ())]
    while left:
        one = Requirement(left.pop())
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            left += distribution(one.name).requires or ()
    return found


def lend(folder: Path, *names: str) -> None:
    """Let an environment see distributions of this one, instead of installing them again.

    Only pure ones where its Python is another: the others are compiled for this one.
    """
    (site,) = folder.glob("lib/python*/site-packages")
    lent = folder / "lent"
    lent.mkdir(exist_ok=True)
    for one in map(distribution, names):
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            (lent / top).symlink_to(str(one.locate_file(top)))
    (site / "lent.pth").write_text(f"{lent}\n")


def check_spark(installed: Installed) -> None:
    """Spark reads what the command has put, and a job runs."""
    read = READ.replace("STORE", repr(str(installed.folder / "store")))
    assert "[('orders', b'hello')]" in installed.run("python", "-c", read)
    assert list((installed.folder / "out").rglob("*.parquet"))


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(installed: Installed) -> None:
    check_command(installed)
    job = ("python", "-m", "rmqstore_spark.pipelines.backfill", "store", "out")
    assert "pip install 'rmqstore-spark[spark]'" in installed.run(*job, code=1)
    source = ("python", "-c", "from rmqstore_spark import RmqStoreDataSource")
    assert "pip install 'rmqstore-spark[spark]'" in installed.run(*source, code=1)

    lend(installed.folder, "pyspark", "py4j")
    check_spark(installed)


OTHERS = other_interpreters()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS or [pytest.param("none", marks=pytest.mark.skip)])
def test_the_sdist_works_on_the_oldest_and_the_newest_python(
    dist: Path, tmp_path: Path, name: str
) -> None:
    """Each builds the kernel for itself. An old one gets an older Spark, as far as pip decides."""
    (sdist,) = dist.glob("*.tar.gz")
    oldest = re.fullmatch(r">=3\.(\d+)", metadata("pyspark")["Requires-Python"])
    assert oldest is not None
    has_own = int(name.removeprefix("python3.")) < int(oldest[1])
    folder = tmp_path / "installed"
    run("env", f"PYTHON={OTHERS[name]}", "tools/venv.sh", str(folder))
    what = f"{sdist}[spark]" if has_own else str(sdist)
    installed = install(folder, what, str(folder / "bin" / "python"), "-m", "pip")
    check_command(installed)
    if not has_own:
        lend(folder, "pyspark", "py4j")
    check_spark(installed)


@pytest.mark.slow
def test_the_wheel_has_what_is_not_code(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"rmqstore_spark/py.typed", "rmqstore_spark/server/status/style.css"} <= names


@pytest.mark.slow
def test_the_sdist_has_what_a_build_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kernel = "rmqstore_spark/layout/kernel/c"
    assert {f"{kernel}/{path.name}" for path in (ROOT / kernel).iterdir()} <= names
    assert {"README.md", "LICENSE", "Makefile", "jobs/backfill.py"} <= names
