"""Groups with long names: RocketMQ accepts up to 255 characters, and a topic has at most 127.

A broker of RocketMQ 4.9.8 lists a retry topic for each group, whatever its length: it checks the
length of topics that are sent to, and of those that administrators create. So a group with more
than 120 characters consumes, and a message that it sends back is refused (MESSAGE_ILLEGAL, from
DefaultMessageStore.checkMessage).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, broker, heartbeat, message, name_server, pull, route
from tests.support.waiting import eventually

LENGTHS = [1, 119, 120, 121, 122, 126, 127, 128, 200, 247, 248, 249, 254, 255]
MOST_WITH_RETRIES = 127 - len("%RETRY%")


def requests_of(group: str) -> dict[str, Command]:
    """What a Java consumer of a topic sends."""
    retries = f"%RETRY%{group}"
    progress = {"consumerGroup": group, "topic": "orders", "queueId": "0"}
    of_retries = {**progress, "topic": retries}
    back = {"offset": "0", "group": group, "delayLevel": "0", "originMsgId": "", "originTopic":
            "orders", "unitMode": "false", "maxReconsumeTimes": "16"}  # fmt: skip
    return {
        "heartbeat": heartbeat("client", {"orders": "*", retries: "*"}, group),
        "members": Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}),
        "pull": pull(0, consumerGroup=group),
        "pull of retries": pull(0, topic=retries, consumerGroup=group),
        "report": Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**progress, "commitOffset": "1"}),
        "report of retries": Command(
            RequestCode.UPDATE_CONSUMER_OFFSET, {**of_retries, "commitOffset": "0"}
        ),
        "progress": Command(RequestCode.QUERY_CONSUMER_OFFSET, progress),
        "progress of retries": Command(RequestCode.QUERY_CONSUMER_OFFSET, of_retries),
        "end": Command(RequestCode.GET_MAX_OFFSET, {"topic": retries, "queueId": "0"}),
        "back": Command(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        "statistics": Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group}),
    }


@pytest.mark.parametrize("how", ["heartbeat", "updateSubGroup", "pull", "Spark"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_group_consumes_however_it_came(tmp_path: Path, length: int, how: str) -> None:
    group = "g" * length
    with broker(tmp_path / "s") as served:
        assert ask(served.address, message(b"x"))[0].code == 0
        served.store.flush()  # queues too
        if how == "updateSubGroup":
            body = json.dumps({"groupName": group}).encode()
            made = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            assert ask(served.address, made)[0].code == 0
        elif how == "pull":
            assert ask(served.address, pull(0, consumerGroup=group))[0].code == 0
        elif how == "Spark":
            assert served.store.commit_offsets(group, {"orders": {0: 0}}) == 1
        asked = requests_of(group)
        answers = dict(zip(asked, ask(served.address, *asked.values()), strict=True))
        codes = {what: answer.code for what, answer in answers.items()}
        back = codes.pop("back")
        assert codes.pop("pull of retries") == ResponseCode.PULL_NOT_FOUND
        assert set(codes.values()) == {0}, codes
        if length <= MOST_WITH_RETRIES:
            assert back == 0
        else:
            assert back == ResponseCode.SYSTEM_ERROR
            assert str(answers["back"].remark).startswith("MESSAGE_ILLEGAL")
        assert json.loads(answers["members"].body) == {"consumerIdList": ["client"]}
    with broker(tmp_path / "s") as served:
        assert served.store.groups.get(group) is not None
        assert f"%RETRY%{group}" in served.store.topics
        assert served.store.consumer_offsets.get(group, "orders", 0) == 1


def test_a_longer_name_is_refused_in_every_way(tmp_path: Path) -> None:
    group = "g" * 256
    with broker(tmp_path / "s") as served:
        assert ask(served.address, message(b"x"))[0].code == 0
        served.store.flush()  # queues too
        asked = requests_of(group)
        answers = dict(zip(asked, ask(served.address, *asked.values()), strict=True))
        assert answers["heartbeat"].code == ResponseCode.SYSTEM_ERROR
        for what in ("pull", "pull of retries", "back"):
            assert answers[what].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        body = json.dumps({"groupName": group}).encode()
        made = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert ask(served.address, made)[0].code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(OptionError, match="1 to 255"):
            served.store.commit_offsets(group, {"orders": {0: 0}})
        assert served.store.groups.names() == []
        assert [topic.name for topic in served.store.topics] == ["orders"]


def test_nobody_sends_to_a_topic_with_too_long_a_name(tmp_path: Path) -> None:
    """Neither the topic of a group nor another; as TopicValidator.validateTopic."""
    group = "g" * 200
    with broker(tmp_path / "s") as served:
        assert ask(served.address, heartbeat("c", {"orders": "*"}, group))[0].code == 0
        for topic in (f"%RETRY%{group}", "t" * 128):
            (answer,) = ask(served.address, message(b"x", topic))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "longer than topic max length" in str(answer.remark)
        assert [topic.name for topic in served.store.topics] == [f"%RETRY%{group}"]


def test_name_servers_have_the_retry_topic_of_such_a_group(tmp_path: Path) -> None:
    """`mqadmin consumerProgress` asks for its route."""
    group = "g" * 255
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "s", namesrv_addr=address, broker_name="b") as served,
    ):
        assert ask(served.address, heartbeat("c", {"orders": "*"}, group))[0].code == 0
        found: Any = eventually(lambda: route(address, f"%RETRY%{group}"))
        assert [each["brokerName"] for each in found["queueDatas"]] == ["b"]
