"""The client: bounds of calls, and connections that close."""

from __future__ import annotations

import asyncio

import pytest

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.server import RemotingServer
from tests.remoting.talking import ECHO, HOLD, TestService, listening, run, until

MIB = 1 << 20


def test_a_call_after_the_server_came_back_is_answered() -> None:
    async def test() -> None:
        first = RemotingServer(TestService(), Limits())
        address = await first.start(bound_port("127.0.0.1", 0))
        client = RemotingClient(address)  # it connects with the first call
        await client.ask(Command(ECHO))
        await first.close()
        for _ in range(3):
            with pytest.raises(ServiceError, match="cannot be reached"):
                await client.ask(Command(ECHO), 10)
        second = RemotingServer(TestService(), Limits())
        await second.start(bound_port("127.0.0.1", int(address.split(":")[1])))
        await client.ask(Command(ECHO), 30)
        assert client.is_open
        client.close()
        await second.close()

    run(test())


def test_many_calls_share_the_new_connection() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            client = await RemotingClient.connect(address)
            sent = asyncio.create_task(client.ask(Command(HOLD), 30))
            await until(lambda: service.held)
            service.connections[0].abort()
            with pytest.raises(ServiceError, match="was closed"):
                await sent  # it may have been handled, and is not sent again
            await asyncio.gather(*(client.ask(Command(ECHO), 30) for _ in range(50)))
            assert (len(service.connections), service.closed_count) == (1, 1)
            assert len(service.held) == 1
            client.close()

    run(test())


def test_the_time_of_a_call_includes_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(f"rmqstore_spark.remoting.client.{name}", 3600.0)

    async def test() -> None:
        client = RemotingClient("127.0.0.1:1")
        with pytest.raises(ServiceError, match="cannot be reached"):
            await client.ask(Command(ECHO), 30)
        with pytest.raises(ServiceError, match=r"could not be sent .* in time"):
            await client.ask(Command(ECHO), 0.05)  # the next try is an hour away

    run(test())


def test_calls_in_flight_are_bounded_and_others_wait_for_a_place() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            client = await RemotingClient.connect(address, limits=Limits(in_flight=3))
            asked = [asyncio.create_task(client.ask(Command(HOLD), 30)) for _ in range(10)]
            await until(lambda: len(service.held) == 3)
            with pytest.raises(ServiceError, match="could not be sent"):
                await client.ask(Command(ECHO), 0.1)
            assert len(service.held) == 3
            for seen in range(10):
                await until(lambda seen=seen: len(service.held) > seen)  # type: ignore[misc]
                held = service.held[seen]
                held.reply(held.command.answer())
                assert len(service.held) <= seen + 3
            assert len(await asyncio.gather(*asked)) == 10
            client.close()

    run(test())


def test_calls_wait_while_the_other_end_does_not_read() -> None:
    async def test() -> None:
        accepted: list[asyncio.StreamWriter] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            accepted.append(writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client = await RemotingClient.connect(f"{host}:{port}")
        await until(lambda: accepted)
        calls = [client.ask(Command(ECHO, body=bytes(MIB)), 1.0) for _ in range(60)]
        tells = [client.tell(Command(ECHO, body=bytes(MIB)), 1.0) for _ in range(60)]
        largest = 0

        async def look() -> None:
            nonlocal largest
            while True:
                largest = max(largest, client.holds)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        ended = await asyncio.gather(*calls, *tells, return_exceptions=True)
        looking.cancel()
        refused = [each for each in ended if isinstance(each, ServiceError)]
        assert all("could not be sent" in str(e) or "did not answer" in str(e) for e in refused)
        assert len(refused) > 60
        assert largest < 4 * MIB
        client.close()
        accepted[0].transport.abort()
        server.close()

    run(test())


def test_an_answer_is_told_once_and_so_is_why_there_is_none() -> None:
    async def test() -> None:
        service = TestService()
        told: list[Command | ServiceError] = []
        async with listening(service) as address:
            client = RemotingClient(address, limits=Limits(in_flight=2))
            assert not client.ask_now(Command(ECHO), 30, told.append)  # it is not connected
            await client.ask(Command(ECHO), 30)
            assert client.ask_now(Command(ECHO, body=b"one"), 30, told.append)
            await until(lambda: told)
            assert [each.body for each in told if isinstance(each, Command)] == [b"one"]
            assert client.ask_now(Command(HOLD), 0.05, told.append)
            await until(lambda: len(told) == 2)
            assert "did not answer" in str(told[1])
            for _ in range(2):
                assert client.ask_now(Command(HOLD), 30, told.append)
            with pytest.raises(ServiceError, match="as many as may"):
                client.ask_now(Command(ECHO), 30, told.append)
            await until(lambda: len(service.held) == 3)
            service.connections[0].abort()
            await until(lambda: len(told) == 4)
            assert all("was closed" in str(each) for each in told[2:])
            assert not client.ask_now(Command(ECHO), 30, told.append)
            client.close()

    run(test())


def test_who_is_told_an_answer_can_ask_on_and_it_is_written_in_the_same_turn() -> None:
    async def test() -> None:
        service = TestService()
        told: list[bytes] = []
        async with listening(service) as address:
            client = await RemotingClient.connect(address)

            def tell(found: Command | ServiceError) -> None:
                assert isinstance(found, Command)
                told.append(found.body)
                if len(told) < 3:
                    assert client.ask_now(Command(ECHO, body=b"%d" % len(told)), 30, tell)
                    assert client.holds == 0  # the socket has taken it

            assert client.ask_now(Command(ECHO, body=b"0"), 30, tell)
            assert client.holds == 0
            await until(lambda: len(told) == 3)
            assert told == [b"0", b"1", b"2"]
            client.close()

    run(test())
