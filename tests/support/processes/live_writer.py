"""A process that writes a store as a broker does: it holds the lock, and `abort` is there.

    python -m tests.support.processes.live_writer STORE BATCHES

It writes a batch for every line that it reads, answers with the number of messages so far, and
stops at the end of its input without closing the store.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.support.stores.storebuilder import StoreBuilder, Traffic

__all__ = ["LiveWriter"]

ROOT = Path(__file__).resolve().parents[3]


class LiveWriter:
    """The process of this module, at the other end of two pipes.

    Args:
        path: the store.
        messages: how many it can write.
    """

    def __init__(self, path: Path, messages: int) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.live_writer", str(path), str(messages)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def write(self, count: int) -> int:
        """Write so many messages; returns how many there are now."""
        self.start(count)
        return self.finished()

    def start(self, count: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()

    def finished(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


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
