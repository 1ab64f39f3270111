"""A member of RocketMQ that is started, and leads at once, gives queue offsets that it gave before.

It takes messages as soon as it leads, because its `brokerRole` is ASYNC_MASTER until it has been a
follower; its queue offsets are rebuilt later (`DLedgerRoleChangeHandler`). Of two messages with one
offset, no member puts the second into a queue, so consumers never get it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from tests.broker.broker import message
from tests.fault.rounds.groups.offsets import odd_offsets
from tests.rocketmq.groups import BEGINS_AS_SLAVE, PATIENCE, Group
from tests.rocketmq.processes import RocketMq
from tests.support.waiting import eventually

RESTARTS = 5
MESSAGES = 300
"""Acknowledged before all members are killed, and after they were started again."""
CLIENTS = 8


@pytest.mark.slow
@pytest.mark.fault
def test_a_group_of_rocketmq_alone_gives_offsets_again(
    rocketmq: RocketMq, name_server: str, tmp_path: Path
) -> None:
    assert any(given_again(rocketmq, name_server, tmp_path, {}))


@pytest.mark.slow
@pytest.mark.fault
def test_members_that_begin_as_slaves_do_not(
    rocketmq: RocketMq, name_server: str, tmp_path: Path
) -> None:
    assert not any(given_again(rocketmq, name_server, tmp_path, BEGINS_AS_SLAVE))


def given_again(
    rocketmq: RocketMq, name_server: str, folder: Path, of_brokers: Mapping[str, Any]
) -> Iterator[list[str]]:
    """Kill all members of a group that take messages, and start them, the leader first; again.

    Yields:
        After each time, what consumers do not get of the messages that were acknowledged.
    """
    with ExitStack() as ends:
        group = Group(rocketmq, name_server, folder, (), of_brokers=of_brokers)
        ends.callback(group.close)
        group.send(["first"])
        sends = Sends(group)
        for _ in range(RESTARTS):
            with sends.running():
                sends.await_more(MESSAGES)
                leader = group.leading(group.theirs)
                # What is on its way is then in the leader's log, and in no queue.
                for me in (leader, *(each for each in group.members if each != leader)):
                    group.kill(me)
            group.start(leader)
            eventually(lambda me=leader: group.max_offset(me) >= 0, PATIENCE)  # it takes requests
            with sends.running():
                for me in group.members:
                    if me != leader:
                        group.start(me)
                sends.await_more(MESSAGES)
            entries = group.have_all(sends.acknowledged)
            odd = odd_offsets(entries, group.ports)
            yield [str(each) for each in odd if each.offset < each.expected]


class Sends:
    """Clients that send to all members of a group at once.

    Args:
        group: the group.

    Attributes:
        acknowledged: how many messages have been, in all.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._are_to_end = False
        self.acknowledged = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send in this block."""
        self._are_to_end = False
        with ThreadPoolExecutor(1) as pool:
            sends = pool.submit(lambda: asyncio.run(self._send_to_all()))
            try:
                yield
            finally:
                self._are_to_end = True
            sends.result(PATIENCE)

    def await_more(self, count: int) -> None:
        """Wait until so many more messages have been acknowledged."""
        wanted = self.acknowledged + count
        eventually(lambda: self.acknowledged >= wanted, PATIENCE)

    async def _send_to_all(self) -> None:
        addresses = [f"127.0.0.1:{port}" for port in self._group.ports.values()]
        await asyncio.gather(*(self._send(at) for at in addresses for _ in range(CLIENTS)))

    async def _send(self, address: str) -> None:
        async with RemotingClient(address) as client:
            while not self._are_to_end:
                try:
                    answer = await client.ask(message(b"a message"), 4)
                except ServiceError:
                    await asyncio.sleep(0.01)
                    continue
                self.acknowledged += answer.code == ResponseCode.SUCCESS
