"""Segments are copied before they are removed: completely, or they stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import OptionError, StoreNotFoundError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.verify import verify
from tests.engine.expiry.test_expiry import HOUR, START, expire, fill, names
from tests.support.stores.storing import Clock, config, in_queues, until
from tests.support.waiting import eventually


class Unreliable(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system that fails, or loses bytes without a word, when a test says so."""

    protocol = "unreliable"
    cachable = False
    fault = ""

    @classmethod
    def _strip_protocol(cls, path: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("unreliable://"), *args, **kwargs)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if Unreliable.fault == "mv":
            raise OSError(28, "No space left on device")
        super().mv(path1, path2, **kwargs)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb" and "uploading" in path and Unreliable.fault in ("short", "flipped"):
            data = bytearray(Path(path).read_bytes())
            if Unreliable.fault == "short":
                del data[-1:]
            else:
                data[100] ^= 1
            Path(path).write_bytes(data)
        return super()._open(path, mode, **kwargs)


@pytest.fixture
def unreliable() -> Iterator[None]:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    Unreliable.fault = ""
    yield
    Unreliable.fault = ""


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


def whole(path: Path, archive: str) -> dict[tuple[str, int], list[bytes]]:
    """The bodies in each queue of a store and its archive, read as one."""
    with Store.open(path, archives=[archive]) as store:
        return {
            (queue.topic, queue.queue_id): [
                body
                for batch in store.read(queue.topic, queue.queue_id)
                for body in batch["body"].to_pylist()
            ]
            for queue in store.queues()
        }


def test_store_and_archive_are_read_as_one(tmp_path: Path, clock: Clock) -> None:
    path, archive = tmp_path / "store", tmp_path / "archive"
    with StoreWriter.open(path, config(archiveTo=str(archive)), clock=clock) as store:
        fill(store, clock, 40)
        store.flush()
        before = in_queues(path)
        for hours in (10, 25, 30):
            expire(store, START + hours * HOUR)
            assert whole(path, str(archive)) == before, "while the store is being written, too"
        assert store.stats()["archivedSegments"] == store.stats()["expiredSegments"]
    assert whole(path, str(archive)) == before
    alone = in_queues(archive)
    with Store.open(archive) as reader:
        assert verify(reader).torn_tail is None, "it ends where a segment does"
    for route, bodies in before.items():
        kept = len(in_queues(path)[route])
        assert alone[route] == bodies[:-kept], "and the archive is a store of its own"
    with Store.open(path, archives=[str(archive)]) as reader:
        assert reader.min_offset == 0
        for key in ("T-1-1", "T-20-2", "T-38-3"):
            assert query_by_key(reader, "T", key).num_rows == 1
    with Store.open(archive) as reader:
        assert query_by_key(reader, "T", "T-1-1").num_rows == 1


def test_a_segment_that_moves_while_it_is_read_is_read_on_in_the_archive(
    tmp_path: Path, clock: Clock
) -> None:
    path, archive = tmp_path / "store", tmp_path / "archive"
    with StoreWriter.open(path, config(archiveTo=str(archive)), clock=clock) as store:
        fill(store, clock, 40)
        expire(store, START + 6 * HOUR)
        store.flush()
        before = whole(path, str(archive))
        with Store.open(path, archives=[str(archive)]) as reader:
            queue = reader.queue("T", 0)
            assert queue.max_offset == len(before["T", 0])
            expire(store, START + 35 * HOUR)
            got = [body for batch in reader.read("T", 0) for body in batch["body"].to_pylist()]
        assert got == before["T", 0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("mv", "No space left on device"),
        ("short", "4096 of 4096 bytes were sent"),
        ("flipped", "CRC"),
    ],
)
def test_a_failed_copy_keeps_the_segment_and_says_so(
    fault: str, reason: str, unreliable: None, tmp_path: Path, clock: Clock
) -> None:
    path, archive = tmp_path / "store", tmp_path / "archive"
    with StoreWriter.open(path, config(archiveTo=f"unreliable://{archive}"), clock=clock) as store:
        fill(store, clock, 20)
        store.flush()
        Unreliable.fault = fault
        store.expire(START + 10 * HOUR)
        until(lambda: not store.expirable(1).is_working)
        left = store.expirable(START + 10 * HOUR)
        assert left.segments[0].start == 0
        assert reason in left.remark
        assert store.stats()["expiryFailures"] == 1
        assert names(path / "commitlog")[0] == "0" * 20
        assert not (archive / "commitlog").exists() or names(archive / "commitlog") == []
        Unreliable.fault = ""
        expire(store, START + 10 * HOUR)
    assert set(whole(path, str(archive))) == {("T", 0), ("T", 1)}


