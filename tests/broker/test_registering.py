"""How a broker registers with name servers, and unregisters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, broker, message, name_server, pull, route
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually


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
