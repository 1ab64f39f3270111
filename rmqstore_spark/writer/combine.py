"""Single messages of many threads, put together.

A put costs the store much the same for one record as for hundreds. So while one is under way, the
single records that others bring are gathered, and the first of these puts all of them at once, and
waits for the disk for all of them. (RocketMQ's batches are made by its clients; the waiting for the
disk is shared in the same way by `FlushService`.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.writer.status import PutResult

__all__ = ["Combiner", "is_single"]

_MOST_BLOCKS: Final = 256
_LARGEST: Final = 16 << 10
"""Bytes of a record that is put together with others: copying a larger one costs more."""


class _Put:
    """A put that waits: to be done by another, or for its turn to do it for a group.

    Attributes:
        block: the record.
        group: once it is this one's turn, the puts to be done, itself being the first.
        result: what became of it.
        failure: what was raised instead.
        gate: held until one of these is there.
    """

    __slots__ = ("block", "failure", "gate", "group", "result")

    def __init__(self, block: U1) -> None:
        self.block = block
        self.group: list[_Put] = []
        self.result: PutResult | None = None
        self.failure: BaseException | None = None
        self.gate = threading.Lock()
        self.gate.acquire()


class Combiner:
    """Puts single records together. Thread-safe.

    Args:
        append: stores a block, without waiting for the disk.
        settle: waits for the disk.
        patience: seconds that a put waits for those before it. Then it is tried alone, and told
            that the log is busy if it is.
    """

    def __init__(
        self,
        append: Callable[[U1], PutResult],
        settle: Callable[[PutResult], PutResult],
        patience: float,
    ) -> None:
        self._append = append
        self._settle = settle
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: deque[_Put] = deque()
        self._is_led = False

    def put(self, block: U1) -> PutResult:
        """Store a record, durable as the store is configured; see `StoreWriter.put`.

        Args:
            block: one for which `is_single` holds.
        """
        mine = _Put(block)
        with self._lock:
            if self._is_led:
                self._waiting.append(mine)
            else:
                self._is_led = True
                mine.group = [mine]
        if not mine.group:
            self._wait(mine)
        if mine.group:
            self._lead(mine.group)
        if mine.failure is not None:
            raise mine.failure
        assert mine.result is not None  # noqa: S101 - it is done: one of the two is set
        return mine.result

    def _wait(self, mine: _Put) -> None:
        """Wait until a put is done, or it is its turn; one that nobody takes is done alone."""
        try:
            if mine.gate.acquire(timeout=self._patience):
                return
            if self._take_back(mine):
                mine.result = self._settle(self._append(mine.block))
            else:
                mine.gate.acquire()
        except BaseException:
            self._take_back(mine)
            if mine.group:  # the others wait for this one
                self._lead(mine.group)
            raise

    def _take_back(self, mine: _Put) -> bool:
        with self._lock:
            is_waiting = mine in self._waiting
            if is_waiting:
                self._waiting.remove(mine)
            return is_waiting

    def _lead(self, group: list[_Put]) -> None:
        """Do the puts of a group; the next one begins while this one waits for the disk."""
        try:
            try:
                self._store(group)
            finally:
                self._pass_on()
            self._finish(group)
        except BaseException as error:  # noqa: BLE001 - raised again, to each of those who wait
            for put in group:
                put.failure = error
        finally:
            for put in group[1:]:
                put.gate.release()

    def _pass_on(self) -> None:
        with self._lock:
            count = min(len(self._waiting), _MOST_BLOCKS)
            group = [self._waiting.popleft() for _ in range(count)]
            if group:
                group[0].group = group
                group[0].gate.release()
            else:
                self._is_led = False

    def _store(self, group: list[_Put]) -> None:
        if len(group) == 1:
            group[0].result = self._append(group[0].block)
            return
        result = self._append(np.concatenate([put.block for put in group]))
        is_shared = result.status.is_stored or result.status.is_transient
        for put in group:
            # Where one of them is bad the others are not to suffer for it.
            put.result = result if is_shared else self._append(put.block)

    def _finish(self, group: list[_Put]) -> None:
        settled: dict[int, PutResult] = {}
        for number, put in enumerate(group):
            result = put.result
            assert result is not None  # noqa: S101 - `_store` has set it
            whole = settled.get(id(result))
            if whole is None:
                whole = settled[id(result)] = self._settle(result)
            only = slice(number, number + 1)
            put.result = whole if whole.rows <= 1 else replace(
                whole,
                rows=1,
                physical_offset=whole.physical_offset[only],
                queue_offset=whole.queue_offset[only],
            )  # fmt: skip


def is_single(block: U1) -> bool:
    """Whether a block says that it is one record, and a small one."""
    size = block.nbytes
    return 4 <= size <= _LARGEST and int.from_bytes(block[:4].data, "big") == size
