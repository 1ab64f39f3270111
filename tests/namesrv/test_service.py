"""A name server behind a socket: brokers that go, configuration that stays, hostile requests."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rmqstore_spark.errors import CorruptStoreError, OptionError, RemotingError, RmqStoreError
from rmqstore_spark.namesrv.administration import KvConfig
from rmqstore_spark.namesrv.config import KEYS, NamesrvConfig
from rmqstore_spark.namesrv.process import running
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode as Code
from rmqstore_spark.remoting.codec.command import Command
from tests.namesrv.registering import ask_json, compressed, registration, topic, unregistration
from tests.remoting.talking import until

Config = Callable[..., NamesrvConfig]


def with_client(config: NamesrvConfig, test: Callable[[RemotingClient, str], Any]) -> None:
    """Run a test with a client of a name server, and its address."""

    async def whole() -> None:
        async with running(config) as address, await RemotingClient.connect(address) as client:
            await test(client, address)

    uvloop.run(whole())


async def _names(client: RemotingClient) -> set[str]:
    told = await ask_json(client, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return set(told["topicList"])


async def _route_code(client: RemotingClient, name: str) -> int:
    return (await client.ask(Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": name}))).code


def test_a_broker_whose_connection_closes_is_gone_at_once(config: Config) -> None:
    async def test(client: RemotingClient, address: str) -> None:
        broker = await RemotingClient.connect(address)
        await broker.ask_for(registration(["T"]))
        assert await _route_code(client, "T") == 0
        broker.close()
        deadline = asyncio.get_running_loop().time() + 30
        while await _route_code(client, "T") == 0:
            assert asyncio.get_running_loop().time() < deadline
        assert await _route_code(client, "T") == 17

    with_client(config(), test)


def test_a_silent_broker_is_dropped_and_its_connection_closed(config: Config) -> None:
    async def test(client: RemotingClient, address: str) -> None:
        silent = await RemotingClient.connect(address)
        await silent.ask_for(registration(["T"]))
        await until(lambda: not silent.is_open)
        assert await _names(client) == set()

    with_client(config(broker_channel_expired_time=300, scan_not_active_broker_interval=50), test)


def test_a_broker_may_ask_whether_its_topics_are_known(config: Config) -> None:
    async def test(client: RemotingClient, _address: str) -> None:
        register = registration(["T"], version=(2, 7))
        same = Command(Code.QUERY_DATA_VERSION, dict(register.ext), b'{"counter":2,"timestamp":7}')
        assert (await client.ask_for(same)).ext == {"changed": "true"}
        await client.ask_for(register)
        answer = await client.ask_for(same)
        assert answer.ext == {"changed": "false"}
        assert json.loads(answer.body) == {"counter": 2, "timestamp": 7}
        other = Command(same.code, dict(register.ext), b'{"counter":3,"timestamp":7}')
        assert (await client.ask_for(other)).ext == {"changed": "true"}

    with_client(config(), test)


def test_registrations_in_all_forms(config: Config) -> None:
    async def test(client: RemotingClient, _address: str) -> None:
        await client.ask_for(compressed(registration(["T", topic("U", 2, 4)])))
        route = await ask_json(client, Code.GET_ROUTEINFO_BY_TOPIC, topic="U")
        (queues,) = route["queueDatas"]
        assert (queues["perm"], queues["readQueueNums"]) == (4, 2)
        await client.tell(registration(["V"], version=(2, 2)))
        assert await _names(client) == {"T", "U", "V"}
        await client.ask_for(unregistration(registration()))
        assert await _names(client) == set()

    with_client(config(), test)


def test_key_value_configuration_stays_in_rocketmqs_file(config: Config) -> None:
    given = config()
    path = Path(given.kv_config_file)

    async def change(client: RemotingClient, _address: str) -> None:
        puts = [
            client.ask_for(Command(Code.PUT_KV_CONFIG, {"namespace": "N", "key": k, "value": "ü"}))
            for k in "abcdefghij"
        ]
        await asyncio.gather(*puts)
        kept = {"configTable": {"N": dict.fromkeys("abcdefghij", "ü")}}
        assert json.loads(path.read_text()) == kept
        await client.ask_for(Command(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "a"}))
        await client.ask_for(Command(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "a"}))

    async def look(client: RemotingClient, _address: str) -> None:
        told = await ask_json(client, Code.GET_KVLIST_BY_NAMESPACE, namespace="N")
        assert told == {"table": dict.fromkeys("bcdefghij", "ü")}
        asked = Command(Code.GET_KV_CONFIG, {"namespace": "N", "key": "b"})
        assert (await client.ask_for(asked)).ext == {"value": "ü"}
        for missing in ({"namespace": "N", "key": "a"}, {"namespace": "M", "key": "b"}):
            answer = await client.ask(Command(Code.GET_KV_CONFIG, missing))
            assert answer.code == 22
        assert (await client.ask(Command(Code.PUT_KV_CONFIG, {"key": "k"}))).code == 1

    with_client(given, change)
    with_client(given, look)


def test_the_order_of_queues_is_told_to_brokers_and_if_wanted_to_clients(config: Config) -> None:
    async def test(client: RemotingClient, _address: str) -> None:
        order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        await client.ask_for(Command(Code.PUT_KV_CONFIG, order))
        answer = await client.ask_for(registration(["T", "U"]))
        assert json.loads(answer.body) == {"table": {"T": "broker-a:4"}}
        assert "orderTopicConf" not in await ask_json(
            client, Code.GET_ROUTEINFO_BY_TOPIC, topic="T"
        )
        await client.ask_for(Command(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n"))
        route = await ask_json(client, Code.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert route["orderTopicConf"] == "broker-a:4"
        assert route["queueDatas"]
        assert "orderTopicConf" not in await ask_json(
            client, Code.GET_ROUTEINFO_BY_TOPIC, topic="U"
        )

    with_client(config(), test)


def test_a_change_that_cannot_be_saved_is_not_called_a_success(
    config: Config, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"

    async def test(client: RemotingClient, _address: str) -> None:
        folder.write_text("it is a file now")
        asked = Command(Code.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"})
        answer = await client.ask(asked)
        assert answer.code == 1
        assert str(folder) in (answer.remark or "")
        folder.unlink()
        await client.ask_for(asked)
        assert json.loads((folder / "kvConfig.json").read_text())

    with_client(config(kv_config_path=str(folder / "kvConfig.json")), test)


def test_the_key_value_configuration_has_an_end(config: Config) -> None:
    async def test(client: RemotingClient, _address: str) -> None:
        codes = set()
        for n in range(40):
            ext = {"namespace": "N", "key": str(n), "value": "v" * 200_000}
            codes.add((await client.ask(Command(Code.PUT_KV_CONFIG, ext), 30)).code)
        assert codes == {0, 1}

    with_client(config(), test)


def test_the_key_value_configuration_counts_the_bytes_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"

    async def fill(kv: KvConfig, count: int) -> None:
        for n in range(count):
            await kv.put("N", str(n), "\u4e3b" * 100_000)  # 600,000 bytes each as JSON

    async def test() -> None:
        kv = KvConfig(str(path))
        await fill(kv, 6)
        for full in (kv, KvConfig(str(path))):
            await fill(full, 6)
            with pytest.raises(RemotingError, match="4194304 bytes"):
                await full.put("N", "more", "\u4e3b" * 100_000)
        assert 3_600_000 < path.stat().st_size < 4 << 20
        await kv.delete("N", "5")
        await fill(kv, 6)

    asyncio.run(test())


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"configTable":{"N":1}}', '{"configTable":{"N":{"k":1}}}']
)
def test_a_damaged_key_value_file_stops_the_start(config: Config, text: str) -> None:
    given = config()
    path = Path(given.kv_config_file)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(CorruptStoreError, match="kvConfig"):
        with_client(given, lambda *_: pytest.fail("it has started"))
    assert path.read_text() == text


def test_a_key_value_file_that_cannot_be_read_stops_the_start(config: Config) -> None:
    given = config()
    Path(given.kv_config_file).mkdir(parents=True)
    with pytest.raises(RmqStoreError, match="kvConfig"):
        with_client(given, lambda *_: pytest.fail("it has started"))


@pytest.mark.parametrize("name", ["kvConfig.json", "other"])
def test_an_older_copy_of_the_key_value_file_stands_in(
    config: Config, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ writes the copy, and does not read it. The file's name is the administrator's."""
    path = Path(config().kv_config_file).with_name(name)
    given = config(kv_config_path=str(path))
    path.parent.mkdir(exist_ok=True)
    path.write_text("[]")
    path.with_name(f"{name}.bak").write_text('{"configTable":{"space":{"key":"old"}}}')

    async def test(client: RemotingClient, _address: str) -> None:
        fields = {"namespace": "space", "key": "key"}
        answer = await client.ask_for(Command(Code.GET_KV_CONFIG, fields))
        assert answer.ext["value"] == "old"

    with_client(given, test)
    (told,) = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert f"{path}.bak is used" in told


