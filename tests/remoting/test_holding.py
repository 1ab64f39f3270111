"""What a connection holds: requests until they are finished, answers until they are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.dispatch import Dispatch
from tests.remoting.talking import (
    BIG,
    ECHO,
    HOLD,
    Peer,
    TestService,
    listening,
    request,
    run,
    until,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    "command",
    [
        Command(HOLD, body=bytes(MIB)),
        Command(HOLD, body=bytes(MIB)).one_way(),
        Command(HOLD, {"properties": "x" * 200_000}),
    ],
    ids=["body", "one-way", "header"],
)
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_request_counts_until_it_is_finished(command: Command, is_answered: bool) -> None:
    frame = encode_frame(command)

    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            peer = await Peer.connect(address)
            await peer.send(frame + request(ECHO, b"first"))
            assert (await peer.commands(1))[0].body == b"first"
            (connection,) = service.connections
            assert len(frame) <= connection.holds < len(frame) + 10_000
            (held,) = service.held
            for _ in range(2):  # the second finish does nothing
                if is_answered:
                    held.reply(held.command.answer())
                else:
                    held.drop()
            await peer.send(request(ECHO, b"second"))
            expects_one = is_answered and not command.is_one_way
            answers = await peer.commands(1 + expects_one)
            assert [answer.body for answer in answers] == [b""] * expects_one + [b"second"]
            await until(lambda: connection.holds == 0)

    run(test())


def test_answers_count_until_the_other_end_reads_them() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            peer = await Peer.connect(address)
            await peer.send(b"".join(request(HOLD, b"", n) for n in range(20)))
            await until(lambda: len(service.held) == 20)
            for held in service.held:
                held.reply(held.command.answer(body=bytes(MIB)))
            (connection,) = service.connections
            assert connection.holds > 20 * MIB
            await peer.commands(20)
            await until(lambda: connection.holds == 0)

    run(test())


def test_answers_that_nobody_reads_end_the_connection_that_holds_most() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, held=16 * MIB) as address:
            other = await Peer.connect(address)
            await other.send(request(HOLD, bytes(MIB)))
            await until(lambda: len(service.held) == 1)  # small requests may pass it
            peer = await Peer.connect(address)
            await peer.send(b"".join(request(HOLD, b"", n) for n in range(40)))
            await until(lambda: len(service.held) == 41)
            for held in service.held[1:]:
                held.reply(held.command.answer(body=bytes(MIB)))
            await until(lambda: service.closed_count)
            service.held[0].reply(service.held[0].command.answer())
            assert await other.commands(1)

    run(test())


def test_a_late_request_counts_although_its_connection_has_gone() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, held=3 * MIB) as address:
            gone = await Peer.connect(address)
            await gone.send(request(HOLD, bytes(2 * MIB)))
            await until(lambda: service.held)
            gone.reset()
            await until(lambda: service.closed_count)
            second = await Peer.connect(address)
            second.send_some(request(HOLD, bytes(2 * MIB)))
            await until(lambda: service.connections[0].holds)  # its begin, without room for more
            for _ in range(3):  # small ones pass
                third = await Peer.connect(address)
                await third.send(request(ECHO, b"small"))
                assert await third.commands(1)
            assert len(service.held) == 1
            service.held[0].drop()
            await until(lambda: len(service.held) == 2)
            service.held[1].drop()

    run(test())


def test_a_connection_is_not_read_while_it_holds_too_much() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, connection_held=2 * MIB) as address:
            peer = await Peer.connect(address)
            peer.send_some(b"".join(request(HOLD, bytes(MIB), n) for n in range(8)))
            seen = 0
            while seen < 8:
                await until(lambda: service.held)
                assert len(service.held) <= 2
                assert service.connections[0].holds < 5 * MIB
                held = service.held.pop(0)
                held.reply(held.command.answer())
                seen += 1
            assert len(await peer.commands(8)) == 8

    run(test())


def test_a_handler_may_leave_a_request_without_an_answer() -> None:
    async def later(_connection: RemotingConnection, _command: Command) -> None:
        pass

    def now(_connection: RemotingConnection, _command: Command) -> None:
        pass

    class Dispatching(TestService):
        def __init__(self) -> None:
            super().__init__()
            self.dispatch = Dispatch({HOLD: later, BIG: now})

        def requests(self, requests: Sequence[Request]) -> None:
            self.dispatch.handle(requests)

    async def test() -> None:
        service = Dispatching()
        async with listening(service) as address:
            peer = await Peer.connect(address)
            await peer.send(request(HOLD, bytes(MIB), 1) + request(BIG, bytes(MIB), 2))
            await peer.send(request(ECHO, b"", 3))
            (answer,) = await peer.commands(1)
            assert (answer.opaque, answer.code) == (3, 3)
            await until(lambda: service.connections[0].holds == 0)

    run(test())
