"""The offsets of many queues, looked up together: the same as one by one, with few requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.remote import FsspecFiles
from rmqstore_spark.reader import Store
from tests.support.messages.traffic import Traffic
from tests.support.stores.golden import GOLDEN_NAMES
from tests.support.stores.records import store_kwargs
from tests.support.stores.storebuilder import StoreBuilder, build_store

Ends = dict[tuple[str, int], tuple[int, int] | str]


class Together(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system that reads many ranges with one request, and counts the requests."""

    cachable = False
    async_impl = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.requests = 0
        self.is_down = False

    def cat_ranges(self, paths: Sequence[str], *arguments: Any, **options: Any) -> Any:
        self.requests += 1
        if self.is_down:
            raise TimeoutError("the server does not answer")
        return super().cat_ranges(paths, *arguments, **options)


def together(path: Path, commitlog_paths: Sequence[str] | None = None) -> tuple[Store, Together]:
    files = Together()
    return Store(StoreDirectory(FsspecFiles(files), str(path), commitlog_paths), "b"), files


def ends_of(store: Store) -> Ends:
    """The offsets of all queues, or what is wrong with them."""
    found: Ends = {}
    for queue in store.queues():
        try:
            found[queue.topic, queue.queue_id] = (queue.min_offset, queue.max_offset)
        except RmqStoreError as error:
            found[queue.topic, queue.queue_id] = type(error).__name__
    return found


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_stores(name: str, golden: Callable[[str], Path]) -> None:
    folder = golden(name)
    store, _ = together(folder / "store", **store_kwargs(folder))
    with store, Store.open(folder / "store", **store_kwargs(folder)) as local:
        assert ends_of(store) == ends_of(local)


def test_the_requests_do_not_grow_with_the_queues(tmp_path: Path) -> None:
    counts = []
    for queues in (2, 60):
        path = tmp_path / str(queues)
        build_store(path, Traffic(600 * queues, topics={"orders": queues}, body_size=10))
        store, files = together(path)
        with store, Store.open(path) as local:
            files.requests = 0
            found = ends_of(store)
            assert found == ends_of(local)
            assert set(found.values()) == {(0, 600)}
            counts.append(files.requests)
    assert counts[0] == counts[1] < 15


@pytest.mark.parametrize("expired", [0, 1, 4])
def test_queues_whose_first_entries_have_expired(tmp_path: Path, expired: int) -> None:
    path = tmp_path / "store"
    traffic = Traffic(20_000, topics={"orders": 3, "pay": 2}, body_size=100)
    build_store(path, traffic, segment_size=1 << 20, queue_entries=3_000)
    for segment in sorted((path / "commitlog").iterdir())[:expired]:
        segment.unlink()
    store, _ = together(path)
    with store, Store.open(path) as local:
        found = ends_of(store)
        assert found == ends_of(local)
        firsts = {end[0] for end in found.values()}
        assert firsts == {0} if not expired else 0 not in firsts


def test_more_queues_than_are_looked_up_at_once_and_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    build_store(path, Traffic(500, topics={"orders": 250}, body_size=10))
    empty = path / "consumequeue" / "orders" / "7" / f"{0:020}"
    empty.write_bytes(bytes(empty.stat().st_size))
    store, files = together(path)
    with store, Store.open(path) as local:
        files.requests = 0
        found = ends_of(store)
        assert found == ends_of(local)
        assert files.requests < 3 * 15
    assert found["orders", 7] == (0, 0)
    assert found["orders", 249] == (0, 2)


def test_a_store_that_grows_between_two_looks(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreBuilder(path, queue_entries=1_000) as builder:
        store, _ = together(path)
        for turn in range(1, 5):
            for batch in Traffic(3_000, topics={"orders": 2}, body_size=10, seed=turn).batches():
                builder.append(batch)
            builder.flush()
            store.refresh()
            assert ends_of(store) == {("orders", n): (0, turn * 1_500) for n in range(2)}
        store.close()


def test_a_store_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    build_store(path, Traffic(600, topics={"orders": 60}, body_size=10))
    store, files = together(path)
    with store:
        files.is_down = True
        queues = store.queues()
        assert files.requests < 5
        with pytest.raises(RmqStoreError, match="does not answer"):
            assert queues[0].max_offset


def test_a_queue_that_cannot_be_read_says_so_itself(tmp_path: Path) -> None:
    path = tmp_path / "store"
    build_store(path, Traffic(3_000, topics={"orders": 3}, body_size=10))
    store, _ = together(path)
    with store, Store.open(path) as local:
        for one in (store, local):
            assert len(one.directory.topology.queues["orders"]) == 3
        for file in (path / "consumequeue" / "orders" / "1").iterdir():
            file.write_bytes(b"short")
        found = ends_of(store)
        assert found == ends_of(local)
        assert found["orders", 0] == found["orders", 2] == (0, 1_000)


class OldHoles(LocalFiles):
    """Files whose holes are told as they were before the last entries were written."""

    def __init__(self, used: int) -> None:
        super().__init__()
        self.used = used
        self.reads = 0

    def used_size(self, path: str) -> int | None:
        return self.used

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.reads += 1
        return super().read(path, offset, length)


@pytest.mark.parametrize("used", [0, 4096, 8192])
def test_what_the_system_says_of_holes_is_not_taken_for_granted(tmp_path: Path, used: int) -> None:
    path = build_store(tmp_path / "store", Traffic(1_000, topics={"orders": 1}, body_size=10))
    with Store(StoreDirectory(OldHoles(used), str(path)), "b") as store:
        assert ends_of(store) == {("orders", 0): (0, 1_000)}


def test_a_hole_saves_most_of_the_search(tmp_path: Path) -> None:
    path = build_store(tmp_path / "store", Traffic(100, topics={"orders": 1}, body_size=10))
    counts = []
    for used in (4096, 300_000 * 20):
        files = OldHoles(used)
        with Store(StoreDirectory(files, str(path)), "b") as store:
            assert ends_of(store) == {("orders", 0): (0, 100)}
        counts.append(files.reads)
    assert counts[0] <= counts[1] - 8
