"""A process that fills a store, and removes its oldest segments by hand.

    python -m tests.support.processes.expiring STORE [key=value ...]

It commits three batches, which span several segments, and puts messages after them. It prints what
it removes: the physical offset at which the log begins then.
"""

from __future__ import annotations

import os
import sys
import time

from rmqstore_spark.engine import StoreWriter
from tests.support.messages.batches import bodies, commit_batch, rows_block, small_segments
from tests.support.stores.storing import Clock

__all__ = ["AFTER", "BATCHES", "LAST", "START", "main"]

START = 1_700_000_000_000
BATCHES = 3
LAST = "last"
AFTER = START + 10_000


def main(path: str, settings: dict[str, str]) -> None:
    """Fill the store, and expire everything but the messages that were put last."""
    clock = Clock(START)
    with StoreWriter.open(path, small_segments(**settings), clock=clock) as store:
        for number in range(BATCHES):
            clock.now += 1000
            commit_batch(store, number)
        clock.now = AFTER
        for _ in range(2):
            assert store.put(rows_block(bodies(LAST))).ok
        store.flush()
        begin = store.expirable(AFTER + 1).segments[-1].end
        os.write(1, f"{begin}\n".encode())
        store.expire(AFTER + 1)
        while (left := store.expirable(AFTER + 1)).is_working:
            time.sleep(0.01)
        assert not left.segments, left


if __name__ == "__main__":
    main(sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:]))
