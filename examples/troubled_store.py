"""Make a store with three troubles, for docs/tutorials/investigate.md and investigate.ipynb.

    python examples/troubled_store.py STORE REPLICA

It is that of a shop's broker, on a morning from 09:00 to 10:00. From 09:20 to 09:24, no orders
came. Of the consumer group `billing`, the consumer of one queue stands at an order that it cannot
read; `warehouse` is too slow; `audit` has read everything. And a sector of the disk is damaged. The
replica is what a slave has: the same, undamaged.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

from rmqstore_spark.engine import StoreConfig, StoreWriter

__all__ = ["make_store"]

TOPIC = "orders"
QUEUES = 4
START = 1_795_165_200_000
"""2026-11-20 09:00:00 UTC, in milliseconds."""

STEP = 10_000
"""Milliseconds from some orders to the next."""

SILENT = range(20, 24)
BUSY = range(40, 60)
"""Minutes."""

UNREADABLE = 3210
"""The order at which `billing` stands: its body is cut off."""

SECTOR = 512
FIRST_DAMAGED = 2222
"""The order in whose body the damaged sector begins."""


def make_store(path: Path, replica: Path) -> None:
    """Make the store and its replica, in folders that do not exist yet."""
    now = START
    ends: Counter[int] = Counter()
    stuck: dict[int, int] = {}
    slow: dict[int, int] = {}
    number = 1
    # Small files: the store is small.
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=60_000,
        max_hash_slot_num=10_000,
        max_index_num=40_000,
    )
    with StoreWriter.open(path, config, clock=lambda: now) as store:
        store.create_topic(TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        for now in range(START, START + 3_600_000, STEP):
            minute = (now - START) // 60_000
            if minute == 51 and not slow:
                slow = dict(ends)
            if minute in SILENT:
                continue
            wave = 1 + math.sin(minute / 5) / 4
            numbers = range(number, number + int(wave * (40 if minute in BUSY else 15)))
            number = numbers.stop
            for each in numbers:
                if each == UNREADABLE:
                    stuck = {queue_of(each): ends[queue_of(each)]}
                ends[queue_of(each)] += 1
            store.put_batch(orders(numbers))
        store.commit_offsets("audit", {TOPIC: ends})
        store.commit_offsets("billing", {TOPIC: ends | stuck})
        store.commit_offsets("warehouse", {TOPIC: slow})
    shutil.copytree(path, replica)
    damage(path)


def queue_of(number: int) -> int:
    """Return the queue of an order: that of its customer."""
    return customer_of(number) % QUEUES


def customer_of(number: int) -> int:
    """Return the customer of an order."""
    return number * 7919 % 997


def orders(numbers: range) -> pa.RecordBatch:
    """Return orders as messages."""
    bodies = [
        json.dumps({"order": n, "customer": customer_of(n), "cents": n * 104_729 % 10_000})
        for n in numbers
    ]
    if UNREADABLE in numbers:
        at = numbers.index(UNREADABLE)
        bodies[at] = bodies[at][:33]
    return pa.record_batch(
        {
            "topic": [TOPIC] * len(numbers),
            "queueId": pa.array(map(queue_of, numbers), pa.int32()),
            "body": [body.encode() for body in bodies],
            "properties": [b"KEYS\1order-%d\2TAGS\1new\2" % n for n in numbers],
        }
    )


def damage(path: Path) -> None:
    """Overwrite a sector of the log, as a disk does that has lost it."""
    for segment in sorted((path / "commitlog").glob("0*")):
        with segment.open("r+b") as file:
            at = file.read().find(b'{"order": %d,' % FIRST_DAMAGED)
            if at >= 0:
                file.seek(at)
                file.write(b"\0" * SECTOR)
                return


def main(arguments: list[str]) -> None:
    """Make the store that a command line asks for."""
    if len(arguments) != 2:
        sys.exit("usage: python examples/troubled_store.py STORE REPLICA")
    for folder in arguments:
        if Path(folder).exists():
            sys.exit(f"{folder} exists already: remove it, or name another folder.")
    make_store(*map(Path, arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
