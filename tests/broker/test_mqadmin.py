"""What mqadmin asks of groups, messages and the broker itself, and what slaves copy."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine.tables.groups import ConsumerGroup
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import (
    Heard,
    Served,
    batch,
    broker,
    heartbeat,
    message,
    number,
    pull,
    records_in,
)
from tests.broker.protection.accounts import ADMIN, APP, ask, write_accounts
from tests.remoting.reading import read_frames
from tests.support.recordings import exchanges, frames
from tests.support.waiting import eventually


def to(code: int, **fields: object) -> Command:
    return Command(code, {name: str(value) for name, value in fields.items()})


def recorded(name: str, code: int, peer: str = "broker") -> Any:
    """The body of the first recorded answer of success."""
    return next(
        parse_body(each.answer.body, object_keys=True)
        for each in exchanges(name, peer)
        if each.request.header["code"] == code and each.answer and not each.answer.header["code"]
    )


def asked(served: Served, *requests: Command) -> list[Command]:
    return ask(served, *requests, by=None)


def query(key: str, topic: str = "orders", most: int = 32, **more: object) -> Command:
    fields = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, **more}
    return to(RequestCode.QUERY_MESSAGE, topic=topic, key=key, maxNum=most, **fields)


def report(offset: int, topic: str = "orders", queue: int = 0) -> Command:
    fields = {"consumerGroup": "consumers", "topic": topic, "queueId": queue}
    return to(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=offset, **fields)


DAYS = ("Yesterday", "Today")


def rows_of(served: Served) -> list[dict[str, Any]]:
    """The rows of the queue orders/0, with times in milliseconds."""
    served.store.flush()
    options = ReadOptions(columns=("storeTimestamp",))
    with Store.open(served.store.path) as store:
        rows = [
            row for part in store.read("orders", 0, options=options) for row in part.to_pylist()
        ]
    for row in rows:
        row["storeTimestamp"] = round(row["storeTimestamp"].timestamp() * 1000)
    return rows


def body_of(record: bytes) -> bytes:
    return record[88 : 88 + int.from_bytes(record[84:88], "big")]


def test_messages_are_found_by_key(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        sent = [message(str(n).encode(), i="KEYS\x01a b\x02UNIQ_KEY\x01U") for n in range(40)]
        asked(served, *sent, message(b"other", "bills", i="KEYS\x01a"))
        served.store.flush()
        found = asked(
            served,
            query("a"),
            query("a", most=1000),
            query("a", "bills"),
            query("U", _UNIQUE_KEY_QUERY="true", most=1),
            query("c"),
            query("a", "nowhere"),
            query("a", most=0),
            query("a", endTimestamp=1),
            query("a", endTimestamp=-1),
        )
    assert [answer.code for answer in found] == [0, 0, 0, 0, 22, 22, 22, 22, 22]
    assert [len(records_in(each.body)) for each in found[:4]] == [32, 40, 1, 32]
    assert [body_of(record) for record in records_in(found[0].body)[:2]] == [b"39", b"38"]
    assert b"other" not in found[1].body
    assert found[0].ext.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert found[4].remark == "can not find message, maybe time range not correct"


def test_a_store_without_an_index_is_not_searched(tmp_path: Path) -> None:
    with broker(tmp_path / "store", message_index_enable=False) as served:
        (_, answer) = asked(served, message(b"x", i="KEYS\x01a"), query("a"))
    assert answer.code == 22
    assert "messageIndexEnable" in (answer.remark or "")


def test_groups_are_created_changed_and_deleted(tmp_path: Path) -> None:
    told = next(
        json.loads(each.request.body)
        for each in exchanges("mqadmin", "broker")
        if each.request.header["code"] == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    )

    def update(**settings: object) -> Command:
        body = json.dumps({**told, **settings}).encode()
        return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    tables = to(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    with broker(tmp_path / "store") as served:
        answers = asked(
            served,
            update(),
            update(consumeEnable=False),
            update(groupName="no group!"),
            update(retryMaxTimes=-1),
            update(retryMaxTimes="3"),
            tables,
            pull(0, consumerGroup="cg_admin"),
        )
        assert [answer.code for answer in answers] == [0, 0, 1, 1, 1, 0, 16]
        table = json.loads(answers[5].body)
        assert table.keys() == recorded("slave-master-admin", tables.code).keys()
        assert table["subscriptionGroupTable"]["cg_admin"] == {**told, "consumeEnable": False}
        assert table["dataVersion"]["counter"] == 2
        found = served.store.groups.get("cg_admin")
        assert found == ConsumerGroup("cg_admin", False, False, 1, 3, True, 0, 1)
        delete = to(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="cg_admin", removeOffset="true")
        served.store.create_topic("orders", read_queue_nums=1)
        asked(
            served,
            to(15, consumerGroup="cg_admin", topic="orders", queueId=0, commitOffset=3),
            report(2),
            delete,
        )
        assert served.store.groups.get("cg_admin") is None
        assert served.store.consumer_offsets.table() == {"orders@consumers": {0: 2}}
        assert asked(served, delete)[0].code == 0  # nothing is left to delete
        refused = asked(served, update(groupName=7), Command(200, body=b"[]"))
        assert [answer.code for answer in refused] == [1, 1]


def test_progress_is_told_as_a_broker_tells_it(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=2)
        asked(
            served, *(message(b"x", queue=n % 2) for n in range(6)), report(2), report(3, queue=1)
        )
        served.store.groups.create("consumers")
        served.store.flush()
        one, all_, by_topic, none = asked(
            served,
            to(RequestCode.GET_CONSUME_STATS, consumerGroup="consumers"),
            to(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"),
            to(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders"),
            to(RequestCode.GET_CONSUME_STATS, consumerGroup="consumers", topic="bills"),
        )
    ours = parse_body(one.body, object_keys=True)
    theirs = recorded("mqadmin", RequestCode.GET_CONSUME_STATS)
    assert ours.keys() == theirs.keys()
    found = {key["queueId"]: value for key, value in ours["offsetTable"].items()}
    assert {key: (each["brokerOffset"], each["consumerOffset"]) for key, each in found.items()} == {
        0: (3, 2), 1: (3, 3),
    }  # fmt: skip
    assert all(each["lastTimestamp"] > 0 for each in found.values())
    (any_,) = {tuple(sorted(key)) for key in ours["offsetTable"]}
    assert any_ == ("brokerName", "queueId", "topic")
    told = parse_body(all_.body, object_keys=True)
    assert told.keys() == recorded("mqadmin", RequestCode.GET_BROKER_CONSUME_STATS).keys()
    assert told["totalDiff"] == 1
    (group,) = told["consumeStatsList"]
    assert group["consumers"][0].keys() == ours.keys()
    assert json.loads(by_topic.body) == {"groupList": ["consumers"]}
    assert json.loads(none.body)["offsetTable"] == {}


def test_a_queue_is_shown_entry_by_entry_as_a_broker_shows_it(tmp_path: Path) -> None:
    theirs = recorded("mqadmin", RequestCode.QUERY_CONSUME_QUEUE)
    with broker(tmp_path / "store") as served:
        sent = asked(served, *(message(b"%d" % n, "RecPush", i="TAGS\x01TagA") for n in range(5)))
        served.store.flush()
        view = {"topic": "RecPush", "queueId": 0, "index": 2, "count": 2}
        code = RequestCode.QUERY_CONSUME_QUEUE
        ours, behind, by_group, none = asked(
            served,
            to(code, **view),
            to(code, **{**view, "index": 5}),
            to(code, **view, consumerGroup="g"),
            to(code, **{**view, "queueId": 900}),
        )
    told = parse_body(ours.body)
    assert told.keys() == theirs.keys()
    assert [one.keys() for one in told["queueData"]] == [theirs["queueData"][0].keys()] * 2
    assert (told["minQueueIndex"], told["maxQueueIndex"]) == (0, 5)
    places = [int(answer.ext["msgId"][16:], 16) for answer in sent[2:4]]
    assert [one["physicOffset"] for one in told["queueData"]] == places
    assert {one["tagsCode"] for one in told["queueData"]} == {theirs["queueData"][0]["tagsCode"]}
    assert behind.remark == "Index 5 of 0@RecPush is not exist!"
    assert parse_body(behind.body) == {"maxQueueIndex": 5, "minQueueIndex": 0}
    assert parse_body(by_group.body)["filterData"] == "g@RecPush is not online!"
    assert (none.code, none.remark) == (1, "900@RecPush is not exist!")


def test_the_times_between_which_a_group_consumes(tmp_path: Path) -> None:
    times = to(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="orders", group="consumers")
    with broker(tmp_path / "store") as served:
        asked(served, *(message(b"x") for _ in range(3)), report(2))
        stored = [row["storeTimestamp"] for row in rows_of(served)]
        before = served.store.clock()
        answer, unknown = asked(served, times, to(times.code, topic="none", group="g"))
        after = served.store.clock()
    first, *empty = parse_body(answer.body)["consumeTimeSpanSet"]
    found = first["minTimeStamp"], first["consumeTimeStamp"], first["maxTimeStamp"]
    assert found == (stored[0], stored[1], stored[2])
    assert before - stored[2] <= first["delayTime"] <= after - stored[2]
    assert first["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "orders"}
    assert {(one["minTimeStamp"], one["delayTime"]) for one in empty} == {(-1, 0)}
    assert unknown.code == 17


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
def test_offsets_are_reset_by_those_who_consume(tmp_path: Path, language: str) -> None:
    fields = {"topic": "orders", "group": "consumers", "isForce": "true"}
    heard = Heard()
    beat = heartbeat("me", {"orders": "*"})
    beat.language = language

    async def work(address: str) -> list[Command]:
        async with await RemotingClient.connect(address, seconds=30, service=heard) as client:
            await client.ask(beat, 30)
            answers = [
                await client.ask(to(222, **fields, timestamp=timestamp), 30)
                for timestamp in (0, -1)
            ]
            while sum(each.code == 220 for each in heard.told) < len(answers):
                heard.has_more.clear()
                await asyncio.wait_for(heard.has_more.wait(), 30)
            return answers

    with broker(tmp_path / "store") as served:
        served.store.create_topic("orders", read_queue_nums=1)
        asked(served, *(message(b"x") for _ in range(3)))
        served.store.flush()
        reset = to(222, **fields, timestamp=0)
        no_offset, _, offline, no_topic = asked(
            served, reset, report(2), reset, to(222, **{**fields, "topic": "x"}, timestamp=0)
        )
        assert (no_offset.code, offline.code, no_topic.code) == (1, 206, 1)
        assert (offline.remark or "").startswith("Consumer not online, so can not reset offset")
        first, end = asyncio.run(work(served.address))
    for answer, offset in ((first, 0), (end, 3)):
        (entry,) = parse_body(answer.body, object_keys=True)["offsetTable"].items()
        assert (entry[0]["queueId"], entry[1]) == (0, offset)
    told = [each for each in heard.told if each.code == 220]
    assert told
    table = parse_body(told[-1].body, object_keys=True)["offsetTable"]
    # The C++ client aborts if a field is missing.
    (theirs,) = (
        frame.header["extFields"]
        for frame in frames("mqadmin-online", "broker")
        if frame.header["code"] == 220 and not frame.is_from_client
    )
    names = {"topic": "orders", "group": "consumers", "timestamp": "-1"}
    assert told[-1].ext == {**theirs, **names}
    if language == "CPP":
        assert table == [{"brokerName": "broker-a", "offset": 3, "queueId": 0, "topic": "orders"}]
    else:
        assert list(table.values()) == [3]


def test_an_order_topic_is_kept_as_one(tmp_path: Path) -> None:
    fields = {"topic": "orders", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    path = tmp_path / "store" / "config" / "topics.json"
    with broker(tmp_path / "store") as served:
        found = []
        for order in ("true", "false", "true"):
            (answer,) = asked(served, to(17, **fields, order=order))
            assert answer.code == 0, answer.remark
            found.append(json.loads(path.read_text())["topicConfigTable"]["orders"]["order"])
        (many,) = asked(served, to(17, **{**fields, "readQueueNums": 65_537}))
    assert found == [True, False, True]
    assert (many.code, "from 1 to 65536" in (many.remark or "")) == (1, True)


def test_slaves_get_the_tables_as_a_broker_gives_them(tmp_path: Path) -> None:
    with broker(tmp_path / "store", message_delay_level="1s 1h") as served:
        asked(
            served, message(b"x", i="DELAY\x011"), message(b"x"), heartbeat("me", {"orders": "*"})
        )
        asked(served, report(1))
        served.store.flush()
        eventually(lambda: (tmp_path / "store" / "config" / "delayOffset.json").exists())
        topics, offsets, delays, groups = asked(served, *(to(code) for code in (21, 43, 45, 201)))
    for answer, peer in ((topics, "broker-vip"), (offsets, "broker"), (delays, "broker")):
        code = {id(topics): 21, id(offsets): 43, id(delays): 45}[id(answer)]
        theirs = recorded("slave-master-admin", code, peer)
        # For slaves of ours, and those of RocketMQ 5.
        more = {21: {"deletedTopics"}, 45: {"logOffset"}, 43: {"dataVersion"}}.get(code, set())
        assert parse_body(answer.body).keys() == theirs.keys() | more
    assert json.loads(offsets.body)["offsetTable"] == {"orders@consumers": {"0": 1}}
    assert json.loads(delays.body)["offsetTable"].keys() == {"1", "2"}
    entry = json.loads(groups.body)["subscriptionGroupTable"]["consumers"]
    theirs = recorded("slave-master-admin", 201)["subscriptionGroupTable"]["cg_push"]
    assert entry.keys() == theirs.keys()


_NOT_TOLD = {
    *("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "commitLogDiskRatio_"),
    *("dispatchMaxBuffer", "getFoundTps", "getMessageEntireTimeMax", "getMissTps", "putLatency99"),
    *("pullThreadPoolQueueCapacity", "putLatency999"),
    *("putMessageDistributeTime", "putMessageEntireTimeMax", "putMessageFailedTimes"),
    *("queryThreadPoolQueueCapacity", "queryThreadPoolQueueHeadWaitTimeMills"),
    *("queryThreadPoolQueueSize", "remainTransientStoreBufferNumbs", "scheduleMessageOffset_"),
    *("sendThreadPoolQueueCapacity", "startAcceptSendRequestTimeStamp"),
}
"""Figures of RocketMQ's own threads and buffers. No command of mqadmin computes with them."""


