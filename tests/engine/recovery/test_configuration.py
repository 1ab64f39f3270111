"""Files of `config/` that are damaged or gone when a store is opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.configfiles import SHAPES
from rmqstore_spark.layout.fastjson import parse_fastjson
from tests.support.stores.storing import config, messages

NAMES = sorted(name for name in SHAPES if name != "kvConfig.json")
OTHERS = ["", "[]", "null", "0", '"x"', "{", "{}"]


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A store with a topic and the progress of a group."""
    path = tmp_path / "store"
    with StoreWriter.open(path, config()) as store:
        store.create_topic("orders", write_queue_nums=1)
        assert store.put_batch(messages([b"1", b"2", b"3"], topic="orders")).ok
        store.commit_offsets("g", {"orders": {0: 1}})
        store.commit_offsets("g", {"orders": {0: 2}})
        store.groups.create("g")
        store.groups.create("h")
    return path


def offsets(store: StoreWriter) -> dict[str, dict[int, int]]:
    return store.consumer_offsets.table()


def content(store: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(store)): file.read_bytes()
        for folder in ("config", "commitlog", "consumequeue")
        for file in sorted((store / folder).rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_without_a_sound_backup_stops_the_start(
    used: Path, name: str, text: str
) -> None:
    file = used / "config" / name
    for backup in (None, text):
        file.write_text(text)
        file.with_name(f"{name}.bak").unlink(missing_ok=True)
        if backup is not None:
            file.with_name(f"{name}.bak").write_text(backup)
        before = content(used)
        with pytest.raises(CorruptStoreError, match="Restore it from a copy") as caught:
            StoreWriter.open(used, config())
        assert caught.value.file == str(file)
        assert content(used) == before
    for each in (file, file.with_name(f"{name}.bak")):
        each.unlink()
    StoreWriter.open(used, config()).close()


@pytest.mark.parametrize("text", [None, *OTHERS, '{"offsetTable":{"orders@g":{0:-2}}}'])
def test_the_progress_of_a_backup_is_used_and_told(
    used: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = used / "config" / "consumerOffset.json"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with StoreWriter.open(used, config()) as store:
        assert offsets(store) == {"orders@g": {0: 1}}
        store.commit_offsets("g", {"orders": {0: 3}})
    told = [record.getMessage() for record in caplog.records if file.name in record.getMessage()]
    assert len(told) == 1
    assert f"{file}.bak is used, so the progress of consumer groups may be older" in told[0]
    found: Any = parse_fastjson(file.read_text())
    assert found["offsetTable"] == {"orders@g": {"0": 3}}


def test_what_clients_report_before_they_have_read_is_no_damage(
    used: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """JavaScript's clients report -1, and a broker stores that."""
    file = used / "config" / "consumerOffset.json"
    file.write_text('{"offsetTable":{"orders@g":{0:2},"orders@js":{0:-1}}}')
    with StoreWriter.open(used, config()) as store:
        assert offsets(store) == {"orders@g": {0: 2}, "orders@js": {}}
        assert store.consumer_offsets.get("js", "orders", 0) == -1
        assert store.commit_offsets("js", {"orders": {0: 1}}) == 1
    assert any("1 offsets are -1" in record.getMessage() for record in caplog.records)


def test_a_new_store_says_nothing(used: Path, caplog: pytest.LogCaptureFixture) -> None:
    StoreWriter.open(used, config()).close()
    assert not caplog.records


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "subscriptionGroup.json"])
def test_a_file_that_is_gone_with_its_backup_is_told(
    used: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (used / "config" / name).unlink()
    (used / "config" / f"{name}.bak").unlink(missing_ok=True)
    StoreWriter.open(used, config()).close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{used}/config/{name} is missing, and so is its copy .bak" in told
    assert f"If it held anything, that is lost: {SHAPES[name].holds}. " in told
    assert "restore the file" in told


def test_a_brokers_store_without_progress_is_told(
    copy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = copy("live") / "store"
    (store / "config" / "consumerOffset.json").unlink()
    (store / "config" / "consumerOffset.json.bak").unlink()
    StoreWriter.open(store, config()).close()
    assert any("consumerOffset.json is missing" in r.getMessage() for r in caplog.records)


def test_progress_that_may_never_have_been_is_told_as_such(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `rmqstore/`, the store of a process looks like a broker's."""
    store = tmp_path / "store"
    with StoreWriter.open(store, config()) as writer:
        writer.create_topic("orders", write_queue_nums=1)
        assert writer.put_batch(messages([b"1"], topic="orders")).ok
    shutil.rmtree(store / "rmqstore")
    StoreWriter.open(store, config()).close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "If it held anything, that is lost: the progress of consumer groups. " in told


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [],
        lambda state: None,
        lambda state: 0,
        lambda state: {**state, "queues": []},
        lambda state: {**state, "queues": {"orders": {"0": "x"}}},
        lambda state: {**state, "queues": {"orders": {"0": -1}}},
        lambda state: {**state, "queues": {"orders": {"0": 1.5}}},
        lambda state: {**state, "queues": {"orders": {"0": 1 << 63}}},
        lambda state: {**state, "indexEnd": True},
        lambda state: {**state, "absent": [[1]]},
        lambda state: {**state, "config": 7},
    ],
)
def test_a_recorded_state_of_another_shape_is_told_and_not_used(
    used: Path, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    file = used / "rmqstore" / "state.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    StoreWriter.open(used, config()).close()
    assert any(f"{file} cannot be read" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "text", ["[]", "null", "0", "", '{"orders":-1}', '{"orders":"x"}', '{"orders":1.5}',
             '{"orders":true}', "[" * 100_000],
)  # fmt: skip
def test_deleted_topics_of_another_shape_are_told(
    used: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = used / "rmqstore" / "deleted.json"
    file.write_text(text)
    StoreWriter.open(used, config()).close()
    assert any(f"{file} cannot be read" in record.getMessage() for record in caplog.records)
