"""Offsets of consumer groups past the ends of their queues: what a start says of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmqstore_spark.engine import StoreWriter
from tests.support.stores.storing import config, messages

Table = dict[str, dict[str, int]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two queues that hold 3 and 1 messages, and a topic without messages."""
    path = tmp_path / "store"
    with StoreWriter.open(path, config()) as writer:
        writer.create_topic("orders", write_queue_nums=4)
        writer.create_topic("unused", write_queue_nums=1)
        assert writer.put_batch(messages([b"1"] * 4, topic="orders", queue_id=[0, 0, 0, 1])).ok
    return path


def record(store: Path, table: Table) -> None:
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def told(store: Path, caplog: pytest.LogCaptureFixture, **settings: str) -> list[str]:
    """What a start says of offsets past an end."""
    StoreWriter.open(store, config(**settings)).close()
    said = [each.getMessage() for each in caplog.records]
    return [text for text in said if "past the ends of their queues" in text]


def test_one_warning_names_how_many_and_the_farthest(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(store, {
        "orders@g": {"0": 87, "1": 2}, "orders@h": {"0": 4, "1": 1}, "unused@h": {"0": 9},
    })  # fmt: skip
    (text,) = told(store, caplog)
    assert text.startswith(f"{store}: ")
    assert "(groups: 2, queues: 3)" in text
    assert "group g is at offset 87 of queue orders/0, which ends at 3." in text
    assert "restore the store" in text
    assert "reset-offset" in text


@pytest.mark.parametrize(
    "table",
    [
        {"orders@g": {"0": 3, "1": 1, "2": 0}},
        {"orders@g": {"0": -1, "2": -1}, "unused@g": {"0": -1}},
        {"deleted@g": {"0": 87}},
        {},
    ],
)
def test_other_offsets_say_nothing(
    store: Path, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    record(store, table)
    assert told(store, caplog) == []


def test_a_log_that_was_lost_is_told_as_well_as_an_older_one(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(store, {"orders@g": {"0": 3}})
    for name in ("commitlog", "consumequeue", "index", "rmqstore"):
        shutil.rmtree(store / name)
    (store / "commitlog").mkdir()
    (store / "checkpoint").unlink()
    (text,) = told(store, caplog)
    assert "group g is at offset 3 of queue orders/0, which ends at 0." in text


def test_a_queue_that_recovery_completes_has_the_end_of_the_log(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(store, {"orders@g": {"0": 3}})
    shutil.rmtree(store / "consumequeue")
    (store / "abort").touch()
    assert told(store, caplog) == []


def test_a_slave_may_lag_behind_the_offsets_of_its_master(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(store, {"orders@g": {"0": 87}})
    role = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "127.0.0.1:1"}
    assert told(store, caplog, **role) == []
    assert len(told(store, caplog)) == 1
