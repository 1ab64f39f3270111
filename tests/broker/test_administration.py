"""What administrators ask a broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, broker, heartbeat, message, records_in
from tests.support.recordings import exchanges


def ask(served: Served, *requests: Command) -> list[Command]:
    async def work() -> list[Command]:
        async with await RemotingClient.connect(served.address, seconds=30) as client:
            return [await client.ask(request, 30) for request in requests]

    return asyncio.run(work())


def request(code: int, /, **fields: object) -> Command:
    return Command(code, {name: str(value) for name, value in fields.items()})


def update(topic: str, read: int = 4, write: int = 4, perm: int = 6) -> Command:
    fields = {"readQueueNums": read, "writeQueueNums": write, "perm": perm}
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, **fields)


def test_topics_are_created_changed_and_deleted(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        answers = ask(
            served,
            update("orders"),
            update("orders", 8, 8, 4),
            update("bills", 1, 1),
            update("TBW102"),
            update("bills", 0),
            update("no topic!"),
            request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="bills"),
            request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="bills"),
            request(RequestCode.GET_ALL_TOPIC_CONFIG),
        )
        assert [answer.code for answer in answers] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
        assert answers[3].remark == "The topic[TBW102] is conflict with system topic."
        told = json.loads(answers[-1].body)
        own = {"TBW102", "DefaultCluster_REPLY_TOPIC"}
        assert told["topicConfigTable"].keys() == {"orders", *own}
        orders = told["topicConfigTable"]["orders"]
        assert (orders["readQueueNums"], orders["perm"]) == (8, 4)
        assert told["dataVersion"]["counter"] == served.store.topics.version["counter"]


def test_a_message_is_found_by_its_id(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        first, second = ask(served, message(b"one"), message(b"two"))
        places = [int(sent.ext["msgId"][16:], 16) for sent in (first, second)]
        code = RequestCode.VIEW_MESSAGE_BY_ID
        found = ask(served, *(request(code, offset=at) for at in (*places, 1, -1, 1 << 40)))
    assert [answer.code for answer in found] == [0, 0, 1, 1, 1]
    assert found[2].remark == "can not find message by the offset, 1"
    assert [len(records_in(answer.body)) for answer in found[:2]] == [1, 1]
    assert b"two" in found[1].body


def test_the_state_of_a_topic_is_told_as_a_broker_tells_it(tmp_path: Path) -> None:
    code = RequestCode.GET_TOPIC_STATS_INFO
    (recorded,) = [
        each for each in exchanges("mqadmin", "broker") if each.request.header["code"] == code
    ]
    assert recorded.answer is not None
    theirs = parse_body(recorded.answer.body, object_keys=True)["offsetTable"]
    with broker(tmp_path / "store") as served:
        ask(served, message(b"one", queue=1))
        served.store.flush()
        known, unknown = ask(served, request(code, topic="orders"), request(code, topic="x"))
    ours = parse_body(known.body, object_keys=True)["offsetTable"]
    assert {tuple(sorted(key)) for key in ours} == {tuple(sorted(key)) for key in theirs}
    assert {tuple(value) for value in ours.values()} == {tuple(value) for value in theirs.values()}
    ends = {key["queueId"]: value["maxOffset"] for key, value in ours.items()}
    assert ends == {0: 0, 1: 1, 2: 0, 3: 0}
    assert (unknown.code, unknown.remark) == (17, "topic[x] not exist")


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, "consumerGroup"),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, "producerGroup"),
    ],
)
def test_connections_are_told_as_a_broker_tells_them(tmp_path: Path, code: int, field: str) -> None:
    recorded = [
        each
        for each in exchanges("mqadmin-online", "broker")
        if each.request.header["code"] == code and each.answer and not each.answer.header["code"]
    ]
    assert recorded[0].answer is not None
    theirs: Any = parse_body(recorded[0].answer.body)
    beat = heartbeat("me", {"RecPush": "TagA || TagB", "%RETRY%cg_push": "*"})
    told = json.loads(beat.body)
    told["producerDataSet"] = [{"groupName": "consumers"}]
    beat.body = json.dumps(told).encode()
    with broker(tmp_path / "store") as served:
        _, known, unknown = ask(
            served, beat, request(code, **{field: "consumers"}), request(code, **{field: "nobody"})
        )
    ours: Any = parse_body(known.body)
    assert ours.keys() == theirs.keys()
    assert ours["connectionSet"][0].keys() == theirs["connectionSet"][0].keys()
    assert ours["connectionSet"][0]["clientId"] == "me"
    assert _subscriptions(ours) == _subscriptions(theirs)
    assert unknown.code == (206 if field == "consumerGroup" else 1)
    assert "nobody" in (unknown.remark or "")


def _subscriptions(told: Any) -> Any:
    """What a group consumes, without the times at which its consumers said so."""
    return [
        {**told["subscriptionTable"][topic], "subVersion": 0}
        for topic in sorted(told.get("subscriptionTable", {}))
    ]
