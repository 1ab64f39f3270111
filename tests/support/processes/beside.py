"""A process that commits a batch, puts a message at each place it reaches, and is killed at one.

    python -m tests.support.processes.beside STORE PLACE SEGMENT_SIZE [SIGNAL [LEAP]]

Its output has a line for each message: the place. With LEAP, the clock advances by so many
milliseconds before the batch is published, and it is written again. Then the place is one of the
second time.
"""

from __future__ import annotations

import os
import sys

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches import batch_block, writing
from rmqstore_spark.engine.log import commitlog
from tests.support.messages.batches import bodies, commit_batch, rows_block, small_segments
from tests.support.stores.storing import Clock

__all__ = ["PLACES", "main"]

PLACES = ("before_write", "after_head", "after_portion", "before_sync", "before_publish")
"""Places in a commit where nobody holds the append lock."""


def main(path: str, place: str, segment_size: str, number: str = "9", leap: str = "0") -> None:
    """Put a message, then commit a batch until the place, and get a signal there."""
    clock, leaps = Clock(), [int(leap)] if int(leap) else []

    def put(name: str) -> None:
        assert store.put(rows_block(bodies(f"other {name}", 1), ["others"])).ok
        os.write(1, f"{name}\n".encode())

    def reach(name: str) -> None:
        reached = name.removeprefix("commit.")
        if leaps and reached == "before_publish":
            clock.now += leaps.pop()
            put("leap")
            return
        if reached in PLACES and leap == "0":
            put(reached)
        if reached == place and not leaps:
            if leap != "0":
                store.flush()  # the checkpoint too
            os.kill(os.getpid(), int(number))

    for constant, value in (("_LARGE", 0), ("_ROOM_PART", 1)):  # as much room as it has bytes
        setattr(writing, constant, value)
    config = small_segments(mappedFileSizeCommitLog=segment_size)
    store = StoreWriter.open(path, config, clock=clock)
    put("first")
    for module in (batch_block, writing, commitlog):
        setattr(module, "reach", reach)  # noqa: B010 - mypy knows no such attribute
    commit_batch(store, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
