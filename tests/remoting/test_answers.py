"""Answers that are not read: no more are made, and those that do not read make way."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

from rmqstore_spark.remoting.codec.command import Command
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


class Making(TestService):
    """Answers BIG with four megabytes, and counts how often.

    Attributes:
        made: answers by connection.
        order: numbers of the requests, as they were handled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[RemotingConnection] = Counter()
        self.order: list[int] = []
        self._dispatch = Dispatch({BIG: self._make, ECHO: self._echo})

    def requests(self, requests: Sequence[Request]) -> None:
        self._dispatch.handle(requests)

    def _make(self, connection: RemotingConnection, command: Command) -> Command:
        self.made[connection] += 1
        self.order.append(command.opaque)
        return command.answer(body=bytes(4 * MIB))

    def _echo(self, _: RemotingConnection, command: Command) -> Command:
        self.order.append(command.opaque)
        return command.answer(body=command.body)


def test_who_does_not_read_gets_no_further_answers_made() -> None:
    async def test() -> None:
        service = Making()
        async with listening(service, write_seconds=1.0) as address:
            for _ in range(8):
                peer = await Peer.connect(address)
                peer.send_some(request(BIG) * 200)
            await until(lambda: len(service.made) == 8)
            other = await Peer.connect(address)
            for number in range(50):
                await other.send(request(ECHO, b"", number))
                await other.commands(1)
            assert max(service.made.values()) <= 4

    run(test())


def test_who_reads_gets_all_answers_in_the_order_of_its_requests() -> None:
    async def test() -> None:
        service = Making()
        async with listening(service) as address:
            peer = await Peer.connect(address)
            peer.send_some(
                b"".join(request(BIG if n % 3 == 0 else ECHO, b"x", n) for n in range(40))
            )
            answers = await peer.commands(40)
            assert [answer.opaque for answer in answers] == list(range(40))
            assert service.order == list(range(40))

    run(test())


def test_if_all_have_too_much_to_read_the_first_that_do_not_read_make_way() -> None:
    async def test() -> None:
        service = Making()
        async with listening(service, held=32 * MIB, write_seconds=3.0) as address:
            deaf = []  # they may hold half of `held`
            for _ in range(12):
                deaf.append(await Peer.connect(address))
                deaf[-1].send_some(request(BIG) * 5)
            await until(lambda: len(service.made) >= 4)
            assert sum(each.holds for each in service.connections) < 32 * MIB
            small = await Peer.connect(address)
            await small.send(request(ECHO, b"passes"))
            assert (await small.commands(1))[0].body == b"passes"
            reader = await Peer.connect(address)
            reader.send_some(request(BIG) * 10)
            assert len(await reader.commands(10)) == 10
            assert service.closed_count >= 2

    run(test())


def test_a_large_answer_waits_and_is_made_again_when_others_have_read() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, held=8 * MIB) as address:
            first, second = [await Peer.connect(address) for _ in range(2)]
            await first.send(request(HOLD))
            await until(lambda: service.held)
            service.held[0].reply(service.held[0].command.answer(body=bytes(12 * MIB)))
            await second.send(request(HOLD))
            await until(lambda: len(service.held) == 2)
            late = service.held[-1]
            late.reply(late.command.answer(body=bytes(MIB)))
            assert not late.is_finished
            assert await first.commands(1)
            await until(lambda: service.held.count(late) == 2)  # it was handed out again
            late.reply(late.command.answer(body=bytes(MIB)))
            assert len((await second.commands(1))[0].body) == MIB

    run(test())


def test_answers_of_threads_count_before_they_arrive() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            peer = await Peer.connect(address)
            await peer.send(request(HOLD) * 2)
            await until(lambda: len(service.held) == 2)
            first, second = service.held
            connection = first.connection
            rooms = [connection.has_answer_room]
            answer = first.command.answer(body=bytes(4 * MIB))
            thread = threading.Thread(target=first.reply, args=(answer,))
            thread.start()
            thread.join()  # meanwhile, the event loop does nothing
            assert not first.is_finished
            rooms.append(connection.has_answer_room)
            assert rooms == [True, False]
            second.drop()
            await peer.commands(1)
            await until(lambda: connection.has_answer_room)

    run(test())


def test_requests_that_were_put_back_go_with_their_connection() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            peer = await Peer.connect(address)
            await peer.send(request(HOLD) * 3)
            await until(lambda: len(service.held) == 3)
            connection = service.connections[0]
            first, second, third = service.held
            third.reply(third.command.answer(body=bytes(30 * MIB)))  # too large: an error
            first.reply(first.command.answer(body=bytes(15 * MIB)))
            first.put_back()  # does nothing any more
            second.put_back()
            await asyncio.sleep(0)
            peer.reset()
            await until(lambda: service.closed_count)
            second.put_back()
            assert second.is_finished
            assert connection.holds == 0

    run(test())
