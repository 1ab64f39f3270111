"""A thread for the handlers of single requests: one after the other, and only so many wait.

Use it in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import OVERLOAD, RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import Handler

__all__ = ["CLOSING", "HandlerThread"]

CLOSING: Final = "the broker is shutting down"
_LAST: Final = RequestCode.UPDATE_CONSUMER_OFFSET
"""Handled in any case: a consumer reports its progress and goes, and so may the broker."""

_R = TypeVar("_R")


class HandlerThread:
    """Runs handlers.

    Args:
        name: of the thread.
        most: how many requests may wait or be handled; more are refused with SYSTEM_BUSY.
    """

    def __init__(self, name: str, most: int) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._count = 0
        self._is_closing = False

    def handlers(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers, by code, that run the given ones in the thread."""
        return {code: self.handler(handler) for code, handler in handlers.items()}

    def run(self, work: Callable[..., _R], *given: Any) -> asyncio.Future[_R]:
        """Do some work in the thread, after what waits already.

        Args:
            work: is called with what is given.

        Raises:
            RemotingError: too much waits.
        """
        if self._count >= self._most:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        self._count += 1
        done = self._loop.run_in_executor(self._thread, work, *given)
        done.add_done_callback(self._finished)
        return done

    def refuse(self) -> None:
        """From now on, refuse what waits instead of handling it, but for consumers' progress."""
        self._is_closing = True

    def close(self) -> None:
        """Wait until nothing is left, and end the thread."""
        self._thread.shutdown()

    def handler(self, handler: Handler) -> Callable[..., asyncio.Future[Any]]:
        """Return a handler that runs the given one in the thread."""

        def handle(connection: RemotingConnection, request: Command) -> Any:
            if request.code != _LAST:
                if self._is_closing:
                    raise RemotingError(ResponseCode.SERVICE_NOT_AVAILABLE, CLOSING)
                if not (connection.is_open or request.is_one_way):
                    return None  # nobody waits for the answer any more
            return handler(connection, request)

        return lambda connection, request: self.run(handle, connection, request)

    def _finished(self, _: object) -> None:
        self._count -= 1
