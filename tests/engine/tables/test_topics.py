from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine.tables.topics import TopicConfig, TopicTable
from rmqstore_spark.errors import CorruptStoreError, OptionError, TopicNotFoundError
from rmqstore_spark.layout.fastjson import dump_fastjson, parse_fastjson
from rmqstore_spark.reader import Store
from tests.support.stores.storing import Clock

NAMES = st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True)
QUEUES = st.integers(1, 65_536)
PERMS = st.integers(0, 7)
CONFIGS = st.builds(TopicConfig, NAMES, QUEUES, QUEUES, PERMS)


def table(path: Path, most: int = 1000, clock: Clock | None = None) -> TopicTable:
    return TopicTable(str(path), clock or Clock(), most)


def written(path: Path, name: str = "topics.json") -> Any:
    return parse_fastjson((path / "config" / name).read_text(encoding="utf-8"))


@given(st.lists(CONFIGS, max_size=5, unique_by=lambda topic: topic.name))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, topics: list[TopicConfig]
) -> None:
    path = tmp_path_factory.mktemp("store")
    made = table(path)
    for topic in topics:
        made.create(topic.name, topic.read_queue_nums, topic.write_queue_nums, topic.perm)
    found = table(path)
    assert [found.get(topic.name) for topic in topics] == [made.get(t.name) for t in topics]
    assert [(t.name, t.perm) for t in found] == [(t.name, t.perm) for t in topics]
    shutil.rmtree(path)


def test_the_file_is_one_that_rocketmq_writes(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    theirs = golden("live") / "store" / "config"
    shutil.copytree(theirs, tmp_path / "config")
    before = written(tmp_path)
    clock = Clock(before["dataVersion"]["timestamp"] + 5)
    table(tmp_path, clock=clock).create("New", 3, 2, 4)
    after = written(tmp_path)
    assert after["dataVersion"] == {
        "counter": before["dataVersion"]["counter"] + 1,
        "timestamp": clock.now,
    }
    known = after["topicConfigTable"].pop("New")
    assert after["topicConfigTable"] == before["topicConfigTable"]
    assert list(known) == list(next(iter(before["topicConfigTable"].values())))
    assert known == {
        "order": False, "perm": 4, "readQueueNums": 3, "topicFilterType": "SINGLE_TAG",
        "topicName": "New", "topicSysFlag": 0, "writeQueueNums": 2,
    }  # fmt: skip
    # what it replaced is beside it, to the byte
    assert (tmp_path / "config/topics.json.bak").read_bytes() == (
        theirs / "topics.json"
    ).read_bytes()


def test_what_is_not_known_of_a_topic_or_the_file_stays(tmp_path: Path) -> None:
    topic = {
        "attributes": {"+message.type": "FIFO"}, "order": True, "perm": 6, "readQueueNums": 1,
        "topicFilterType": "MULTI_TAG", "topicName": "A", "topicSysFlag": 2, "writeQueueNums": 1,
    }  # fmt: skip
    odd = {"topicName": "no/name", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    version = {"counter": 7, "timestamp": 1, "stateVersion": 3}
    whole = {
        "dataVersion": version,
        "more": [1],
        "topicConfigTable": {"no/name": odd, "B": {"perm": 99}, "A": topic},
    }
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(dump_fastjson(whole))
    topics = table(tmp_path)
    assert [t.name for t in topics] == ["A"]
    topics.update("A", write_queue_nums=4)
    after = written(tmp_path)
    assert after["topicConfigTable"].pop("A") == {**topic, "writeQueueNums": 4}
    assert after["topicConfigTable"] == {"no/name": odd, "B": {"perm": 99}}
    assert (after["more"], after["dataVersion"]["stateVersion"]) == ([1], 3)


def test_the_copy_is_used_where_the_file_is_damaged(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.create("A", 1, 1)
    topics.create("B", 1, 1)
    path = tmp_path / "config" / "topics.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert [topic.name for topic in table(tmp_path)] == ["A"]
    path.with_name("topics.json.bak").write_text("[")
    with pytest.raises(CorruptStoreError, match=r"topics\.json"):
        table(tmp_path)


def test_a_topic_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.create("A", 1, 2, 6)
    counter = written(tmp_path)["dataVersion"]["counter"]
    assert topics.create("A", 9, 9, 4) == TopicConfig("A", 1, 2, 6)
    assert topics.update("A", perm=6) == TopicConfig("A", 1, 2, 6)
    assert written(tmp_path)["dataVersion"]["counter"] == counter


def test_topics_go_and_come(tmp_path: Path) -> None:
    topics = table(tmp_path, most=2)
    topics.create("A", 1, 1)
    topics.create("B", 1, 1)
    with pytest.raises(OptionError, match="maxTopics is 2"):
        topics.create("C", 1, 1)
    topics.delete(["A"])
    topics.create("C", 1, 1)
    for missing in (lambda: topics.delete(["A"]), lambda: topics.update("A", perm=2)):
        with pytest.raises(TopicNotFoundError, match="'A'"):
            missing()
    assert sorted(written(tmp_path)["topicConfigTable"]) == ["B", "C"]
    assert ("A" in topics, "B" in topics, len(topics)) == (False, True, 2)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "x" * 128, "主题", "a\0", "a.b"])
def test_names_that_no_broker_takes(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a topic name"):
        table(tmp_path).create(name, 1, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("numbers", [(0, 1, 6), (1, 65_537, 6), (1, 1, 8), (1, 1, -1)])
def test_numbers_that_no_broker_takes(numbers: tuple[int, int, int], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="must be from"):
        table(tmp_path).create("A", *numbers)


def test_the_reader_finds_them(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    table(tmp_path).create("A", 3, 2, 4)
    with Store.open(tmp_path) as store:
        (topic,) = store.topics()
        assert (topic.name, topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (
            "A", 3, 2, 4,
        )  # fmt: skip


def test_the_file_is_json_for_others_too(tmp_path: Path) -> None:
    table(tmp_path).create("A", 1, 1)
    text = (tmp_path / "config" / "topics.json").read_text()
    assert json.loads(text)["topicConfigTable"]["A"]["topicName"] == "A"
