"""Write the answers to requests whose messages are stored: part of `plain`.

Upstream: SendMessageResponseHeader, RemotingCommand.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from rmqstore_spark.layout.kernel.reference.requests import BINARY
from rmqstore_spark.layout.kernel.reference.spans import I4, I8

OPAQUE, FORM, QUEUE, SIZE, ROWS = range(5)
"""What an answer needs of a request, by column; without a size, the request was odd."""


def write_answers(
    version: int, host: bytes, requests: I4, queue_offsets: I8, physical: I8
) -> list[bytes]:
    """Write the answers to requests whose messages are stored: all of each frame.

    Args:
        version: of the store process, as RocketMQ numbers them.
        host: 8 or 20 bytes, of the store.
        requests: (n, 5), as `write_sends` has filled them.
        queue_offsets, physical: where all their messages are.

    Returns:
        An answer to each request that is not odd.

    Raises:
        ValueError: the requests have another number of messages.
    """
    taken = requests.reshape(-1, 5)
    taken = taken[taken[:, SIZE] > 0]
    if taken[:, ROWS].sum() != len(physical) or (taken[:, ROWS] <= 0).any():
        raise ValueError("the arrays differ in number")
    frames, first = [], 0
    for opaque, form, queue_id, _, count in taken.tolist():
        places = physical[first : first + count].tolist()
        fields = {
            "msgId": ",".join(f"{host.hex().upper()}{place:016X}" for place in places),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offsets[first]),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if form:
            header = _binary_answer(version, opaque, fields)
        else:
            listed = ",".join(f'"{name}":"{value}"' for name, value in fields.items())
            header = (
                f'{{"code":0,"extFields":{{{listed}}},"flag":1,"language":"JAVA","opaque":{opaque},'
                f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
            ).encode()
        frames.append(struct.pack(">iI", 4 + len(header), len(header) | form << 24) + header)
        first += count
    return frames


def write_answer(
    version: int,
    host: bytes,
    opaque: int,
    form: int,
    queue_id: int,
    queue_offset: int,
    physical: int,
) -> bytes:
    """Write the answer to a request for one message, as `write_answers` does."""
    if len(host) not in (8, 20):
        raise ValueError("a host has 8 or 20 bytes")
    asked = np.array([opaque, form, queue_id, 1, 1], np.int32)
    places = np.array([[queue_offset], [physical]], np.int64)
    return write_answers(version, host, asked, *places)[0]


def _binary_answer(version: int, opaque: int, fields: Mapping[str, str]) -> bytes:
    entries = b"".join(
        struct.pack(f">H{len(name)}sI", len(name), name.encode(), len(value)) + value.encode()
        for name, value in fields.items()
    )
    return BINARY.pack(0, 0, version, opaque, 1, 0, len(entries)) + entries
