from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from rmqstore_spark.files.systems.base import HandleCache


class Disk:
    """Opens and closes make-believe files, and knows which are open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.refusals: Iterator[int] = iter(())

    def opened(self, path: str) -> str:
        number = next(self.refusals, 0)
        if number:
            raise OSError(number, "refused")
        self.open.append(path)
        return path

    def closed(self, handle: str) -> None:
        self.open.remove(handle)


def test_no_more_are_open_than_allowed_and_the_idlest_goes_first() -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 3)
    for path in "abcabda":
        cache.get(path, disk.opened)
        assert len(disk.open) <= 3
    assert disk.open == ["a", "b", "d"]
    assert len(cache) == 3


def test_a_file_is_opened_once() -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 3)
    assert [cache.get("a", disk.opened) for _ in range(5)] == ["a"] * 5
    assert disk.open == ["a"]
    assert cache.peek("a") == "a"
    assert cache.peek("b") is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_where_the_process_has_too_many_open_the_own_ones_are_given_back(number: int) -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 3)
    cache.get("a", disk.opened)
    cache.get("b", disk.opened)
    disk.refusals = iter([number])
    assert cache.get("c", disk.opened) == "c"
    assert disk.open == ["c"]
    disk.refusals = iter([number, number])
    with pytest.raises(OSError, match="refused"):
        cache.get("d", disk.opened)
    assert disk.open == []


def test_other_failures_close_nothing() -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 3)
    cache.get("a", disk.opened)
    disk.refusals = iter([errno.ENOENT])
    with pytest.raises(OSError, match="refused"):
        cache.get("b", disk.opened)
    assert disk.open == ["a"]


def test_closing_dropping_forgetting() -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 5)
    for path in "abcd":
        cache.get(path, disk.opened)
    cache.drop("b")
    cache.drop("never opened")
    assert disk.open == ["a", "c", "d"]
    cache.close()
    assert disk.open == []
    cache.get("e", disk.opened)
    cache.forget()
    assert disk.open == ["e"]
    assert len(cache) == 0


def test_what_nobody_closed_is_closed_with_the_cache() -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 5)
    cache.get("a", disk.opened)
    del cache
    assert disk.open == []


def test_a_cache_for_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        HandleCache(Disk().closed, 0)


def test_the_names_that_are_open_in_a_folder() -> None:
    disk = Disk()
    cache = HandleCache(disk.closed, 3)
    for path in ("/a/1", "/a/2", "/a/b/1"):
        cache.get(path, disk.opened)
    assert cache.opened_in("/a") == cache.opened_in("/a/") == {"1", "2"}
    cache.get("/a/b/2", disk.opened)  # the idlest, /a/1, goes
    assert (cache.opened_in("/a"), cache.opened_in("/a/b")) == ({"2"}, {"1", "2"})
    cache.drop("/a/2")
    assert cache.opened_in("/a") == set()
    cache.forget()
    assert cache.opened_in("/a/b") == set()
