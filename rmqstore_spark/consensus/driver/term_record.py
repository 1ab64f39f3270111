"""The entry with which a leader begins its term.

Until an entry of its own term is committed, a leader commits none of earlier terms. RocketMQ's
brokers take an entry for damage that is not a record. So this one is a record, of a kind that no
broker puts into a queue or an index: a message that was rolled back.
"""

from __future__ import annotations

import struct
from typing import Final

from rmqstore_spark.layout.constants import TRANSACTION_ROLLBACK_TYPE
from rmqstore_spark.layout.fields import PHYSICAL_OFFSET_AT, STORE_TIMESTAMP_AT
from rmqstore_spark.layout.record.encode import MessageFields, encode_messages

TOPIC: Final = b"rmqstore_term"
_HOST: Final = "127.0.0.1:0"
_LONG: Final = struct.Struct(">q")


def term_record(term: int, leader: str, now: int) -> bytes:
    """Return the record of a leader's first entry, without its place.

    Args:
        term: which begins.
        leader: who leads in it.
        now: milliseconds since 1970.
    """
    text = f"term {term} of {leader}".encode()
    fields = MessageFields(TOPIC, text, b"", _HOST, now, 0, 0, TRANSACTION_ROLLBACK_TYPE, 0)
    record = bytearray(encode_messages([fields], _HOST).data.tobytes())
    _LONG.pack_into(record, STORE_TIMESTAMP_AT, now)
    return bytes(record)


def placed(record: bytes, position: int) -> bytes:
    """Return a record that says at which position in the log it is."""
    return record[:PHYSICAL_OFFSET_AT] + _LONG.pack(position) + record[PHYSICAL_OFFSET_AT + 8 :]
