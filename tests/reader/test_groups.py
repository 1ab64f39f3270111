"""Consumer groups and delay levels, as a broker's configuration files tell of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.layout.constants import SCHEDULE_TOPIC
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import (
    DelayProgress,
    GroupOffset,
    delay_progress,
    group_offsets,
)
from tests.support.stores.golden import load_queues

Golden = Callable[[str], Path]
OpenStore = Callable[[str], Store]
Copy = Callable[[str], Path]


def lasts(folder: Path) -> dict[tuple[str, int], int]:
    """The maximum offset of each queue, as RocketMQ reports it."""
    return {place: queue.max_offset for place, queue in load_queues(folder).queues.items()}


def test_groups_of_a_broker(open_store: OpenStore, golden: Golden) -> None:
    # What consumerOffset.json holds, read off by eye.
    consumed: dict[tuple[str, str], dict[int, int]] = {
        ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC"): {0: 36},
        ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"): {0: 17},
        ("cg_live", "%RETRY%cg_live"): {0: 1},
        ("cg_live", "LiveDelay"): {0: 1, 1: 0, 2: 0, 3: 1},
        ("cg_live", "LiveTopic"): {0: 225, 1: 225, 2: 225, 3: 225},
        ("cg_live", "LiveTran"): {0: 0, 1: 5, 2: 0, 3: 4},
    }
    last = lasts(golden("live"))
    expected = [
        GroupOffset(group, topic, queue_id, offset, last.get((topic, queue_id), 0))
        for (group, topic), offsets in consumed.items()
        for queue_id, offset in offsets.items()
    ]
    found = group_offsets(open_store("live"))
    assert found == expected
    assert [entry.lag for entry in found] == [e.max_offset - e.offset for e in expected]
    assert {entry.lag for entry in found} == {0, 3}


@pytest.mark.parametrize("name", ["live", "delayed"])
def test_progress_of_the_delay_levels(name: str, open_store: OpenStore, golden: Golden) -> None:
    # What delayOffset.json holds; levels with messages start at 0.
    delivered = {"live": {1: 1, 3: 2, 18: 0}, "delayed": {1: 3, 2: 3, 3: 3}}[name]
    last = lasts(golden(name))
    delivered |= {
        queue_id + 1: delivered.get(queue_id + 1, 0)
        for (topic, queue_id), end in last.items()
        if topic == SCHEDULE_TOPIC and end
    }
    found = delay_progress(open_store(name))
    assert found == [
        DelayProgress(level, level - 1, offset, last[SCHEDULE_TOPIC, level - 1])
        for level, offset in sorted(delivered.items())
    ]
    assert all(entry.lag == entry.max_offset - entry.offset >= 0 for entry in found)
    assert any(entry.lag for entry in found)


def test_a_store_without_configuration(open_store: OpenStore) -> None:
    store = open_store("unclean")
    assert (group_offsets(store), delay_progress(store)) == ([], [])


@pytest.fixture
def live(copy: Copy) -> Path:
    """A copy of a broker's store, to be changed."""
    return copy("live") / "store"


def write(store: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (store / "config" / name).write_text(text, encoding="utf-8")
    (store / "config" / f"{name}.bak").unlink(missing_ok=True)


def test_offsets_of_what_is_not_there(live: Path) -> None:
    table = {"gone@g": {"0": 7}, "LiveTopic@g": {"0": 999, "9": 4, "2147483647": 1}}
    write(live, "consumerOffset.json", {"offsetTable": table})
    with Store.open(live) as store:
        found = group_offsets(store)
        last = store.queue("LiveTopic", 0).max_offset
    assert found == [
        GroupOffset("g", "LiveTopic", 0, 999, last),
        GroupOffset("g", "LiveTopic", 9, 4, 0),
        GroupOffset("g", "LiveTopic", 2**31 - 1, 1, 0),
        GroupOffset("g", "gone", 0, 7, 0),
    ]
    assert 0 < last < 999
    assert [entry.lag for entry in found] == [0, 0, 0, 0]  # never less than nothing


def test_what_no_broker_accepts_is_skipped_and_logged_once(
    live: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["LiveTopic@", "@g", "@", "LiveTopic@a@b", "\ud800@g", "../x@g"]
    table = {name: {"0": 1} for name in names} | {"LiveTopic@good": {"1": 5, "2": -1}}
    write(live, "consumerOffset.json", {"offsetTable": table})
    with Store.open(live) as store:
        found = group_offsets(store)
        assert found == [GroupOffset("good", "LiveTopic", 1, 5, found[0].max_offset)]
    assert len(caplog.records) == 1
    assert f"Skipped {len(names)} entries of {live}/config/consumerOffset.json" in caplog.text


@pytest.mark.parametrize("content", [[], 1, "null", {}, {"offsetTable": None}, {"offsetTable": []},
                                     {"offsetTable": {"LiveTopic@g": {"0": -2}}}, ""])  # fmt: skip
def test_files_of_another_shape_are_damaged(live: Path, content: Any) -> None:
    write(live, "consumerOffset.json", content)
    with Store.open(live) as store:
        with pytest.raises(CorruptStoreError, match=r"consumerOffset\.json"):
            group_offsets(store)
        assert delay_progress(store)


def test_delay_levels_that_cannot_be(live: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(live, "delayOffset.json", '{"offsetTable":{0:1,-1:1,x:1,2147483649:1,1:-1,3:1,40:2}}')
    with Store.open(live) as store:
        last = store.queue(SCHEDULE_TOPIC, 2).max_offset
        found = {entry.level: entry for entry in delay_progress(store)}
    assert set(found) == {1, 3, 18, 40}
    assert found[1].offset == 0
    assert found[3] == DelayProgress(3, 2, 1, last)
    assert found[40] == DelayProgress(40, 39, 2, 0)
    assert "Skipped 5 entries" in caplog.text


def test_the_older_copy_serves_where_a_file_is_damaged(live: Path) -> None:
    (live / "config" / "consumerOffset.json").write_text('{"offsetTable":{')
    with Store.open(live) as store:
        half = [e for e in group_offsets(store) if e.topic == "RMQ_SYS_TRANS_HALF_TOPIC"]
    assert [entry.offset for entry in half] == [33]  # as the .bak has it
    (live / "config" / "consumerOffset.json.bak").write_text("{")
    with (
        Store.open(live) as store,
        pytest.raises(CorruptStoreError, match=r"consumerOffset\.json"),
    ):
        group_offsets(store)
