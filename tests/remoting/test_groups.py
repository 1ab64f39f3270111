"""Requests that arrived together are handled as a group, and answered from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from queue import SimpleQueue

import pytest

from rmqstore_spark.errors import RemotingError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from rmqstore_spark.remoting.connection import RemotingConnection, Request, reply_all
from rmqstore_spark.remoting.dispatch import Dispatch
from tests.remoting.talking import (
    ECHO,
    HOLD,
    Peer,
    TestService,
    listening,
    request,
    run,
    until,
)

COLLECT, REFUSE, HALF, SINGLE, COLLECT_TOO = 10, 11, 12, 13, 14


class Collector(TestService):
    """Collects groups of requests; a thread answers those of each in reverse order.

    Attributes:
        collected: the sizes of the groups.
        order: the number of each request in them.
        sources: on how many connections each group came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collected: list[int] = []
        self.order: list[int] = []
        self.sources: list[int] = []
        self._queue: SimpleQueue[Sequence[Request] | None] = SimpleQueue()
        self._dispatch = Dispatch(
            {SINGLE: self._single},
            {
                COLLECT: self._collect, COLLECT_TOO: self._collect, REFUSE: self._refuse,
                HALF: self._half,
            },
        )  # fmt: skip
        self._threads = [threading.Thread(target=self._answer) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def requests(self, requests: Sequence[Request]) -> None:
        self.groups.append(len(requests))
        self.sources.append(len({each.connection for each in requests}))
        self._dispatch.handle(requests)

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _collect(self, group: Sequence[Request]) -> None:
        self.collected.append(len(group))
        self.order += [each.command.opaque for each in group]
        self._queue.put(group)

    def _refuse(self, group: Sequence[Request]) -> None:
        raise RemotingError(16, f"none of {len(group)}")

    def _half(self, group: Sequence[Request]) -> None:
        for each in group[::2]:
            each.reply(each.command.answer(body=b"even"))
        raise ZeroDivisionError("a bug")

    @staticmethod
    def _single(_connection: RemotingConnection, command: Command) -> Command:
        return command.answer(body=b"single")

    def _answer(self) -> None:
        while (group := self._queue.get()) is not None:
            for each in reversed(group):
                each.reply(each.command.answer(body=each.command.body))


@asynccontextmanager
async def collecting(**limits: int) -> AsyncIterator[tuple[Collector, str]]:
    """Run a collector behind a server; give it with its address."""
    service = Collector()
    try:
        async with listening(service, **limits) as address:
            yield service, address
    finally:
        service.close()


def test_requests_of_all_connections_that_arrived_together_are_one_group() -> None:
    async def test() -> None:
        async with collecting() as (service, address):
            peers = [await Peer.connect(address) for _ in range(20)]
            await until(lambda: len(service.connections) == 20)
            # The loop does not run between the first byte and the last: all wait when it reads.
            for number, peer in enumerate(peers):
                peer.send_some(
                    b"".join(request(COLLECT, b"%d" % number, n) for n in range(5))
                    + request(SINGLE, b"", 9)
                )
            for number, peer in enumerate(peers):
                answers = {each.opaque: each.body for each in await peer.commands(6)}
                assert answers == dict.fromkeys(range(5), b"%d" % number) | {9: b"single"}
            assert sum(service.collected) == 100
            assert len(service.collected) < 20
            assert max(service.collected) > 50

    run(test())


def test_requests_of_a_handler_keep_their_order_whatever_their_codes() -> None:
    async def test() -> None:
        async with collecting() as (service, address):
            peer = await Peer.connect(address)
            codes = (COLLECT, COLLECT_TOO)
            peer.send_some(b"".join(request(codes[n % 2], b"", n) for n in range(6)))
            await peer.commands(6)
            assert service.order == [*range(6)]

    run(test())


def test_a_group_is_bounded_and_shared_among_connections() -> None:
    async def test() -> None:
        async with collecting(group=8) as (service, address):
            busy, other = [await Peer.connect(address) for _ in range(2)]
            await until(lambda: len(service.connections) == 2)
            busy.send_some(b"".join(request(COLLECT, b"", n) for n in range(500)))
            other.send_some(request(COLLECT, b"", 1))
            assert len(await other.commands(1)) == 1
            assert len(await busy.commands(500)) == 500
            assert max(service.groups) <= 8
            assert service.sources[0] == 2

    run(test())


def test_answers_from_threads_reach_their_clients_while_more_requests_come() -> None:
    async def test() -> None:
        async with collecting() as (_, address):
            clients = [await RemotingClient.connect(address) for _ in range(8)]
            asyncio.get_running_loop().set_debug(True)  # refuses what other threads may not do

            async def talk(client: RemotingClient, number: int) -> None:
                for n in range(100):
                    body = b"%d %d" % (number, n)
                    assert (await client.ask(Command(COLLECT, body=body), 30)).body == body

            await asyncio.gather(
                *(talk(client, n * 10 + k) for n, client in enumerate(clients) for k in range(4))
            )
            for client in clients:
                client.close()

    run(test())


def test_one_way_requests_and_clients_that_have_gone_cost_nothing() -> None:
    async def test() -> None:
        async with collecting() as (service, address):
            client = await RemotingClient.connect(address)
            for _ in range(50):
                await client.tell(Command(COLLECT, body=bytes(1000)))
            await until(lambda: sum(service.collected) == 50)
            await until(lambda: service.connections[0].holds == 0)
            for _ in range(50):
                await client.tell(Command(COLLECT))
            client.close()  # what was sent before is handled
            await until(lambda: sum(service.collected) == 100)
            await until(lambda: not service.connections)

    run(test())


def test_what_a_group_handler_raises_answers_those_that_are_not_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with collecting() as (_, address):
            peer = await Peer.connect(address)
            peer.send_some(b"".join(request(REFUSE, b"", n) for n in range(3)))
            assert {each.remark for each in await peer.commands(3)} <= {
                f"none of {n}" for n in (1, 2, 3)
            }
            peer.send_some(b"".join(request(HALF, b"", n) for n in range(4)))
            answers = sorted(await peer.commands(4), key=lambda each: each.opaque)
            assert [each.code for each in answers] == [0, 1, 0, 1]

    run(test())
    assert "a bug" in caplog.text


def test_a_client_that_ends_its_side_gets_the_answers_of_its_last_requests() -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service, group=4) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"".join(request(1, b"last", n) for n in range(50)))
            writer.write_eof()
            assert (await reader.read()).count(b"last") == 50
            writer.close()

    run(test())


