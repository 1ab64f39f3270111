"""What a record costs on its way from columns to the queues and the index, without any file."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.means.child import in_child
from benchmarks.means.stores import BODY_SIZES, Stores
from benchmarks.report.figures import Figure
from rmqstore_spark.layout.index.build import link_entries
from rmqstore_spark.layout.index.format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    SLOT_DTYPE,
    IndexHeader,
)
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record.block import (
    check_block,
    index_hashes,
    number_rows,
    stamp_records,
)
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.produce.encoder import MessageEncoder
from rmqstore_spark.produce.queue_choice import Queues, Router
from tests.support.messages.blocks import record_columns
from tests.support.messages.traffic import Traffic

__all__ = ["block_figures", "measure"]

_PASSES: Final = 15
_BLOCK_BYTES: Final = 4 << 20
_QUEUES: Final = 4
_CLIENTS: Final = ("ids, queues, properties", "encode")
"""The steps of the encoding, which happen at the client."""
_AIM: Final = {100: 300}
"""Nanoseconds that everything but the encoding may take together."""


class _Clock:
    """Nanoseconds a record of each step, once a pass."""

    def __init__(self, records: int) -> None:
        self._records = records
        self.times: dict[str, list[float]] = {}

    def time(self, step: str, function: Callable[[], Any]) -> Any:
        """Call a function."""
        began = time.perf_counter()
        result = function()
        took = (time.perf_counter() - began) / self._records * 1e9
        self.times.setdefault(step, []).append(took)
        return result


def measure(body_size: int) -> dict[str, float]:
    """Nanoseconds a record by step; each record has two keys."""
    count = _BLOCK_BYTES // (body_size + 200)
    traffic = Traffic(count, topics={"orders": _QUEUES}, body_size=body_size)
    (batch,) = (record_columns(messages) for messages in traffic.batches())
    slots, header = np.zeros(DEFAULT_SLOTS, SLOT_DTYPE), IndexHeader()
    clock = _Clock(count)
    encoder, columns = _producer(count, body_size)
    for _ in range(_PASSES):
        clock.time("ids, queues, properties", lambda: encoder.prepare(columns))
        data = clock.time("encode", lambda: encode_records(batch)).data.copy()
        header = _store(data, slots, header, clock)
    return {step: statistics.median(times[1:]) for step, times in clock.times.items()}


def _producer(count: int, body_size: int) -> tuple[MessageEncoder, dict[str, pa.Array]]:
    """What the sink has in front of `encode`: an encoder, and rows with a key and a tag."""
    queues = Queues.of([_QUEUES])
    columns = {
        "topic": pa.repeat("orders", count),
        "body": pa.repeat(pa.scalar(bytes(body_size), pa.binary()), count),
        "keys": pa.array([f"order-{number}" for number in range(count)]),
        "tags": pa.repeat("TagA", count),
    }
    return MessageEncoder(Router(lambda _: queues, by_key=False, all_take_turns=True)), columns


def _store(data: Any, slots: Any, header: IndexHeader, clock: _Clock) -> IndexHeader:
    """All that a store does to one block, but for writing it."""
    block = clock.time(
        "check",
        lambda: check_block(data, max_body=4 << 20, store_host_v6=False, allowed_sys_flag=0),
    )
    next_offsets = np.zeros(len(block.routes), np.int64)
    numbers = clock.time("number", lambda: number_rows(block.route_of, block.queued, next_offsets))
    physical = block.starts + (1 << 30)
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    clock.time("stamp", lambda: stamp_records(data, block.starts, numbers, physical, 1 << 40, host))
    clock.time("queue entries", lambda: CONSUME_QUEUE.of_block(block, physical))
    hashes, rows = clock.time("key hashes", lambda: index_hashes(data, block.starts, block.sizes))
    times = np.full(len(rows), 1 << 40, np.int64)
    _, header = clock.time(
        "index insert",
        lambda: link_entries(header, slots, DEFAULT_ENTRIES, hashes, physical[rows], times),
    )
    return header


def block_figures(stores: Stores) -> Iterator[Figure]:
    """Each step at each body size, and all but the encoding together."""
    del stores  # nothing of it is on disk
    for body_size in BODY_SIZES:
        found = in_child("benchmarks.engine.blocks:measure", body_size=body_size)
        size = f"{body_size} B" if body_size < 1024 else f"{body_size // 1024} KiB"
        section = f"A block to be stored, bodies of {size}"
        for step, took in found.items():
            yield Figure(section, step, f"{took:,.0f} ns")
        total = sum(took for step, took in found.items() if step not in _CLIENTS)
        aim = _AIM.get(body_size)
        yield Figure(
            section,
            "all but the encoding",
            f"{total:,.0f} ns",
            aim=f"{aim} ns" if aim else "",
            met="" if aim is None else "yes" if total <= aim else "no",
        )
