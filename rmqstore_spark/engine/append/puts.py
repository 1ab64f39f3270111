"""Handles puts, from a block to its outcome: appends each, and waits for many at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final, Protocol

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.append.appender import Appender, SinglePlace, Stored
from rmqstore_spark.engine.append.commit import Commit, HeldUpError
from rmqstore_spark.engine.append.durability import Durability
from rmqstore_spark.engine.append.group_commit import (
    GroupCommit,
    append_together,
    is_single,
    settle_all,
)
from rmqstore_spark.engine.append.later_puts import Awaits, LaterPuts
from rmqstore_spark.engine.append.member_durability import MemberDurability
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.counters import Failures, Histogram
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.errors import BlockError, RefusedError, StoreWriteError
from rmqstore_spark.layout.record.block import Block, read_block
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.layout.spans import U1

_FEW: Final = 4
"""Records that cost less alone than as a block."""


class _Checks(Protocol):
    """Checks blocks: an `Admission`, or that of half messages."""

    def check(self, data: U1) -> Block:
        """Return the block to store."""
        ...


class _Appends(Protocol):
    """Appends blocks: an `Appender`, or that of half messages."""

    @property
    def commit(self) -> Commit | None:
        """The commit that writes its block, if there is one."""
        ...

    def append(self, block: Block, *, patient: bool = True) -> Stored:
        """Append the records of a checked block; see `Appender.append`."""
        ...


class Singles:
    """Appends records that are not appended as blocks, because each is alone. Thread-safe.

    Args:
        admission: checks the store's state and records.
        appender: appends them.
    """

    def __init__(self, admission: Admission, appender: Appender) -> None:
        self._admission = admission
        self._appender = appender

    def check(self, data: U1) -> SingleRecord | None:
        """Return the record to store; see `Admission.check_single`."""
        return self._admission.check_single(data if data.flags.writeable else data.copy())

    def append(self, record: SingleRecord) -> SinglePlace | None:
        """Check and append a record that this process has written; see `append_checked`."""
        self._admission.check_written(record.route)
        return self._appender.append_single(record)

    def append_checked(self, record: SingleRecord) -> SinglePlace | None:
        """Append a record if nothing is in its way; see `Appender.append_single`."""
        return self._appender.append_single(record)


class Puts:
    """Stores blocks of encoded records. Thread-safe.

    Args:
        config: the store's configuration.
        admission: checks the store's state and blocks.
        appender: appends them to the log.
        durability: waits for the disk and for slaves.

    Attributes:
        later: puts whose outcome is told later; None if the store is not a member of a group.
        singles: appends single records; None: as blocks.
    """

    def __init__(
        self,
        config: StoreConfig,
        admission: _Checks,
        appender: _Appends,
        durability: Durability,
        singles: Singles | None = None,
    ) -> None:
        self._singles = singles
        self._admission = admission
        self._appender = appender
        self._durability = durability
        self._host = config.store_host
        self._lock = threading.Lock()
        self._messages = self._bytes = self._batch_bytes = 0
        self._latency = Histogram()
        self._failures = Failures()
        self.later = (
            LaterPuts(durability, self._settle_later)
            if isinstance(durability, MemberDurability)
            else None
        )
        patience = config.os_page_cache_busy_time_out_mills / 1000
        self._group_commit = GroupCommit(self._append, self._settle, self._is_held_up, patience)

    def put(
        self,
        data: U1,
        *,
        wait: bool = True,
        units: Sequence[int] | None = None,
        patient: bool = True,
    ) -> PutResult:
        """Store a block; see `StoreWriter.put`.

        Args:
            data, wait, units: as there.
            patient: wait for a commit to the same queues.

        Raises:
            HeldUpError: there is one, and the caller is not patient.
        """
        begin = time.monotonic()
        if wait and is_single(data):
            result = self._group_commit.put(data, patient=patient)
        else:
            result = self._append(data, units, patient=patient)
            if wait:
                result = self._settle(result)
        return self._counted(result, begin)

    def put_block(
        self,
        checked: Callable[[], Block],
        *,
        patient: bool = True,
        later: Awaits | None = None,
    ) -> PutResult:
        """Store a block that a function checks and returns, or refuses as `Admission` does.

        Args:
            checked: the function.
            patient: wait for a commit to the same queues.
            later: takes the outcome of a put that is PUT_OK here. Only with `LaterPuts`.

        Raises:
            HeldUpError: there is one, and the caller is not patient.
        """
        begin = time.monotonic()
        result = self._appended(checked, patient)
        if later is not None and result.ok:
            assert self.later is not None, "puts are settled at once"
            self.later.add(result, begin, later)
            return result
        return self._counted(self._settle(result), begin)

    def _settle_later(self, result: PutResult, since: float) -> PutResult:
        return self._counted(self._settle(result, since), since)

    def _counted(self, result: PutResult, begin: float) -> PutResult:
        self._failures.count(result.status)
        if result.rows:
            self._latency.observe(time.monotonic() - begin)
        return result

    def put_single(self, record: SingleRecord) -> SinglePlace | PutResult | None:
        """Store a record that this process has written, if nothing is in its way.

        Returns:
            Its place, if the outcome is PUT_OK, or another outcome; None if nothing was done, and
            `put_block` is to be asked.
        """
        if self._singles is None:
            return None
        begin = time.monotonic()
        try:
            place = self._singles.append(record)
        except RefusedError as error:
            result = _refused(error)
            self._failures.count(result.status)
            return result
        if place is None:
            return None
        self.count(1, len(record.data))
        found: SinglePlace | PutResult = place
        if self._durability.awaits:
            settled = self._settle(self._placed(place))
            if not settled.ok:
                self._failures.count(settled.status)
                found = settled
        self._latency.observe(time.monotonic() - begin)
        return found

    def put_all(self, blocks: Sequence[U1], *, are_units: bool = False) -> list[PutResult]:
        """Store blocks one after the other; see `StoreWriter.put_all`."""
        begin = time.monotonic()
        return self._settled_all(list(self._append_in_order(blocks, are_units)), begin)

    def put_turn(self, blocks: Sequence[U1]) -> list[PutResult | None]:
        """Store records that have come together, and wait for the disk once.

        Args:
            blocks: n, for which `is_single` holds.

        Returns:
            n outcomes; None for a record of which nothing is done, because it would wait for a
            commit or for other processes.
        """
        if self._durability.awaits_others:
            return [None] * len(blocks)
        begin = time.monotonic()
        appended = self._appended_together(blocks)
        done = [result for result in appended if result is not None]
        outcomes = iter(self._settled_all(done, begin))
        return [None if result is None else next(outcomes) for result in appended]

    def _settled_all(self, appended: list[PutResult], begin: float) -> list[PutResult]:
        results = settle_all(self._settle, appended)
        took = time.monotonic() - begin
        for result in results:
            self._failures.count(result.status)
            if result.rows:
                self._latency.observe(took)
        return results

    def _appended_together(self, blocks: Sequence[U1]) -> list[PutResult | None]:
        """Append records: many as one block, and few, or those of which one is wrong, alone."""
        if len(blocks) > _FEW:
            try:
                result = self._append(np.concatenate(blocks), patient=False)
            except HeldUpError:
                return [None] * len(blocks)
            if result.status.is_stored or result.status.is_transient:
                return [result.of_row(row) for row in range(len(blocks))]
        found: list[PutResult | None] = []
        for block in blocks:
            try:
                found.append(self._append(block, patient=False))
            except HeldUpError:
                found.append(None)
        return found

    def settle(self, result: PutResult) -> PutResult:
        """Wait for the disk and slaves, as configured; return the result after that."""
        settled = self._settle(result)
        if result.ok:
            self._failures.count(settled.status)
        return settled

    def _settle(self, result: PutResult, since: float | None = None) -> PutResult:
        if result.status is not PutStatus.PUT_OK:
            return result
        try:
            lacking = self._durability.await_put(result.end_offset, result.term, since)
        except StoreWriteError as error:
            return result.with_status(
                PutStatus.SERVICE_NOT_AVAILABLE,
                "Until the store is reopened, it is unknown whether the messages are in the "
                f"log: {error}",
                is_open=True,
            )
        if lacking is None:
            return result
        return result.with_status(lacking.status, lacking.remark, is_open=lacking.is_open)

    @property
    def messages(self) -> int:
        """How many messages were stored."""
        return self._messages

    def stats(self) -> dict[str, Any]:
        """Return metrics as JSON values."""
        return {
            "putMessages": self._messages,
            "putBytes": self._bytes,
            "putLatency": self._latency.to_json(),
            "putFailures": self._failures.to_json(),
        }

    def _append_in_order(self, blocks: Sequence[U1], are_units: bool) -> Iterator[PutResult]:
        append = partial(self._append, is_unit=are_units)
        for single, group in groupby(blocks, is_single):
            for result in (
                append_together(self._append, list(group)) if single else map(append, group)
            ):
                yield result
                if result.status.is_transient:
                    return

    def _append(
        self,
        data: U1,
        units: Sequence[int] | None = None,
        *,
        is_unit: bool = False,
        patient: bool = True,
    ) -> PutResult:
        """Append a block without waiting for the disk."""
        if self._singles is not None and units is None and is_single(data):
            result = self._appended_single(self._singles, data)
            if result is not None:
                return result

        def checked() -> Block:
            block = self._admission.check(data if data.flags.writeable else data.copy())
            ends = [len(block)] if is_unit else units
            if ends is None:
                return block
            return replace(block, unit_ends=np.cumsum(ends, dtype=np.int64))

        return self._appended(checked, patient)

    def _appended_single(self, singles: Singles, data: U1) -> PutResult | None:
        """Append a record; None if nothing was done, and it is to be appended as a block."""
        try:
            record = singles.check(data)
            place = None if record is None else singles.append_checked(record)
        except RefusedError as error:
            return _refused(error)
        if place is None:
            return None
        self.count(1, len(data))
        return self._placed(place)

    def _placed(self, place: SinglePlace) -> PutResult:
        return PutResult(
            PutStatus.PUT_OK,
            1,
            np.array([place.physical_offset], np.int64),
            np.array([place.queue_offset], np.int64),
            end_offset=place.end_offset,
            store_host=self._host,
        )

    def _appended(self, checked: Callable[[], Block], patient: bool) -> PutResult:
        """Append a block; see `put_block`."""
        try:
            block = checked()
            stored = self._appender.append(block, patient=patient)
        except BlockError as error:
            return PutResult(PutStatus(error.status), remark=str(error))
        except RefusedError as error:
            return _refused(error)
        self.count(len(block), len(block.data))
        return PutResult(
            PutStatus.PUT_OK,
            len(block),
            stored.physical_offset,
            stored.queue_offset,
            end_offset=stored.end_offset,
            store_host=self._host,
            term=stored.term,
        )

    def _is_held_up(self, data: U1) -> bool:
        commit = self._appender.commit
        if commit is None:
            return False
        try:
            return commit.holds_up(read_block(data).routes)
        except BlockError:
            return False  # it is refused soon

    @property
    def bytes(self) -> int:
        """Bytes of the messages that were put, without those of batches."""
        with self._lock:
            return self._bytes - self._batch_bytes

    def count_batch(self, messages: int, size: int) -> None:
        """Count the messages of a batch that was committed, and their bytes."""
        with self._lock:
            self._batch_bytes += size
            self._messages += messages
            self._bytes += size

    def count(self, messages: int, size: int) -> None:
        """Count messages that are in the log, and their bytes."""
        with self._lock:
            self._messages += messages
            self._bytes += size


def _refused(error: RefusedError) -> PutResult:
    remark = str(error.args[0])
    return PutResult(PutStatus(error.status), remark=remark, is_open=error.is_open)