@pytest.mark.parametrize("from_thread", [False, True])
def test_requests_that_are_answered_together_are_finished(from_thread: bool) -> None:
    """Each once, on its connection, in order; one that is one-way, or finished, gets no answer."""

    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            peers = [await Peer.connect(address) for _ in range(2)]
            for peer in peers:
                body = bytes(10_000)
                peer.send_some(b"".join(request(HOLD, body[:n], n) for n in (1, 2, 9_000, 3)))
                peer.send_some(encode_frame(Command(HOLD, body=b"one-way", opaque=4).one_way()))
            await until(lambda: len(service.held) == 10)
            held = service.held
            held[1].drop()
            answers = [encode_frame(each.command.answer(body=b"x")) for each in held]
            if from_thread:
                await asyncio.to_thread(reply_all, held, answers)
            else:
                reply_all(held, answers)
                reply_all(held, answers)  # the second time does nothing
            await until(lambda: all(each.holds == 0 for each in service.connections))
            found: list[list[int]] = []
            for peer in peers:
                await peer.send(request(ECHO, b"last", 5))
                found.append([])
                while found[-1][-1:] != [5]:
                    found[-1] += [each.opaque for each in await peer.commands(1)]
            assert sorted(found) == [[1, 2, 9_000, 3, 5], [1, 9_000, 3, 5]]

    run(test())
