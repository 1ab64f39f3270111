from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqstore_spark.engine.tables.groups import ConsumerGroups
from rmqstore_spark.errors import CorruptStoreError, OptionError
from rmqstore_spark.layout.fastjson import parse_fastjson


def groups(path: Path, most: int = 10) -> ConsumerGroups:
    return ConsumerGroups(str(path), lambda: 1_790_000_000_000, most)


def written(path: Path) -> dict[str, object]:
    file = path / "config" / "subscriptionGroup.json"
    found: dict[str, object] = parse_fastjson(file.read_text(encoding="utf-8"))
    return found


def test_a_group_is_created_as_a_broker_creates_it(tmp_path: Path) -> None:
    table = groups(tmp_path)
    assert table.get("billing") is None
    made = table.create("billing")
    assert (made.retry_queues, made.retry_times, made.may_consume) == (1, 16, True)
    assert table.create("billing") == table.get("billing") == made
    assert written(tmp_path) == {
        "dataVersion": {"counter": 1, "timestamp": 1_790_000_000_000},
        "subscriptionGroupTable": {
            "billing": {
                "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
                "consumeFromMinEnable": True, "groupName": "billing",
                "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
        },
    }  # fmt: skip
    assert groups(tmp_path).get("billing") == made


def test_what_others_wrote_counts_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    theirs = {"consumeEnable": False, "retryMaxTimes": 3, "own": [1]}
    value = {"subscriptionGroupTable": {"old": theirs, "no name": theirs}, "more": 1}
    (folder / "subscriptionGroup.json").write_text(json.dumps(value))
    table = groups(tmp_path)
    old = table.get("old")
    assert old is not None
    assert (old.may_consume, old.retry_times, old.retry_queues) == (False, 3, 1)
    table.create("new")
    found = written(tmp_path)
    assert found["more"] == 1
    kept = found["subscriptionGroupTable"]
    assert isinstance(kept, dict)
    assert (kept["old"], kept["no name"]) == (theirs, theirs)


def test_names_and_numbers_are_bounded(tmp_path: Path) -> None:
    table = groups(tmp_path, most=1)
    with pytest.raises(OptionError, match="No broker accepts"):
        table.create("no group!")
    table.create("one")
    with pytest.raises(OptionError, match="the maximum"):
        table.create("two")


def test_a_damaged_file_is_found_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "subscriptionGroup.json").write_text("{")
    with pytest.raises(CorruptStoreError):
        groups(tmp_path)
