"""Very many honest clients of a broker at once: a process of its own.

    python -m tests.fault.attacks.crowds NAME ADDRESS SCALE

Prints what failed of what they asked, a line each.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from tests.broker.broker import heartbeat, message

_CONNECTING: Final = 100
_KNOWN: Final = "known"


class _Member:
    """A member of a group: asks who the others are when it hears that they have changed.

    Attributes:
        client: its client.
        others: how many members it knows of.
        has_looked: set when it has asked.
    """

    def __init__(self, group: str) -> None:
        self.client: RemotingClient | None = None
        self.others = 0
        self.has_looked = asyncio.Event()
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.drop()
        if self.client is not None:
            task = asyncio.create_task(self._look(self.client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look(self, client: RemotingClient) -> None:
        try:
            fields = {"consumerGroup": self._group}
            answer = await client.ask(Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields), 60)
        except RmqStoreError:
            return  # it leaves
        self.others = answer.body.count(b'","') + 1
        self.has_looked.set()

    async def knows(self, count: int) -> None:
        """Wait until it knows of so many members."""
        while self.others != count:
            self.has_looked.clear()
            await asyncio.wait_for(self.has_looked.wait(), 60)


async def _clients(
    stack: AsyncExitStack, address: str, members: Sequence[_Member | None]
) -> list[RemotingClient]:
    """Connected clients, opened some at a time."""
    found: list[RemotingClient] = []
    for at in range(0, len(members), _CONNECTING):
        part = members[at : at + _CONNECTING]
        opened = await asyncio.gather(
            *(RemotingClient.connect(address, service=member, seconds=60) for member in part)
        )
        for client, member in zip(opened, part, strict=True):
            found.append(await stack.enter_async_context(client))
            if member is not None:
                member.client = client
    return found


async def _asked(clients: Sequence[RemotingClient], requests: Sequence[Command]) -> list[str]:
    """What failed of requests that clients ask at once."""
    answers = await asyncio.gather(
        *(client.ask(each, 60) for client, each in zip(clients, requests, strict=True)),
        return_exceptions=True,
    )
    return [
        str(each) if isinstance(each, BaseException) else f"code {each.code}: {each.remark}"
        for each in answers
        if isinstance(each, BaseException) or each.code
    ]


# ---- crowds ------------------------------------------------------------------------------------


async def new_topics(address: str, scale: float) -> list[str]:
    """300 clients send to a new topic each, at once."""
    count = _count(300, scale)
    async with AsyncExitStack() as stack:
        clients = await _clients(stack, address, [None] * count)
        return await _asked(clients, [message(b"x", f"new-{n}") for n in range(count)])


async def new_groups(address: str, scale: float) -> list[str]:
    """500 consumers of a new group each send their first heartbeats at once."""
    count = _count(500, scale)
    async with AsyncExitStack() as stack:
        clients = await _clients(stack, address, [None] * count)
        beats = [heartbeat(f"c{n}", {_KNOWN: "*"}, f"group-{n}") for n in range(count)]
        return await _asked(clients, beats)


async def joining_members(address: str, scale: float) -> list[str]:
    """2,500 consumers join a group at once, and look who the others are when they hear of them."""
    async with AsyncExitStack() as stack:
        count = _count(2500, scale)
        members, failed = await _joined(stack, address, count)
        for member in members:
            await member.knows(count)
        return failed


async def leaving_members(address: str, scale: float) -> list[str]:
    """2,500 consumers of a group lose their connections at once; 100 stay."""
    count = _count(2500, scale)
    async with AsyncExitStack() as stays:
        members, failed = await _joined(stays, address, _count(100, scale))
        async with AsyncExitStack() as leaves:
            _, more = await _joined(leaves, address, count, of="host-that-goes")
        for member in members:
            await member.knows(len(members))
        return failed + more


async def _joined(
    stack: AsyncExitStack, address: str, count: int, of: str = "host"
) -> tuple[list[_Member], list[str]]:
    members = [_Member("crowd") for _ in range(count)]
    clients = await _clients(stack, address, members)
    beats = [heartbeat(f"{of}@{n}", {_KNOWN: "*"}, "crowd") for n in range(count)]
    return members, await _asked(clients, beats)


def _count(number: int, scale: float) -> int:
    return max(2, round(number * scale))


if __name__ == "__main__":
    _crowd: Callable[[str, float], Awaitable[list[str]]] = globals()[sys.argv[1]]

    async def _come() -> list[str]:
        return await _crowd(sys.argv[2], float(sys.argv[3]))

    sys.stdout.write("".join(f"{line}\n" for line in asyncio.run(_come())))
