"""How a broker registers with name servers, and unregisters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.faces.remoting.registering import Registering
from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.server import RemotingServer
from tests.broker.broker import ask, broker, message, name_server, pull, route
from tests.namesrv.registering import registration
from tests.support.processes.ports import free_port
from tests.support.waiting import PATIENCE, eventually

UNREACHABLE = "192.0.2.1:9876"
"""Documentation has this address, and no machine (RFC 5737)."""


def perm_in_route(name_server: str, topic: str) -> int:
    found = route(name_server, topic)
    return found["queueDatas"][0]["perm"] if found else -1


def test_topics_are_registered_at_once_and_unregistered_at_the_end(tmp_path: Path) -> None:
    with name_server(tmp_path / "1") as one, name_server(tmp_path / "2") as two:
        with broker(
            tmp_path / "store", namesrv_addr=f"{one};{two}", broker_cluster_name="C1"
        ) as served:
            told = eventually(lambda: route(one, "TBW102"))
            assert told["brokerDatas"] == [
                {
                    "brokerAddrs": {"0": served.address},
                    "brokerName": "broker-a",
                    "cluster": "C1",
                }
            ]
            assert told["queueDatas"][0]["perm"] == 7
            ask(served.address, message(b"x", "new", d="3"))
            for server in (one, two):
                found = eventually(lambda server=server: route(server, "new"))
                assert found["queueDatas"][0]["writeQueueNums"] == 3
        eventually(lambda: route(one, "new") is None)
        eventually(lambda: route(two, "TBW102") is None)


def test_slaves_are_told_where_to_connect(tmp_path: Path) -> None:
    """A broker's slaves replicate from the port behind its own, unless it is configured."""

    async def answer(name_server: str) -> Command:
        async with await RemotingClient.connect(name_server, seconds=30) as slave:
            asked = registration(broker_id=1, address="127.0.0.1:1", ha="127.0.0.1:2")
            return await slave.ask_for(asked, 30)

    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
    ):
        eventually(lambda: route(address, "TBW102"))
        told = asyncio.run(answer(address))
        port = served.store.config.listen_port
        expected = {"masterAddr": served.address, "haServerAddr": f"127.0.0.1:{port + 1}"}
        assert told.ext == expected


class _Leaping(asyncio.SelectorEventLoop):
    """An event loop whose clock can leap ahead."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class _Book:
    """The side of a name server: writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.has_more = asyncio.Event()

    def registrations(self) -> list[Command]:
        """Those that it was asked to make."""
        return [each for each in self.asked if each.code == RequestCode.REGISTER_BROKER]

    async def has(self, count: int) -> None:
        """Wait for as many registrations."""
        while len(self.registrations()) < count:
            self.has_more.clear()
            await self.has_more.wait()

    def opened(self, connection: RemotingConnection) -> None:
        """Do nothing."""

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.asked.append(request.command)
            request.reply(request.command.answer())
        self.has_more.set()

    def closed(self, connection: RemotingConnection) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("settings", "period"), [({}, 30), ({"register_name_server_period": 10_000}, 10)]
)
def test_it_registers_from_time_to_time(
    tmp_path: Path, settings: dict[str, Any], period: int
) -> None:
    async def turns(client: RemotingClient) -> None:
        for _ in range(5):
            await client.ask_for(route_of_a_topic, 30)

    async def work() -> None:
        server = RemotingServer(book, Limits())
        address = await server.start(bound_port("127.0.0.1", 0))
        config = StoreConfig(namesrv_addr=address, **settings)
        identity = Protection.of(config).identity
        async with await RemotingClient.connect(address, seconds=30) as other:
            with StoreWriter.open(tmp_path / "store", config) as store:
                registering = Registering(store, Catalog(store), lambda: "10.0.0.1:4", "", identity)
                for count in (1, 2):
                    await asyncio.wait_for(book.has(count), 30)
                    await turns(other)  # it has its answer, and waits
                    loop.ahead += period / 2
                    await turns(other)
                    assert len(book.registrations()) == count
                    loop.ahead += period / 2
                await asyncio.wait_for(book.has(3), 30)
                await registering.close()
        await server.close()

    route_of_a_topic = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    book, loop = _Book(), _Leaping()
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
    assert {each.ext["haServerAddr"] for each in book.registrations()} == {"10.0.0.1:4"}
    assert book.asked[-1].code == RequestCode.UNREGISTER_BROKER


def test_it_registers_again_with_a_name_server_that_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with broker(tmp_path / "store", namesrv_addr=f"127.0.0.1:{port}"):
        for _ in range(2):
            with name_server(tmp_path / "ns", port) as address:
                assert eventually(lambda: route(address, "TBW102"))


