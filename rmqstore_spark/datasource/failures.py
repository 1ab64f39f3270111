"""Errors as a user of Spark sees them.

What a Python worker of Spark raises reaches the user as text: a traceback, then the message. The
frames say nothing to a user, so a worker that fails with an error of this package hides them, and
only the message is left. `DEBUG` on the logger `rmqstore_spark` logs them in the worker.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final, ParamSpec, TypeVar

from rmqstore_spark.errors import RmqStoreError

__all__ = ["host_name", "plain_errors", "plain_errors_of", "some"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("rmqstore_spark")

_LISTED = 30

# Spark sets the first one in every worker that it starts, under one of two endings, and the second
# one where `spark.sql.execution.pyspark.udf.hideTraceback.enabled` is set. It looks at the second
# one when it writes down what a worker raised, and ends that worker then.
_IN_WORKER: Final = "PYTHON_WORKER_FACTORY_"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


def plain_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Let a method that Spark calls raise this package's errors without a traceback."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RmqStoreError as error:
            _hide_traceback(error)
            raise

    return wrapper


def plain_errors_of(items: Iterator[T]) -> Iterator[T]:
    """Do the same for what an iterator raises."""
    try:
        yield from items
    except RmqStoreError as error:
        _hide_traceback(error)
        raise


def _hide_traceback(error: RmqStoreError) -> None:
    """Let Spark show the message alone. Outside its workers, errors stay as they are."""
    _log.debug("raised to Spark", exc_info=error)
    if any(name.startswith(_IN_WORKER) for name in os.environ):
        os.environ[_HIDE_TRACEBACK] = "1"


def host_name() -> str:
    """The name of this machine, for an error about what it cannot see."""
    return socket.gethostname()


def some(names: Iterable[object]) -> str:
    """List names in a sentence, the first ones where they are many."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return (", ".join(listed[:_LISTED]) or "none") + more
