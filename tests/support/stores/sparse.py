"""Stores that are as long as one likes, and take next to no disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqstore_spark.layout.record.format import encode_blank
from tests.support.messages.traffic import FIRST_TIME, Traffic
from tests.support.stores.storebuilder import StoreBuilder, build_store

__all__ = ["GIB", "sparse_store", "wide_store"]

GIB = 1 << 30


def sparse_store(
    path: Path,
    segments: int,
    topics: dict[str, int],
    *,
    rows: int = 2_000,
    last_rows: int = 400_000,
    **shape: Any,
) -> Path:
    """A store of full-length segments, each with few records and an early blank: a hole follows.

    Args:
        path: the store.
        segments: how many; an hour lies between two.
        topics: name to number of queues.
        rows: records of each segment but the last, which has `last_rows`.
        shape: further arguments of `StoreBuilder`.
    """
    with StoreBuilder(path, **shape) as builder:
        for number in range(segments):
            last = number == segments - 1
            traffic = Traffic(
                last_rows if last else rows, topics=topics, body_size=100,
                first_time=FIRST_TIME + number * 3_600_000, first=number * rows,
            )  # fmt: skip
            for batch in traffic.batches():
                builder.append(batch)
            if not last:
                end = (number + 1) * GIB
                segment = path / "commitlog" / f"{number * GIB:020}"
                with segment.open("r+b") as file:
                    file.seek(builder.end_offset - number * GIB)
                    head = bytearray(encode_blank(8))
                    head[:4] = (end - builder.end_offset).to_bytes(4, "big")
                    file.write(head)
                builder.end_offset = end
    return path


def wide_store(path: Path, queues: int) -> Path:
    """A store of many queues, eight of each topic; each queue has four messages."""
    topics = {f"topic-{number}": min(8, queues - number) for number in range(0, queues, 8)}
    return build_store(path, Traffic(4 * queues, topics=topics, body_size=100))
