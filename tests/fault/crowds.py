"""What very many honest clients do to a broker when they all come, or go, at once.

    python -m tests.fault.crowds            all of it, as the figures in benchmarks/RESULTS.md
    python -m tests.fault.crowds --only NAME

Each crowd is a process of its own. Meanwhile, one more client sends to a topic that exists.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from tests.broker.broker import heartbeat, message
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess

__all__ = ["CROWDS", "CrowdOutcome", "crowded", "run_crowd"]

_PATIENCE: Final = 3.0
"""Seconds that RocketMQ's producers wait for an answer, unless they are told otherwise."""
_CONNECTING: Final = 100
_KNOWN: Final = "known"


class CrowdOutcome(NamedTuple):
    """What became of a crowd.

    Attributes:
        peak: resident bytes of the process, at most.
        sends: of the other client.
        failed: what failed of them, and of what the crowd asked.
        latencies: seconds of each send, ascending.
        seconds: that the crowd took.
    """

    peak: int
    sends: int
    failed: list[str]
    latencies: list[float]
    seconds: float

    def latency(self, share: float) -> float:
        """A quantile of the latencies."""
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


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


CROWDS: Final[Sequence[Callable[[str, float], Awaitable[list[str]]]]] = (
    new_topics,
    new_groups,
    joining_members,
    leaving_members,
)


# ---- how ---------------------------------------------------------------------------------------


@contextmanager
def crowded(folder: Path) -> Iterator[tuple[str, int]]:
    """A broker for a crowd: its address, and the id of its process."""
    port = free_port()
    settings = ["--set=clients=all", f"--set=listenPort={port}", "--set=vipListenPort=0"]
    with StoreProcess(folder / "store", folder, *settings) as process:
        pid = process.ready()["pid"]
        yield f"127.0.0.1:{port}", pid
        assert process.process.poll() is None, process.output


def run_crowd(name: str, address: str, pid: int, scale: float = 1.0) -> CrowdOutcome:
    """Let a crowd come, and look at the process and at another client meanwhile."""
    return asyncio.run(_run_crowd(name, address, pid, scale))


async def _run_crowd(name: str, address: str, pid: int, scale: float) -> CrowdOutcome:
    async with await RemotingClient.connect(address, seconds=60) as client:
        assert (await client.ask(message(b"x", _KNOWN), 60)).code == 0
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins again
        begin = time.monotonic()
        crowd = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fault.crowds", "--come", name, address, str(scale)),
            stdout=subprocess.PIPE,
        )
        output = asyncio.create_task(crowd.communicate())
        failed, latencies = [], []
        while not output.done():
            sent = time.monotonic()
            try:
                answer = await client.ask(message(b"x", _KNOWN), _PATIENCE)
                failed += [f"a send: code {answer.code}"] if answer.code else []
            except RmqStoreError as error:
                failed.append(f"a send: {error}")
            latencies.append(time.monotonic() - sent)
            await asyncio.wait([output], timeout=0.01)
        told, _ = await output
        assert crowd.returncode == 0
        seconds = time.monotonic() - begin
    peak = int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
    return CrowdOutcome(
        peak, len(latencies), [*failed, *told.decode().splitlines()], sorted(latencies), seconds
    )


def main() -> None:
    """Let all crowds come, and print a line of each; or be one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.crowds")
    parser.add_argument("--only", action="append", default=[], help="the name of a crowd")
    parser.add_argument("--come", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    by_name = {crowd.__name__: crowd for crowd in CROWDS}
    if given.come:
        name, address, scale = given.come
        failed = asyncio.run(_come(by_name[name], address, float(scale)))
        sys.stdout.write("".join(f"{line}\n" for line in failed))
        return
    for name in by_name:
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as folder, crowded(Path(folder)) as (address, pid):
            found = run_crowd(name, address, pid)
        sys.stdout.write(
            f"{name} | {found.peak >> 20} MiB | {found.seconds:.1f} s | {found.sends} sends | "
            f"{len(found.failed)} failed | {found.latency(0.5) * 1000:.1f} ms | "
            f"{found.latency(0.99) * 1000:.0f} ms | {found.latencies[-1] * 1000:.0f} ms | "
            f"{found.failed[:2] or ''}\n"
        )
        sys.stdout.flush()


async def _come(
    crowd: Callable[[str, float], Awaitable[list[str]]], address: str, scale: float
) -> list[str]:
    return await crowd(address, scale)


if __name__ == "__main__":
    main()
