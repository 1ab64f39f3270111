"""What mqadmin asks to export a cluster, to list producers, and to clean up.

The requests are those of 4.9.8's ExportConfigsCommand, ExportMetadataCommand, ExportMetricsCommand,
ProducerSubCommand and the three commands that clean; `rocketmq/test_mqadmin.py` runs them.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from rmqstore_spark.engine.config.properties_file import parse_properties
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Served, ask, broker, message
from tests.support.stores.storing import Clock
from tests.support.waiting import eventually

HOUR = 3_600_000
START = 1_700_000_000_000

EXPORTED = {
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime"),
    *("filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel"),
    *("msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"),
    *("autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
}
"""The keys of ExportConfigsCommand, which ends with a NullPointerException if one is missing."""

SYSTEM = {
    *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC"),
    *("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
    *("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
}
"""TopicValidator.SYSTEM_TOPIC_SET; a broker adds those named by its cluster and itself."""


def test_the_configuration_has_all_that_an_export_reads(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        (told,) = ask(served.address, Command(RequestCode.GET_BROKER_CONFIG))
    found = parse_properties(told.body.decode())
    assert found.keys() >= EXPORTED
    assert (found["useTLS"], found["msgTraceTopicName"]) == ("false", "RMQ_SYS_TRACE_TOPIC")


def test_the_figures_have_the_size_of_a_message(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        ask(served.address, message(b"x"), message(b"y"))
        (told,) = ask(served.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = json.loads(told.body)["table"]
    assert float(table["putMessageAverageSize"]) == float(table["putMessageSizeTotal"]) / 2 > 0


def test_system_topics_are_told_so_that_an_export_leaves_them_out(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        for topic in ("orders", "%RETRY%consumers"):
            served.store.create_topic(topic, write_queue_nums=1)
        (told,) = ask(served.address, Command(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
    topics = set(json.loads(told.body)["topicList"])
    assert topics >= {*SYSTEM, "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "broker-a"}
    assert not topics & {"orders", "%RETRY%consumers"}


def test_producers_are_listed_by_group(tmp_path: Path) -> None:
    clock = Clock(START)
    groups = [{"groupName": name} for name in ("payments", "returns")]
    beat = {"clientID": "10.0.0.1@7", "consumerDataSet": [], "producerDataSet": groups}

    async def talk(address: str) -> list[Command]:
        async with await RemotingClient.connect(address, seconds=30) as client:
            sent = Command(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
            asked = Command(RequestCode.GET_ALL_PRODUCER_INFO)
            return [await client.ask(each, 30) for each in (sent, asked)]

    with broker(tmp_path / "store", clock) as served:
        _, told = asyncio.run(talk(served.address))
        gone = eventually(lambda: _producers(served) == {} and {"data": {}})
    found = json.loads(told.body)["data"]
    assert gone == {"data": {}}
    assert found.keys() == {"payments", "returns"}
    (one,) = found["payments"]
    assert (one["clientId"], one["language"]) == ("10.0.0.1@7", "JAVA")
    assert one["remoteIP"].startswith("/127.0.0.1:")
    assert START - 60_000 <= one["lastUpdateTimestamp"] <= START


def _producers(served: Served) -> object:
    (told,) = ask(served.address, Command(RequestCode.GET_ALL_PRODUCER_INFO))
    return json.loads(told.body)["data"]


def test_what_has_expired_is_removed_when_an_administrator_asks(tmp_path: Path) -> None:
    """At once, and not only in the hours of deleteWhen."""
    clock = Clock(START)
    hour = time.localtime(START / 1000).tm_hour + 6  # it is never that one
    settings = {
        "file_reserved_time": 48, "mapped_file_size_commit_log": 64 << 10,
        "delete_when": f"{hour % 24:02}",
    }  # fmt: skip
    log = tmp_path / "store" / "commitlog"

    def clean() -> None:
        codes = (
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
        )
        for told in ask(served.address, *map(Command, codes)):
            assert told.code == ResponseCode.SUCCESS

    with broker(tmp_path / "store", clock, **settings) as served:
        for _ in range(6):
            ask(served.address, message(b"x" * (40 << 10)))
            clock.now += 12 * HOUR
        served.store.flush()
        before = _segments(log)
        clean()
        # A segment is as old as the first message behind it: 60, 48 (which may stay), 36... hours.
        eventually(lambda: _segments(log) == before[1:])
        clean()
        eventually(lambda: not served.store.expirable(0).is_working)
        assert _segments(log) == before[1:]


def test_a_store_that_keeps_everything_does_so_whoever_asks(tmp_path: Path) -> None:
    clock = Clock(START)
    with broker(tmp_path / "store", clock, mapped_file_size_commit_log=64 << 10) as served:
        for _ in range(3):
            ask(served.address, message(b"x" * (40 << 10)))
            clock.now += 10_000 * HOUR
        served.store.flush()
        (told,) = ask(served.address, Command(RequestCode.DELETE_EXPIRED_COMMITLOG))
        assert told.code == ResponseCode.SUCCESS
        assert not served.store.expirable(0).is_working
        assert len(_segments(tmp_path / "store" / "commitlog")) == 3


def _segments(log: Path) -> list[str]:
    return sorted(each.name for each in log.iterdir() if each.name.isdigit())
