"""Our name server serves RocketMQ's broker, client and mqadmin."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.tls import client_context
from tests.broker.broker import ask, broker, message, route
from tests.namesrv.registering import registration
from tests.namesrv.serving import NamesrvProcess
from tests.rocketmq.processes import Admin, Broker, Client, NameServer, RocketMq
from tests.support.certificates import make_certificates
from tests.support.waiting import eventually

_CLUSTER = "DefaultCluster"
_PATIENCE = 120.0


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    with NamesrvProcess(tmp_path_factory.mktemp("namesrv")) as process:
        yield process


def test_rocketmqs_broker_client_and_mqadmin_use_our_name_server(
    rocketmq: RocketMq, port: int, namesrv: NamesrvProcess, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{port}"
    with ExitStack() as cleanup:
        admin = Admin(rocketmq, namesrv.address)
        cleanup.callback(admin.close)
        broker = Broker(rocketmq, namesrv.address, port, tmp_path / "store")
        cleanup.enter_context(broker)

        admin.shows("clusterList", address)
        admin.shows("topicList", "SCHEDULE_TOPIC_XXXX")

        # A topic that a broker creates is registered at once, before the next 30 s are over.
        admin.shows(f"updateTopic -t orders -c {_CLUSTER} -r 4 -w 4", "success")
        admin.shows("topicRoute -t orders", '"writeQueueNums":4')

        client = cleanup.enter_context(Client(rocketmq, namesrv.address, address))
        assert eventually(lambda: _sent(client), _PATIENCE)
        assert client.pull("orders")

        admin.shows("wipeWritePerm -b broker-a", "OK, ")
        admin.shows("topicRoute -t orders", '"perm":4')
        admin.shows("addWritePerm -b broker-a", "OK, ")
        admin.shows("topicRoute -t orders", '"perm":6')

        admin.shows("updateKvConfig -s N -k key -v value", "success")
        assert '"key":"value"' in namesrv.kv_file.read_text()
        admin.shows("updateOrderConf -t orders -m put -v broker-a:4", "success")
        admin.shows("updateOrderConf -t orders -m get", "broker-a:4")
        admin.shows("deleteKvConfig -s N -k key", "success")
        assert "value" not in namesrv.kv_file.read_text()
        admin.shows("getNamesrvConfig", "listenPort")
        admin.shows(f"deleteTopic -t orders -c {_CLUSTER}", "success")

        broker.stop()
        assert address not in admin("clusterList")


def test_brokers_of_both_kinds_register_with_name_servers_of_both_kinds(
    rocketmq: RocketMq, port: int, tmp_path: Path
) -> None:
    """Clients find both brokers through either name server, also when the other one has ended."""
    with ExitStack() as cleanup:
        ours = cleanup.enter_context(NamesrvProcess(tmp_path))
        theirs = cleanup.enter_context(NameServer(rocketmq))
        both = f"{ours.address};{theirs.address}"
        address = f"127.0.0.1:{port}"
        cleanup.enter_context(
            Broker(rocketmq, both, port, tmp_path / "theirs", brokerName="theirs")
        )
        served = cleanup.enter_context(
            broker(tmp_path / "ours", namesrv_addr=both, broker_name="ours")
        )
        served.store.create_topic("orders", read_queue_nums=2)
        admin = Admin(rocketmq, both)
        cleanup.callback(admin.close)
        admin.shows(f"updateTopic -t orders -b {address} -r 2 -w 2", "success")
        for name_server in (ours.address, theirs.address):
            eventually(lambda at=name_server: _brokers(at) == {"ours", "theirs"}, _PATIENCE)
        for at in (served.address, address):
            sent = ask(at, message(f"to {at}".encode(), "orders"))
            assert [answer.code for answer in sent] == [0]
        served.store.flush()
        wanted = {f"to {at}" for at in (served.address, address)}
        for name_servers in (both, ours.address, theirs.address):
            with Client(rocketmq, name_servers, address) as client:
                eventually(lambda one=client: _bodies(one) == wanted, _PATIENCE)
        theirs.kill()
        with Client(rocketmq, both, address) as client:
            eventually(lambda: _bodies_if_found(client) == wanted, _PATIENCE)


def _bodies_if_found(client: Client) -> set[str]:
    """The bodies; none if the client (of 5.3) asked the name server that has ended."""
    try:
        return _bodies(client)
    except AssertionError as error:
        if "Can not find Message Queue" not in str(error):
            raise
        return set()


def _brokers(name_server: str) -> set[str]:
    """The brokers of the topic."""
    found = route(name_server, "orders")
    return set() if found is None else {each["brokerName"] for each in found["brokerDatas"]}


def _bodies(client: Client) -> set[str]:
    return {base64.b64decode(found["body"]).decode() for found in client.pull("orders")}


def _sent(client: Client) -> bool:
    try:
        client.ask("send", "orders", 0, 1, "message-", 0)
    except AssertionError as error:
        if "timeout" not in str(error):  # of a starved broker
            raise
        return False
    return True


def test_mqadmin_talks_tls_to_our_name_server(rocketmq: RocketMq, tmp_path: Path) -> None:
    given = make_certificates(tmp_path / "certificates")
    settings = {
        "tlsServerMode": "enforcing",
        "tlsServerCertPath": given.server_cert,
        "tlsServerKeyPath": given.server_key,
    }

    async def look(address: str, admin: Admin) -> None:
        async with await RemotingClient.connect(address, tls=client_context(given.ca)) as broker:
            await broker.ask_for(registration(["over-tls"]), 30)
            await asyncio.to_thread(admin.shows, "topicList", "over-tls")

    arguments = [f"--set={key}={value}" for key, value in settings.items()]
    with NamesrvProcess(tmp_path, *arguments) as namesrv, ExitStack() as cleanup:
        admin = Admin(rocketmq, namesrv.address, "-Dtls.enable=true")
        cleanup.callback(admin.close)
        asyncio.run(look(namesrv.address, admin))