def test_without_automatic_topics_there_is_no_default_topic(tmp_path: Path) -> None:
    with (
        name_server(tmp_path / "ns") as address,
        broker(tmp_path / "store", namesrv_addr=address, auto_create_topic_enable=False) as served,
    ):
        served.store.create_topic("orders")
        assert eventually(lambda: route(address, "orders"))
        assert route(address, "TBW102") is None


@pytest.mark.parametrize(("permission", "sends", "pulls"), [(4, 16, 0), (2, 0, 16), (0, 16, 16)])
def test_a_broker_registers_what_it_permits_and_refuses_the_rest(
    tmp_path: Path, permission: int, sends: int, pulls: int
) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("write_only", read_queue_nums=4, perm=2)
        (sent,) = ask(served.address, message(b"x"))
    back = {"offset": str(int(sent.ext["msgId"][16:], 16)), "group": "g", "delayLevel": "0"}
    with (
        name_server(tmp_path / "ns") as address,
        broker(tmp_path / "store", namesrv_addr=address, broker_permission=permission) as served,
    ):
        for topic, perm in (("orders", 6), ("write_only", 2), ("TBW102", 7)):
            told = eventually(lambda topic=topic: route(address, topic))
            assert told["queueDatas"][0]["perm"] == perm & permission
        topics, *answers = ask(
            served.address,
            Command(RequestCode.GET_ALL_TOPIC_CONFIG),  # of slaves, which get what is in the file
            message(b"x"),
            message(b"x", "new"),
            Command(RequestCode.CONSUMER_SEND_MSG_BACK, back),
            pull(0),
        )
        assert json.loads(topics.body)["topicConfigTable"]["orders"]["perm"] == 6
        assert [answer.code for answer in answers] == [sends, sends, sends, pulls]
        forbidden = "the broker[127.0.0.1] {} message is forbidden"
        told = {answer.remark for answer in answers if answer.code == 16}
        assert told == {
            forbidden.format(what)
            for what, code in (("sending", sends), ("pulling", pulls))
            if code
        }
        assert ("new" in served.store.topics) == (not sends)


def test_a_permission_that_changes_counts_at_once(tmp_path: Path) -> None:
    def permit(permission: int) -> Command:
        body = f"brokerPermission={permission}".encode()
        return Command(RequestCode.UPDATE_BROKER_CONFIG, body=body)

    with (
        name_server(tmp_path / "ns") as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
    ):
        told = ask(
            served.address,
            message(b"x"),
            permit(4),
            message(b"x"),
            Command(RequestCode.GET_BROKER_CONFIG),
        )
        assert [answer.code for answer in told] == [0, 0, 16, 0]
        assert b"\nbrokerPermission=4\n" in told[-1].body
        for permission in (4, 6):
            ask(served.address, permit(permission))
            eventually(lambda wanted=permission: perm_in_route(address, "orders") == wanted)


def test_it_ends_whatever_happens_at_that_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics that change end the same wait; Python 3.11 can lose a cancellation then."""
    config = StoreConfig(
        clients="rocketmq", listen_port=free_port(), namesrv_addr=f"127.0.0.1:{free_port()}"
    )

    async def logged() -> None:
        while not caplog.messages:
            await asyncio.sleep(0.001)

    async def end_after(turns: int, store: StoreWriter) -> bool:
        caplog.clear()
        identity = ClientIdentity()
        registering = Registering(store, Catalog(store), lambda: "127.0.0.1:1", "", identity)
        await asyncio.wait_for(logged(), PATIENCE)  # it finds no name server, and waits
        registering.topics_changed()
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.create_task(registering.close())
        return bool((await asyncio.wait({closing}, timeout=PATIENCE))[0])

    with StoreWriter.open(tmp_path / "store", config) as store:
        for turns in range(8):
            assert asyncio.run(end_after(turns, store)), turns


def test_a_port_in_use_and_a_wrong_id_are_refused(tmp_path: Path) -> None:
    with broker(tmp_path / "one") as served:
        port = int(served.address.rpartition(":")[2])
        with (
            pytest.raises(ServiceError, match="Choose an address"),
            broker(tmp_path / "two", listen_port=port),
        ):
            pass
    with pytest.raises(OptionError, match="brokerId is 1"), broker(tmp_path / "s", broker_id=1):
        pass


def test_a_loopback_address_at_another_machines_name_server_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = "and cannot reach it. Set brokerIP1 and bindAddress."
    with broker(tmp_path / "one", namesrv_addr="127.0.0.1:1;localhost:2;[::1]:3"):
        assert told not in caplog.text
    with broker(tmp_path / "two", namesrv_addr=f"127.0.0.1:1;{UNREACHABLE}"):
        assert f"with the name server {UNREACHABLE}: clients" in caplog.text
        assert told in caplog.text
