"""Errors as a user of Spark gets to see them.

Spark shows the traceback of the Python process that raised, then the message. The frames of this
package say nothing to a user: they are taken out, so that the message stands in sight. `DEBUG` on
the logger `rmqstore_spark` brings them back.
"""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from rmqstore_spark.errors import RmqStoreError

__all__ = ["host_name", "plain_errors", "plain_errors_of", "some"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("rmqstore_spark")

_LISTED = 30


def plain_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Let a method that Spark calls raise this package's errors without their frames."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RmqStoreError as error:
            raise _plain(error) from None

    return wrapper


def plain_errors_of(items: Iterator[T]) -> Iterator[T]:
    """Do the same for what an iterator raises."""
    try:
        yield from items
    except RmqStoreError as error:
        raise _plain(error) from None


def _plain(error: RmqStoreError) -> RmqStoreError:
    _log.debug("raised to Spark", exc_info=error)
    return error.with_traceback(None)


def host_name() -> str:
    """The name of this machine, for an error about what it cannot see."""
    return socket.gethostname()


def some(names: Iterable[object]) -> str:
    """List names in a sentence, the first ones where they are many."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return (", ".join(listed[:_LISTED]) or "none") + more
