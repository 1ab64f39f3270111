"""The next batch is read while the one before it is used."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from rmqstore_spark.datasource.tasks import one_ahead
from tests.support.waiting import NewThreads, eventually


class Source:
    """Numbers, which others see being read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []
        self.is_closed = False
        self.threads: set[int] = set()

    def numbers(self) -> Generator[int]:
        try:
            for number in range(self.count):
                self.threads.add(threading.get_ident())
                self.read.append(number)
                yield number
        finally:
            self.is_closed = True


def test_items_come_in_order_from_another_thread() -> None:
    source = Source(100)
    assert list(one_ahead(source.numbers())) == list(range(100))
    assert source.is_closed
    assert threading.get_ident() not in source.threads


def test_one_item_is_read_before_it_is_wanted_and_no_more() -> None:
    source = Source(100)
    items = one_ahead(source.numbers())
    for number in range(3):
        assert next(items) == number
        eventually(lambda: len(source.read) == number + 2)  # noqa: B023  # it is called at once
    assert source.read == [0, 1, 2, 3]


def test_nothing_is_read_before_the_first_item_is_wanted() -> None:
    source = Source(100)
    one_ahead(source.numbers())
    assert source.read == []


def test_an_error_comes_where_its_item_would_have() -> None:
    def broken() -> Generator[int]:
        yield 1
        raise OSError("the disk is gone")

    items = one_ahead(broken())
    assert next(items) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(items)


def test_who_stops_early_leaves_no_thread_and_an_ended_source() -> None:
    source, threads = Source(100), NewThreads()
    items = one_ahead(source.numbers())
    next(items)
    assert threads.named("read-ahead")
    items.close()
    assert source.is_closed
    assert not threads.named("read-ahead")
