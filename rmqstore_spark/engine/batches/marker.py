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
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.base.types import Content, WriterId, is_digest, topics_with_most_rows
from rmqstore_spark.engine.batches.staged_records import Keys, Portion, Rows
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.systems.base import HandleCache
from rmqstore_spark.layout.constants import PROPERTY_KEYS
from rmqstore_spark.layout.record.block import Route, index_hashes, read_block
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.layout.record.properties import MAP_TYPE, encode_properties
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.produce.records import Origin, record_batch

_log = logging.getLogger(__name__)

_MOST: Final = 2**63 - 1
_MOST_TIME: Final = 253_402_300_799_999  # the last millisecond of the year 9999
MARKER_TOPIC: Final = "rmq_sys_RMQSTORE_COMMIT"
MARKER_ROUTE: Final = Route(MARKER_TOPIC, 0)
_VERSION: Final = 3
_MOST_TOPICS: Final = 1000
_LONGEST: Final = 2048
"""In characters: as many as a SPIFFE id may have, the longest name in use."""


@dataclass(frozen=True)
class Committed:
    """A batch that was committed.

    Attributes:
        number: its number among its writer's batches.
        content: its content.
        bytes: bytes of its records.
        physical_offset: where its first record starts in the log.
        marker: where its marker starts in the log.
        time: storeTimestamp of its records, milliseconds; None for a marker of version 1 or 2.
        identity: the client that owns its writer; empty if clients had no certificates.
    """

    number: int
    content: Content
    bytes: int
    physical_offset: int
    marker: int
    time: int | None = None
    identity: str = ""

    @classmethod
    def of_values(
        cls, numbers: Sequence[Any], time: Any, digest: Any, topics: Any, identity: Any
    ) -> Committed:
        """Check what a file or a marker says of a commit.

        Args:
            numbers: number, rows, bytes, bytes of bodies or None, physicalOffset, marker.
            time: storeTimestamp, or None.
            digest: of its records, or None.
            topics: the rows of each topic. Those with the most are kept.
            identity: the client that owns the writer.

        Raises:
            ValueError: the values do not describe a commit.
        """
        number, rows, size, body_bytes, first, marker = numbers
        for one in (number, rows, size, 0 if body_bytes is None else body_bytes, first, marker):
            if not is_long(one):
                raise ValueError(f"{one!r:.40} is not the number of a commit")
        if time is not None and not (is_long(time) and time <= _MOST_TIME):
            raise ValueError(f"{time!r:.40} is not the time of a commit")
        if digest is not None and not is_digest(digest):
            raise ValueError(f"{digest!r:.40} is not a digest")
        if not isinstance(topics, dict) or not all(map(is_long, topics.values())):
            raise ValueError(f"{topics!r:.40} are not the rows of topics")
        if not is_identity(identity):
            raise ValueError(f"{identity!r:.40} is not an identity")
        content = Content(rows, body_bytes, digest, topics_with_most_rows(topics))
        return cls(number, content, size, first, marker, time, identity)

    def to_row(self) -> list[Any]:
        """Return its row in the file: what `of_values` takes, the numbers one by one."""
        content = self.content
        return [
            self.number, content.rows, self.bytes, content.body_bytes, self.physical_offset,
            self.marker, self.time, content.digest, dict(content.topics), self.identity,
        ]  # fmt: skip

    def __str__(self) -> str:
        content = self.content
        when = ""
        if self.time is not None:
            moment = datetime.fromtimestamp(self.time / 1000, timezone.utc)
            when = f", stored at {moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
        return f"{content}{when}, from {self.physical_offset} to its marker at {self.marker}"


def is_long(value: object) -> bool:
    """Return whether a value is a nonnegative number that fits into a long."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


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


def is_identity(value: object) -> bool:
    """Return whether a value can be an identity, the empty one included."""
    return isinstance(value, str) and len(value) <= _LONGEST and (value.isprintable())


def is_another(identity: str, owner: str) -> bool:
    """Return whether a client must not touch what another client owns.

    The empty identity is that of a client of the Unix socket, or of any client if none shows a
    certificate. It owns nothing, and may touch everything.

    Args:
        identity: the client's identity.
        owner: the identity that owns the object.
    """
    return bool(identity and owner) and identity != owner
