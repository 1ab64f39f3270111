"""Single messages of many clients, put together.

A put costs the store much the same for one record as for hundreds. So while one is under way, the
single records that other streams bring are gathered, and the next put takes all of them: whoever
finds no put under way does it for those who wait. (RocketMQ's batches are made by its clients; the
waiting for the disk is shared in the same way by `FlushService`.)
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.writer.status import PutResult

if TYPE_CHECKING:
    from rmqstore_spark.writer.store import StoreWriter

__all__ = ["Combiner"]

_MOST_BLOCKS: Final = 256
_LARGEST: Final = 16 << 10
"""Bytes of a record that is put together with others: copying a larger one costs more."""


class _Put:
    """A put that waits to be done."""

    def __init__(self, block: pa.Buffer) -> None:
        self.block = block
        self.result: PutResult | None = None
        self.failure: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has been stored, or has failed."""
        return self.result is not None or self.failure is not None


class Combiner:
    """Puts blocks, single records together. Thread-safe.

    Args:
        store: where they go.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._waiting: deque[_Put] = deque()
        self._is_led = False

    def put(self, block: pa.Buffer) -> PutResult:
        """Store a block, durable as the store is configured; see `StoreWriter.put`."""
        if not _is_single(block):
            return self._store.put(_array([block]))
        mine = _Put(block)
        with self._changed:
            self._waiting.append(mine)
        while (puts := self._turn(mine)) is not None:
            self._lead(puts)
        if mine.failure is not None:
            raise mine.failure
        assert mine.result is not None  # noqa: S101 - it is done: one of the two is set
        return self._store.settle(mine.result)

    def _turn(self, mine: _Put) -> list[_Put] | None:
        """The puts that are now to be done by whoever asks; None once `mine` is done."""
        with self._changed:
            self._changed.wait_for(lambda: mine.is_done or not self._is_led)
            if mine.is_done:
                return None
            self._is_led = True
            count = min(len(self._waiting), _MOST_BLOCKS)
            return [self._waiting.popleft() for _ in range(count)]

    def _lead(self, puts: list[_Put]) -> None:
        try:
            self._do(puts)
        except BaseException as error:  # noqa: BLE001 - raised again, to each of those who wait
            for put in puts:
                put.failure = error
        finally:
            with self._changed:
                self._is_led = False
                self._changed.notify_all()

    def _do(self, puts: list[_Put]) -> None:
        result = self._store.put(_array([put.block for put in puts]), wait=False)
        if len(puts) == 1:
            puts[0].result = result
        elif result.status.is_stored:
            for number, put in enumerate(puts):
                only = slice(number, number + 1)
                put.result = replace(
                    result,
                    rows=1,
                    physical_offset=result.physical_offset[only],
                    queue_offset=result.queue_offset[only],
                )
        elif result.status.is_transient:
            for put in puts:
                put.result = result
        else:
            for put in puts:  # one of them is bad, and the others are not to suffer for it
                put.result = self._store.put(_array([put.block]), wait=False)


def _is_single(block: pa.Buffer) -> bool:
    """Whether a block says that it is one record, and a small one."""
    if not 4 <= block.size <= _LARGEST:
        return False
    return int.from_bytes(memoryview(block)[:4], "big") == block.size


def _array(blocks: list[pa.Buffer]) -> U1:
    """Blocks one behind the other, in memory that may be written to: what was received may not."""
    size = sum(block.size for block in blocks)
    joined = np.frombuffer(pa.allocate_buffer(size), np.uint8)
    at = 0
    for block in blocks:
        joined[at : at + block.size] = np.frombuffer(block, np.uint8)
        at += block.size
    return joined
