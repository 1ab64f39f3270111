"""The record that marks a commit: the last one of its block (see `ledger`), written and read.

It is a message of topic `rmq_sys_RMQSTORE_COMMIT`, queue 0. Its body is JSON:

    {"version": 2, "kind": "stream", "name": "<queryId>", "number": 7, "rows": 100, "bytes": 12345,
     "bodyBytes": 3456, "physicalOffset": 4096, "stages": ["<stageId>", ...], "identity": "client"}

Without clients' certificates there is no `identity`; in version 1 there is no `bodyBytes` either.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.handles import HandleCache
from rmqstore_spark.layout.block import Route, index_hashes, read_block
from rmqstore_spark.layout.constants import PROPERTY_KEYS
from rmqstore_spark.layout.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.store import Store
from rmqstore_spark.writer.ledger import Committed, Content, WriterId
from rmqstore_spark.writer.portion import ROW_DTYPE, Extent, Keys, Portion, Rows

__all__ = ["MARKER_TOPIC", "Marker", "Markers", "marker_body"]

_log = logging.getLogger(__name__)

MARKER_TOPIC: Final = "rmq_sys_RMQSTORE_COMMIT"

_VERSION: Final = 2
_COLUMNS: Final = ("queueOffset", "physicalOffset", "body")
_AT_ONCE: Final = 10_000
_LOOKED_AT: Final = 1_000_000

Marked = tuple[WriterId, Committed]


def marker_body(
    writer: WriterId,
    content: Content,
    size: int,
    physical_offset: int,
    stages: tuple[str, ...],
    identity: str = "",
) -> bytes:
    """The body of a commit's marker (see the module's text)."""
    value: dict[str, object] = {
        "version": _VERSION, "kind": writer.kind, "name": writer.name, "number": writer.number,
        "rows": content.rows, "bytes": size, "bodyBytes": content.body_bytes,
        "physicalOffset": physical_offset, "stages": list(stages),
    }  # fmt: skip
    if identity:
        value["identity"] = identity
    return _text(value)


class Marker:
    """One marker, as a source of a block.

    Args:
        writer: whose batch was committed; its name becomes the record's KEYS.
        body: what the marker says.
        host: the store's address, `ip:port`.
        born: bornTimestamp, milliseconds.
    """

    def __init__(self, writer: WriterId, body: bytes, host: str, born: int) -> None:
        given = {
            "topic": MARKER_TOPIC,
            "body": body,
            "properties": f"{PROPERTY_KEYS}\x01{writer.name}".encode(),
            "bornTimestamp": born,
            "bornHost": host,
            "storeHost": host,
        }
        columns = {
            name: pa.array([given.get(name, 0)], kind) for name, kind in RECORD_COLUMNS.items()
        }
        self._data = np.array(encode_records(pa.RecordBatch.from_pydict(columns)).data)
        self._block = read_block(self._data)

    @property
    def routes(self) -> Sequence[Route]:
        """The markers' queue."""
        return self._block.routes

    @property
    def portions(self) -> Sequence[Portion]:
        """The record."""
        records, rows = Extent(0, len(self._data)), Extent(0, ROW_DTYPE.itemsize)
        return (Portion(records, rows, Extent(0)),)

    def read_rows(self, _portion: Portion, _files: HandleCache[int]) -> Rows:
        """What is known of it."""
        block = self._block
        return Rows(block.sizes, block.route_of, block.queued, block.tags_code)

    def read_records(self, portion: Portion, buffer: U1, _files: HandleCache[int]) -> U1:
        """Its bytes."""
        buffer[: portion.size] = self._data
        return buffer[: portion.size]

    def read_keys(self, _portion: Portion, _files: HandleCache[int]) -> Keys:
        """What it is indexed under."""
        return Keys(*index_hashes(self._data, self._block.starts, self._block.sizes))


class Markers:
    """The markers in a store's log. Thread-safe.

    Args:
        store: the store directory.
    """

    def __init__(self, store: str) -> None:
        self._path = store
        self._looking = threading.Lock()

    def range(self) -> tuple[int, int]:
        """Least offset in the markers' queue, and one past the greatest."""
        with Store.open(self._path) as store:
            return _range(store)

    def read(self, start: int, end: int) -> Iterator[tuple[int, Marked | None]]:
        """Offset and content of markers; None for a record that is no marker."""
        if start < end:
            with Store.open(self._path) as store:
                yield from _read(store, start, end)

    def of(self, writer: WriterId) -> tuple[Committed, ...]:
        """Look among the newest markers, one call at a time, for a batch.

        Args:
            writer: whose, and which.

        Returns:
            The writer's last batch, and the one asked for, if they are there.
        """
        last: Committed | None = None
        with self._looking, Store.open(self._path) as store:
            for committed in _backwards(store, writer):
                last = last or committed
                if committed.number == writer.number:
                    return last, committed
                if committed.number < writer.number:
                    break
        return () if last is None else (last,)


def _range(store: Store) -> tuple[int, int]:
    if 0 not in store.directory.topology.queues.get(MARKER_TOPIC, ()):
        return 0, 0
    queue = store.queue(MARKER_TOPIC, 0)
    return queue.min_offset, queue.max_offset


def _backwards(store: Store, writer: WriterId) -> Iterator[Committed]:
    """A writer's batches, the newest first."""
    least, end = _range(store)
    least = max(least, end - _LOOKED_AT)
    while least < end:
        start = max(least, end - _AT_ONCE)
        found = [marked for _, marked in _read(store, start, end, _text(writer.name)) if marked]
        for other, committed in reversed(found):
            if (other.kind, other.name) == (writer.kind, writer.name):
                yield committed
        end = start


def _read(
    store: Store, start: int, end: int, holding: bytes = b""
) -> Iterator[tuple[int, Marked | None]]:
    """Markers; those alone whose bodies hold some bytes."""
    options = ReadOptions(columns=_COLUMNS)
    for batch in store.read(MARKER_TOPIC, 0, start, end, options):
        chosen = batch.filter(pc.match_substring(batch["body"], holding)) if holding else batch
        columns = [chosen[name].to_pylist() for name in _COLUMNS]
        for offset, place, body in zip(*columns, strict=True):
            yield offset, _marked(body, place)


def _marked(body: bytes, place: int) -> Marked | None:
    try:
        return _decode(body, place)
    except (ValueError, TypeError, KeyError, RecursionError, RefusedError) as error:
        _log.warning("The record at %d of the log is no marker of a commit: %r", place, error)
        return None


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(body: bytes, place: int) -> Marked:
    """What a marker says; raises whatever its content makes it raise."""
    value = json.loads(body)
    writer = WriterId(value["kind"], value["name"], value["number"])
    writer.check()
    numbers = (
        writer.number, value["rows"], value["bytes"], value.get("bodyBytes"),
        value["physicalOffset"], place,
    )  # fmt: skip
    return writer, Committed.of_numbers(numbers, value.get("identity", ""))
