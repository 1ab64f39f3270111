"""RocketMQ's Java client, mqadmin and slaves use a store process as their broker."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.ha.replication import Replication
from tests.broker.broker import (
    Served,
    broker,
    heartbeat,
    message,
    name_server,
    route,
    running_broker,
)
from tests.broker.protection.accounts import ADMIN, RECORDED, ask, write_accounts
from tests.rocketmq.processes import (
    SIZES,
    Broker,
    Client,
    Program,
    RocketMq,
    brokers_of_both_kinds,
    own_properties,
)
from tests.support.certificates import make_certificates
from tests.support.messages.batches import bodies, commit_batch
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

_PATIENCE = 120.0
_KINDS = Path(__file__).with_name("Kinds.java")


def test_a_java_client_sends_and_consumes(rocketmq: RocketMq, tmp_path: Path) -> None:
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
        Client(rocketmq, address, served.address) as client,
    ):
        served.store.create_topic("bills", read_queue_nums=2)
        eventually(lambda: route(address, "bills"))
        assert eventually(lambda: _is_sent(client), _PATIENCE)
        found = client.pull("orders")
        assert found
        assert all(own_properties(each)["CLUSTER"] == "DefaultCluster" for each in found)
        commit_batch(served.store, 1)  # as a Spark stream does
        served.store.flush()
        expected = {body for n in range(3) for body in bodies(f"b1/{n}")}
        consumed = {base64.b64decode(each["body"]) for each in client.pull("bills")}
        assert consumed
        assert consumed <= expected


def test_java_clients_send_in_every_way_and_consume_again(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    with (
        name_server(tmp_path) as address,
        broker(
            tmp_path / "store", namesrv_addr=address, message_delay_level=" ".join(["1s"] * 18)
        ) as served,
        Program(rocketmq, _KINDS, address, "orders", "consumers") as client,
    ):
        served.store.create_topic("orders", write_queue_nums=4)
        eventually(lambda: route(address, "orders"))
        client.ask("send")
        plain = ["one", "batch-0", "batch-1", "asynchronous", "one-way", "delayed"]
        wanted = [*((body, 0) for body in plain), *(("again", n) for n in (0, 1))]
        wanted += [("dead", n) for n in (0, 1, 2)]
        found = client.ask("consume", len(wanted))
        assert sorted((each["body"], each["reconsumeTimes"]) for each in found) == sorted(wanted)
        (late,) = (each["late"] for each in found if each["body"] == "delayed")
        assert late >= 1000
        dead = "%DLQ%consumers"
        eventually(lambda: dead in served.store.topics, _PATIENCE)
        with Client(rocketmq, address, served.address) as reader:
            eventually(lambda: route(address, dead))
            pulled = eventually(lambda: reader.pull(dead), _PATIENCE)
        assert [base64.b64decode(each["body"]) for each in pulled] == [b"dead"]


def test_a_java_producer_gets_the_reply_to_its_request(rocketmq: RocketMq, tmp_path: Path) -> None:
    """And its traces are stored."""
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
        Program(rocketmq, _KINDS, address, "questions", "repliers") as asking,
    ):
        served.store.create_topic("questions", read_queue_nums=1)
        eventually(lambda: route(address, "questions"))
        assert asking.ask("call") == [{"reply": "re: why?"}]
        eventually(lambda: "RMQ_SYS_TRACE_TOPIC" in served.store.topics)
        with Client(rocketmq, address, served.address) as client:
            eventually(lambda: client.pull("RMQ_SYS_TRACE_TOPIC"))


def test_a_java_producer_ends_its_transactions_once(rocketmq: RocketMq, tmp_path: Path) -> None:
    """It commits, rolls back, and is asked about the rest: unknown at first, then committed."""
    path, count = tmp_path / "store", 9
    timing = {
        "transaction_time_out": 1000, "transaction_check_interval": 500,
        "transaction_check_max": 1_000_000,
    }  # fmt: skip
    with (
        name_server(tmp_path) as address,
        broker(path, namesrv_addr=address, **timing) as served,
        Client(rocketmq, address, served.address) as client,
    ):
        served.store.create_topic("orders", read_queue_nums=4)
        eventually(lambda: route(address, "orders"))
        said = client.ask("transact", "orders", count)
        eventually(lambda: served.store.stats()["transactionsWaiting"] == 0, _PATIENCE)
        served.store.flush()
        consumed = client.pull("orders")
        stats = served.store.stats()
    sent = [each for each in said if "outcome" in each]
    asked = [each for each in said if "outcome" not in each]
    outcomes = {each["body"]: each["outcome"] for each in sent}
    assert [each["status"] for each in sent] == ["SEND_OK"] * count
    three = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    assert list(outcomes.values()) == three * (count // 3)
    bodies_asked = [base64.b64decode(each["body"]).decode() for each in asked]
    unknown = [body for body, outcome in outcomes.items() if outcome == "UNKNOW"]
    assert set(bodies_asked) == set(unknown)
    assert all(bodies_asked.count(body) >= 2 for body in unknown)
    keys = {each["body"]: each["uniqKey"] for each in sent}
    for each, body in zip(asked, bodies_asked, strict=True):
        assert each["topic"] == "orders"
        assert each["transactionId"] == keys[body] == each["properties"]["UNIQ_KEY"]
        assert each["properties"]["REAL_QID"] == str(each["queueId"])
    committed = [base64.b64decode(each["body"]).decode() for each in consumed]
    assert sorted(committed) == sorted(set(outcomes) - _rolled_back(outcomes))
    assert stats["transactionsCommitted"] == len(committed)
    assert stats["transactionsGivenUp"] == 0


def test_consumers_of_every_kind_get_everything(rocketmq: RocketMq, tmp_path: Path) -> None:
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
        Client(rocketmq, address, served.address) as client,
    ):
        served.store.create_topic("orders", write_queue_nums=4)
        eventually(lambda: route(address, "orders"))
        sent = [f"body-{number}".encode() for number in range(80)]
        ask(served, *(message(body, queue=at % 4) for at, body in enumerate(sent)), by=None)
        for kind in ("consume", "lite"):
            found = [each for each in client.ask(kind, "orders", kind, len(sent)) if each]
            assert sorted(base64.b64decode(each["body"]) for each in found) == sorted(sent), kind
            eventually(lambda of=kind: _consumed(served, of) == len(sent), _PATIENCE)


@pytest.mark.parametrize("length", [121, 255])
def test_a_group_with_a_long_name_consumes_as_at_a_broker(
    rocketmq: RocketMq, tmp_path: Path, length: int
) -> None:
    """Of more than 120 characters: no message can name its retry topic."""
    port = free_port(around=(1,))
    with name_server(tmp_path) as address, Client(rocketmq, address, f"127.0.0.1:{port}") as client:
        for place in brokers_of_both_kinds(rocketmq, address, port, tmp_path):
            with place:
                eventually(lambda: route(address, "TBW102"))
                client.ask("topic", "orders", 4, 4, 6)
                eventually(lambda: route(address, "orders"))
                sent = client.ask("produce", "orders", 10, "message-")
                found = [each for each in client.ask("consume", "orders", "g" * length, 10) if each]
                bodies = sorted(base64.b64decode(each["body"]).decode() for each in found)
                assert bodies == [each["body"] for each in sent]
            eventually(lambda: not route(address, "orders"))


def _consumed(served: Served, group: str) -> int:
    offsets = served.store.consumer_offsets
    return sum(max(0, offsets.get(group, "orders", queue)) for queue in range(4))


def _rolled_back(outcomes: dict[str, str]) -> set[str]:
    return {body for body, outcome in outcomes.items() if outcome == "ROLLBACK_MESSAGE"}


def _is_sent(client: Client) -> bool:
    try:
        client.ask("send", "orders", 0, 4, "message-", 0)
    except AssertionError as error:
        if "timeout" not in str(error):  # on a starved machine
            raise
        return False
    return True


_ACCOUNTS = """\
accounts:
- accessKey: application
  secretKey: correct-horse
  defaultGroupPerm: SUB
  topicPerms: [orders=PUB|SUB]