def test_the_configuration_is_read_changed_and_saved(config: Config) -> None:
    given = config()

    async def test(client: RemotingClient, _address: str) -> None:
        body = (await client.ask_for(Command(Code.GET_NAMESRV_CONFIG))).body
        assert {line.split("=")[0] for line in body.decode().splitlines()} == {k.name for k in KEYS}
        # mqadmin may send keys of RocketMQ's threads: they mean nothing here.
        change = b"orderMessageEnable=true\nserverWorkerThreads=4\n"
        await client.ask_for(Command(Code.UPDATE_NAMESRV_CONFIG, {}, change))
        saved = NamesrvConfig.from_file(given.config_store_file)
        assert saved.order_message_enable
        for wrong, code, word in (
            (b"kvConfigPath=/x\n", 16, "kvConfigPath"),
            (b"listenPort=1\n", 16, "listenPort"),
            (b"brokerChannelExpiredTime=100\n", 16, "brokerChannelExpiredTime"),
            (b"x=" + b"y" * (1 << 16), 1, "65536 bytes"),
            (b"orderMesageEnable=true\n", 1, "orderMessageEnable"),
            (b"orderMessageEnable=perhaps\n", 1, "true or false"),
            (b"\xff\\u12", 1, "properties"),
        ):
            answer = await client.ask(Command(Code.UPDATE_NAMESRV_CONFIG, {}, wrong))
            assert answer.code == code
            assert word in (answer.remark or "")

    with_client(given, test)


