"""Reads the next batch while Spark takes the one before it."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

__all__ = ["one_ahead"]

T = TypeVar("T")


def one_ahead(items: Generator[T]) -> Generator[T]:
    """Yield items that a second thread takes from a generator, at most one before it is wanted.

    The generator is closed, and its thread has ended, when this iterator is.
    """
    with closing(items), ThreadPoolExecutor(1, "read-ahead") as thread:
        wanted = thread.submit(next, items, None)
        while (item := wanted.result()) is not None:
            wanted = thread.submit(next, items, None)
            yield item
