"""Show errors to Spark's users.

An exception in one of Spark's Python workers reaches the user as text: a traceback, then the
message. The frames do not help a user, so a worker that fails with an error of this package hides
them and shows only the message. `DEBUG` on the logger `rmqstore_spark` logs them in the worker.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final, ParamSpec, TypeVar

from rmqstore_spark.errors import RmqStoreError

__all__ = ["hide_traceback", "host_name", "is_spark_worker", "plain_errors", "some"]

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("rmqstore_spark")

_LISTED = 30

# Spark sets the first variable in every worker, with one of two endings. It sets the second one if
# `spark.sql.execution.pyspark.udf.hideTraceback.enabled` is set, reads it when it formats a
# worker's exception, and then ends that worker.
_IN_WORKER: Final = "PYTHON_WORKER_FACTORY_"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


def plain_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a method that Spark calls raise this package's errors without a traceback."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RmqStoreError as error:
            hide_traceback(error)
            raise

    return wrapper


def hide_traceback(error: RmqStoreError) -> None:
    """Let Spark show only the message. Outside its workers, errors are left unchanged."""
    _log.debug("raised to Spark", exc_info=error)
    if is_spark_worker():
        os.environ[_HIDE_TRACEBACK] = "1"


def is_spark_worker() -> bool:
    """Return whether Spark has started this process, to plan, read, write or commit."""
    return any(name.startswith(_IN_WORKER) for name in os.environ)


def host_name() -> str:
    """Return this machine's name, for an error about paths that it cannot see."""
    return socket.gethostname()


def some(names: Iterable[object]) -> str:
    """List names in a sentence; of a long list only the first ones."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return (", ".join(listed[:_LISTED]) or "none") + more
