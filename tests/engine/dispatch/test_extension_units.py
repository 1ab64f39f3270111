"""A store that a broker kept with `enableConsumeQueueExt`, written on: new entries are plain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.index.hashing import java_hash_code_str
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.verify import verify
from tests.support.messages.blocks import encoded
from tests.support.stores.golden import load_entries, load_meta
from tests.support.stores.recovering import copy_store, tree

Golden = Callable[[str], Path]
TOPIC = "ExtTopic"


def config_of(golden: Path) -> StoreConfig:
    meta = load_meta(golden)
    return StoreConfig(max_hash_slot_num=meta.index_slots, max_index_num=meta.index_entries)


def tagged(count: int) -> U1:
    """A block for the topic, each message with a tag."""
    columns = {
        "topic": pa.array([TOPIC] * count),
        "queueId": pa.array([0] * count, pa.int32()),
        "body": pa.array([b"new"] * count, pa.binary()),
        "properties": pa.array([f"TAGS\x01tag{n}".encode() for n in range(count)], pa.binary()),
        "bornTimestamp": pa.array([1_795_219_500_000] * count, pa.int64()),
    }
    return encoded(pa.record_batch(columns))


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_old_entries_keep_their_units_and_new_ones_have_tags_codes(
    golden: Golden, tmp_path: Path, killed: bool
) -> None:
    folder = golden("extcq")
    store = copy_store(folder, tmp_path)
    units = {k: v for k, v in tree(store).items() if k.startswith("consumequeue_ext")}
    assert units
    if killed:
        (store / "abort").touch()
    old = [(e.physical_offset, e.size, e.tags_code) for e in load_entries(folder)[TOPIC, 0]]
    with StoreWriter.open(store, config_of(folder)) as writer:
        assert writer.recovery.redispatched == 0
        assert writer.put(tagged(3)).rows == 3
    with Store.open(store) as reader:
        queue = reader.queue(TOPIC, 0)
        entries = queue.entries(queue.min_offset, queue.max_offset)
        kept, new = entries[: len(old)], entries[len(old) :]
        assert [entry.item() for entry in kept] == old
        assert CONSUME_QUEUE.in_units(kept["tagsCode"]).any()
        assert new["tagsCode"].tolist() == [java_hash_code_str(f"tag{n}") for n in range(3)]
        options = ReadOptions(columns=("tags",))
        batches = reader.read(TOPIC, 0, len(old), len(old) + 3, options)
        assert [tag for batch in batches for tag in batch[0].to_pylist()] == [
            "tag0",
            "tag1",
            "tag2",
        ]
        assert verify(reader).ok
    assert {k: v for k, v in tree(store).items() if k.startswith("consumequeue_ext")} == units


def test_the_units_of_a_deleted_topic_go_with_it(golden: Golden, tmp_path: Path) -> None:
    """Otherwise those of a topic that is created again would follow them."""
    folder = golden("extcq")
    store = copy_store(folder, tmp_path)
    assert (store / "consumequeue_ext" / TOPIC).is_dir()
    with StoreWriter.open(store, config_of(folder)) as writer:
        writer.create_topic(TOPIC)  # topics.json does not name it
        writer.delete_topic(TOPIC)
    assert not (store / "consumequeue_ext" / TOPIC).exists()
    with Store.open(store) as reader:
        assert verify(reader).ok
