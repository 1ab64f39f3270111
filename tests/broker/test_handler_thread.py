"""The thread for the handlers of single requests: its bound, and what it does not handle."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rmqstore_spark.broker.faces.remoting.lanes.handler_thread import HandlerThread
from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection
from rmqstore_spark.remoting.dispatch import NoAnswerRoomError
from rmqstore_spark.remoting.server import RemotingServer
from tests.broker.broker import Heard
from tests.remoting.talking import run


class _Connection:
    """A connection, as far as the thread looks at it."""

    is_open = True
    has_answer_room = True


class _Serving(Heard):
    """A server's side that keeps its connection."""

    connection: RemotingConnection

    def opened(self, connection: RemotingConnection) -> None:
        self.connection = connection
        self.has_more.set()


def test_only_so_many_requests_wait() -> None:
    async def test() -> None:
        thread, released = HandlerThread("test", 2), threading.Event()
        first, second = thread.run(released.wait, 60), thread.run(int, "2")
        with pytest.raises(RemotingError, match="OVERLOAD") as refused:
            thread.run(int, "3")
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        released.set()
        assert (await first, await second) == (True, 2)
        assert await thread.run(int, "4") == 4
        thread.close()

    run(test())


def test_connections_take_turns_and_the_one_with_most_makes_room() -> None:
    async def test() -> None:
        greedy, modest = _Connection(), _Connection()
        handled: list[tuple[object, int]] = []

        def handle(connection: RemotingConnection, request: Command) -> None:
            handled.append((connection, request.opaque))

        thread, released = HandlerThread("test", 6), threading.Event()
        ask = thread.handler(handle)
        blocked = thread.run(released.wait, 60)
        many = [ask(greedy, Command(RequestCode.VIEW_MESSAGE_BY_ID, opaque=n)) for n in range(5)]
        few = [ask(modest, Command(RequestCode.VIEW_MESSAGE_BY_ID, opaque=n)) for n in range(2)]
        for newest in many[3:]:
            with pytest.raises(RemotingError, match="OVERLOAD"):
                await newest
        with pytest.raises(RemotingError, match="OVERLOAD"):
            ask(greedy, Command(RequestCode.VIEW_MESSAGE_BY_ID))
        released.set()
        await asyncio.gather(blocked, *many[:3], *few)
        assert handled == [(greedy, 0), (modest, 0), (greedy, 1), (modest, 1), (greedy, 2)]
        thread.close()

    run(test())


def test_nothing_is_handled_whose_answer_nobody_reads() -> None:
    async def test() -> None:
        deaf = _Connection()
        deaf.has_answer_room = False
        thread = HandlerThread("test", 6)
        ask, ask_always = (
            thread.handler(lambda _, request: request.answer(), always=always)
            for always in (False, True)
        )
        query = Command(RequestCode.QUERY_MESSAGE)
        with pytest.raises(NoAnswerRoomError):
            await ask(deaf, query)
        assert (await ask_always(deaf, query)).code == 0
        thread.close()

    run(test())


def test_requests_that_wait_are_not_handled_for_those_who_have_gone() -> None:
    handled: list[Command] = []

    def handle(_: RemotingConnection, request: Command) -> None:
        handled.append(request)

    query, report = Command(RequestCode.QUERY_MESSAGE), Command(RequestCode.UPDATE_CONSUMER_OFFSET)
    one_way = Command(RequestCode.QUERY_MESSAGE).one_way()

    async def test() -> None:
        service = _Serving()
        server = RemotingServer(service, Limits())
        thread, released = HandlerThread("test", 10), threading.Event()
        handlers = {
            query.code: thread.handler(handle),
            report.code: thread.handler(handle, always=True),
        }

        async def ask(*requests: Command) -> None:
            for request in requests:
                answer = handlers[request.code](service.connection, request)
                assert isinstance(answer, asyncio.Future)
                await answer

        async with await RemotingClient.connect(await server.start(bound_port("127.0.0.1", 0))):
            await service.has_more.wait()
            await ask(query, report, one_way)
            assert handled == [query, report, one_way]
            blocked = thread.run(released.wait, 60)
            waiting = asyncio.create_task(ask(query))
        service.connection.close()
        released.set()
        await asyncio.gather(blocked, waiting)
        await ask(report, one_way, query)
        assert handled == [query, report, one_way, report, one_way]
        thread.refuse()
        await ask(report)
        with pytest.raises(RemotingError, match="shutting down") as refused:
            await ask(query)
        assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert handled[5:] == [report]
        await server.close()
        thread.close()

    run(test())
