from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.layout import constants as c


@pytest.mark.parametrize(
    ("magic", "written"),
    [
        (c.MAGIC_V1, "daa320a7"),
        (c.MAGIC_V2, "daa320ab"),
        (c.MAGIC_BLANK, "cbd43194"),
    ],
)
def test_magic_codes_are_the_signed_form_of_what_lies_on_disk(magic: int, written: str) -> None:
    assert struct.pack(">i", magic).hex() == written


def test_every_segment_of_a_store_begins_with_magic_v1(golden: Callable[[str], Path]) -> None:
    segments = sorted((golden("basic") / "store/commitlog").iterdir())
    assert {struct.unpack(">ii", path.read_bytes()[:8])[1] for path in segments} == {c.MAGIC_V1}


@pytest.mark.parametrize(
    "name",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "TBW102",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_anything",
        "%RETRY%group",
        "%DLQ%group",
        "DefaultCluster_REPLY_TOPIC",
    ],
)
def test_topics_of_the_broker_and_of_retries_are_system_topics(name: str) -> None:
    assert c.is_system_topic(name)


@pytest.mark.parametrize(
    "name", ["TopicTest", "%LMQ%q1", "orders_v2-EU", "tbw102", "my%RETRY%x", "MY_RMQ_SYS_", ""]
)
def test_topics_of_users_are_not(name: str) -> None:
    assert not c.is_system_topic(name)


@pytest.mark.parametrize(
    ("name", "writable"),
    [
        ("orders", True),
        ("%RETRY%group", True),
        ("%DLQ%group", True),
        ("%LMQ%queue", True),
        ("SCHEDULE_TOPIC_XXXX", False),
        ("RMQ_SYS_TRANS_HALF_TOPIC", False),
        ("rmq_sys_RMQSTORE_COMMIT", False),
        ("RMQ_SYS_TRACE_TOPIC", True),
        ("BenchmarkTest", True),
        ("TBW102", False),
        ("OFFSET_MOVED_EVENT", False),
        ("DefaultCluster_REPLY_TOPIC", False),
        ("a/b", False),
        ("%RETRY%a/b", False),
        ("", False),
    ],
)
def test_topics_that_clients_write_to(name: str, writable: bool) -> None:
    assert c.is_writable_topic(name) is writable
    assert (c.topic_fault(name) is None) is writable


@pytest.mark.parametrize("name", ["a", "%RETRY%cg_1", "orders_v2-EU", "a|b", "x" * 127])
def test_topic_names_that_a_broker_takes(name: str) -> None:
    assert c.is_safe_topic_name(name)
    assert c.is_safe_folder_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a.b", "a b", "a/b", "x" * 128, "Тема", "topic\n", "\u0663"]
)
def test_topic_names_that_a_broker_refuses(name: str) -> None:
    assert not c.is_safe_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "a\0", "漢" * 86, "\udc80"])
def test_names_that_must_not_become_folders(name: str) -> None:
    assert not c.is_safe_folder_name(name)


@pytest.mark.parametrize("name", ["Тема", "漢" * 85, "a.b", "..."])
def test_names_that_a_store_of_its_own_making_may_have(name: str) -> None:
    assert c.is_safe_folder_name(name)
