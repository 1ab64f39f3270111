"""Makes UNIQ_KEY, the id that a producer gives a message, for whole columns at a time.

    address 4 or 16 | process id 2 | instance 4 | milliseconds of this month 4 | counter 2

in upper-case hex: 32 characters, 56 with an IPv6 address. Upstream: `MessageClientIDSetter`, where
the instance is the hash code of a class loader, a number that differs from process to process.

A row that Spark writes gets the same id when it is written again, of the form of IPv6:

    hash of the write and partition 16 | row 6 | 0 4 | 0 2

Its time is the beginning of the month: the row can be written again later.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import own_address

_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_HEX_PAIRS: Final = np.stack([np.repeat(_HEX, 16), np.tile(_HEX, 16)], axis=1).reshape(-1)
_PAIRS: Final = np.ascontiguousarray(_HEX_PAIRS).view(np.uint16)
_TAIL_BYTES: Final = 6
_COUNTER_BITS: Final = 16
_HASH_BYTES: Final = 16
_ROW_BYTES: Final = 6
_ZEROS: Final = 6


def hex_columns(head: bytes, tails: U1) -> pa.StringArray:
    """Return n texts: the same head, and a tail each.

    Args:
        head: bytes.
        tails: n rows of bytes.
    """
    count = len(tails)
    first = 2 * len(head)
    width = first + 2 * tails.shape[1]
    data = np.empty((count, width), np.uint8)
    data[:, :first] = np.frombuffer(head.hex().upper().encode(), np.uint8)
    data[:, first:] = _PAIRS[tails].view(np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


class UniqKeys:
    """Makes ids that no other process and no other call makes. Thread-safe.

    Forked processes, such as Spark's workers, do not share an instance: each makes its own.

    Args:
        address: 4 or 16 bytes; by default this machine's, or, as in RocketMQ, four bytes of the
            clock if it has none.
        process_id: of which the low 16 bits are used; by default this process's.
        instance: 4 bytes; random by default.
        clock: returns milliseconds since 1970.
    """

    def __init__(
        self,
        address: bytes | None = None,
        process_id: int | None = None,
        instance: bytes | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0
        host = address or own_address() or struct.pack(">q", clock())[4:]
        process = os.getpid() if process_id is None else process_id
        self._head = host + (process & 0xFFFF).to_bytes(2, "big") + (instance or os.urandom(4))

    def take(self, count: int) -> pa.StringArray:
        """Make `count` ids, ascending.

        The counter starts at 0 in each millisecond and carries into the next one, so that ids
        differ however fast they are made. (RocketMQ's counter runs on, and wraps.)
        """
        serial = self._serials(count).astype(">u8").view(np.uint8).reshape(count, 8)
        return hex_columns(self._head, serial[:, 8 - _TAIL_BYTES :])

    def _serials(self, count: int) -> npt.NDArray[np.int64]:
        """Return the milliseconds of this month and the counter, as one 48-bit number each."""
        now = self._clock()
        since = (now - _month_begin(now)) & 0xFFFFFFFF
        with self._lock:
            first = since << _COUNTER_BITS
            # If the clock stops or goes back, the ids continue; a new month starts over.
            if self._next > first and self._next - first < 1 << 40:
                first = self._next
            self._next = first + count
        return np.arange(first, first + count, dtype=np.int64) & ((1 << 48) - 1)


def _month_begin(now: int) -> int:
    """Return when the month of `now` began, in milliseconds, on this machine's calendar."""
    local = time.localtime(now // 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000


class RowKeys:
    """Makes the ids of the rows of a partition, one after the other.

    Args:
        name: of the write and the partition, among all.
    """

    def __init__(self, name: str) -> None:
        self._head = blake2b(name.encode(), digest_size=_HASH_BYTES).digest()
        self._next = 0

    def take(self, count: int) -> pa.StringArray:
        """Make the ids of the next `count` rows."""
        serial = np.arange(self._next, self._next + count, dtype=">u8").view(np.uint8)
        self._next += count
        rows = serial.reshape(count, 8)[:, 8 - _ROW_BYTES :]
        tail = np.zeros((count, _ROW_BYTES + _ZEROS), np.uint8)
        tail[:, :_ROW_BYTES] = rows
        return hex_columns(self._head, tail)
