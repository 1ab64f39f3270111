"""A member of RocketMQ that is started, and leads at once, gives queue offsets that it gave before.

It takes messages as soon as it leads, because its `brokerRole` is ASYNC_MASTER until it has been a
follower; its queue offsets are rebuilt later (`DLedgerRoleChangeHandler`). Of two messages with one
offset, no member puts the second into a queue, so consumers never get it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
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
"""Sent before all members are killed, and acknowledged after they were started again."""
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
    """Kill all members of a group, and start them, the leader first, several times; then send.

    Yields:
        After each time, what consumers do not get of the messages that were acknowledged.
    """
    with ExitStack() as ends:
        group = Group(rocketmq, name_server, folder, (), of_brokers=of_brokers)
        ends.callback(group.close)
        group.send(["first"])
        acknowledged: list[str] = []
        for _ in range(RESTARTS):
            send(group, acknowledged, len(acknowledged) + MESSAGES)
            leader = group.leading(group.theirs)
            for me in group.members:
                group.kill(me)
            group.start(leader)
            eventually(lambda me=leader: group.max_offset(me) >= 0, PATIENCE)  # it takes requests
            for me in group.members:
                if me != leader:
                    group.start(me)
            send(group, acknowledged, len(acknowledged) + MESSAGES)
            entries = group.have_all(len(acknowledged))
            odd = odd_offsets(entries, group.ports)
            yield [str(each) for each in odd if each.offset < each.expected]


def send(group: Group, acknowledged: list[str], until: int) -> None:
    """Send to all members at once, until so many messages have been acknowledged in all."""

    async def one(address: str, number: int) -> None:
        async with RemotingClient(address) as client:
            while len(acknowledged) < until:
                text = f"message {number} {len(acknowledged)}"
                try:
                    answer = await client.ask(message(text.encode()), 4)
                except ServiceError:
                    await asyncio.sleep(0.01)
                    continue
                if answer.code == ResponseCode.SUCCESS:
                    acknowledged.append(text)

    async def all_of_them() -> None:
        addresses = [f"127.0.0.1:{port}" for port in group.ports.values()]
        await asyncio.gather(*(one(at, n) for at in addresses for n in range(CLIENTS)))

    asyncio.run(asyncio.wait_for(all_of_them(), PATIENCE))
