"""Sends to a DLedger group gather: those of many clients are one round of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, cast

from rmqstore_spark.broker.faces.remoting.lanes.send_rounds import SendRounds
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.turns import Turns
from tests.broker.broker import message, running_broker
from tests.engine.group.stores import bodies_in
from tests.support.processes.ports import free_port
from tests.support.waiting import PATIENCE, eventually


class Group:
    """Takes rounds, and ends them when a test says so.

    Attributes:
        begun: the numbers of the requests of each round.
    """

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.rounds = SendRounds(self._begin)

    def send(self, *numbers: int, size: int = 100) -> None:
        """Send requests that arrive together."""
        made = [Command(310, opaque=number, size=size) for number in numbers]
        nobody = cast(RemotingConnection, None)
        turns = cast("Turns[Request]", None)
        self.rounds.take([Request(nobody, command, turns, 0.0) for command in made])

    def _begin(self, requests: Sequence[Request]) -> None:
        self.begun.append([request.command.opaque for request in requests])
        self.rounds.began(len(requests))


def play(work: Callable[[Group], Coroutine[Any, Any, None]]) -> list[list[int]]:
    """The rounds of a test."""

    async def run() -> list[list[int]]:
        group = Group()
        await asyncio.wait_for(work(group), PATIENCE)
        return group.begun

    return asyncio.run(run())


async def begun(group: Group, count: int) -> None:
    """Wait until so many rounds have begun."""
    while len(group.begun) < count:
        await asyncio.sleep(0.001)


def test_one_that_comes_alone_waits_for_nothing() -> None:
    async def work(group: Group) -> None:
        for number in range(3):
            group.send(number)
            group.rounds.ended(1)
            await asyncio.sleep(0)

    assert play(work) == [[0], [1], [2]]


def test_what_comes_during_a_round_waits_for_those_who_are_answered_with_it() -> None:
    async def work(group: Group) -> None:
        group.send(1)
        group.send(2, 3)
        group.send(4)
        assert group.begun == [[1]]
        assert len(group.rounds) == 3
        group.rounds.ended(1)
        await asyncio.sleep(0)
        assert group.begun == [[1]]
        group.send(5)
        assert group.begun == [[1], [2, 3, 4, 5]]
        group.rounds.ended(4)
        group.send(6, 7)
        group.send(8, 9)

    assert play(work) == [[1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_nobody_waits_for_clients_that_do_not_send_again() -> None:
    async def work(group: Group) -> None:
        group.send(1)
        group.send(2)
        group.rounds.ended(1)
        await begun(group, 2)
        group.rounds.ended(1)  # one client is left
        await asyncio.sleep(0)
        group.send(3)

    assert play(work) == [[1], [2], [3]]


def test_a_round_that_takes_its_time_does_not_hold_up_the_next() -> None:
    async def work(group: Group) -> None:
        group.send(1)
        group.send(2)
        await begun(group, 2)

    assert play(work) == [[1], [2]]


def test_many_bytes_wait_for_nothing() -> None:
    async def work(group: Group) -> None:
        group.send(1)
        group.send(2, size=100 << 10)
        assert group.begun == [[1]]
        group.send(3, size=200 << 10)

    assert play(work) == [[1], [2, 3]]


def test_what_waits_is_stored_before_the_end_and_nothing_waits_after() -> None:
    async def work(group: Group) -> None:
        group.send(1)
        group.send(2)
        await asyncio.to_thread(group.rounds.close)
        group.send(3)

    assert play(work) == [[1], [2], [3]]


def of_old_clients(body: bytes) -> Command:
    """A request to send a message with the names of its fields in full: it is not plain."""
    fields = {
        "producerGroup": "producers", "topic": "orders", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": "", "reconsumeTimes": "0",
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE, fields, body)


def test_messages_of_a_connection_keep_their_order_whatever_they_are(tmp_path: Path) -> None:
    """Plain ones gather, and others among them are stored in another thread."""
    config = StoreConfig(
        enable_d_leger_commit_log=True, d_leger_group="orders", d_leger_self_id="n0",
        d_leger_peers=f"n0-127.0.0.1:{free_port()}", d_leger_bind_address="127.0.0.1",
        mapped_file_size_commit_log=1 << 20, listen_port=free_port(), vip_listen_port=0,
        clients="rocketmq",
    )  # fmt: skip
    count, senders = 300, 8

    async def send(address: str) -> list[Command]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            many = []
            for n in range(count):
                sent = (of_old_clients if n % 3 == 2 else message)(b"%04d" % n)
                many.append(asyncio.ensure_future(client.ask(sent, 60)))
                await asyncio.sleep(0.001)  # they do not arrive together
            return list(await asyncio.gather(*many))

    async def send_one_by_one(address: str, sender: int) -> list[Command]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            return [
                await client.ask(message(b"%d/%02d" % (sender, n), queue=1), 60) for n in range(20)
            ]

    async def work(address: str) -> list[Command]:
        one_by_one = (send_one_by_one(address, sender) for sender in range(senders))
        answers = await asyncio.gather(send(address), *one_by_one)
        return [*chain.from_iterable(answers)]

    path = tmp_path / "store"
    with ExitStack() as running:
        store = running.enter_context(StoreWriter.open(path, config))
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        store.create_topic("orders", write_queue_nums=2)
        runner = running.enter_context(running_broker(store))
        assert {answer.code for answer in asyncio.run(work(runner.address))} == {0}
    found = bodies_in(path)
    assert found[:count] == [f"{n:04}" for n in range(count)]
    of_sender = [[b for b in found[count:] if b.startswith(f"{s}/")] for s in range(senders)]
    assert of_sender == [[f"{s}/{n:02}" for n in range(20)] for s in range(senders)]