def test_a_copy_that_is_there_is_not_taken_on_trust(tmp_path: Path, clock: Clock) -> None:
    """A kill came between copy and removal; or the copy is another one."""
    path, archive = tmp_path / "store", tmp_path / "archive"
    with StoreWriter.open(path, config(archiveTo=str(archive)), clock=clock) as store:
        fill(store, clock, 20)
        expire(store, START + 6 * HOUR)
        first, second = names(path / "commitlog")[:2]
        shutil.copy(path / "commitlog" / first, archive / "commitlog" / first)
        (archive / "commitlog" / second).write_bytes(bytes(4096))
        store.expire(START + 10 * HOUR)
        until(lambda: not store.expirable(1).is_working)
        remark = store.expirable(START + 10 * HOUR).remark
        assert f"{second} is not a copy of" in remark
        (archive / "commitlog" / second).unlink()
        expire(store, START + 10 * HOUR)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, clock: Clock) -> None:
    other, archive = tmp_path / "other", tmp_path / "archive"
    with StoreWriter.open(other, config(archiveTo=str(archive)), clock=clock) as store:
        fill(store, clock, 10)
        expire(store, clock.now)
    mine = tmp_path / "mine"
    for folder, text in ((archive, "the archive of another store"), (other, "is not empty")):
        with StoreWriter.open(mine, config(archiveTo=str(folder)), clock=clock) as store:
            fill(store, clock, 10)
            store.flush()
            before = sorted(folder.rglob("*"))
            store.expire(clock.now)
            until(lambda store=store: not store.expirable(1).is_working)
            assert text in store.expirable(clock.now).remark
            assert sorted(folder.rglob("*")) == before
    with pytest.raises(OptionError, match="is not the archive of"):
        Store.open(mine, archives=[str(archive)])
    with pytest.raises(StoreNotFoundError, match="is not an archive of expired segments"):
        Store.open(mine, archives=[str(other)])


@pytest.mark.parametrize("inside", ["", "archive"])
def test_an_archive_within_the_store_is_refused(inside: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the archive must be outside the store"):
        StoreWriter.open(tmp_path, config(archiveTo=str(tmp_path / inside)))
    with pytest.raises(OptionError, match="archiveTo=nothing://x"):
        StoreWriter.open(tmp_path, config(archiveTo="nothing://x"))


def test_a_relative_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a relative path"):
        StoreWriter.open(tmp_path, config(archiveTo="archive"))


def test_what_cannot_be_an_archive_is_told_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "commitlog").mkdir(parents=True)
    with StoreWriter.open(tmp_path / "store", config(archiveTo=str(folder))) as store:
        eventually(lambda: "is not empty, and not an archive" in store.stats()["expiryRemark"])
    empty = tmp_path / "empty"
    with StoreWriter.open(tmp_path / "store", config(archiveTo=str(empty))) as store:
        assert store.stats()["expiryRemark"] == ""
    assert not empty.exists()


def test_what_lies_between_archive_and_store_is_reported(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path, archive = tmp_path / "store", tmp_path / "archive"
    with StoreWriter.open(path, config(archiveTo=str(archive)), clock=clock) as store:
        fill(store, clock, 30)
        expire(store, START + 5 * HOUR)
    with StoreWriter.open(path, config(), clock=clock) as store:
        expire(store, START + 20 * HOUR)
    with Store.open(path, archives=[str(archive)]):
        assert "the messages between them are lost" in caplog.text