def test_a_change_keeps_all_else_in_the_file(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    text = "# ours since May\n\nserverWorkerThreads : 8\nlistenPort=9876\n{}maxBrokers=7\n"
    path.write_text(text.format("orderMessageEnable = false\n! why\n"))

    async def change(client: RemotingClient, _address: str) -> None:
        await client.ask_for(Command(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n"))

    async def refused(client: RemotingClient, _address: str) -> None:
        for damage in ("key=\\u12", "#" * (2 << 20)):
            path.write_text(damage)
            asked = Command(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n")
            answer = await client.ask(asked)
            assert answer.code == 1
            assert str(path) in (answer.remark or "")
            assert path.read_text() == damage

    given = config(config_store_path=str(path))
    with_client(given, change)
    assert path.read_text() == text.format("orderMessageEnable=true\n! why\n")
    assert NamesrvConfig.from_file(path).max_brokers == 7
    with_client(given, refused)


def test_a_file_for_rocketmqs_name_server_is_read(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=9999\nserverWorkerThreads=8\nkvConfigPath=/x/kv.json\n")
    config = NamesrvConfig.from_file(path)
    assert (config.listen_port, config.kv_config_file) == (9999, "/x/kv.json")
    assert config.config_store_file == str(path)
    for wrong in ("listenPrt=1", "listenPort=x", "bindAddress=nowhere"):
        path.write_text(wrong)
        with pytest.raises(OptionError, match=r"listenPort|bindAddress"):
            NamesrvConfig.from_file(path)


def test_requests_that_lack_a_field_are_refused_by_its_name(config: Config) -> None:
    async def test(client: RemotingClient, _address: str) -> None:
        missing = {
            Code.REGISTER_BROKER: "clusterName",
            Code.UNREGISTER_BROKER: "clusterName",
            Code.QUERY_DATA_VERSION: "clusterName",
            Code.GET_TOPICS_BY_CLUSTER: "cluster",
            Code.WIPE_WRITE_PERM_OF_BROKER: "brokerName",
            Code.ADD_WRITE_PERM_OF_BROKER: "brokerName",
            Code.DELETE_TOPIC_IN_NAMESRV: "topic",
            Code.PUT_KV_CONFIG: "namespace",
            Code.GET_KV_CONFIG: "namespace",
            Code.DELETE_KV_CONFIG: "namespace",
            Code.GET_KVLIST_BY_NAMESPACE: "namespace",
        }
        for code, field in missing.items():
            with pytest.raises(RemotingError, match=f"no field {field}"):
                await client.ask_for(Command(code))
        with pytest.raises(RemotingError, match="not supported"):
            await client.ask_for(Command(10))

    with_client(config(), test)


def test_hostile_registrations_are_refused_and_the_name_server_goes_on(config: Config) -> None:
    async def test(client: RemotingClient, address: str) -> None:
        await client.ask_for(registration(["T"]))
        bombs = [
            b"[" * 1_000_000,
            b'{"topicConfigSerializeWrapper":' * 100_000,
            b"[" + b"{}," * 2_000_000 + b"{}]",
            zlib.compress(bytes(64 << 20)),
        ]
        for body in bombs:
            for is_compressed in ("true", "false"):
                request = registration(name="evil", address="evil:1")
                request.ext |= {"bodyCrc32": "0", "compressed": is_compressed}
                request.body = body
                assert (await client.ask(request, 60)).code == 1
        given = random.Random(1)
        for _ in range(300):
            request = registration(["U"], name="evil", address="evil:1")
            request.ext["bodyCrc32"] = "0"
            changed = bytearray(request.body)
            changed[given.randrange(len(changed))] = given.randrange(256)
            request.body = bytes(changed)
            assert (await client.ask(request)).code in (0, 1)
        assert await _route_code(client, "T") == 0
        assert len(json.loads((await client.ask(Command(Code.GET_BROKER_CLUSTER_INFO))).body)) == 2

    with_client(config(), test)


def test_two_name_servers_know_nothing_of_each_other(config: Config) -> None:
    async def test(client: RemotingClient, _address: str) -> None:
        async with running(config()) as other, await RemotingClient.connect(other) as second:
            await client.ask_for(registration(["T"]))
            assert await _names(second) == set()

    with_client(config(), test)
