"""Gives requests to the handlers of their codes, and turns what goes wrong into an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import TypeAlias

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import FrameError, RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.peerlog import PeerLog

Handler: TypeAlias = Callable[
    [RemotingConnection, Command], Command | Awaitable[Command | None] | None
]
"""Handles a request: returns its answer, at once or later; None if it needs none. Raises
RemotingError to refuse it, or FrameError for a body that it cannot read."""


class NoAnswerRoomError(Exception):
    """A handler makes no answer now: this other end, or all together, have too much to read.

    The request is handed out again when that has changed.
    """


GroupHandler: TypeAlias = Callable[[Sequence[Request]], None]
"""Takes all requests with its codes that arrived together, on any connections, in their order. It
finishes each, at once or later, from any thread. What it raises is the answer to those that are not
finished."""


class Dispatch:
    """Gives requests to handlers.

    Args:
        handlers: of one request, by code.
        group_handlers: of all requests that arrived together with a code, or another one of the
            same handler; by code.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        group_handlers: Mapping[int, GroupHandler] | None = None,
    ) -> None:
        self._handlers = handlers
        self._group_handlers = group_handlers or {}
        self._log = PeerLog(logging.getLogger(__name__))
        self._later: set[asyncio.Task[None]] = set()

    def handle(self, requests: Sequence[Request]) -> None:
        """Handle requests that arrived together, and finish each with its answer.

        Those of a connection that has enough to read go back to it.
        """
        groups: dict[GroupHandler, list[Request]] = {}
        late: dict[RemotingConnection, list[Request]] = {}
        group_handlers = self._group_handlers
        for request in requests:
            handler = group_handlers.get(request.command.code)
            if handler is not None:
                if handler in groups:
                    groups[handler].append(request)
                else:
                    groups[handler] = [request]
                continue
            connection = request.connection
            if connection.has_room and connection not in late:
                self._handle_one(request)
            else:
                late.setdefault(connection, []).append(request)
        for connection, left in late.items():
            connection.put_back_first(left)
        for handler, group in groups.items():
            try:
                handler(group)
            except Exception as error:  # noqa: BLE001 - one group must not end all others
                for request in group:
                    request.reply(self._refusal(request, error))

    async def drain(self) -> None:
        """Wait until all answers of handlers of one request are sent."""
        if self._later:
            await asyncio.wait(self._later)

    def _handle_one(self, request: Request) -> None:
        command = request.command
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            request.reply(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        try:
            found = handler(request.connection, command)
        except Exception as error:  # noqa: BLE001 - one request must not end all others
            found = self._refusal(request, error)
        if isawaitable(found):
            task = asyncio.ensure_future(self._finish_later(request, found))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            _finish(request, found)

    async def _finish_later(self, request: Request, later: Awaitable[Command | None]) -> None:
        try:
            answer = await later
        except NoAnswerRoomError:
            request.put_back()
            return
        except Exception as error:  # noqa: BLE001 - one request must not end all others
            answer = self._refusal(request, error)
        _finish(request, answer)

    def _refusal(self, request: Request, error: Exception) -> Command:
        """Return the answer for an error, and log the error if it is a bug."""
        command = request.command
        if isinstance(error, RemotingError):
            return command.answer(error.code, error.remark)
        if isinstance(error, FrameError):
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        peer = request.connection.peer
        self._log.log(
            logging.ERROR, peer, "Request %d of %s failed.", command.code, escaped(peer),
            error=error,
        )  # fmt: skip
        remark = "the request failed because of an error in the server; its log says more"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)


def _finish(request: Request, answer: Command | None) -> None:
    if answer is None:
        request.drop()
    else:
        request.reply(answer)
