"""A queue of a group's member leads to records that readers see: in the log first, then there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.queue_reader import QueueReader
from tests.fault.messages import TOPICS, block
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

PUTS = 20
PATIENCE = 120.0


class Consumer:
    """Reads a queue as soon as that has grown, as a request does that waits for messages.

    Attributes:
        count: how many messages were read.
        missed: what was said instead of messages where the queue has some.
    """

    def __init__(self, reader: QueueReader) -> None:
        self.count = 0
        self.missed: list[str] = []
        self._reader = reader
        self._offsets: dict[tuple[str, int], int] = {}

    def queue_grew(self, topic: str, queue_id: int) -> None:
        """Read what is new: nothing, if an earlier call has found it."""
        if topic not in TOPICS:
            return
        offset = self._offsets.get((topic, queue_id), 0)
        reading = self._reader.read(topic, queue_id, offset, 32)
        self._offsets[topic, queue_id] = reading.next
        self.count += reading.count
        if offset < reading.most and not reading.count:
            self.missed.append(reading.status)


def test_who_waits_for_a_queue_to_grow_finds_its_messages(tmp_path: Path) -> None:
    config = StoreConfig(
        enable_d_leger_commit_log=True, d_leger_group="orders", d_leger_self_id="n0",
        d_leger_peers=f"n0-127.0.0.1:{free_port()}", d_leger_bind_address="127.0.0.1",
        mapped_file_size_commit_log=1 << 20,
    )  # fmt: skip
    with StoreWriter.open(tmp_path / "store", config) as store:
        eventually(lambda: store.state == "RUNNING", PATIENCE)
        for topic in TOPICS:
            store.create_topic(topic, write_queue_nums=4)
        with closing(store.queue_reader()) as reader:
            consumer = Consumer(reader)
            store.watch_queues(consumer)
            for number in range(PUTS):
                assert store.put(block(number, 1)).ok
            eventually(lambda: consumer.count + len(consumer.missed) >= PUTS, PATIENCE)
            store.watch_queues(None)
    assert not consumer.missed
    assert consumer.count == PUTS
