"""Reads the markers of commits in a store's log: all of them, or those of one writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_spark.base.types import WriterId
from rmqstore_spark.engine.batches.marker import (
    MARKER_TOPIC,
    Committed,
    Marked,
    marker_text,
    read_marker,
)
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.store import Store

_COLUMNS: Final = ("queueOffset", "physicalOffset", "body")
_AT_ONCE: Final = 10_000
_LOOKED_AT: Final = 1_000_000
_WRITER, _BEHIND_WRITER = b'"kind":', b',"number":'
"""Kind and name stand between these in a marker. Parsing all of it takes ten times as long."""


class Markers:
    """The markers in a store's log. Thread-safe.

    Args:
        store: the store directory.
    """

    def __init__(self, store: str) -> None:
        self._path = store
        self._looking = threading.Lock()
        # Hashes of all writers that have a marker among those searched. Most writers that are
        # looked up are new, and need no search.
        self._writers: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._writers_end = 0

    def range(self) -> tuple[int, int]:
        """Return the least offset in the markers' queue, and one past the greatest."""
        with Store.open(self._path) as store:
            return _range(store)

    def read(self, start: int, end: int) -> Iterator[tuple[int, Marked | None]]:
        """Yield offset and content of markers; None for a record that is not a marker."""
        with Store.open(self._path) as store:
            yield from _read(store, start, end)

    def of(self, writer: WriterId) -> tuple[Committed, ...]:
        """Search the newest markers for a writer's batches, one call at a time.

        Args:
            writer: identifies the batch.

        Returns:
            The writer's last batch and the requested one, if they are found.

        Raises:
            RmqStoreError: the log cannot be read.
        """
        last: Committed | None = None
        with self._looking, Store.open(self._path) as store:
            if not self._is_known(writer, store):
                return ()
            for committed in _backwards(store, writer):
                last = last or committed
                if committed.number == writer.number:
                    return last, committed
                if committed.number < writer.number:
                    break
        return () if last is None else (last,)

    def _is_known(self, writer: WriterId, store: Store) -> bool:
        """Return whether the writer may have a marker."""
        least, end = _range(store)
        start = max(self._writers_end, least, end - _LOOKED_AT)
        new = {
            hash(body[body.find(_WRITER) : body.find(_BEHIND_WRITER)])
            for batch in _batches(store, start, end)
            for body in batch["body"].to_pylist()
        }
        if new:
            self._writers = np.union1d(self._writers, np.fromiter(new, np.int64, len(new)))
        self._writers_end = max(end, self._writers_end)
        kind, name = marker_text(writer.kind), marker_text(writer.name)
        wanted = hash(_WRITER + kind + b',"name":' + name)
        at = np.searchsorted(self._writers, wanted)
        return bool(at < len(self._writers) and self._writers[at] == wanted)


def _range(store: Store) -> tuple[int, int]:
    if 0 not in store.directory.topology.queues.get(MARKER_TOPIC, ()):
        return 0, 0
    queue = store.queue(MARKER_TOPIC, 0)
    return queue.min_offset, queue.max_offset


def _backwards(store: Store, writer: WriterId) -> Iterator[Committed]:
    """Yield a writer's batches, the newest first."""
    least, end = _range(store)
    least = max(least, end - _LOOKED_AT)
    name = marker_text(writer.name)
    while least < end:
        start = max(least, end - _AT_ONCE)
        found = [marked for _, marked in _read(store, start, end, name) if marked]
        for other, committed in reversed(found):
            if (other.kind, other.name) == (writer.kind, writer.name):
                yield committed
        end = start


def _read(
    store: Store, start: int, end: int, holding: bytes = b""
) -> Iterator[tuple[int, Marked | None]]:
    """Yield markers; if `holding` is given, only those whose bodies contain it."""
    for batch in _batches(store, start, end):
        chosen = batch.filter(pc.match_substring(batch["body"], holding)) if holding else batch
        columns = [chosen[name].to_pylist() for name in _COLUMNS]
        for offset, place, body in zip(*columns, strict=True):
            yield offset, read_marker(body, place)


def _batches(store: Store, start: int, end: int) -> Iterator[pa.RecordBatch]:
    if start < end:
        yield from store.read(MARKER_TOPIC, 0, start, end, ReadOptions(columns=_COLUMNS))
