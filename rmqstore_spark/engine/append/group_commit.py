"""Puts single messages of many threads as a group.

A put costs the store about the same for one record as for hundreds. So while a put is running, the
single records of other threads gather. Then the first of these threads puts all of them at once,
and waits for the disk for all of them. (RocketMQ's clients make their batches themselves.
`FlushService` shares the waiting for the disk in the same way.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.engine.append.commit import HeldUpError
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.layout.constants import COMPRESSED_FLAG
from rmqstore_spark.layout.fields import MIN_RECORD_SIZE, SYS_FLAG_LAST, TOTAL_SIZE_PLACE
from rmqstore_spark.layout.spans import U1

_MOST_BLOCKS: Final = 256
_LARGEST: Final = 16 << 10
"""Largest record, in bytes, that is combined with others: copying a larger one costs more."""


class _Put:
    """A waiting put: another thread does it, or it becomes the leader of a group.

    Attributes:
        block: the record.
        leads: whether this put does all puts of a group.
        is_alone: whether it is held up, so that it waits alone.
        result: its outcome.
        failure: the exception that was raised instead.
        gate: locked until `leads`, `is_alone`, `result` or `failure` is set.
    """

    __slots__ = ("block", "failure", "gate", "is_alone", "leads", "result")

    def __init__(self, block: U1) -> None:
        self.block = block
        self.leads = self.is_alone = False
        self.result: PutResult | None = None
        self.failure: BaseException | None = None
        self.gate = threading.Lock()
        self.gate.acquire()


class GroupCommit:
    """Puts single records of many threads as groups. Thread-safe.

    Args:
        append: stores a block, without waiting for the disk. Unless it is patient, it raises
            HeldUpError if a commit holds the block up.
        settle: waits for the disk.
        holds_up: returns whether a commit holds a record up.
        patience: seconds that a put waits for those before it. After that, it is tried alone, and
            refused if the log is busy.
    """

    def __init__(
        self,
        append: _Append,
        settle: Callable[[PutResult], PutResult],
        holds_up: Callable[[U1], bool],
        patience: float,
    ) -> None:
        self._append = append
        self._settle = settle
        self._holds_up = holds_up
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: deque[_Put] = deque()
        self._is_led = False

    def put(self, block: U1, *, patient: bool = True) -> PutResult:
        """Store a record as durably as the store is configured; see `StoreWriter.put`.

        Args:
            block: a block for which `is_single` holds.
            patient: see `Appender.append`.

        Raises:
            HeldUpError: a commit holds it up, and the caller is not patient.
        """
        if self._holds_up(block):  # else all of a group would wait
            return self._settle(self._append(block, patient=patient))
        mine = None
        with self._lock:
            if self._is_led:
                mine = _Put(block)
                self._waiting.append(mine)
            self._is_led = True
        if mine is None:  # nobody has gathered yet
            try:
                mine = _Put(block)
                self._store([mine])
            finally:
                self._pass_on()
        else:
            self._wait(mine, patient)
        if mine.leads:
            self._lead(mine)
        if mine.is_alone:
            return self._settle(self._append(block, patient=patient))
        if mine.failure is not None:
            raise mine.failure
        assert mine.result is not None, "a put of a group is done, but has no outcome"
        return mine.result

    def _wait(self, mine: _Put, patient: bool) -> None:
        """Wait until a put is done or leads a group. If nobody takes it in time, do it alone."""
        try:
            if mine.gate.acquire(timeout=self._patience):
                return
            if self._take_back(mine):
                mine.result = self._settle(self._append(mine.block, patient=patient))
            else:
                mine.gate.acquire()
        except BaseException:
            self._take_back(mine)
            if mine.leads:  # the others wait for this one
                self._lead(mine)
            raise

    def _take_back(self, mine: _Put) -> bool:
        with self._lock:
            is_waiting = mine in self._waiting
            if is_waiting:
                self._waiting.remove(mine)
            return is_waiting

    def _lead(self, mine: _Put) -> None:
        """Do a put and all that have gathered by now, then let another one lead."""
        with self._lock:
            count = min(len(self._waiting), _MOST_BLOCKS - 1)
            group = [mine, *(self._waiting.popleft() for _ in range(count))]
        try:
            self._store(group)
        except BaseException as error:  # noqa: BLE001 - raised again in each waiting thread
            for put in group:
                put.failure = error
        finally:
            for put in group[1:]:
                put.gate.release()
            self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                head = self._waiting.popleft()
                head.leads = True
                head.gate.release()
            else:
                self._is_led = False

    def _store(self, group: list[_Put]) -> None:
        while group:
            try:
                if len(group) == 1:
                    result = self._append(group[0].block, patient=False)
                    group[0].result = self._settle(result)
                else:
                    blocks = [put.block for put in group]
                    stored = list(append_together(self._append, blocks, patient=False))
                    for put, result in zip(group, settle_all(self._settle, stored), strict=True):
                        put.result = result
            except HeldUpError:  # by a commit that has just begun
                held = [self._holds_up(put.block) for put in group]
                for put, is_held in zip(group, held, strict=True):
                    put.is_alone = is_held or not any(held)  # as a delayed one, in another topic
                group = [put for put in group if not put.is_alone]
            else:
                return


class _Append(Protocol):
    """Stores a block, without waiting for the disk."""

    def __call__(self, data: U1, *, patient: bool = True) -> PutResult:
        """Store it."""
        ...


def append_together(
    append: _Append, blocks: Sequence[U1], *, patient: bool = True
) -> Iterator[PutResult]:
    """Append single records as one block. If one of them is invalid, append each on its own.

    Args:
        append: stores a block.
        blocks: n, for which `is_single` holds.
        patient: see `Appender.append`; each on its own is patient.

    Returns:
        n outcomes. Records that are appended on their own are appended as their outcomes are read.
    """
    if len(blocks) > 1:
        result = append(np.concatenate(blocks), patient=patient)
        if result.status.is_stored or result.status.is_transient:
            yield from (result.of_row(row) for row in range(len(blocks)))
            return
    yield from (append(block) for block in blocks)


def settle_all(
    settle: Callable[[PutResult], PutResult], results: list[PutResult]
) -> list[PutResult]:
    """Wait for the disk once, for several puts that were done one after the other."""
    stored = [result for result in results if result.ok]
    if stored and stored[0].term is not stored[-1].term:  # an election came between them
        return [settle(result) if result.ok else result for result in results]
    settled = settle(stored[-1]) if stored else None
    if settled is None or settled.ok:
        return results
    status, remark, is_open = settled.status, settled.remark, settled.is_open
    return [
        result.with_status(status, remark, is_open=is_open) if result.ok else result
        for result in results
    ]


def is_single(block: U1) -> bool:
    """Return whether a block claims to be one record, and does not hold up others.

    A small record with a compressed body can take long to check.
    """
    size = block.nbytes
    return (
        MIN_RECORD_SIZE <= size <= _LARGEST
        and int.from_bytes(block[TOTAL_SIZE_PLACE].data, "big") == size
        and not block[SYS_FLAG_LAST] & COMPRESSED_FLAG
    )
