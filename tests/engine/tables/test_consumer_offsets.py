from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    RefusedError,
    StoreWriteError,
)
from rmqstore_spark.layout.fastjson import parse_fastjson
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import group_offsets
from tests.support.processes.serving import block_of
from tests.support.stores.storing import config
from tests.support.waiting import PATIENCE, eventually, is_opening_a_file

ENDS = {"orders": {0: (0, 100), 1: (0, 50)}, "bills": {0: (10, 20)}}


def table(path: Path) -> ConsumerOffsets:
    return ConsumerOffsets(str(path), lambda: ENDS)


def recorded(path: Path, name: str = "consumerOffset.json") -> Any:
    file = path / "config" / name
    return parse_fastjson(file.read_text(encoding="utf-8"))["offsetTable"] if file.exists() else {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 120)), max_size=12
    )
)
def test_offsets_are_the_greatest_that_were_committed(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("store")
    made = table(path)
    expected: dict[str, dict[str, int]] = {}
    for group, queue_id, offset in commits:
        changed = made.commit(group, {"orders": {queue_id: offset}})
        held = expected.setdefault(f"orders@{group}", {})
        wanted = offset <= ENDS["orders"][queue_id][1] and offset > held.get(str(queue_id), -1)
        assert changed == wanted
        if wanted:
            held[str(queue_id)] = offset
    assert recorded(path) == {name: held for name, held in expected.items() if held}
    shutil.rmtree(path)


def test_a_reset_moves_back_and_stays_within_the_queue(tmp_path: Path) -> None:
    made = table(tmp_path)
    assert made.commit("g", {"orders": {0: 70, 1: 50}, "bills": {0: 20}}) == 3
    assert made.reset("g", {"orders": {0: 7, 1: 50}}) == 1
    assert recorded(tmp_path) == {"orders@g": {"0": 7, "1": 50}, "bills@g": {"0": 20}}
    with pytest.raises(RefusedError, match=r"101 is not an offset of queue 0.*ends at 100"):
        made.reset("g", {"orders": {1: 3, 0: 101}})
    with pytest.raises(RefusedError, match="no such queue"):
        made.reset("g", {"others": {0: 1}})
    assert recorded(tmp_path)["orders@g"] == {"0": 7, "1": 50}


def test_an_offset_past_the_end_of_a_queue_gives_way(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@g":{0:500}}}')
    assert table(tmp_path).commit("g", {"orders": {0: 40}}) == 1
    assert recorded(tmp_path) == {"orders@g": {"0": 40}}


@pytest.mark.parametrize("group", ["", "a b", "a@b", "x" * 256, "ä"])
def test_names_that_no_broker_accepts(tmp_path: Path, group: str) -> None:
    with pytest.raises(OptionError, match="consumer group"):
        table(tmp_path).commit(group, {"orders": {0: 1}})


def test_the_file_is_one_that_rocketmq_writes(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(golden("live") / "store" / "config", tmp_path / "config")
    path = tmp_path / "config" / "consumerOffset.json"
    text = path.read_text(encoding="utf-8")
    before = recorded(tmp_path)
    name = next(iter(before))
    topic, _, group = name.partition("@")
    queue, offset = next(iter(before[name].items()))
    made = ConsumerOffsets(str(tmp_path), lambda: {topic: {int(queue): (0, offset + 1)}})
    assert made.commit(group, {topic: {int(queue): offset + 1}}) == 1
    old, new = f"{queue}:{offset}", f"{queue}:{offset + 1}"
    at = text.index(old, text.index(f'"{name}"'))
    assert path.read_text(encoding="utf-8") == text[:at] + new + text[at + len(old) :]
    assert recorded(tmp_path, "consumerOffset.json.bak") == before


def test_a_slave_has_the_offsets_that_its_master_told_last(tmp_path: Path) -> None:
    """Also lower ones: a reset looks no other. What the master does not name is kept."""
    made = table(tmp_path)
    made.follow({"orders@g": {"0": 70, "1": 50}, "bills@g": {"0": 20}})
    made.follow({"orders@g": {"0": 7}, "orders@h": {"1": 3}})
    assert recorded(tmp_path) == {
        "orders@g": {"0": 7, "1": 50}, "bills@g": {"0": 20}, "orders@h": {"1": 3},
    }  # fmt: skip


def test_a_damaged_file_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text("{")
    with pytest.raises(CorruptStoreError, match=r"consumerOffset\.json"):
        table(tmp_path)


def test_a_store_keeps_the_offsets_of_its_groups(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with StoreWriter.open(store, config()) as writer:
        writer.create_topic("orders", write_queue_nums=2)
        assert writer.put(block_of([b"1", b"2", b"3"], queue_ids=[0, 0, 1])).ok
        # Not waiting for the dispatcher: the offset is one as soon as the message is stored.
        assert writer.commit_offsets("g", {"orders": {0: 2, 1: 0}}) == 2
    with StoreWriter.open(store, config()) as writer:
        assert writer.commit_offsets("g", {"orders": {0: 1, 1: 1}}) == 1
        with Store.open(str(store)) as reader:
            found = [(at.queue_id, at.offset, at.lag) for at in group_offsets(reader)]
        assert found == [(0, 2, 0), (1, 1, 0)]
        writer.delete_topic("orders")
        writer.create_topic("orders", write_queue_nums=2)
        assert recorded(store) == {}
    with pytest.raises(RefusedError):
        writer.commit_offsets("g", {"orders": {0: 0}})


def test_consumers_report_while_the_file_is_written(tmp_path: Path) -> None:
    made = table(tmp_path)
    (tmp_path / "config").mkdir()
    # Nobody reads from it, so opening it to write takes as long as the test wants.
    stuck = tmp_path / "config" / "consumerOffset.json.tmp"
    os.mkfifo(stuck)
    failures: list[Exception] = []

    def save() -> None:
        try:
            made.save()
        except StoreWriteError as error:
            failures.append(error)

    assert made.report("g", "orders", 0, 7)
    assert made.report("g", "orders", 1, 1)
    writing = threading.Thread(target=save, daemon=True)
    writing.start()
    eventually(lambda: is_opening_a_file(writing))

    def report() -> None:
        assert made.report("g", "orders", 0, 8)
        assert made.report("h", "orders", 0, 1)
        found.extend(made.get("g", "orders", n) for n in (0, 1))

    found: list[int] = []
    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    reporting.join(PATIENCE)
    assert found == [8, 1]
    os.close(os.open(stuck, os.O_RDONLY))
    writing.join(PATIENCE)
    assert len(failures) == 1  # such a file takes nothing
    assert recorded(tmp_path) == {}
    stuck.unlink()
    made.save()
    assert recorded(tmp_path) == {"orders@g": {"0": 8, "1": 1}, "orders@h": {"0": 1}}
    assert made.report("g", "orders", 0, 9)
    assert made.commit("spark", {"bills": {0: 20}}) == 1
    made.save()
    assert recorded(tmp_path)["orders@g"] == {"0": 9, "1": 1}
