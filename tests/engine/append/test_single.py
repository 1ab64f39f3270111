"""Single records: stored as blocks of one are, or not at all if something is in their way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.append.appender import SinglePlace
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.layout.record.block import index_hashes, read_block
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.processes.serving import block_of
from tests.support.stores.storing import config, in_queues


def single(data: U1) -> SingleRecord:
    """The record of a block of one."""
    block = read_block(data)
    hashes, _ = index_hashes(data, block.starts, block.sizes)
    keys = tuple(hashes.tolist())
    return SingleRecord(bytearray(data), block.routes[0], int(block.tags_code[0]), keys)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3500)), max_size=12))
def test_they_lie_where_blocks_of_one_would_lie(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[bool, int]]
) -> None:
    places: list[list[tuple[int, int]]] = [[], []]
    bodies = [bytes([at]) * size for at, (_, size) in enumerate(puts)]
    for number, found in enumerate(places):
        path = tmp_path_factory.mktemp("s")
        with StoreWriter.open(path, config()) as store:
            store.create_topic("orders")
            for (is_single, _), body in zip(puts, bodies, strict=True):
                data = block_of([body])
                place = store.put_single(single(data)) if number and is_single else None
                if isinstance(place, SinglePlace):
                    assert place.end_offset == store.published_end
                    found.append((place.physical_offset, place.queue_offset))
                else:
                    assert place is None
                    result = store.put(data)
                    found.append((int(result.physical_offset[0]), int(result.queue_offset[0])))
        with Store.open(path) as reader:
            assert verify(reader).ok
        assert in_queues(path).get(("orders", 0), []) == bodies
    assert places[0] == places[1]


def test_nothing_is_done_without_room_in_the_segment(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        store.create_topic("orders")
        large = single(block_of([b"x" * 3000]))
        assert store.put_single(large) is None, "there is no segment yet"
        assert store.put(block_of([b"y" * 600])).ok
        assert isinstance(store.put_single(large), SinglePlace)
        end = store.published_end
        assert store.put_single(large) is None
        assert (store.published_end, store.put_messages) == (end, 2)


def test_what_is_refused_is_told(tmp_path: Path) -> None:
    record = single(block_of([b"x"]))
    with StoreWriter.open(
        tmp_path / "s", replace(config(), auto_create_topic_enable=False)
    ) as store:
        found = store.put_single(record)
        assert isinstance(found, PutResult)
        assert found.status is PutStatus.TOPIC_NOT_EXIST
        store.create_topic("orders")
        assert store.put(block_of([b"y"])).ok  # makes the first segment
        assert isinstance(store.put_single(record), SinglePlace)
        store.update_topic("orders", perm=4)
        found = store.put_single(record)
        assert isinstance(found, PutResult)
        assert found.status is PutStatus.NO_PERMISSION
        store.update_topic("orders", perm=6)
        assert isinstance(store.put_single(record), SinglePlace)
        store.delete_topic("orders")
        found = store.put_single(record)
        assert isinstance(found, PutResult)
        assert found.status is PutStatus.TOPIC_NOT_EXIST
