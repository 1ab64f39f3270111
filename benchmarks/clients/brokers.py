"""A name server, RocketMQ's broker and a store process, which are measured in turns."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.clients.load import Load
from benchmarks.clients.rounds import ROUNDS, in_turns
from rmqstore_spark.embedding import EmbeddedStore, Setting
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import route
from tests.rocketmq.processes import Broker, NameServer, RocketMq
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

__all__ = ["QUEUES", "Bench", "Side", "bench"]

QUEUES: Final = 8
"""Queues of each topic."""

_PATIENCE: Final = 60.0
_SIZES: Final = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "waitTimeMillsInSendQueue": 3000,
}
"""What both brokers are told. But for the last one, 200 ms, they are defaults of RocketMQ's."""

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Side:
    """One of the two brokers.

    Attributes:
        name: its name in routes.
        address: where it listens.
    """

    name: str
    address: str


@dataclass(frozen=True)
class Bench:
    """The brokers, and the client that measures them.

    Attributes:
        ours: the store process.
        theirs: RocketMQ's broker.
        broker_process: its process number.
        version: RocketMQ's.
        name_server: address of the name server, which is RocketMQ's.
        load: the client.
    """

    ours: Side
    theirs: Side
    broker_process: int
    version: str
    name_server: str
    load: Load

    def in_turns(
        self, *ways: Callable[[], _Found], rounds: int = ROUNDS
    ) -> tuple[list[_Found], ...]:
        """Measure in several ways, in turns, each when both brokers have done their work."""
        return in_turns(*(partial(self._settled, way) for way in ways), rounds=rounds)

    def both_in_turns(
        self, measure: Callable[[Side], _Found], rounds: int = ROUNDS
    ) -> tuple[list[_Found], list[_Found]]:
        """Measure both brokers in turns; return what came out of ours, and of RocketMQ's."""
        ways = (partial(measure, side) for side in (self.theirs, self.ours))
        theirs, ours = self.in_turns(*ways, rounds=rounds)
        return ours, theirs

    def topic(self, side: Side, kind: str) -> str:
        """Return the name of a topic that only one broker has; create it if it is new."""
        name = f"{side.name}-{kind}"
        if route(self.name_server, name) is None:
            self.load.create_topic(side.address, name, QUEUES)
            eventually(lambda: route(self.name_server, name), _PATIENCE)
        return name

    def _settled(self, way: Callable[[], _Found]) -> _Found:
        for side in (self.theirs, self.ours):
            eventually(lambda address=side.address: _behind(address) == 0, _PATIENCE)
        return way()


@contextmanager
def bench(rocketmq: RocketMq, folder: Path) -> Iterator[Bench]:
    """Start all processes; both brokers have the same sizes of files, and flush asynchronously.

    Args:
        rocketmq: the distribution.
        folder: for the stores.
    """
    port = free_port(around=(-2, 1))
    theirs = Side("theirs", f"127.0.0.1:{port}")
    ours = Side("ours", f"127.0.0.1:{free_port()}")
    with NameServer(rocketmq) as name_server:
        settings: dict[str, Setting] = {
            **_SIZES,
            "brokerName": ours.name,
            "clients": "all",
            "vipListenPort": 0,
            "namesrvAddr": name_server.address,
        }
        named: dict[str, Any] = {**_SIZES, "brokerName": theirs.name}
        own_port = int(ours.address.rpartition(":")[2])
        own = EmbeddedStore(folder / "ours", port=own_port, settings=settings)
        with (
            Broker(rocketmq, name_server.address, port, folder / "theirs", **named) as broker,
            own,
            Load(rocketmq, name_server.address) as load,
        ):
            version, process = _version(rocketmq.home), broker.process.pid
            yield Bench(ours, theirs, process, version, name_server.address, load)


def _version(home: Path) -> str:
    """Return the version of RocketMQ, as the names of its libraries tell."""
    names = " ".join(path.name for path in home.glob("lib/rocketmq-*.jar"))
    found = re.search(r"-(\d+(?:\.\d+)+)\.jar", names)
    return found[1] if found else "4.9"


def _behind(address: str) -> int:
    """Return how many bytes of its log a broker has not put into queues and index yet."""

    async def ask() -> int:
        async with await RemotingClient.connect(address, seconds=_PATIENCE) as client:
            answer = await client.ask_for(Command(RequestCode.GET_BROKER_RUNTIME_INFO), _PATIENCE)
            return int(json.loads(answer.body)["table"]["dispatchBehindBytes"])

    return asyncio.run(ask())
