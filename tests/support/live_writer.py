"""A process that writes a store as a broker does: it holds the lock, and `abort` is there.

    python -m tests.support.live_writer STORE BATCHES

It writes a batch for every line that it reads, answers with the number of messages so far, and
stops at the end of its input without closing the store.
"""

from __future__ import annotations

import fcntl
import os
import sys

from tests.support.storebuilder import StoreBuilder, Traffic


def main(path: str, messages: int) -> None:
    """Write batches of messages on demand."""
    builder = StoreBuilder(
        path, segment_size=64 << 10, queue_entries=100, index=(50, 400), abort=True
    )
    with open(os.path.join(path, "lock"), "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        traffic = Traffic(messages=messages, topics={"orders": 3, "bills": 1}, shuffled=True)
        (batch,) = traffic.batches()
        written = 0
        for line in sys.stdin:
            take = int(line)
            builder.append(batch.slice(written, take))
            builder.flush()
            written += take
            print(written, flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
