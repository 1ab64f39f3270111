"""Blocks that clients put, stored and answered in the order in which they come.

Where a put waits for the disk, a thread of its own stores and answers: what the client sends
meanwhile is received, and all that has gathered is stored and waits for the disk at once. An answer
that says no for a reason that passes is the last of its stream: no later block may overtake it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.service.budget import Budget, OverBudgetError
from rmqstore_spark.service.calls import Call, Calls
from rmqstore_spark.wire.failures import BUSY, TRANSIENT, UNAVAILABLE
from rmqstore_spark.wire.protocol import Acknowledgement

if TYPE_CHECKING:
    from rmqstore_spark.writer.status import PutResult
    from rmqstore_spark.writer.store import StoreWriter

__all__ = ["Puts"]

_WAIT_SECONDS: Final = 0.2  # as a broker waits (waitTimeMillsInSendQueue)
_MOST_BLOCKS: Final = 256
_MOST_BYTES: Final = 4 << 20
"""Of blocks of a stream that were received and not answered. One always may be."""


class _Received(NamedTuple):
    """A block; None in its place where there was no room for it in time."""

    number: int
    block: pa.Buffer | None

    @property
    def size(self) -> int:
        return self.block.size if self.block is not None else 0


class Puts:
    """Handles streams of blocks that are put.

    Args:
        store: that they are for.
        calls: tells whether the process is stopping.
        budget: of bytes, for all streams together.
    """

    def __init__(self, store: StoreWriter, calls: Calls, budget: Budget) -> None:
        self._store = store
        self._calls = calls
        self._budget = budget
        self._waits_for_disk = store.config.flush_disk_type == "SYNC_FLUSH"

    def handle(
        self,
        call: Call,
        blocks: Iterator[tuple[int, pa.Buffer] | None],
        send: Callable[[bytes], None],
        results: bool,
    ) -> None:
        """Handle a stream until its client ends it, or an answer does.

        Args:
            call: the stream's.
            blocks: with their numbers; None where the client says that nothing more comes.
            send: sends an answer.
            results: whether the offsets of each record are asked for.
        """
        has_refused = is_finished = False

        def store(received: Sequence[_Received]) -> bool:
            nonlocal has_refused
            try:
                for ack in self._stored(received, results):
                    send(ack.to_bytes())
                    has_refused = has_refused or ack.status in TRANSIENT
                return not has_refused
            finally:
                drop(received)

        def drop(received: Sequence[_Received]) -> None:
            self._budget.give_back(sum(one.size for one in received))

        with (_Ahead if self._waits_for_disk else _AtOnce)(call, store, drop) as way:
            for item in blocks:
                is_finished = item is None
                if item is None or not way.add(self._received(call, way, *item)):
                    break
        if is_finished and not has_refused:
            send(b"")

    def _received(
        self, call: Call, way: _AtOnce | _Ahead, number: int, block: pa.Buffer
    ) -> _Received:
        while True:
            try:
                with call.waiting() if way.has_unanswered else nullcontext():
                    self._budget.take(block.size, _WAIT_SECONDS)
            except OverBudgetError:
                # A stream makes room by itself as long as something of it is stored.
                if not way.has_unanswered:
                    return _Received(number, None)
            else:
                return _Received(number, block)

    def _stored(self, received: Sequence[_Received], results: bool) -> Iterator[Acknowledgement]:
        """Store blocks; the answers up to the first that ends the stream."""
        if self._calls.is_stopping:
            text = "The store process is stopping."
            yield Acknowledgement(received[0].number, UNAVAILABLE, 0, text)
            return
        blocks = list(takewhile(lambda block: block is not None, (one.block for one in received)))
        if len(received) == 1 and blocks:
            done = [self._store.put(_writable(blocks[0]))]  # with those of other streams
        else:
            done = self._store.put_all([_writable(block) for block in blocks])
        for one, result in zip(received, done, strict=False):
            yield _answer(one.number, result, results)
        if len(done) == len(blocks) < len(received):
            text = "The store gets more than it can write. Try again later."
            yield Acknowledgement(received[len(blocks)].number, BUSY, 0, text)


class _AtOnce:
    """Stores and answers each block when it comes; see `_Ahead`."""

    def __init__(
        self,
        _call: Call,
        store: Callable[[Sequence[_Received]], bool],
        _drop: Callable[[Sequence[_Received]], None],
    ) -> None:
        self._store = store

    @property
    def has_unanswered(self) -> bool:
        return False

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, received: _Received) -> bool:
        return self._store([received])


class _Ahead:
    """Takes blocks of a stream while those before them are stored, by a thread of its own.

    Leaving it waits until all is answered; where an error came, what is not begun is dropped.

    Args:
        call: the stream's.
        store: stores and answers blocks; tells whether more may come.
        drop: told of blocks that are not stored any more.
    """

    def __init__(
        self,
        call: Call,
        store: Callable[[Sequence[_Received]], bool],
        drop: Callable[[Sequence[_Received]], None],
    ) -> None:
        self._call = call
        self._store = store
        self._drop = drop
        self._lock = threading.Lock()
        self._waiting: list[_Received] = []
        self._count = self._bytes = 0  # of all that is not answered
        self._bell, self._room = _closed_gate(), _closed_gate()
        self._is_idle, self._is_ending, self._has_ended = True, False, False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rmqstore-puts", daemon=True)

    def __enter__(self) -> _Ahead:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_ending = True
            if kind is not None:
                self._drop_waiting()
            _open(self._bell)
        with self._call.waiting():
            self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure

    @property
    def has_unanswered(self) -> bool:
        """Whether there are blocks that are not answered."""
        return self._count > 0

    def add(self, received: _Received) -> bool:
        """Take a block, when there is room; False where the stream is to end."""
        while True:
            with self._lock:
                if self._has_ended:
                    self._drop([received])
                    return False
                is_small = self._bytes + received.size <= _MOST_BYTES
                if not self._count or (is_small and self._count < _MOST_BLOCKS):
                    self._count += 1
                    self._bytes += received.size
                    self._waiting.append(received)
                    if self._is_idle:
                        self._is_idle = False
                        self._call.begin_work()
                        _open(self._bell)
                    return True
            with self._call.waiting():
                self._room.acquire()

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._has_ended:
            self._bell.acquire()
            while group := self._next():
                go_on = False
                try:
                    go_on = self._store(group)
                except BaseException as error:  # noqa: BLE001 - raised again where it ends
                    self._failure = error
                with self._lock:
                    self._count -= len(group)
                    self._bytes -= sum(one.size for one in group)
                    if not go_on:
                        self._has_ended = True
                        self._drop_waiting()
                    _open(self._room)
            if self._is_ending:
                return

    def _next(self) -> list[_Received]:
        """All that waits; with nothing, this thread's work has ended."""
        with self._lock:
            group, self._waiting = self._waiting, []
            if not group and not self._is_idle:
                self._is_idle = True
                self._call.end_work()
            return group

    def _drop_waiting(self) -> None:
        """Forget what waits. The lock is held."""
        self._count -= len(self._waiting)
        self._bytes -= sum(one.size for one in self._waiting)
        self._drop(self._waiting)
        self._waiting = []


def _answer(number: int, done: PutResult, results: bool) -> Acknowledgement:
    status, remark = done.status.value, done.remark
    if not done.status.is_stored:
        return Acknowledgement(number, status, 0, remark, is_open=done.is_open)
    if not results:
        return Acknowledgement(number, status, done.rows, remark)
    return Acknowledgement(
        number, status, done.rows, remark, done.queue_offset, done.physical_offset
    )


def _writable(block: pa.Buffer) -> U1:
    """A copy of a block: the store writes to it, and what was received may not be written to."""
    copied = np.frombuffer(pa.allocate_buffer(block.size), np.uint8)
    copied[:] = np.frombuffer(block, np.uint8)
    return copied


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def _open(gate: threading.Lock) -> None:
    if gate.locked():
        gate.release()
