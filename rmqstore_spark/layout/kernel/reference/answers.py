"""Write the answers to requests whose messages are stored: part of `plain`.

Upstream: SendMessageResponseHeader, RemotingCommand.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from rmqstore_spark.layout.kernel.reference.requests import BINARY
from rmqstore_spark.layout.kernel.reference.spans import I4, I8, U1

ANSWER_BYTES: Final = 384
"""Bytes of an answer without its msgIds, at most."""
MSG_ID_BYTES: Final = 57
"""Bytes of a msgId, with a comma, at most."""


def write_answers(
    version: int,
    host: bytes,
    opaques: I4,
    forms: U1,
    queue_ids: I4,
    rows: I4,
    queue_offsets: I8,
    physical: I8,
    ends: I8,
    out: U1,
) -> int:
    """Write the answers to requests whose messages are stored: all of each frame.

    Args:
        version: of the store process, as RocketMQ numbers them.
        host: 8 or 20 bytes, of the store.
        opaques, forms, queue_ids, rows: n, of the requests; `rows` says how many messages each has.
        queue_offsets, physical: where all these messages are.
        ends: n, out: where each answer ends.
        out: the answers; ANSWER_BYTES for each, and MSG_ID_BYTES for each message.

    Returns:
        Bytes that were written.
    """
    at = first = 0
    requests = zip(opaques, forms, queue_ids, rows.tolist(), strict=True)
    for number, (opaque, form, queue_id, count) in enumerate(requests):
        places = physical[first : first + count].tolist()
        fields = {
            "msgId": ",".join(f"{host.hex().upper()}{place:016X}" for place in places),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offsets[first]),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if form:
            header = _binary_answer(version, int(opaque), fields)
        else:
            listed = ",".join(f'"{name}":"{value}"' for name, value in fields.items())
            header = (
                f'{{"code":0,"extFields":{{{listed}}},"flag":1,"language":"JAVA","opaque":{opaque},'
                f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
            ).encode()
        frame = struct.pack(">iI", 4 + len(header), len(header) | int(form) << 24) + header
        out[at : at + len(frame)] = memoryview(frame)
        at += len(frame)
        ends[number] = at
        first += count
    return at


def _binary_answer(version: int, opaque: int, fields: Mapping[str, str]) -> bytes:
    entries = b"".join(
        struct.pack(f">H{len(name)}sI", len(name), name.encode(), len(value)) + value.encode()
        for name, value in fields.items()
    )
    return BINARY.pack(0, 0, version, opaque, 1, 0, len(entries)) + entries
