"""Delayed messages as clients put them, and a process that puts some and delivers them.

    python -m tests.support.processes.delaying STORE FIRST COUNT

It puts messages of level 1, a second, and writes a line when each of them is delivered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.reader import Store
from tests.support.stores.storing import config, messages, until

__all__ = ["delayed", "delayed_config", "delivered", "rows_of"]


def delayed_config(**settings: Any) -> StoreConfig:
    """A store with three levels: a second, five seconds, an hour."""
    return config(**{"messageDelayLevel": "1s 5s 1h", "mappedFileSizeCommitLog": 65536, **settings})


def delayed(bodies: Sequence[bytes], levels: int | Sequence[int], **others: Any) -> pa.RecordBatch:
    """Messages for `put_batch`, each with a delay level; 0 for none."""
    given = [levels] * len(bodies) if isinstance(levels, int) else levels
    properties = [
        b"UNIQ_KEY\x01u-" + body + (b"\x02DELAY\x01%d" % level if level else b"")
        for body, level in zip(bodies, given, strict=True)
    ]
    return messages(bodies, properties=pa.array(properties, pa.binary()), **others)


def rows_of(path: Path, topic: str) -> list[dict[str, Any]]:
    """The messages of a topic, by queue and offset."""
    with Store.open(path) as store:
        return [
            row
            for queue in store.queues([topic])
            for batch in store.read(queue.topic, queue.queue_id)
            for row in batch.to_pylist()
        ]


def delivered(store: StoreWriter, count: int) -> None:
    """Wait until a store has delivered so many messages since it was opened."""
    until(lambda: store.stats()["delayedDelivered"] >= count)
    store.flush()  # queues too


def main(path: str, first: int, count: int) -> None:
    """Put messages, wait until they are delivered, and close the store."""
    with StoreWriter.open(path, delayed_config(flushDelayOffsetInterval=100)) as store:
        bodies = [b"%d" % number for number in range(first, first + count)]
        assert store.put_batch(delayed(bodies, 1)).ok
        os.write(1, b"put\n")
        delivered(store, count)
        os.write(1, b"delivered\n")
        saved = os.path.join(path, "config", "delayOffset.json")
        until(lambda: b":%d" % (first + count) in Path(saved).read_bytes())
        # Once more, so that there is a backup to write.
        assert store.put_batch(delayed([b"%d" % (first + count)], 1)).ok
        until(lambda: b":%d" % (first + count + 1) in Path(saved).read_bytes())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
