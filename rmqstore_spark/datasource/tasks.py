"""Helps tasks of Spark.

Checks the packages of a task's Python, gets a task's input without delay, reads one batch ahead,
and keeps garbage collections short.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar

from rmqstore_spark.base.workers import check_packages
from rmqstore_spark.datasource.failures import plain_errors

__all__ = ["SentToTasks", "acknowledge_at_once", "one_ahead", "short_collections"]

T = TypeVar("T")

_OPEN_FILES: Final = "/proc/self/fd"


class SentToTasks:
    """A reader or writer, which checks the packages of the Python that a task runs in.

    The driver's were checked when the source was loaded, and an executor may have others. They are
    checked before anything that may need them is imported, which `pickle` does by itself.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        return _received, (kind.__module__, kind.__qualname__, pickle.dumps(self.__dict__))


@plain_errors
def _received(module: str, name: str, state: bytes) -> object:
    """Make a reader or writer in a task.

    Raises:
        InstallationError: this Python lacks a package.
    """
    acknowledge_at_once()
    _check_packages_once()
    kind = getattr(import_module(module), name)
    made = object.__new__(kind)
    made.__dict__.update(pickle.loads(state))  # noqa: S301 - Spark sends it, and runs what it sends
    return made


@cache
def _check_packages_once() -> None:
    """Check the packages in the first task of a process: what is loaded then stays."""
    check_packages()


def acknowledge_at_once() -> None:
    """Acknowledge what the JVM has sent to this task so far.

    The JVM sends what a task runs, and then what it runs on: a second small packet, which TCP
    (Nagle's algorithm) holds back until the first one is acknowledged. Linux does that only after
    40 ms, as a worker says nothing in between. A task of a micro-batch takes about 200.
    """
    if not hasattr(socket, "TCP_QUICKACK") or not os.path.isdir(_OPEN_FILES):
        return
    if socket.getdefaulttimeout() is not None:  # Python would apply it to the JVM's connection
        return
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(f"{_OPEN_FILES}/{name}").st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def one_ahead(items: Generator[T]) -> Generator[T]:
    """Yield items that a second thread takes from a generator, at most one before it is wanted.

    The generator is closed, and its thread has ended, when this iterator is.
    """
    from concurrent.futures import ThreadPoolExecutor  # the planner needs none

    with closing(items), ThreadPoolExecutor(1, "read-ahead") as thread:
        wanted = thread.submit(next, items, None)
        while (item := wanted.result()) is not None:
            wanted = thread.submit(next, items, None)
            yield item


_is_exempt = False
"""Whether this process has exempted what its first task loaded. To ask the collector takes 10 ms:
it counts the objects."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Run a task; after the first one of a process, exempt what it has loaded from collections.

    Spark's workers, and the processes that plan and commit, run one task after the other, and
    collect garbage after each. That visits every object of the process, almost all of which belong
    to modules: 40 ms of CPU, as much as decoding 130,000 messages takes. In return, objects of the
    first task that refer to one another in a circle stay in memory. Those of later tasks do not.
    """
    global _is_exempt
    try:
        yield
    finally:
        if not _is_exempt:
            gc.freeze()
            _is_exempt = True
