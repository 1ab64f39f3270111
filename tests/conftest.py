"""Fixtures of the whole suite: a Spark session in each process, and the golden stores."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import hypothesis
import pytest

from rmqstore_spark.client import contact
from rmqstore_spark.datasource.sources import failover
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.reader import Store
from tests.support.processes.jvm import quick_java
from tests.support.processes.surroundings import path_with_quick_workers, settle_surroundings
from tests.support.stores.golden import SHIPPED_NAMES, GoldenStores, GoldenUnavailableError
from tests.support.stores.records import commitlog_folders, store_kwargs
from tools.java import JavaNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: a machine under load is not a finding. CI looks at the same examples each time; other
# runs look at others, and `thorough` at many.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


settle_surroundings()

Golden = Callable[[str], Path]

_OWN_FOLDER = pytest.StashKey[str]()
_PREFIX = "rmqstore-tests-"
_MEMORY, _PREFIX_THERE = "/dev/shm", "rmqtests-"
_ROOM = 10 << 30
_FAILED = (
    pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before pytest chooses a folder
def pytest_configure(config: pytest.Config) -> None:
    """Give each run a temporary folder of its own.

    By default, a run ends by removing folders of earlier runs, and fails if it cannot: if a run
    that was killed has left a file system mounted there, or another one is still at work.

    With TESTS_IN_MEMORY=1 it is in memory, where that has room: tests flush files all the time, and
    wait for it. Such files cannot be read without waiting (RWF_NOWAIT), so it is not the default.
    """
    if config.option.basetemp is None:
        _remove_what_others_left()
        is_wanted = os.environ.get("TESTS_IN_MEMORY") == "1"
        home = (_PREFIX_THERE, _MEMORY) if is_wanted and _has_room_in_memory() else (_PREFIX, None)
        folder = config.stash[_OWN_FOLDER] = tempfile.mkdtemp("", *home)
        _is_ours(folder)  # until this process ends, however that is
        config.option.basetemp = os.path.join(folder, "t")  # pytest makes a new one of this name


def _has_room_in_memory() -> bool:
    try:
        (available,) = re.findall(
            r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE
        )
        room = min(int(available) << 10, shutil.disk_usage(_MEMORY).free)
    except (OSError, ValueError):  # this system has no such folder
        return False
    return room >= _ROOM and os.access(_MEMORY, os.W_OK)


def _remove_what_others_left() -> None:
    """Give memory back that a run has taken which was killed."""
    for path in Path(_MEMORY).glob(f"{_PREFIX_THERE}*"):
        if _is_ours(str(path)):
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(folder: str) -> bool:
    """Lock a folder for this process; return False if another one has it."""
    try:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@pytest.hookimpl(trylast=True)  # when their order has been drawn
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one of several processes begin with the tests that need its JVM, and one with slow ones.

    Each has a part of the tests, and who has done its own takes over from the end of another's: so
    nobody else starts a JVM, few are at work at a time, and the last tests are short.
    """
    parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with_spark = [each for each in items if "spark" in getattr(each, "fixturenames", ())]
    others = [each for each in items if "spark" not in getattr(each, "fixturenames", ())]
    slow = [each for each in others if each.get_closest_marker("slow")]
    quick = iter([each for each in others if not each.get_closest_marker("slow")])
    first = islice(quick, max(0, len(items) // parts - len(with_spark)))
    items[:] = [*with_spark, *first, *slow, *quick]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove the run's folder, unless a test has failed: what it wrote may show why."""
    folder = session.config.stash.get(_OWN_FOLDER, None)
    if folder is None:
        return
    if exitstatus in _FAILED and folder.startswith(_MEMORY):
        kept = Path(tempfile.gettempdir(), Path(folder).name)
        with suppress(OSError):  # then as much as can be
            shutil.copytree(folder, kept, symlinks=True, ignore=_sockets_and_pipes)
    if exitstatus not in _FAILED or folder.startswith(_MEMORY):
        shutil.rmtree(folder, ignore_errors=True)


def _sockets_and_pipes(folder: str, names: list[str]) -> list[str]:
    kinds = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [name for name, mode in kinds.items() if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)]


@pytest.fixture(scope="module")
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory, for tests of what the page cache holds."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give `golden(name)`: the folder of an unpacked golden store, to be read only.

    A store that this repository does not ship skips the test.
    """
    stores = GoldenStores(tmp_path_factory.mktemp("golden"))

    def unpack(name: str) -> Path:
        try:
            return stores(name)
        except GoldenUnavailableError as error:
            if name in SHIPPED_NAMES:
                raise
            pytest.skip(str(error))

    return unpack


@pytest.fixture(params=["compiled", "plain"])
def each_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each of the two implementations."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "active", plain)
    elif not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    return str(request.param)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one local Spark session of this process; nothing is registered in it."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # Workers start the interpreter of these variables, and `python3` without them.
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        session = _start(
            SparkSession.builder.master("local[2]")
            .appName("rmqstore-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={folder}")
            # A crash in compiled code then shows where it was.
            .config("spark.python.worker.faulthandler.enabled", "true")
            .config("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true"),
        )
        yield session
        session.stop()


def _start(builder: SparkSession.Builder) -> SparkSession:
    """Start the JVM: the workers that it starts have its environment."""
    try:
        given = {**quick_java(), "PYTHONPATH": path_with_quick_workers()}
    except JavaNotFoundError as error:
        pytest.fail(str(error))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        return builder.getOrCreate()


@pytest.fixture(autouse=True)
def spark_settings_are_put_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undo what a test, or a job in it, sets in the session that all tests of a process share."""
    if "spark" not in request.fixturenames:
        yield
        return
    conf = request.getfixturevalue("spark").conf
    before = conf.getAll
    yield
    after = conf.getAll
    for name in after.keys() - before.keys():
        conf.unset(name)
    for name, value in before.items():
        if after.get(name) != value:
            conf.set(name, value)


@pytest.fixture(autouse=True)
def no_port_is_known(request: pytest.FixtureRequest) -> None:
    """Forget which servers have answered or failed: a port may be one that an earlier test had.

    Without this, a test of a port where nothing listens would wait as long as for a restart.
    """
    contact._reached.clear()
    contact._folders.clear()
    failover._failed_at.clear()
    if "spark" in request.fixturenames:
        from pyspark import SparkFiles

        request.getfixturevalue("spark")
        for path in Path(SparkFiles.getRootDirectory(), "rmqstore-contacts").glob("*"):
            path.unlink(missing_ok=True)


@pytest.fixture(params=["local", "memory"])
def open_store(request: pytest.FixtureRequest, golden: Golden) -> Iterator[Callable[[str], Store]]:
    """Give `open_store(name)`, over a plain path and over fsspec's memory file system."""
    opened: list[Store] = []

    def open_one(name: str) -> Store:
        folder = golden(name)
        if request.param == "local":
            store = Store.open(folder / "store", broker_name="b", **store_kwargs(folder))
        else:
            root = f"memory://golden/{name}/store"
            fs, path = fsspec.core.url_to_fs(root)
            if not fs.exists(path):
                fs.put(str(folder / "store"), path, recursive=True)
            folders = [f"{root}/{f.name}" for f in commitlog_folders(folder)]
            more: dict[str, Any] = {"commitlog_paths": folders} if len(folders) > 1 else {}
            store = Store.open(root, broker_name="b", **more)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def copy(golden: Golden, tmp_path: Path) -> Callable[[str], Path]:
    """Give `copy(name)`: a copy of a golden store, to be changed."""

    def copy_one(name: str) -> Path:
        shutil.copytree(golden(name), tmp_path / name)
        return tmp_path / name

    return copy_one
