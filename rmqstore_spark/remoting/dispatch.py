"""Gives each request to the handler of its code, and turns what goes wrong into an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TypeAlias

from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codes import ResponseCode
from rmqstore_spark.remoting.command import Command
from rmqstore_spark.remoting.connection import Connection

__all__ = ["Dispatch", "Handler"]

_log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Connection, Command], Command | Awaitable[Command]]
"""Handles a request: returns its answer, at once or later. Raises RemotingError to refuse it, or
FrameError for a body that it cannot read."""


class Dispatch:
    """Handles requests one by one.

    Args:
        handlers: by code.
    """

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = handlers
        self._later: set[asyncio.Task[None]] = set()

    def handle(self, connection: Connection, command: Command) -> None:
        """Handle a request, and send its answer. Requests that are one-way get none."""
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            answer = command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            self._send(connection, command, answer)
            return
        try:
            found = handler(connection, command)
        except Exception as error:  # noqa: BLE001 - one request must not end all others
            found = _refusal(connection, command, error)
        if isawaitable(found):
            task = asyncio.ensure_future(self._finish(connection, command, found))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            self._send(connection, command, found)

    async def drain(self) -> None:
        """Wait until all answers are sent."""
        if self._later:
            await asyncio.wait(self._later)

    async def _finish(
        self, connection: Connection, command: Command, later: Awaitable[Command]
    ) -> None:
        try:
            answer = await later
        except Exception as error:  # noqa: BLE001 - one request must not end all others
            answer = _refusal(connection, command, error)
        self._send(connection, command, answer)

    @staticmethod
    def _send(connection: Connection, command: Command, answer: Command) -> None:
        if not command.is_one_way:
            connection.send(answer)


def _refusal(connection: Connection, command: Command, error: Exception) -> Command:
    """Return the answer for an error, and log the error if it is a bug."""
    if isinstance(error, RemotingError):
        return command.answer(error.code, error.remark)
    if isinstance(error, FrameError):
        return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
    _log.error("Request %d of %s failed.", command.code, escaped(connection.peer), exc_info=error)
    remark = "the request failed because of an error in the server; its log says more"
    return command.answer(ResponseCode.SYSTEM_ERROR, remark)
