"""A process that commits micro-batches, one after the other.

    python -m tests.support.processes.committer STORE FIRST COUNT [key=value ...]

Before each batch it puts one message. Its output has a line for each batch that is acknowledged:
`NUMBER STATUS`.
"""

from __future__ import annotations

import os
import sys

from rmqstore_spark.engine import StoreWriter
from tests.support.messages.batches import bodies, commit_batch, rows_block, small_segments

__all__ = ["main"]


def main(path: str, first: int, count: int, settings: dict[str, str]) -> None:
    """Commit some batches, and close the store."""
    with StoreWriter.open(path, small_segments(**settings)) as store:
        for number in range(first, first + count):
            assert store.put(rows_block(bodies(f"put{number}", 1))).ok
            result = commit_batch(store, number)
            os.write(1, f"{number} {result.status}\n".encode())


if __name__ == "__main__":
    pairs = dict(pair.split("=", 1) for pair in sys.argv[4:])
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), pairs)
