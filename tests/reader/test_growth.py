"""Whether a log has grown, told at the price of a look or two."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.reader import Store
from rmqstore_spark.reader.growth import LogGrowth
from tests.support.stores.golden import GOLDEN_NAMES, load_records
from tests.support.stores.storebuilder import StoreBuilder, Traffic


class Growing:
    """A store that grows, opened for reading."""

    def __init__(self, path: Path) -> None:
        self.builder = StoreBuilder(path, segment_size=4 << 20)
        self.put(10)
        self.store = Store.open(path)
        self.tip = LogGrowth(self.store)
        while self.tip.moved():
            pass

    def put(self, count: int, body_size: int = 100) -> None:
        for batch in Traffic(messages=count, body_size=body_size).batches():
            self.builder.append(batch)
        self.builder.flush()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    made = Growing(tmp_path / "store")
    yield made
    made.store.close()


def test_quiet_and_moved(growing: Growing) -> None:
    assert not growing.tip.moved()
    growing.put(1)
    assert growing.tip.moved()
    assert not growing.tip.moved()
    growing.put(1)
    growing.put(1)
    assert growing.tip.moved()
    assert not growing.tip.moved()


def test_a_record_larger_than_what_is_read_at_once(growing: Growing) -> None:
    growing.put(1, body_size=3 << 20)
    assert growing.tip.moved()
    assert not growing.tip.moved()
    growing.put(1)
    assert growing.tip.moved()


def test_the_next_file_is_followed(growing: Growing) -> None:
    growing.put(3, body_size=3 << 20)  # a file each
    moved = growing.tip.moved()
    growing.store.refresh(topology=False)
    moved |= growing.tip.moved()
    assert moved
    while growing.tip.moved():
        pass
    growing.put(1)
    assert growing.tip.moved()


def test_a_long_way_is_walked_in_several_looks(growing: Growing) -> None:
    tip = LogGrowth(growing.store)
    for _ in range(12):
        growing.put(1000, body_size=2000)
    growing.store.refresh(topology=False)
    looks = 0
    while tip.moved():
        looks += 1
    assert 1 < looks < 10


def test_records_over_stale_bytes_are_noticed(tmp_path: Path, growing: Growing) -> None:
    # After a crash a log can continue over whole records of its earlier life.
    path = growing.store.path
    earlier = tmp_path / "earlier"
    shutil.copytree(path, earlier)
    end = growing.builder.end_offset
    growing.put(50)
    segment = Path(path) / "commitlog" / f"{0:020}"
    tip = LogGrowth(growing.store)
    tip.dispatched(end)
    while tip.moved():
        pass
    data = bytearray(segment.read_bytes())
    data[end + 56 : end + 64] = (1_800_000_000_000).to_bytes(8, "big")  # its storeTimestamp
    segment.write_bytes(data)
    assert tip.moved()
    assert not tip.moved()


def test_an_expired_place_is_left(growing: Growing) -> None:
    growing.put(3, body_size=3 << 20)
    growing.store.refresh(topology=False)
    tip = LogGrowth(growing.store)
    first = min((Path(growing.store.path) / "commitlog").iterdir())
    first.unlink()
    growing.store.refresh(topology=False)
    while tip.moved():
        pass
    growing.put(1)
    assert tip.moved()


def test_a_dledger_log_counts_up_to_what_is_committed(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden("dledger") / "store", path)
    with Store.open(path) as store:
        tip = LogGrowth(store)
        tip.moved()
        assert not tip.moved()
        checkpoint = next(path.glob("dledger-*/checkpoint"))
        checkpoint.write_text(checkpoint.read_text().replace("=", "=1"))
        assert tip.moved()
        assert tip.named() == {}


@pytest.mark.parametrize("name", [n for n in GOLDEN_NAMES if n not in ("dledger", "multipath")])
def test_the_walk_ends_behind_the_last_record(name: str, golden: Callable[[str], Path]) -> None:
    with Store.open(golden(name) / "store") as store:
        tip = LogGrowth(store)
        while tip.moved():
            pass
        last = max(load_records(golden(name)), key=lambda record: record.physical_offset)
        assert tip._walked >= last.physical_offset + last.store_size


# ---- the queues of what was written --------------------------------------------------------------


def ends(growing: Growing) -> dict[tuple[str, int], int]:
    growing.store.refresh()
    return {(q.topic, q.queue_id): q.max_offset for q in growing.store.queues()}


def test_the_queues_of_new_records_are_named(growing: Growing) -> None:
    growing.tip.named()
    before = ends(growing)
    growing.put(5)
    assert growing.tip.moved()
    assert growing.tip.named() == {k: n for k, n in ends(growing).items() if n != before[k]}
    assert growing.tip.named() == {}


def test_too_many_records_name_none(growing: Growing) -> None:
    growing.tip.named()
    growing.put(2000)
    assert growing.tip.moved()
    assert growing.tip.named() == {}
    growing.put(1)
    assert growing.tip.moved()
    assert growing.tip.named()


def test_light_queues_are_named(growing: Growing) -> None:
    growing.tip.named()
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x013,4\x02"
    row = {"topic": "orders", "queueId": 0, "body": b"x", "properties": properties}
    growing.builder.append(pa.RecordBatch.from_pylist([row]))
    growing.builder.flush()
    assert growing.tip.moved()
    assert growing.tip.named() == {("orders", 0): 11, ("%LMQ%a", 0): 4, ("%LMQ%b", 0): 5}


def test_a_damaged_record_names_none(growing: Growing) -> None:
    growing.tip.named()
    end = growing.builder.end_offset
    growing.put(1)
    segment = Path(growing.store.path) / "commitlog" / f"{0:020}"
    data = bytearray(segment.read_bytes())
    data[end + 84] ^= 0xFF  # the body's length
    segment.write_bytes(data)
    assert growing.tip.moved()
    assert growing.tip.named() == {}


def test_records_over_stale_bytes_and_behind_them_name_none(growing: Growing) -> None:
    # Records of the same sizes as the stale ones, so that the walk continues where those ended.
    growing.tip.named()
    path = Path(growing.store.path)
    segment = path / "commitlog" / f"{0:020}"
    end = growing.builder.end_offset
    growing.put(10)
    stale_end = growing.builder.end_offset
    stale = segment.read_bytes()
    growing.put(10)
    both = bytearray(segment.read_bytes())
    segment.write_bytes(stale)
    tip = LogGrowth(growing.store)
    tip.dispatched(end)
    while tip.moved():
        tip.named()
    both[end + 56 : end + 64] = (1_800_000_000_000).to_bytes(8, "big")  # its storeTimestamp
    segment.write_bytes(both)
    assert tip.moved()
    assert tip._walked > stale_end
    assert tip.named() == {}
