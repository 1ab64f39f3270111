"""A store as a broker, in this process; and the requests of clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.broker.runner import BrokerRunner
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.namesrv.config import NamesrvConfig
from rmqstore_spark.namesrv.process import running
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from tests.support.processes.loops import in_thread
from tests.support.processes.ports import free_port

__all__ = [
    *("LONG_NAMES", "Heard", "Served", "ask", "batch", "broker", "heartbeat"),
    *("message", "name_server", "number", "running_broker", "pull", "records_in", "route"),
]

SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 1000}

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "n": "brokerName",
}  # fmt: skip
"""The names of the fields of SEND_MESSAGE, by those of SEND_MESSAGE_V2."""


class Served(NamedTuple):
    """A store that is a broker."""

    store: StoreWriter
    address: str


@contextmanager
def broker(
    path: Path, clock: Callable[[], int] | None = None, /, **settings: Any
) -> Iterator[Served]:
    """Open a store, and let clients use it.

    Args:
        path: the store.
        clock: returns milliseconds since the epoch; None: the time.
        settings: attributes of StoreConfig.
    """
    ports = {"listen_port": free_port(), "vip_listen_port": 0, "clients": "rocketmq"}
    config = StoreConfig(**{**SMALL, **ports, **settings})
    timed: dict[str, Any] = {} if clock is None else {"clock": clock}
    with StoreWriter.open(path, config, **timed) as store, running_broker(store) as runner:
        yield Served(store, runner.address)


@contextmanager
def running_broker(store: StoreWriter, **more: Any) -> Iterator[BrokerRunner]:
    """Let clients use an open store.

    Args:
        store: the store, whose configuration has the port.
        more: further arguments of the runner.
    """
    config = store.config
    protection = Protection.of(config)
    bound = bound_port(config.bind_address, config.listen_port)
    with closing(bound), protection.watched():
        runner = BrokerRunner(store, bound, protection, **more)
        try:
            yield runner
        finally:
            runner.close()


@contextmanager
def name_server(folder: Path, port: int = 0, **settings: Any) -> Iterator[str]:
    """Run a name server in a thread; its address is the value of the context.

    Args:
        folder: for its file.
        port: where it listens; 0: any free port.
        settings: attributes of NamesrvConfig.
    """
    kv_file = str(folder / "kv.json")
    config = NamesrvConfig(listen_port=port, kv_config_path=kv_file, **settings)
    with in_thread(lambda: running(config)) as address:
        yield address


def ask(address: str, *requests: Command, identity: ClientIdentity | None = None) -> list[Command]:
    """The answers to requests that are sent one after the other, by somebody or by nobody."""
    who = identity or ClientIdentity()

    async def work() -> list[Command]:
        async with await RemotingClient.connect(
            address, seconds=30, tls=who.tls, credentials=who.credentials
        ) as client:
            return [await client.ask(request, 30) for request in requests]

    return asyncio.run(work())


def route(name_server: str, topic: str) -> Any:
    """The route of a topic; None if there is none."""

    async def ask() -> Any:
        async with await RemotingClient.connect(name_server, seconds=30) as client:
            asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            answer = await client.ask(asked, 30)
            return json.loads(answer.body) if answer.code == 0 else None

    return asyncio.run(ask())


def message(body: bytes, topic: str = "orders", queue: int = 0, **more: Any) -> Command:
    """A request to send a message, as Java makes it."""
    fields = {
        "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
        "g": "1700000000000", "h": "0", "i": "", **more,
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields, body)


def batch(bodies: list[bytes], properties: bytes = b"", **more: Any) -> Command:
    """A request to send a batch."""
    parts = []
    for body in bodies:
        size = 22 + len(body) + len(properties)
        parts += [value.to_bytes(4, "big") for value in (size, 0, 0, 7, len(body))]
        parts += [body, len(properties).to_bytes(2, "big"), properties]
    made = message(b"".join(parts), **{"m": "true", **more})
    made.code = RequestCode.SEND_BATCH_MESSAGE
    return made


def pull(offset: int, topic: str = "orders", queue: int = 0, **more: Any) -> Command:
    """A request for messages with a subscription of its own."""
    fields = {
        "consumerGroup": "consumers", "topic": topic, "queueId": str(queue),
        "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", **more,
    }  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, fields)


def heartbeat(client: str, topics: dict[str, str], group: str = "consumers") -> Command:
    """The heartbeat of a consumer; its expressions by topic."""
    subscriptions = [
        {"topic": topic, "subString": expression, "subVersion": 1}
        for topic, expression in topics.items()
    ]
    told = {"groupName": group, "subscriptionDataSet": subscriptions}
    body = {"clientID": client, "consumerDataSet": [told], "producerDataSet": []}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def number(answer: Command, name: str) -> int:
    """A number of an answer's header."""
    return int(answer.ext[name])


def records_in(data: bytes) -> list[bytes]:
    """The records that lie one after the other in a body."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


class Heard:
    """A client's side: keeps the codes of what the broker asks or tells.

    Attributes:
        told: each command that came.
    """

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.has_more = asyncio.Event()

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.told.append(request.command)
            request.drop()
        self.has_more.set()

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""
