"""A store is opened on a disk without room: it is read, expires, and continues when there is room.

Promise 6. The disk is full to the last byte, or has no inode left.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.reserve import Reserve
from rmqstore_spark.files.names import GUARD_NAME
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.claims import Claims
from tests.fault.messages import read_numbers
from tests.fault.power import PoweredDisk, why_no_loop_mounts
from tests.fault.rounds.disk import fill, opened, put, small_disk
from tests.fault.rounds.life import SMALL, configured
from tests.support.processes.serving import StoreProcess, eventually
from tests.support.stores.storing import as_killed

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root"),
]

INODES = 400


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "ext4":
        if missing := why_no_loop_mounts():
            pytest.skip(missing)
        with PoweredDisk(tmp_path, 12 << 20, inodes=INODES) as made:
            yield made.path
        return
    with small_disk(tmp_path, 8, INODES) as path:
        yield path


def _takes_a_kilobyte_more(ballast: Path) -> bool:
    with open(ballast, "ab") as file:
        try:
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, 1024)
        except OSError:
            return False
    return True


def use_up(disk: Path, what: str) -> Path:
    """Leave no byte, or no inode; returns the file or folder that is to be removed for room."""
    if what == "bytes":
        ballast = fill(disk, 0)
        while _takes_a_kilobyte_more(ballast):  # ext4 keeps blocks for root
            pass
        return ballast
    folder = disk / "ballast"
    folder.mkdir()
    number = 0
    while os.statvfs(disk).f_ffree:
        (folder / str(number)).touch()
        number += 1
    with pytest.raises(OSError, match="No space"):
        (folder / "one more").touch()
    return folder


def make_room(ballast: Path) -> None:
    shutil.rmtree(ballast) if ballast.is_dir() else ballast.unlink()


def left(disk: Path, state: str, claims: Claims) -> None:
    """Leave a store as a clean close does, or a kill; or a kill while the disk was full."""
    store = opened(disk)
    assert put(store, claims, 700).ok
    eventually(lambda: store.stats()["dispatchBehindBytes"] == 0)
    if state == "closed":
        store.close()
        return
    ballast = fill(disk, 8 << 10) if state == "killed when full" else None
    while ballast is not None and put(store, claims, 50).ok:
        pass
    store_path, copy = disk / "store", disk.parent / "copy"
    as_killed(store_path, copy)
    if ballast is not None:
        ballast.unlink()
        eventually(lambda: store.stats()["dispatchBehindBytes"] == 0)
    store.close()
    shutil.rmtree(store_path)
    shutil.copytree(copy, store_path)


@pytest.mark.parametrize(
    ("state", "what", "has_reserve"),
    [
        ("closed", "bytes", True),
        ("closed", "bytes", False),  # as a broker leaves it
        ("closed", "inodes", True),
        ("killed", "bytes", True),
        ("killed", "bytes", False),
        ("killed", "inodes", True),
        ("killed when full", "bytes", True),
        ("killed when full", "inodes", True),
    ],
)
def test_it_opens_and_goes_on_when_there_is_room(
    disk: Path, state: str, what: str, has_reserve: bool
) -> None:
    claims = Claims()
    left(disk, state, claims)
    if not has_reserve:
        for path in (disk / "store" / "rmqstore").glob("reserve.*"):
            path.unlink()
    ballast = use_up(disk, what)
    with StoreWriter.open(disk / "store", configured(SMALL)) as store:
        assert (disk / "store" / "commitlog" / GUARD_NAME).stat().st_size > 100
        if what == "bytes" or state == "closed":
            assert store.state == "DISK_FULL"
            result = put(store, claims, 1)
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "full" in result.remark
        elif store.state == "RUNNING":  # recovery removed index files, which leaves inodes
            assert len(list((disk / "store" / "rmqstore").glob("reserve.*"))) == 4
        with Store.open(disk / "store") as reader:
            held = {n for found in read_numbers(reader).values() for n in found}
        done = {n for each in claims.operations if each.done for n in each.numbers}
        assert done <= held
        make_room(ballast)
        eventually(lambda: put(store, claims, 10).ok)
        assert store.state == "RUNNING"
    assert len(list((disk / "store" / "rmqstore").glob("reserve.*"))) == 4
    claims.check(disk / "store")


def test_expiry_makes_the_room(disk: Path) -> None:
    claims = Claims()
    left(disk, "closed", claims)
    use_up(disk, "bytes")
    with StoreWriter.open(
        disk / "store", configured((*SMALL, "diskMaxUsedSpaceRatio=100"))
    ) as store:
        assert store.state == "DISK_FULL"
        store.expire(1 << 42)
        eventually(lambda: store.state == "RUNNING")
        assert put(store, claims, 10).ok


def test_the_process_serves_it_to_all_its_clients(disk: Path, tmp_path: Path) -> None:
    claims = Claims()
    left(disk, "closed", claims)
    ballast = use_up(disk, "bytes")
    (tmp_path / "run").mkdir()
    settings = [f"--set={pair}" for pair in SMALL]
    broker = ("--set=clients=all", "--set=vipListenPort=0")
    with StoreProcess(disk / "store", tmp_path / "run", *settings, *broker) as process:
        with Store.open(process.endpoint) as reader:
            assert verify(reader).ok
            assert sum(map(len, read_numbers(reader).values())) == 700
        assert "The disk is full" in process.output
        make_room(ballast)
        eventually(lambda: "There is room on the disk again" in process.output)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_reserve_without_room_is_told_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "rmqstore").mkdir()
    reserve = Reserve(str(tmp_path), 1 << 30)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for _ in range(3):
        reserve.fill()
        assert reserve.lacking is not None
    assert caplog.text.count("The disk is full") == 1
    assert not list((tmp_path / "rmqstore").iterdir())
    monkeypatch.undo()
    reserve.fill()
    assert reserve.lacking is None
    assert sum(path.stat().st_size for path in (tmp_path / "rmqstore").iterdir()) == 1 << 20
    reserve.free()
    assert not list((tmp_path / "rmqstore").iterdir())
