"""A store whose folders are links to another disk: written, served, verified and followed alike."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.log.cut import set_aside
from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.files.links import LINKABLE
from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.messages import block, read_numbers
from tests.fault.stores import settings
from tests.support.processes.serving import StoreProcess


@pytest.fixture(params=["same disk", "another disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder that the store's folders lead to."""
    path = tmp_path / "disk2"
    path.mkdir()
    if request.param == "same disk":
        yield path
        return
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def store(tmp_path: Path, disk: Path) -> Path:
    """A store all of whose folders are links, with messages in several segments."""
    path = tmp_path / "store"
    path.mkdir()
    for name in LINKABLE:
        (disk / name).mkdir()
        (path / name).symlink_to(disk / name)
    with StoreWriter.open(path, settings()) as writer:
        for number in range(0, 90, 9):
            assert writer.put(block(number, 9)).ok
        names = os.listdir(disk / "commitlog")
        assert len([name for name in names if name.isdigit()]) > 2
    assert not [name for name in os.listdir(disk / "commitlog") if name.startswith(GUARD_NAME)]
    return path


def numbers(path: Path | str) -> list[int]:
    with Store.open(path) as reader:
        report = verify(reader)
        assert report.ok, report.problems
        return sorted(n for found in read_numbers(reader).values() for n in found)


def test_it_is_read_and_verified_beside_its_files_and_through_its_process(
    store: Path, tmp_path: Path
) -> None:
    assert numbers(store) == list(range(90))
    (tmp_path / "run").mkdir()
    with StoreProcess(store, tmp_path / "run") as process:
        assert numbers(process.endpoint) == list(range(90))


def test_a_sidecar_serves_it(store: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with StoreProcess(store, tmp_path / "run", "--read-only") as process:
        assert numbers(process.endpoint) == list(range(90))


def test_what_is_cut_from_another_disk_is_kept(store: Path) -> None:
    log = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    before = log[-1].read_bytes()
    log[-2].write_bytes(bytes(16384))
    with StoreWriter.open(store, settings(), cut=True) as writer:
        kept = [cut.kept for cut in writer.recovery.cuts]
    assert Path(kept[-1]).read_bytes().rstrip(b"\0") == before.rstrip(b"\0")
    assert numbers(store) == list(range(len(numbers(store))))


def test_a_log_that_is_set_aside_leaves_its_place_to_the_next(store: Path, disk: Path) -> None:
    aside = set_aside(str(store), 1_800_000_000_000)
    assert aside is not None
    assert numbers(aside) == list(range(90))
    with StoreWriter.open(store, settings()) as writer:
        assert writer.put(block(500, 9)).ok
    assert numbers(store) == list(range(500, 509))
    assert (disk / "commitlog" / f"{0:020}").exists()


@pytest.mark.parametrize("content", [(), ("lost+found",)], ids=["empty", "root of a disk"])
@pytest.mark.parametrize("names", [*((name,) for name in LINKABLE), LINKABLE], ids="+".join)
def test_a_new_store_may_begin_with_any_of_its_links(
    tmp_path: Path, names: tuple[str, ...], content: tuple[str, ...]
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    for name in names:
        for folder in (name, *(f"{name}/{each}" for each in content)):
            (tmp_path / "disk2" / folder).mkdir(parents=True)
        (path / name).symlink_to(tmp_path / "disk2" / name)
    for _ in range(2):
        StoreWriter.open(path, settings()).close()
    with StoreWriter.open(path, settings()) as writer:
        assert writer.put(block(0, 9)).ok
    assert numbers(path) == list(range(9))
    assert all((path / name).is_symlink() for name in names)


@pytest.mark.parametrize(
    ("name", "text"),
    [("index", r"holds other files \(index\)"), ("consumequeue", "has queues, but no CommitLog")],
)
def test_a_link_to_a_folder_with_files_is_no_new_store(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    (tmp_path / "disk2" / "other").mkdir(parents=True)
    (path / name).symlink_to(tmp_path / "disk2")
    with pytest.raises(RmqStoreError, match=text):
        StoreWriter.open(path, settings())
    assert os.listdir(path) == [name]


@pytest.mark.parametrize("name", ["consumequeue/orders-0/0", "commitlog", "rmqstore"])
def test_another_link_stops_the_start(store: Path, tmp_path: Path, name: str) -> None:
    path = store / name
    if path.is_symlink():
        path.unlink()
    else:
        shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OptionError) as error:
        StoreWriter.open(store, settings())
    assert f"{path} is a link to {tmp_path / 'elsewhere'}" in str(error.value)
