"""The record that marks a commit: the last one of its block (see `ledger`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rmqstore_spark.files.handles import HandleCache
from rmqstore_spark.layout.block import Route, index_hashes, read_block
from rmqstore_spark.layout.constants import PROPERTY_KEYS
from rmqstore_spark.layout.encode import RECORD_COLUMNS, encode_records
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.writer.ledger import MARKER_TOPIC, WriterId
from rmqstore_spark.writer.portion import ROW_DTYPE, Extent, Keys, Portion, Rows

__all__ = ["Marker"]


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
