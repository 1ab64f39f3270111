"""Connections and their server: groups, bounds, and other ends that misbehave."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence

import pytest

from rmqstore_spark.errors import RemotingError, ServiceError
from rmqstore_spark.remoting.addresses import bound_port, parse_address
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command, Form
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Dispatch
from rmqstore_spark.remoting.server import RemotingServer
from tests.remoting.talking import (
    BIG,
    ECHO,
    HOLD,
    Peer,
    TestService,
    listening,
    request,
    run,
    talking,
    until,
)


def test_all_requests_that_have_arrived_are_one_group_and_answered_in_one_write() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, group=128) as address:
            peer = await Peer.connect(address)
            await peer.send(b"".join(request(ECHO, b"x", n) for n in range(100)))
            answers = await peer.commands(100)
            assert [answer.opaque for answer in answers] == list(range(100))
            assert service.groups == [100]

    run(test())


def test_a_group_is_bounded() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, group=7) as address:
            peer = await Peer.connect(address)
            await peer.send(b"".join(request(ECHO, b"", n) for n in range(50)))
            assert len(await peer.commands(50)) == 50
            assert max(service.groups) == 7

    run(test())


def test_many_requests_of_one_connection_are_matched_with_their_answers() -> None:
    async def test() -> None:
        async with talking(TestService()) as client:
            bodies = [str(n).encode() for n in range(500)]
            forms = (Form.JSON, Form.ROCKETMQ)
            answers = await asyncio.gather(
                *(client.ask(Command(ECHO, body=b, form=forms[len(b) % 2])) for b in bodies)
            )
            assert [answer.body for answer in answers] == bodies

    run(test())


def test_answers_may_come_later_and_in_any_order() -> None:
    async def test() -> None:
        service = TestService()
        async with talking(service) as client:
            asked = [asyncio.create_task(client.ask(Command(HOLD))) for _ in range(3)]
            await until(lambda: len(service.held) == 3)
            assert (await client.ask(Command(ECHO, body=b"first"))).body == b"first"
            for request in reversed(service.held):
                command = request.command
                request.reply(command.answer(body=str(command.opaque).encode()))
            answers = await asyncio.gather(*asked)
            assert [answer.body for answer in answers] == [b"1", b"2", b"3"]

    run(test())


def test_both_ends_may_ask_with_the_same_number() -> None:
    async def test() -> None:
        ours, theirs = TestService(), TestService()
        async with talking(ours, theirs) as client:
            asked = asyncio.create_task(client.ask(Command(HOLD)))
            await until(lambda: ours.held)
            held = ours.held[0]
            answer = await held.connection.request(Command(ECHO, body=b"to the client"), 30)
            assert answer.body == b"to the client"
            assert answer.opaque == held.command.opaque == 1
            held.connection.one_way(Command(ECHO))
            held.reply(held.command.answer(body=b"to the server"))
            assert (await asked).body == b"to the server"

    run(test())


def test_a_client_refuses_what_it_is_asked() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address, await RemotingClient.connect(address):
            await until(lambda: service.connections)
            answer = await service.connections[0].request(Command(40), 30)
            assert (answer.code, answer.remark) == (3, " request type 40 not supported")

    run(test())


def test_a_request_that_is_not_answered_in_time_fails_and_its_answer_is_dropped() -> None:
    async def test() -> None:
        service = TestService()
        async with talking(service) as client:
            with pytest.raises(ServiceError, match=r"request 2 within 0\.0\d+ s"):
                await client.ask(Command(HOLD), 0.05)
            await until(lambda: service.held)  # it may arrive later than its time was over
            held = service.held[0]
            held.reply(held.command.answer(body=b"late"))
            assert (await client.ask(Command(ECHO, body=b"next"))).body == b"next"

    run(test())


def test_requests_fail_when_the_connection_closes() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            client = await RemotingClient.connect(address)
            asked = asyncio.create_task(client.ask(Command(HOLD), 30))
            await until(lambda: service.held)
            service.connections[0].abort()
            with pytest.raises(ServiceError, match="was closed"):
                await asked
            client.close()
            with pytest.raises(ServiceError, match="is closed"):
                await client.ask(Command(ECHO))
            held = service.held[0]
            held.reply(held.command.answer())  # goes nowhere, and says nothing

    run(test())


def test_a_refusal_is_an_error_for_who_wants_success() -> None:
    async def test() -> None:
        class Refusing(TestService):
            def requests(self, requests: Sequence[Request]) -> None:
                for each in requests:
                    each.reply(each.command.answer(17, "no topic"))

        async with talking(Refusing()) as client:
            with pytest.raises(RemotingError, match=r"no topic \(code 17\)"):
                await client.ask_for(Command(105))

    run(test())


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_frames_in_pieces_are_answered(piece: int) -> None:
    async def test() -> None:
        async with listening(TestService()) as address:
            peer = await Peer.connect(address)
            stream = b"".join(request(ECHO, bytes(50), n) for n in range(5))
            for at in range(0, len(stream), piece):
                await peer.send(stream[at : at + piece])
            assert len(await peer.commands(5)) == 5

    run(test())


def test_what_is_no_frame_closes_its_connection_after_the_answers_before_it() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            given = random.Random(1)
            for _ in range(20):
                peer = await Peer.connect(address)
                await peer.send(request(ECHO, b"x") + b"\xff" + given.randbytes(20))
                assert (await peer.commands(1))[0].body == b"x"
                assert await peer.ended()
            async with await RemotingClient.connect(address) as client:
                await client.ask(Command(ECHO))
            assert service.closed_count >= 20

    run(test())


def test_requests_before_garbage_are_answered_later_too_and_for_a_bounded_time() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, write_seconds=1.0) as address:
            late, never = [await Peer.connect(address) for _ in range(2)]
            await late.send(request(HOLD, b"", 1) + request(ECHO, b"", 2) + b"\xff" * 20)
            assert (await late.commands(1))[0].opaque == 2
            held = service.held[0]
            held.reply(held.command.answer())
            assert (await late.commands(1))[0].opaque == 1
            assert await late.ended()
            await never.send(request(HOLD) + b"\xff" * 20)
            assert await never.ended()
            service.held[1].drop()

    run(test())


def test_a_client_that_goes_between_request_and_answer_is_forgotten() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            for _ in range(20):
                peer = await Peer.connect(address)
                await peer.send(request(HOLD) + request(BIG))
                await until(lambda: service.held)
                peer.reset()
                await until(lambda: not service.connections)
                held = service.held.pop()
                held.reply(held.command.answer())

    run(test())


def test_an_idle_connection_is_closed() -> None:
    async def test() -> None:
        async with listening(TestService(), idle_seconds=0.3) as address:
            assert await (await Peer.connect(address)).ended()

    run(test())


def test_a_connection_in_use_is_not_idle() -> None:
    """Looked at when the other one has been idle for too long, and this one a moment less."""

    async def test() -> None:
        service, now = TestService(), asyncio.get_running_loop().time
        limits = Limits()
        async with listening(service) as address, await RemotingClient.connect(address) as used:
            idle = await Peer.connect(address)
            await until(lambda: len(service.connections) == 2)
            connected = now()
            await until(lambda: now() > connected + 0.01)
            await used.ask(Command(ECHO))
            for connection in list(service.connections):
                connection.check_time(connected + limits.idle_seconds + 0.005)
            assert await idle.ended()
            await used.ask(Command(ECHO))
            assert used.is_open

    run(test())


def test_a_frame_that_does_not_arrive_ends_its_connection() -> None:
    async def test() -> None:
        async with listening(TestService(), frame_seconds=0.3) as address:
            peer = await Peer.connect(address)
            ended = asyncio.create_task(peer.ended())
            for byte in request(ECHO, bytes(10_000)):
                if ended.done():
                    break
                peer.send_some(bytes([byte]))
                await asyncio.sleep(0.01)
            assert await ended

    run(test())


def test_an_end_that_does_not_read_is_not_served_and_then_ended() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, group=1, write_seconds=1.0) as address:
            peer = await Peer.connect(address)
            peer.send_some(b"".join(request(BIG, b"", n) for n in range(1000)))
            await until(lambda: service.groups)
            await until(lambda: service.closed_count)
            assert len(service.groups) < 100

    run(test())


def test_an_end_that_reads_slowly_gets_everything() -> None:
    async def test() -> None:
        async with listening(TestService(), group=4) as address:
            peer = await Peer.connect(address)
            peer.send_some(b"".join(request(BIG, b"", n) for n in range(40)))
            answers = await peer.commands(40)
            assert [answer.opaque for answer in answers] == list(range(40))

    run(test())


def test_a_connection_with_too_many_open_requests_is_not_read() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, in_flight=10, group=5) as address:
            peer = await Peer.connect(address)
            await peer.send(b"".join(request(HOLD, b"", n) for n in range(25)))
            await until(lambda: len(service.held) == 10)
            other = await Peer.connect(address)
            await other.send(request(ECHO))
            await other.commands(1)
            assert len(service.held) == 10
            seen = 0
            while seen < 25:
                await until(lambda: service.held)
                held = service.held.pop(0)
                held.reply(held.command.answer())
                seen += 1
            assert len(await peer.commands(25)) == 25

    run(test())


def test_too_many_connections_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, connections=3) as address:
            peers = [await Peer.connect(address) for _ in range(3)]
            for peer in peers:
                await peer.send(request(ECHO))
                await peer.commands(1)
            assert await (await Peer.connect(address)).ended()
            peers[0].close()
            await until(lambda: len(service.connections) == 2)
            again = await Peer.connect(address)
            await again.send(request(ECHO))
            assert await again.commands(1)

    run(test())
    assert "turned away" in caplog.text


def test_many_requests_on_many_connections() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            clients = [await RemotingClient.connect(address) for _ in range(300)]
            await asyncio.gather(
                *(client.ask(Command(ECHO), 60) for client in clients for _ in range(5))
            )
            assert len(service.connections) == 300
            for client in clients:
                client.close()
            await until(lambda: not service.connections)

    run(test())


def test_an_answer_that_fits_no_frame_is_replaced_by_an_error() -> None:
    async def test() -> None:
        service = TestService()
        async with talking(service) as client:
            asked = asyncio.create_task(client.ask(Command(HOLD)))
            await until(lambda: service.held)
            held = service.held[0]
            held.reply(held.command.answer(body=bytes(17 << 20)))
            answer = await asked
            assert answer.code == 1
            assert "too large" in (answer.remark or "")

    run(test())


def test_a_handler_that_fails_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def later(_connection: RemotingConnection, _command: Command) -> Command:
        await asyncio.sleep(0)
        raise RemotingError(16, "not later")

    def never(_connection: RemotingConnection, _command: Command) -> Command:
        raise ZeroDivisionError("a bug")

    class Dispatching(TestService):
        def __init__(self) -> None:
            super().__init__()
            self.dispatch = Dispatch({1: later, 2: never})

        def requests(self, requests: Sequence[Request]) -> None:
            self.dispatch.handle(requests)

    async def test() -> None:
        service = Dispatching()
        async with talking(service) as client:
            answers = [await client.ask(Command(code)) for code in (1, 2, 3)]
            assert [answer.code for answer in answers] == [16, 1, 3]
            assert answers[0].remark == "not later"
            assert "a bug" not in (answers[1].remark or "")
            await client.tell(Command(2))
            await client.ask(Command(1))
        await service.dispatch.drain()

    run(test())
    assert "a bug" in caplog.text


def test_a_port_in_use_is_said_in_words() -> None:
    async def test() -> None:
        async with listening(TestService()) as address:
            second = RemotingServer(TestService(), Limits())
            with pytest.raises(ServiceError, match=f"listen on {address}"):
                await second.start(bound_port("127.0.0.1", int(address.split(":")[1])))

    run(test())


def test_a_server_that_is_not_there_is_said_in_words() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{1}".format(*free.getsockname())
        with pytest.raises(ServiceError, match=f"{address} cannot be reached"):
            run(RemotingClient.connect(address))


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":1", "host:0", "host:65536", "h:x", "h:0000001"),
        *("a..b:80", ".a:80", "x" * 64 + ":80", "\udcff:80", "h:\u0661"),
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ServiceError, match="HOST:PORT"):
        parse_address(address)


def test_addresses() -> None:
    assert parse_address("host:9876") == ("host", 9876)
    assert parse_address("[::1]:1") == ("::1", 1)


def test_closing_a_server_writes_what_was_answered() -> None:
    async def test() -> None:
        service = TestService()
        server = RemotingServer(service, Limits())
        peer = await Peer.connect(await server.start(bound_port("127.0.0.1", 0)))
        await peer.send(request(HOLD))
        await until(lambda: service.held)
        held = service.held[0]
        held.reply(held.command.answer(body=bytes(1 << 20)))
        closing = asyncio.create_task(server.close())
        assert len((await peer.commands(1))[0].body) == 1 << 20
        await closing

    run(test())


@pytest.mark.parametrize("host", ["", "a\0b", "a\nb", "a..b", "x" * 1000])
def test_what_no_resolver_takes_is_no_address(host: str) -> None:
    """A peer may have told it: an error of the resolver would end who asks."""
    with pytest.raises(ServiceError, match="is not an address"):
        parse_address(f"{host}:1")
