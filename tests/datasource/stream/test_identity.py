"""A store is found again under another name, and no other store is taken for it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine.tables.store_id import store_id
from rmqstore_spark.errors import DataLossError, OptionError
from tests.datasource.driving import GrowingStore, Stream, keys_of
from tests.support.messages.traffic import FIRST_TIME
from tests.support.processes.serving import block_of, served

Rows = list[tuple[str, int, int]]


def grown(path: Path, count: int = 60, *, has_id: bool = True, **traffic: Any) -> GrowingStore:
    store = GrowingStore(path)
    store.put(count, **traffic)
    if has_id:
        store_id(str(path))
    return store


def drained(where: str | Path, checkpoint: list[str], **options: Any) -> Rows:
    stream = Stream(where, checkpoint, **{"startingOffsets": "earliest", **options})
    try:
        return keys_of(row for batch in stream.drain() for row in batch)
    finally:
        stream.reader.stop()


def as_version_1(checkpoint: list[str]) -> list[str]:
    """A checkpoint as it was before stores had ids in it, and positions fingerprints."""
    old = []
    for text in checkpoint:
        queues = json.loads(text)["queues"]
        for topics in queues.values():
            for topic, marks in topics.items():
                topics[topic] = " ".join(mark.split("#")[0] for mark in marks.split(" "))
        old.append(json.dumps({"version": 1, "queues": queues}))
    return old


def later(seed: int) -> dict[str, Any]:
    """Other messages of the same sizes."""
    return {"seed": seed, "first_time": FIRST_TIME + 1_000_000 * seed}


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("loss", [True, False])
def test_a_store_that_moved_is_no_event(tmp_path: Path, has_id: bool, loss: bool) -> None:
    store = grown(tmp_path / "a", has_id=has_id)
    checkpoint: list[str] = []
    options: dict[str, Any] = {"failOnDataLoss": loss}
    assert len(drained(store.path, checkpoint, **options)) == 60
    moved = shutil.copytree(store.path, tmp_path / "disk" / "b")
    store.put(6, **later(2))
    grew = store.path.rename(tmp_path / "c")
    before = list(checkpoint)
    assert drained(moved, checkpoint, **options) == []
    assert checkpoint == before
    # Under its new name from the next micro-batch on, and back under the old one.
    assert len(drained(grew, checkpoint, **options)) == 6
    assert json.loads(checkpoint[-1])["queues"].keys() == {"c"}
    assert drained(grew, checkpoint, brokerNames="a", **options) == []


@pytest.mark.parametrize("loss", [True, False])
def test_path_in_place_of_endpoint(tmp_path: Path, loss: bool) -> None:
    checkpoint: list[str] = []
    options: dict[str, Any] = {"failOnDataLoss": loss, "startingOffsets": "earliest"}
    path = tmp_path / "folder"
    with served(path, broker_name="served") as here:
        here.store.put(block_of([b"x"] * 30))
        found = drained("", checkpoint, endpoint=here.endpoint, **options)
        assert len(found) == 30
        assert json.loads(checkpoint[-1])["queues"].keys() == {"served"}
        here.store.put(block_of([b"y"] * 5))
    assert len(drained(path, checkpoint, **options)) == 5
    assert json.loads(checkpoint[-1])["queues"].keys() == {"folder"}
    with served(path, broker_name="served") as here:
        here.store.put(block_of([b"z"] * 7))
        assert len(drained("", checkpoint, endpoint=here.endpoint, **options)) == 7


def test_a_store_whose_messages_have_expired_is_found_by_its_id(tmp_path: Path) -> None:
    store = GrowingStore(tmp_path / "a", {"orders": 1}, segment_size=16 << 10)
    store.put(100)
    store_id(str(store.path))
    checkpoint: list[str] = []
    assert len(drained(store.path, checkpoint)) == 100
    store.put(200, **later(2))
    first_left = sorted(store.physical.values())[100]
    for segment in sorted((store.path / "commitlog").iterdir())[:-1]:
        if int(segment.name) + (16 << 10) <= first_left:
            segment.unlink()
    left = min(int(file.name) for file in (store.path / "commitlog").iterdir())
    assert left > store.physical["orders", 0, 99] - (16 << 10)
    moved = store.path.rename(tmp_path / "b")
    found = drained(moved, checkpoint)
    assert found == [("orders", 0, number) for number in range(100, 300)]


@pytest.mark.parametrize("has_id", [True, False])
def test_two_stores_that_swapped_their_names(tmp_path: Path, has_id: bool) -> None:
    one, two = (grown(tmp_path / name, has_id=has_id, **later(n)) for n, name in enumerate("ab"))
    checkpoint: list[str] = []
    assert len(drained(f"{one.path},{two.path}", checkpoint)) == 120
    one.path.rename(tmp_path / "x")
    two.path.rename(tmp_path / "a")
    (tmp_path / "x").rename(tmp_path / "b")
    assert drained(f"{one.path},{two.path}", checkpoint) == []
    assert drained(f"{one.path},{two.path}", checkpoint, brokerNames="b,a") == []


def test_two_stores_that_swapped_their_names_long_ago(tmp_path: Path) -> None:
    """Without ids and fingerprints only the places of records differ, and only names count."""
    one = grown(tmp_path / "a", has_id=False)
    two = grown(tmp_path / "b", has_id=False, body_size=150)
    checkpoint: list[str] = []
    drained(f"{one.path},{two.path}", checkpoint)
    old = as_version_1(checkpoint)
    assert drained(f"{one.path},{two.path}", list(old)) == []
    with pytest.raises(DataLossError, match="this is another store"):
        drained(f"{one.path},{two.path}", list(old), brokerNames="b,a")


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_another_store_is_refused_by_name(tmp_path: Path, loss: bool, is_old: bool) -> None:
    one, two = (grown(tmp_path / name, **later(n)) for n, name in enumerate("ab"))
    checkpoint: list[str] = []
    drained(one.path, checkpoint)
    checkpoint = as_version_1(checkpoint) if is_old else checkpoint
    before = list(checkpoint)
    with pytest.raises(OptionError, match=r"offsets of a, but .*b .*set option brokerNames to .*a"):
        drained(two.path, checkpoint, failOnDataLoss=loss)
    assert checkpoint == before
    one.put(6, **later(5))
    assert len(drained(one.path, checkpoint)) == 6


@pytest.mark.parametrize("loss", [True, False])
def test_a_renamed_store_of_an_old_checkpoint_needs_its_name(tmp_path: Path, loss: bool) -> None:
    """Equal places prove nothing: they depend on the sizes of messages alone."""
    store = grown(tmp_path / "a")
    checkpoint: list[str] = []
    drained(store.path, checkpoint)
    checkpoint = as_version_1(checkpoint)
    moved = store.path.rename(tmp_path / "b")
    with pytest.raises(OptionError, match=r"set option brokerNames to the names in .*: a"):
        drained(moved, checkpoint, failOnDataLoss=loss)
    assert drained(moved, checkpoint, failOnDataLoss=loss, brokerNames="a") == []


def test_one_of_several_stores_is_renamed(tmp_path: Path) -> None:
    one, two = (grown(tmp_path / name, **later(n)) for n, name in enumerate("ab"))
    checkpoint: list[str] = []
    drained(f"{one.path},{two.path}", checkpoint)
    moved = two.path.rename(tmp_path / "c")
    assert drained(f"{moved},{one.path}", checkpoint) == []
    new = grown(tmp_path / "new", 10, **later(7))
    found = drained(f"{one.path},{new.path},{moved}", checkpoint)
    assert sorted(found) == sorted(new.rows)


def test_a_store_that_is_left_out_continues_where_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (grown(tmp_path / name, **later(n)) for n, name in enumerate("ab"))
    checkpoint: list[str] = []
    drained(f"{one.path},{two.path}", checkpoint)
    with pytest.raises(DataLossError, match=r"offsets of b, which this query does not read any"):
        drained(one.path, checkpoint)
    one.put(4, **later(4))
    two.put(6, **later(6))
    with caplog.at_level(logging.WARNING, "rmqstore_spark"):
        assert len(drained(one.path, checkpoint, failOnDataLoss=False)) == 4
    assert "continues without b" in caplog.text
    # Once that was allowed, another store may come, and this one come back, also elsewhere.
    new = grown(tmp_path / "new", 10, **later(7))
    assert sorted(drained(f"{one.path},{new.path}", checkpoint)) == sorted(new.rows)
    moved = two.path.rename(tmp_path / "c")
    assert len(drained(f"{new.path},{moved},{one.path}", checkpoint)) == 6


def test_copies_are_told_apart_by_name_alone(tmp_path: Path) -> None:
    store = grown(tmp_path / "a")
    checkpoint: list[str] = []
    drained(store.path, checkpoint)
    x, y = (shutil.copytree(store.path, tmp_path / name) for name in "xy")
    with pytest.raises(OptionError, match="copies of each other"):
        drained(f"{x},{y}", checkpoint)
    found = drained(f"{x},{y}", checkpoint, brokerNames="x,a")
    assert sorted(found) == sorted(store.rows)  # of x, which the query did not read before


def test_two_stores_do_not_become_one(tmp_path: Path) -> None:
    """A store and its copy were read, and now one of them is, under a third name."""
    store = grown(tmp_path / "a")
    copy = shutil.copytree(store.path, tmp_path / "b")
    checkpoint: list[str] = []
    assert len(drained(f"{store.path},{copy}", checkpoint)) == 120
    moved = store.path.rename(tmp_path / "c")
    with pytest.raises(OptionError, match="copies of each other"):
        drained(moved, checkpoint)
    with pytest.raises(DataLossError, match="offsets of b, which this query does not read"):
        drained(moved, checkpoint, brokerNames="a")


@pytest.mark.parametrize("renamed", [True, False])
def test_a_copy_that_has_diverged(tmp_path: Path, renamed: bool) -> None:
    """A backup from before the position, which then grew in another way: same id, same sizes."""
    grown(tmp_path / "a" / "store", 60)
    backup = GrowingStore(tmp_path / "backup" / "store")
    backup.put(60)
    original = GrowingStore(tmp_path / "original" / "store")
    original.put(60)
    store_id(str(original.path))
    shutil.copytree(original.path / "rmqstore", backup.path / "rmqstore")
    original.put(30, **later(3))
    backup.put(50, **later(4))
    checkpoint: list[str] = []
    name = {} if renamed else {"brokerNames": "original"}
    assert len(drained(original.path, checkpoint)) == 90
    with pytest.raises((DataLossError, OptionError), match=r"has changed|brokerNames"):
        drained(backup.path, checkpoint, **name)
    if renamed:
        with pytest.raises(OptionError, match="brokerNames"):
            drained(backup.path, checkpoint, failOnDataLoss=False)
    else:
        found = drained(backup.path, checkpoint, failOnDataLoss=False, **name)
        assert sorted(found) == sorted(backup.rows)


@pytest.mark.parametrize("plan_by", ["queue", "commitlog"])
@pytest.mark.parametrize("has_id", [True, False])
def test_a_store_that_was_wiped_and_filled_again(
    tmp_path: Path, has_id: bool, plan_by: str
) -> None:
    """Records of the same sizes and keys at the same places, stored at another time."""
    store = grown(tmp_path / "a", 100, has_id=has_id)
    checkpoint: list[str] = []
    assert len(drained(store.path, checkpoint, planBy=plan_by)) == 100
    shutil.rmtree(store.path)
    again = grown(tmp_path / "a", 150, has_id=has_id, first_time=FIRST_TIME + 3_600_000)
    assert [again.physical[key] for key in store.rows] == list(store.physical.values())
    with pytest.raises(DataLossError, match=r"the message before that offset .* has changed"):
        drained(again.path, checkpoint, planBy=plan_by)
    found = drained(again.path, checkpoint, planBy=plan_by, failOnDataLoss=False)
    assert sorted(found) == sorted(again.rows)


def test_a_promised_batch_of_a_store_that_was_wiped(tmp_path: Path) -> None:
    store = grown(tmp_path / "a", 100)
    checkpoint: list[str] = []
    Stream(store.path, checkpoint, startingOffsets="earliest").plan_next()
    shutil.rmtree(store.path)
    again = grown(tmp_path / "a", 150, first_time=FIRST_TIME + 3_600_000)
    with pytest.raises(DataLossError, match="hold other messages than before"):
        Stream(again.path, checkpoint, committed=0).next_batch()


def test_a_promised_batch_of_a_store_that_moved(tmp_path: Path) -> None:
    store = grown(tmp_path / "a", 100)
    checkpoint: list[str] = []
    first = Stream(store.path, checkpoint, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert len(first.next_batch() or []) == 40
    assert first.plan_next()
    store.path.rename(tmp_path / "b")
    again = Stream(tmp_path / "b", checkpoint, committed=1)
    assert [len(rows) for rows in again.drain()] == [40, 20]


def test_what_only_differs_in_the_properties_is_another_message(tmp_path: Path) -> None:
    store = grown(tmp_path / "a", 40, tags=("TagA",))
    checkpoint: list[str] = []
    drained(store.path, checkpoint)
    shutil.rmtree(store.path)
    again = grown(tmp_path / "a", 50, tags=("TagB",))
    assert [again.physical[key] for key in store.rows] == list(store.physical.values())
    with pytest.raises(DataLossError, match="has changed"):
        drained(again.path, checkpoint)


def test_a_body_that_was_damaged_since_is_no_other_message(tmp_path: Path) -> None:
    store = grown(tmp_path / "a", 40)
    checkpoint: list[str] = []
    drained(store.path, checkpoint)
    (log,) = (store.path / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[store.physical["orders", 1, 19] + 90] ^= 1
    log.write_bytes(data)
    store.put(2, **later(2))
    assert len(drained(store.path, checkpoint)) == 2


@pytest.mark.parametrize("size", [100, 5000, 70_000])
def test_large_records_are_compared_without_their_bodies(tmp_path: Path, size: int) -> None:
    store = GrowingStore(tmp_path / "a", segment_size=1 << 20)
    store.put(10, body_size=size)
    checkpoint: list[str] = []
    assert len(drained(store.path, checkpoint)) == 10
    moved = shutil.copytree(store.path, tmp_path / "b")
    assert drained(moved, checkpoint) == []
    shutil.rmtree(moved)
    again = GrowingStore(tmp_path / "b", segment_size=1 << 20)
    again.put(12, body_size=size, seed=2)
    with pytest.raises(DataLossError, match="has changed"):
        drained(moved, checkpoint, brokerNames="a")


def test_a_store_that_is_wiped_and_filled_again_under_a_running_stream(tmp_path: Path) -> None:
    """As many messages as before: no queue has grown."""
    store = grown(tmp_path / "a", 100)
    stream = Stream(store.path, startingOffsets="earliest")
    assert [len(rows) for rows in stream.drain()] == [100]
    shutil.rmtree(store.path)
    grown(tmp_path / "a", 100, first_time=FIRST_TIME + 3_600_000)
    stream.clock.sleep(300)  # longer than the folders of queues wait until they are listed again
    with pytest.raises(DataLossError, match="has changed"):
        stream.drain()
