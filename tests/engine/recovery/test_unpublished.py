"""The block of a commit that was killed is removed; what may be messages is kept, as ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.log import cut
from rmqstore_spark.engine.recovery.unpublished import Unpublished, find_unpublished
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import wipe
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.fault.rounds.disk import fill, small_disk
from tests.support.messages.batches import commit_batch, expected, scanned, small_segments
from tests.support.processes import forked

pytestmark = pytest.mark.fault

ONE_SEGMENT, MANY_SEGMENTS = 1 << 20, 8192


def kill(path: Path, size: int, place: str = "before_publish") -> None:
    module = "tests.support.processes.beside"
    done = forked.run([sys.executable, "-m", module, path, place, str(size)])
    assert done.returncode == -signal.SIGKILL, done.stderr


def opened(path: Path, size: int) -> StoreWriter:
    return StoreWriter.open(path, small_segments(mappedFileSizeCommitLog=str(size)))


def dead_block(path: Path) -> Unpublished:
    with Store.open(path) as store:
        found = find_unpublished(store.log, store.log_end(), 0)
    assert found is not None
    return found


def write_at(path: Path, size: int, offset: int, data: bytes) -> None:
    with open(path / "commitlog" / f"{offset - offset % size:020}", "r+b") as segment:
        os.pwrite(segment.fileno(), data, offset % size)


def log_from(path: Path, offset: int) -> bytes:
    files = sorted(file for file in (path / "commitlog").iterdir() if file.name.isdigit())
    data = b"".join(file.read_bytes() for file in files)
    return data[offset - int(files[0].name) :]


def kept(path: Path) -> list[Path]:
    folder = path / "rmqstore" / "cut"
    return sorted(folder.rglob("0*/0*")) if folder.exists() else []


@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
@pytest.mark.parametrize("place", ["after_head", "after_portion", "before_publish", "after_filler"])
def test_nothing_is_kept_of_it_however_often_that_happens(
    tmp_path: Path, size: int, place: str
) -> None:
    path = tmp_path / "store"
    for _ in range(3):
        kill(path, size, place)
        block, before = dead_block(path), scanned(path)
        with opened(path, size) as store:
            assert store.recovery.unpublished == block
            assert not store.recovery.cuts
            assert any("had not been committed" in line for line in store.recovery.lines())
            assert not any(log_from(path, store.published_end))
        assert scanned(path) == before
        assert not kept(path)
    with opened(path, size) as store:
        assert commit_batch(store, 0, attempt=1).status == "COMMITTED"
    assert [row for row in scanned(path) if row in set(expected(0))] == expected(0)
    with Store.open(path) as read:
        assert verify(read).errors == 0


@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
def test_what_follows_it_is_kept(tmp_path: Path, size: int) -> None:
    """A power cut took the magic code back of a block that was published, and puts came behind."""
    path = tmp_path / "store"
    kill(path, size)
    block = dead_block(path)
    write_at(path, size, block.end, b"may be a message")
    with opened(path, size) as store:
        (saved,) = store.recovery.cuts
        assert not any(log_from(path, store.published_end))
    assert Path(saved.kept).read_bytes()[block.end - saved.start :].startswith(b"may be a message")
    note = json.loads((Path(saved.kept).parent / "cut.json").read_bytes())
    assert note["unpublished"] == list(block)
    if size == ONE_SEGMENT:
        assert saved.start == block.end


@pytest.mark.parametrize("place", ["before it", "its head", "its number"])
@pytest.mark.parametrize("size", [ONE_SEGMENT, MANY_SEGMENTS])
def test_if_anything_else_lies_at_the_end_all_of_it_is_kept(
    tmp_path: Path, size: int, place: str
) -> None:
    """Such as what a power cut left of messages in the room before it."""
    path = tmp_path / "store"
    kill(path, size)
    block, wanted = dead_block(path), bytearray()
    with Store.open(path) as store:
        end = store.log_end()
    at = {"before it": end + 20, "its head": block.head + 76, "its number": block.head + 28}[place]
    write_at(path, size, at, b"\x01\x02\x03\x04\x05\x06\x07\x08")
    wanted += log_from(path, end)
    with opened(path, size) as store:
        assert store.recovery.unpublished is None
        assert sum(each.size for each in store.recovery.cuts) > 8000
        for each in store.recovery.cuts:
            begin = each.start - end
            assert Path(each.kept).read_bytes()[: each.size] == wanted[begin : begin + each.size]


def test_it_is_kept_if_the_log_is_cut_as_told(tmp_path: Path) -> None:
    path = tmp_path / "store"
    kill(path, ONE_SEGMENT)
    with StoreWriter.open(path, small_segments(), cut=True) as store:
        assert store.recovery.unpublished is None
        assert store.recovery.cuts


def test_an_interruption_leaves_its_head_until_all_else_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "store", list[int]()

    def interrupted(file: str, start: int, end: int) -> None:
        calls.append(start)
        if len(calls) > 1:
            raise StoreWriteError("as if it was killed")
        wipe(file, start, end)

    kill(path, ONE_SEGMENT)
    block = dead_block(path)
    with monkeypatch.context() as broken:
        broken.setattr(cut, "wipe", interrupted)
        with pytest.raises(StoreWriteError, match="as if"):
            opened(path, ONE_SEGMENT)
    assert dead_block(path) == block
    assert not any(log_from(path, block.head + 91))
    with opened(path, ONE_SEGMENT) as store:
        assert store.recovery.unpublished == block
    assert not kept(path)


_COMMIT = """
import os, sys
from pathlib import Path
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches import writing
from tests.support.messages.batches import QUERY, rows_block, small_segments
writing._LARGE = 1 << 20
store = StoreWriter.open(sys.argv[1], small_segments(mappedFileSizeCommitLog="4194304"))
assert store.put(rows_block([b"acknowledged"], ["others"])).ok
stage = store.batches.begin_stage("0" * 32)
stage.append(rows_block([b"x" * 10000] * 200))
store.batches.commit(CommitRequest(WriterId.of_stream(QUERY, 0), (stage.finish(),)))
"""


def kill_large(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COMMIT, path],
        env={**os.environ, "RMQSTORE_FAILPOINT": "commit.before_publish:1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_full_disk_has_room_for_a_start_after_a_kill_in_a_commit(tmp_path: Path) -> None:
    with small_disk(tmp_path, 24, 400) as disk:
        path = disk / "store"
        kill_large(path)
        ballast = fill(disk, 0)
        config = small_segments(mappedFileSizeCommitLog="4194304", diskMaxUsedSpaceRatio="100")
        with StoreWriter.open(path, config) as store:
            assert store.state == "DISK_FULL"
            assert not store.recovery.cuts
            assert not any(log_from(path, store.published_end))
        assert scanned(path) == [b"acknowledged"]
        ballast.unlink()
        with StoreWriter.open(path, config) as store:
            assert commit_batch(store, 0).status == "COMMITTED"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_what_may_be_messages_is_not_removed_for_lack_of_room(tmp_path: Path) -> None:
    with small_disk(tmp_path, 24, 400) as disk:
        path = disk / "store"
        kill_large(path)
        block = dead_block(path)
        write_at(path, 4 << 20, block.head + 28, b"\x01")  # it is not known for what it is
        before = log_from(path, 0)
        ballast = fill(disk, 0)
        config = small_segments(mappedFileSizeCommitLog="4194304", diskMaxUsedSpaceRatio="100")
        with pytest.raises(StoreWriteError, match="make room for it"):
            StoreWriter.open(path, config)
        assert log_from(path, 0) == before
        assert not kept(path)
        ballast.unlink()
        with StoreWriter.open(path, config) as store:
            assert store.recovery.cuts
        assert scanned(path) == [b"acknowledged"]
