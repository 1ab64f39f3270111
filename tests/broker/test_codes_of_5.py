"""Codes that RocketMQ 5.3.3 has beside those of 4.9.8: served, or refused so that nobody waits.

The fields and bodies are those of 5.3.3's RequestCode, headers and AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import (
    Served,
    ask,
    broker,
    heartbeat,
    message,
    name_server,
    pull,
    records_in,
)
from tests.broker.protection.accounts import ADMIN, APP, write_accounts
from tests.broker.protection.accounts import ask as ask_as
from tests.namesrv.registering import registration

LITE_PULL = 361
NOT_SUPPORTED = 3
POP = [200050, 200051, 200151, 200052, 200053, 200054, 200055, 200056, 400, 401]
"""POP_MESSAGE, ACK_MESSAGE and others of POP; QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE."""
USERS = range(3001, 3011)
"""AUTH_CREATE_USER to AUTH_LIST_ACL."""
OTHERS = [
    *(0, 1, 9, 13, 22, 23, 27, 47, 209, 223, 308, 314, 323, 353, 354, 355, 370, 513, 902, 903, 905),
    *(906, 907, 908, *range(1001, 1019), *range(2001, 2005), 4711, 65_536, (1 << 31) - 1, -1),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with broker(tmp_path / "store") as found:
        found.store.create_topic("orders", write_queue_nums=2)
        yield found


def to(code: int, body: Any = None, **fields: object) -> Command:
    data = b"" if body is None else json.dumps(body).encode()
    return Command(code, {name: str(value) for name, value in fields.items()}, data)


def lite(request: Command) -> Command:
    """A pull as a lite pull consumer of 5.3.3 sends it: PullSysFlag has FLAG_LITE_PULL_MESSAGE."""
    request.code = LITE_PULL
    request.ext["sysFlag"] = str(int(request.ext["sysFlag"]) | 1 << 4)
    return request


def test_a_lite_pull_is_a_pull(served: Served) -> None:
    ask(served.address, message(b"one"), message(b"two"))
    plain, like_it, end = ask(served.address, pull(0), lite(pull(0)), lite(pull(2)))
    assert plain.code == like_it.code == ResponseCode.SUCCESS
    assert len(records_in(like_it.body)) == 2
    assert like_it.body == plain.body
    assert like_it.ext == plain.ext
    assert end.code == ResponseCode.PULL_NOT_FOUND


def test_a_lite_pull_waits_and_creates_its_group_like_a_pull(served: Served) -> None:
    async def talk() -> Command:
        async with await RemotingClient.connect(served.address, seconds=30) as client:
            waits: dict[str, Any] = {
                "consumerGroup": "later",
                "sysFlag": "6",
                "suspendTimeoutMillis": "60000",
            }
            answer = asyncio.create_task(client.ask(lite(pull(0, **waits)), 60))
            while served.store.groups.get("later") is None:
                await asyncio.sleep(0.01)
            await client.ask(message(b"it has come"), 30)
            return await answer

    told = asyncio.run(talk())
    assert told.code == ResponseCode.SUCCESS
    assert b"it has come" in told.body


@pytest.mark.threat("Accounts")
def test_a_lite_pull_needs_what_a_pull_needs(tmp_path: Path) -> None:
    accounts = write_accounts(tmp_path / "plain_acl.yml")
    with broker(tmp_path / "store", acl_enable=True, acl_path=accounts) as served:
        for topic in ("RecAcl", "secret"):
            served.store.create_topic(topic, write_queue_nums=1)
        pulls = [pull(0, topic, consumerGroup="consumers") for topic in ("RecAcl", "secret")]
        plain = ask_as(served, *pulls, by=APP)
        like_them = ask_as(served, *map(lite, pulls), by=APP)
        (admins,) = ask_as(served, to(328), by=APP)
    assert [each.code for each in like_them] == [each.code for each in plain]
    assert plain[0].code == ResponseCode.PULL_NOT_FOUND
    assert "AclException" in (like_them[1].remark or "")
    assert "AclException" in (admins.remark or "")


@pytest.mark.parametrize("code", [*POP, *USERS, *OTHERS])
def test_what_is_not_served_is_refused_with_rocketmqs_code(served: Served, code: int) -> None:
    (told,) = ask(served.address, to(code, topic="orders", consumerGroup="g"))
    assert told.code == NOT_SUPPORTED
    assert (told.remark or "").startswith(f" request type {code} not supported")
    if code in POP:
        assert "clientRebalance" in (told.remark or "")
    if code in USERS:
        assert "aclPath" in (told.remark or "")


def test_a_name_server_refuses_what_it_does_not_serve(tmp_path: Path) -> None:
    with name_server(tmp_path) as address:
        answers = ask(address, *(to(code) for code in (1001, 1004, 902, 4711, -1)))
    assert [told.code for told in answers] == [NOT_SUPPORTED] * 5


def test_a_topic_and_a_group_are_told_alone(served: Served) -> None:
    asked = [
        to(RequestCode.GET_TOPIC_CONFIG, topic="orders"),
        to(RequestCode.GET_TOPIC_CONFIG, topic="nothing", lo="true"),
        to(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g", "retryMaxTimes": 3}),
        to(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g"),
    ]
    topic, nothing, _, group = ask(served.address, *asked)
    told = json.loads(topic.body)
    assert (told["topicName"], told["readQueueNums"], told["perm"]) == ("orders", 2, 6)
    assert nothing.code == ResponseCode.TOPIC_NOT_EXIST
    told = json.loads(group.body)
    assert (told["groupName"], told["retryMaxTimes"], told["consumeEnable"]) == ("g", 3, True)


def test_a_group_that_may_not_be_created_is_not_told(tmp_path: Path) -> None:
    with broker(tmp_path / "store", auto_create_subscription_group=False) as served:
        known, own, pulled = ask(
            served.address,
            to(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g"),
            to(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="TOOLS_CONSUMER"),
            pull(0, "TBW102", consumerGroup="TOOLS_CONSUMER"),
        )
    assert known.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert own.code == ResponseCode.SUCCESS  # every broker of RocketMQ has it
    assert pulled.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_what_a_group_consumes_is_told(served: Served) -> None:
    async def talk() -> list[Command]:
        async with await RemotingClient.connect(served.address, seconds=30) as client:
            report = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 0}
            asked = [
                heartbeat("me", {"orders": "TagA"}, "g"),
                to(RequestCode.UPDATE_CONSUMER_OFFSET, **report),
                to(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g"),
                to(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="orders"),
                to(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="others"),
            ]
            return [await client.ask(each, 30) for each in asked]

    _, _, topics, subscription, none = asyncio.run(talk())
    assert json.loads(topics.body)["topicList"] == ["orders"]
    told = json.loads(subscription.body)
    assert (told["group"], told["topic"]) == ("g", "orders")
    assert told["subscriptionData"]["subString"] == "TagA"
    assert json.loads(none.body).get("subscriptionData") is None


def test_topics_and_groups_are_created_by_lists(served: Served) -> None:
    def config(name: str, **others: object) -> dict[str, object]:
        usual = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "order": False}
        return {"topicName": name, "attributes": {}, **usual, **others}

    topics, groups, wrong, empty = ask(
        served.address,
        to(18, {"topicConfigList": [config("a"), config("orders", perm=4)]}),
        to(225, {"groupConfigList": [{"groupName": "g"}, {"groupName": "h", "retryQueueNums": 2}]}),
        to(18, {"topicConfigList": [config("b"), config("c", readQueueNums="many")]}),
        to(18, {}),
    )
    assert topics.code == groups.code == ResponseCode.SUCCESS
    made = served.store.topics.get("a")
    assert made is not None
    assert (made.read_queue_nums, made.perm) == (3, 6)
    changed = served.store.topics.get("orders")
    assert changed is not None
    assert changed.perm == 4
    found = served.store.groups.get("h")
    assert found is not None
    assert found.retry_queues == 2
    assert wrong.code == empty.code == ResponseCode.SYSTEM_ERROR


def test_slaves_of_5_get_what_they_copy(served: Served) -> None:
    report = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 0}
    _, offsets, modes, checkpoint, metrics = ask(
        served.address,
        to(RequestCode.UPDATE_CONSUMER_OFFSET, **report),
        *map(to, (43, 402, 60, 61)),
    )
    told = json.loads(offsets.body)
    # Without it, SlaveSynchronize.syncConsumerOffset fails before it writes the offsets.
    assert set(told["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
    assert told["offsetTable"] == {"orders@g": {"0": 0}}
    assert json.loads(modes.body) == {"messageRequestModeMap": {}}
    # As a broker of 5.3.3 with timerWheelEnable=false answers.
    assert (checkpoint.code, checkpoint.remark) == (1, "The timerCheckpoint is null")
    assert (metrics.code, metrics.remark) == (1, "The timerMessageStore is null")


def test_the_version_of_offsets_in_a_file_of_5_is_told(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    version = {"counter": 7, "stateVersion": 2, "timestamp": 1_700_000_000_000}
    file = {"dataVersion": version, "offsetTable": {"orders@g": {"0": 5}}}
    (config / "consumerOffset.json").write_text(json.dumps(file))
    with broker(tmp_path / "store") as served:
        (told,) = ask(served.address, to(43))
    assert json.loads(told.body)["dataVersion"] == version


def test_a_name_server_answers_brokers_of_5(tmp_path: Path) -> None:
    async def talk(address: str) -> list[Command]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            asked = [
                registration(["orders"], name="a", address="10.0.0.1:10911"),
                registration([], name="a", broker_id=1, address="10.0.0.2:10911"),
                to(904, clusterName="DefaultCluster", brokerName="a", brokerAddr="10.0.0.1:10911"),
                to(901, clusterName="DefaultCluster", brokerName="a"),
                to(901, clusterName="DefaultCluster", brokerName="b"),
            ]
            return [await client.ask(each, 30) for each in asked]

    with name_server(tmp_path) as address:
        *_, heard, group, nobody = asyncio.run(talk(address))
    assert heard.code == ResponseCode.SUCCESS
    told = json.loads(group.body)["brokerMemberGroup"]
    assert told["brokerName"] == "a"
    assert told["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    assert json.loads(nobody.body)["brokerMemberGroup"]["brokerAddrs"] == {}


@pytest.mark.parametrize("code", [305, 306, 316, 328, 329, 26])
def test_what_administrators_alone_may_ask(tmp_path: Path, code: int) -> None:
    accounts = write_accounts(tmp_path / "plain_acl.yml")
    with broker(tmp_path / "store", acl_enable=True, acl_path=accounts) as served:
        (refused,) = ask_as(served, to(code), by=APP)
        (served_to,) = ask_as(served, to(code), by=ADMIN)
    assert "AclException" in (refused.remark or "")
    assert served_to.code == ResponseCode.SUCCESS
