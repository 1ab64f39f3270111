"""Topics that are deleted stay deleted, whatever is made of the log afterwards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import StoreWriteError, TopicNotFoundError
from rmqstore_spark.files.durable import replace_file
from tests.engine.group.stores import problems_of
from tests.ha.peers import log_bytes, queue_files
from tests.support.stores.storing import as_killed, config, in_queues, messages
from tests.support.waiting import eventually

OLD = [b"old%d" % n for n in range(40)]
NEW = [b"new%d" % n for n in range(3)]


def deleted_store(path: Path) -> StoreWriter:
    store = StoreWriter.open(path, config())
    assert store.put_batch(messages([b"other"], topic="U")).ok
    assert store.put_batch(messages(OLD)).ok
    store.delete_topic("T")
    return store


def reopened(store: StoreWriter, how: str, copy: Path) -> Path:
    """The store's folder, closed, killed, or killed and without its queues."""
    if how != "closed":
        as_killed(Path(store.path), copy)
    store.close()
    if how == "without queues":
        shutil.rmtree(copy / "consumequeue")
    return Path(store.path) if how == "closed" else copy


@pytest.mark.fault
@pytest.mark.parametrize("how", ["closed", "killed", "without queues"])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_restart_does_not_bring_back_what_was_deleted(
    is_made_again: bool, how: str, tmp_path: Path
) -> None:
    store = deleted_store(tmp_path / "s")
    if is_made_again:
        store.create_topic("T")
    path = reopened(store, how, tmp_path / "killed")
    store = StoreWriter.open(path, config())
    assert in_queues(path) == {("U", 0): [b"other"]}
    assert store.put_batch(messages(NEW)).queue_offset.tolist() == [0, 1, 2]
    path = reopened(store, how, tmp_path / "again")
    with StoreWriter.open(path, config()) as store:
        assert in_queues(path) == {("U", 0): [b"other"], ("T", 0): NEW}
        assert store.put_batch(messages([b"next"])).queue_offset.tolist() == [3]


@pytest.mark.fault
def test_a_deletion_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages(OLD)).ok
        assert store.put_batch(messages([b"other"], topic="U")).ok
        end = store.flush()["maxOffset"]
    (tmp_path / "s" / "rmqstore" / "deleted.json").write_text(json.dumps({"T": end}))
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages(NEW)).queue_offset.tolist() == [0, 1, 2]
    assert in_queues(tmp_path / "s") == {("U", 0): [b"other"], ("T", 0): NEW}


@pytest.mark.parametrize("count", [7, 10, 23])  # a file has 10 entries
def test_a_deletion_that_comes_late_leaves_what_one_in_time_leaves(
    count: int, tmp_path: Path
) -> None:
    """A leader that was killed right after a deletion tells of it when it leads again."""
    with StoreWriter.open(tmp_path / "master", config()) as master:
        assert master.put_batch(messages(OLD[:count])).ok
        end = master.flush()["maxOffset"]
        assert master.put_batch(messages(NEW)).ok
        data = np.frombuffer(log_bytes(tmp_path / "master", 0, master.published_end), np.uint8)
    deletion = {"topicConfigTable": {}, "deletedTopics": {"T": end}}
    kept = {"T": {"0": [count, count + len(NEW)]}}
    slave = config(brokerRole="SLAVE", haMasterAddress="h:1")
    found = {}
    for name in ("in time", "late", "interrupted"):
        path = tmp_path / name
        with StoreWriter.open(path, slave) as store:
            if name == "in time":
                store.replica.tables.take_topics(deletion, len(data))
            while len(left := data[store.replica.held :]):
                assert store.replica.append(left)
            eventually(lambda: store.stats()["queues"]["T"]["0"][1] == count + len(NEW))
            if name == "late":
                assert in_queues(path) == {("T", 0): OLD[:count] + NEW}
                store.replica.tables.take_topics(deletion, len(data))
                assert store.stats()["queues"] == kept
        if name == "interrupted":
            (path / "rmqstore" / "deleted.json").write_text(json.dumps({"T": end}))
        with StoreWriter.open(path, slave) as store:
            assert store.stats()["queues"] == kept
        assert in_queues(path) == {("T", 0): NEW}
        assert not problems_of(path)
        found[name] = queue_files(path)
    assert found["late"] == found["interrupted"] == found["in time"]


def test_the_records_of_a_deleted_topic_need_no_queue(tmp_path: Path) -> None:
    """Also if the topic is there again, and has no messages yet."""
    with deleted_store(tmp_path / "s") as store:
        store.create_topic("T")
    assert not problems_of(tmp_path / "s")
    (tmp_path / "s" / "rmqstore" / "deleted.json").unlink()
    assert problems_of(tmp_path / "s")


@pytest.mark.fault
def test_a_topic_that_cannot_be_deleted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: str, data: bytes) -> None:
        if os.path.basename(path).startswith("topics.json"):
            raise StoreWriteError("no room")
        replace_file(path, data)

    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages(OLD)).ok
        monkeypatch.setattr("rmqstore_spark.engine.tables.config_file.replace_file", failing)
        with pytest.raises(StoreWriteError):
            store.delete_topic("T")
        monkeypatch.undo()
        with pytest.raises(TopicNotFoundError):
            store.delete_topic("V")
        assert not (tmp_path / "s" / "rmqstore" / "deleted.json").exists()
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    StoreWriter.open(tmp_path / "s", config()).close()
    assert in_queues(tmp_path / "s") == {("T", 0): OLD}


@pytest.mark.parametrize("text", ["", "[1]", '{"T": "x"}', '{"T": -5}', '{"T": null}'])
def test_promise_8_a_file_that_says_something_else_is_passed_over(
    text: str, tmp_path: Path
) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages(OLD)).ok
    (tmp_path / "s" / "rmqstore" / "deleted.json").write_text(text)
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    with StoreWriter.open(tmp_path / "s", config()) as store:
        found: Any = store.stats()["queues"]
    assert found == {"T": {"0": [0, 40]}}


def test_a_place_behind_the_log_deletes_nothing_that_comes(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"other"], topic="U")).ok
    (tmp_path / "s" / "rmqstore" / "deleted.json").write_text('{"T": 1000000}')
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages(NEW)).ok
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    StoreWriter.open(tmp_path / "s", config()).close()
    assert in_queues(tmp_path / "s") == {("U", 0): [b"other"], ("T", 0): NEW}


@pytest.mark.parametrize("name", ["deleted.json", "state.json"])
def test_what_was_remembered_and_cannot_be_read_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    deleted_store(tmp_path / "s").close()
    StoreWriter.open(tmp_path / "s", config()).close()
    assert not any("cannot be read" in line for line in caplog.messages)
    (tmp_path / "s" / "rmqstore" / name).write_text("{]")
    StoreWriter.open(tmp_path / "s", config()).close()
    assert {name in line for line in caplog.messages if "cannot be read" in line} == {True}
