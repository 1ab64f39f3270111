"""A row of a table of request codes: all that is true of a code, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rmqstore_spark.broker.acl.accounts import Need, Right
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Handler

_CODES: Final = {
    Reason.WRONG: ResponseCode.SYSTEM_ERROR,
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.SLAVE: ResponseCode.SLAVE_NOT_AVAILABLE,
    Reason.ILLEGAL_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.NOT_PERMITTED: ResponseCode.NO_PERMISSION,
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.NO_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.OLD_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Reason.NOT_CONNECTED: ResponseCode.CONSUMER_NOT_ONLINE,
}


def refused(error: Refusal) -> RemotingError:
    """Return what a refusal is in RocketMQ's protocol."""
    return RemotingError(_CODES[error.reason], error.remark)


_C = TypeVar("_C")
_V = TypeVar("_V")
_R = TypeVar("_R")


class Lane(NamedTuple):
    """Where requests are handled.

    Attributes:
        name: for documentation.
        gathers: whether all requests that arrived together are handled together.
    """

    name: str
    gathers: bool = False


class Rights(NamedTuple):
    """What an account needs for a request.

    Attributes:
        text: for documentation.
        read: returns what the request needs: all of it. Raises RemotingError if a field is
            missing, and FrameError if the body cannot be read.
        place: for a request that names a message by its physical offset: the field, and the right
            that it needs for the topic of that message.
    """

    text: str
    read: Callable[[Command], Iterable[Need]]
    place: tuple[str, Right] | None = None


def whole(request: Command) -> Command:
    """Return a request as it is, for a handler that passes it on."""
    return request


def nothing(_: Command) -> None:
    """Read nothing: all that a request says is its code."""


def done(request: Command, _: object) -> Command:
    """Return the answer that says nothing but that it is done."""
    return request.answer()


def as_it_is(_: Command, answer: Command) -> Command:
    """Return an answer that the handler has made."""
    return answer


@dataclass(frozen=True)
class Row(Generic[_C, _V, _R]):
    """What is true of a code.

    Attributes:
        code: the code.
        asks: what a request with it asks for, for documentation.
        lane: where it is handled.
        rights: what an account needs; None: it must be an administrator's.
        read: returns what the header and the body say, as plain values. Raises RemotingError or
            FrameError.
        handle: does what is asked; gets the context of the table, the connection and the values.
            In a lane that is the event loop, it may be a coroutine function. In one that gathers,
            it checks a request, and the lane does the rest for all.
        answer: returns the answer that tells the result.
    """

    code: int
    asks: str
    lane: Lane
    rights: Rights | None
    read: Callable[[Command], _V]
    handle: Callable[[_C, RemotingConnection, _V], Any]
    answer: Callable[[Command, _R], Command] = done


def handler_of(row: Row[_C, Any, Any], context: _C) -> Handler:
    """Return the handler of single requests with the code of a row."""
    read, act, answer = row.read, row.handle, row.answer

    def handle(connection: RemotingConnection, request: Command) -> Any:
        try:
            found = act(context, connection, read(request))
        except Refusal as error:
            raise refused(error) from error
        return _later(request, found) if iscoroutine(found) else answer(request, found)

    async def _later(request: Command, found: Any) -> Command:
        try:
            return answer(request, await found)
        except Refusal as error:
            raise refused(error) from error

    return handle


class LaneRows(Generic[_V]):
    """The rows of a lane that gathers requests, which are read one by one.

    Args:
        rows: of the whole table.
        lane: the lane.
        context: of the table.
    """

    def __init__(self, rows: Iterable[Row[_C, Any, Any]], lane: Lane, context: _C) -> None:
        self._rows = {
            row.code: (row.read, row.handle, row.answer) for row in rows if row.lane is lane
        }
        self._context: Any = context

    def read(self, command: Command) -> _V:
        """Return what a request says.

        Raises:
            RemotingError: a field is missing or wrong.
            FrameError: the body is.
        """
        found: _V = self._rows[command.code][0](command)
        return found

    def accept(self, request: Request) -> _V:
        """Return what a request says, once it is checked.

        Raises:
            RemotingError: it is refused.
            FrameError: its body cannot be read.
        """
        command = request.command
        read, act, _ = self._rows[command.code]
        try:
            found: _V = act(self._context, request.connection, read(command))
        except Refusal as error:
            raise refused(error) from error
        return found

    def answer(self, command: Command, result: object) -> Command:
        """Return the answer that tells the result of a request."""
        return self._rows[command.code][2](command, result)


def rights_of(rows: Iterable[Row[Any, Any, Any]]) -> Mapping[int, Rights]:
    """Return what requests need, by their code; those of other codes are for administrators."""
    return {row.code: row.rights for row in rows if row.rights is not None}
