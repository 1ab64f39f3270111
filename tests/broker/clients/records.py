"""Reads the records in answers, byte by byte."""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["StoredRecord", "read_record"]

_HEAD = struct.Struct(">iIIiiqqiqIiqIiiqi")


class StoredRecord(NamedTuple):
    """A record with hosts of IPv4, all but their ports; without its size."""

    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_address: int
    store_timestamp: int
    store_address: int
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes


def read_record(data: bytes) -> StoredRecord:
    """Read a record that fills its bytes."""
    (
        size, magic, crc, queue_id, flag, queue_offset, place, sys_flag, born, born_address, _,
        stored, store_address, _, times, prepared, length,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    assert size == len(data)
    at = _HEAD.size
    body = data[at : at + length]
    at += length
    topic = data[at + 1 : at + 1 + data[at]].decode()
    at += 1 + data[at]
    properties = data[at + 2 :]
    assert len(properties) == int.from_bytes(data[at : at + 2], "big")
    return StoredRecord(
        magic, crc, queue_id, flag, queue_offset, place, sys_flag, born, born_address, stored,
        store_address, times, prepared, body, topic, properties,
    )  # fmt: skip