def test_the_state_of_the_broker(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        asked(served, message(b"x"), batch([b"y", b"z"]))
        served.store.flush()
        asked(served, pull(0))
        (answer,) = asked(served, to(RequestCode.GET_BROKER_RUNTIME_INFO))
    ours = json.loads(answer.body)["table"]
    theirs = recorded("mqadmin", RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert ours.keys() - {"getTransferredTps"} <= theirs.keys()
    assert ours["getTransferredTps"] == ours["getTransferedTps"]  # its name in RocketMQ 5
    missing = {re.sub("_.*", "_", name) for name in theirs.keys() - ours.keys()}
    assert missing == _NOT_TOLD
    assert all(isinstance(value, str) for value in ours.values())
    assert (ours["msgPutTotalTodayNow"], ours["msgGetTotalTodayNow"]) == ("3", "3")
    # What clusterList -m subtracts from that, to print how many came today and yesterday.
    mornings = [f"msg{what}Total{day}Morning" for what in ("Put", "Get") for day in DAYS]
    assert [ours[name] for name in mornings] == ["0"] * 4
    for name in ("putTps", "getTransferedTps"):
        assert len([float(part) for part in ours[name].split(" ")]) == 3
    assert int(ours["commitLogMaxOffset"]) > int(ours["commitLogMinOffset"]) == 0
    assert int(ours["earliestMessageTimeStamp"]) > 0
    assert 0 < float(ours["commitLogDiskRatio"]) < 1


def test_the_configuration_is_told_and_a_part_of_it_changed(tmp_path: Path) -> None:
    def change(text: str) -> Command:
        return Command(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    get = to(RequestCode.GET_BROKER_CONFIG)
    with broker(tmp_path / "store", archive_to="memory://user:sec/secret@secret@host/x") as served:
        before, sent, *refused = asked(
            served,
            get,
            message(b"x", "before"),
            change("listenPort=1"),
            change("autoCreateTopicEnable=false\nfileReservedTime=1"),
            change("autoCreateTopicEnable=perhaps"),
            change("noSuchKey=1"),
            change("a=\\u12"),
            change("#" * 70_000),
        )
        assert "autoCreateTopicEnable=true" in before.body.decode().splitlines()
        assert before.ext.keys() == {"version"}
        assert b"***@host/x" in before.body
        assert b"secret" not in before.body
        assert sent.code == 0
        assert [answer.code for answer in refused] == [16, 16, 1, 1, 1, 1]
        assert "fileReservedTime can only be changed" in (refused[1].remark or "")
        changed, after, new, old = asked(
            served,
            change("autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false"),
            get,
            message(b"x", "after"),
            message(b"x", "before"),
        )
        assert (changed.code, new.code, old.code) == (0, 17, 0)
        assert "autoCreateTopicEnable=false" in after.body.decode().splitlines()
        assert asked(served, pull(0, "before", consumerGroup="new"))[0].code == 26


def test_a_slave_changes_no_groups(tmp_path: Path) -> None:
    body = json.dumps({"groupName": "g"}).encode()
    settings = {"broker_role": "SLAVE", "broker_id": 1}
    with broker(tmp_path / "store", **settings) as served:
        answers = asked(served, Command(200, body=body), to(207, groupName="g"))
    assert [answer.code for answer in answers] == [1, 1]
    assert all("slave broker" in (answer.remark or "") for answer in answers)


def test_only_administrators_ask_all_this(tmp_path: Path) -> None:
    path = write_accounts(tmp_path / "plain_acl.yml")
    with broker(tmp_path / "store", acl_enable=True, acl_path=path) as served:
        codes = (25, 26, 28, 43, 45, 200, 201, 207, 317)
        for answer in ask(served, *map(to, codes), by=APP):
            assert "Need admin permission" in (answer.remark or "")
        for answer in ask(served, *map(to, codes), by=ADMIN):
            assert "AclException" not in (answer.remark or "")
        (closed,) = ask(served, query("a", "RecSend"), by=APP)
        assert "topic:RecSend" in (closed.remark or "")
        assert number(ask(served, message(b"x", "RecAcl"), by=APP)[0], "queueOffset") == 0


def test_what_mqadmin_has_asked_is_known_and_its_signatures_are_right(tmp_path: Path) -> None:
    asked_ = exchanges("mqadmin", "broker")
    path = write_accounts(tmp_path / "plain_acl.yml")
    with broker(tmp_path / "store", acl_enable=True, acl_path=path) as served:
        served.store.create_topic("RecPush", read_queue_nums=4)
        requests = [read_frames(each.request.wire)[0] for each in asked_]
        answers = ask(served, *(each for each in requests if not each.is_one_way), by=None)
    for request, answer in zip(requests, answers, strict=True):
        assert "AclException" not in (answer.remark or ""), request
        assert answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED, request
