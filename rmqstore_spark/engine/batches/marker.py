"""The marker of a commit: the last record of its block (see `ledger`).

It is a message of topic `rmq_sys_RMQSTORE_COMMIT`, queue 0. Its body is JSON:

    {"version": 3, "kind": "stream", "name": "<queryId>", "number": 7, "rows": 100, "bytes": 12345,
     "bodyBytes": 3456, "physicalOffset": 4096, "storeTimestamp": 1700000000000,
     "digest": "<32 hexadecimal digits>", "topics": {"orders": 100}, "stages": ["<stageId>", ...],
     "identity": "client"}

Without client certificates there is no `identity`. Version 2 has no `storeTimestamp`, `digest` and
`topics`, version 1 no `bodyBytes` either.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.base.types import Content, WriterId, topics_with_most_rows
from rmqstore_spark.engine.batches.committed import Committed
from rmqstore_spark.engine.batches.staged_records import Keys, Portion, Rows
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.base import HandleCache
from rmqstore_spark.layout.constants import PROPERTY_KEYS
from rmqstore_spark.layout.record.block import Route, index_hashes, read_block
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.properties import MAP_TYPE, encode_properties
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import Origin, record_batch

_log = logging.getLogger(__name__)

MARKER_TOPIC: Final = "rmq_sys_RMQSTORE_COMMIT"

_VERSION: Final = 3
_MOST_TOPICS: Final = 1000

Marked = tuple[WriterId, Committed]
"""The content of a marker."""


def marker_body(
    writer: WriterId,
    content: Content,
    size: int,
    physical_offset: int,
    time: int,
    stages: tuple[str, ...],
    identity: str = "",
) -> bytes:
    """Return the body of a commit's marker (see the module's text).

    Args:
        content: of the batch. Of its topics, the marker names the thousand with the most rows.
        time: storeTimestamp of the records, milliseconds.
    """
    value: dict[str, object] = {
        "version": _VERSION, "kind": writer.kind, "name": writer.name, "number": writer.number,
        "rows": content.rows, "bytes": size, "bodyBytes": content.body_bytes,
        "physicalOffset": physical_offset, "storeTimestamp": time, "digest": content.digest,
        "topics": topics_with_most_rows(content.topics, _MOST_TOPICS), "stages": list(stages),
    }  # fmt: skip
    if identity:
        value["identity"] = identity
    return marker_text(value)


def marker_text(value: object) -> bytes:
    """Format JSON as in a marker's body."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read_marker(body: bytes, place: int) -> Marked | None:
    """Read a marker's body. If it is invalid, log that and return None.

    Args:
        body: the body of the record.
        place: physical offset of the record.
    """
    try:
        return _decode(body, place)
    except (ValueError, TypeError, KeyError, RecursionError, RefusedError) as error:
        _log.warning(
            "The record at physical offset %d is not the marker of a commit: %r", place, error
        )
        return None


def _decode(body: bytes, place: int) -> Marked:
    """Decode a marker. Raises whatever its content makes it raise."""
    value = json.loads(body)
    writer = WriterId(value["kind"], value["name"], value["number"])
    writer.check()
    numbers = (
        writer.number, value["rows"], value["bytes"], value.get("bodyBytes"),
        value["physicalOffset"], place,
    )  # fmt: skip
    since_version_3 = value.get("storeTimestamp"), value.get("digest"), value.get("topics", {})
    return writer, Committed.of_values(numbers, *since_version_3, value.get("identity", ""))


class Marker:
    """A marker as a source of a block.

    Args:
        writer: identifies the batch; its name becomes the record's KEYS.
        body: the body of the marker.
        host: the store's address, `ip:port`.
        born: bornTimestamp, milliseconds.
    """

    def __init__(self, writer: WriterId, body: bytes, host: str, born: int) -> None:
        given = {
            "topic": pa.array([MARKER_TOPIC]),
            "body": pa.array([body], pa.binary()),
            "properties": encode_properties(pa.array([[(PROPERTY_KEYS, writer.name)]], MAP_TYPE)),
        }
        batch = record_batch(given, Origin(born, host), host)
        self._data = np.array(encode_records(batch).data)
        self._block = read_block(self._data)

    @property
    def routes(self) -> Sequence[Route]:
        """The markers' queue."""
        return self._block.routes

    @property
    def portions(self) -> Sequence[Portion]:
        """The record, as one portion."""
        return (self,)

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return len(self._data)

    @property
    def count(self) -> int:
        """One record."""
        return 1

    def read_rows(self, _files: HandleCache[int]) -> Rows:
        """Return its size, queue and tags code."""
        block = self._block
        return Rows(block.sizes, block.route_of, block.queued, block.tags_code)

    def read_records(self, _buffer: U1, _files: HandleCache[int]) -> U1:
        """Return its bytes."""
        return self._data

    def read_keys(self, _files: HandleCache[int]) -> Keys:
        """Return its index keys."""
        return Keys(*index_hashes(self._data, self._block.starts, self._block.sizes))