"""


@pytest.mark.threat("Accounts")
@pytest.mark.parametrize("secret", ["correct-horse", "wrong-horse"])
def test_java_clients_sign_and_talk_tls(
    rocketmq: RocketMq, tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    given = make_certificates(tmp_path / "certificates")
    both: dict[str, Any] = {
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
    }
    own = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
        "acl_enable": True,
        "acl_path": write_accounts(tmp_path / "plain_acl.yml", _ACCOUNTS),
    }
    with (
        name_server(tmp_path, tls_server_mode="permissive", **both) as address,
        broker(tmp_path / "store", namesrv_addr=address, **own) as served,
    ):
        served.store.create_topic("orders", read_queue_nums=2)
        eventually(lambda: route(address, "orders"))
        client = rocketmq.start(
            rocketmq.user_home(),
            *("-Dtls.enable=true", Path(__file__).with_name("Accounts.java")),
            *(address, "orders", "application", secret),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        said, _ = client.communicate(timeout=_PATIENCE)
    if secret == "correct-horse":
        assert said.splitlines()[-2:] == ["sent", "got signed"]
    else:
        assert "refused" in said
        assert "Check signature failed for accessKey=application" in caplog.text


def test_a_slave_of_rocketmq_copies_topics_groups_and_progress(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    port = free_port(around=(1,))
    # RocketMQ's slaves do not sign: their addresses must be white.
    white = RECORDED.replace("10.10.103.*", "127.0.0.1")
    accounts = write_accounts(tmp_path / "plain_acl.yml", white)
    with ExitStack() as cleanup:
        address = cleanup.enter_context(name_server(tmp_path))
        given: dict[str, Any] = {
            **SIZES, "brokerRole": "SYNC_MASTER", "clients": "rocketmq", "listenPort": port,
            "namesrvAddr": address,
            "aclEnable": "true", "aclPath": accounts,
            "messageDelayLevel": "1s 1h",
        }  # fmt: skip
        config = StoreConfig().with_overrides({key: str(value) for key, value in given.items()})
        store = cleanup.enter_context(StoreWriter.open(tmp_path / "ours", config))
        replication = Replication(store)
        cleanup.callback(replication.close)
        serving = running_broker(store, ha_address=lambda: replication.address or "")
        runner = cleanup.enter_context(serving)
        served = Served(store, runner.address)
        delayed = message(b"later", "orders", i="DELAY\x011")
        ask(served, message(b"one", "orders"), delayed, heartbeat("me", {"orders": "*"}), by=ADMIN)
        store.consumer_offsets.report("consumers", "orders", 0, 1)

        # It asks for topics at the VIP port.
        settings: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1}
        slave = Broker(rocketmq, address, free_port(around=(1,)), tmp_path / "slave", **settings)
        cleanup.enter_context(slave)
        config_of = tmp_path / "slave" / "config"

        def holds(name: str, is_there: Callable[[str], bool]) -> bool:
            file = config_of / f"{name}.json"
            return file.exists() and is_there(file.read_text())

        eventually(lambda: holds("topics", lambda text: '"orders"' in text), _PATIENCE)
        eventually(lambda: holds("subscriptionGroup", lambda text: "consumers" in text), _PATIENCE)
        progress = '"orders@consumers":{0:1}'
        eventually(
            lambda: holds("consumerOffset", lambda text: progress in "".join(text.split())),
            _PATIENCE,
        )
        eventually(lambda: holds("delayOffset", lambda text: "offsetTable" in text), _PATIENCE)
        assert json.loads((config_of / "delayOffset.json").read_text())["offsetTable"]
