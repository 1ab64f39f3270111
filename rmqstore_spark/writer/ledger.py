"""Which batches have been committed: what makes a repeated commit do nothing.

A commit leaves a marker in the log, a message of topic `rmq_sys_RMQSTORE_COMMIT`, queue 0, behind
the rows of its batch and published with them. Its body is JSON:

    {"version": 1, "kind": "stream", "name": "<queryId>", "number": 7, "rows": 100, "bytes": 12345,
     "physicalOffset": 4096, "stages": ["<stageId>", ...]}

The markers are authoritative: they survive a crash with the rows, and go to replicas with the log.
`<store>/rmqstore/ledger.json` holds what markers said that may have expired since, and up to which
of them it is complete (`mark`, an offset of that queue); later ones are read from the log at open.
Where the file knows of a commit that is no longer in the log (the log was cut) the log is right.

Of each writer only the last number is kept: a lower one counts as committed too.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.durable import replace_file
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.store import Store
from rmqstore_spark.writer.failpoints import reach

__all__ = ["MARKER_TOPIC", "Committed", "Ledger", "WriterId", "marker_body"]

_log = logging.getLogger(__name__)

MARKER_TOPIC: Final = "rmq_sys_RMQSTORE_COMMIT"

_VERSION: Final = 1
_LONGEST_NAME: Final = 256
_MOST_BYTES: Final = 256 << 20  # of the file: more than all that is remembered can take
_MOST_NUMBER: Final = 2**63 - 1
_MOST: Final = {"stream": 100_000, "batch": 100_000, "once": 10_000}
_MARKER_COLUMNS: Final = ("queueOffset", "physicalOffset", "body")

Kind = Literal["stream", "batch", "once"]


@dataclass(frozen=True)
class WriterId:
    """Whose batch is committed, and which of its batches.

    Attributes:
        kind: "stream": a streaming query; "batch": an application that numbers its writes; "once":
            a write that nothing repeats but its own lost acknowledgement.
        name: queryId, txnAppId, or a name that nobody else has.
        number: batchId or txnVersion; 0 for a write of its own.
    """

    kind: Kind
    name: str
    number: int

    @classmethod
    def of_stream(cls, query_id: str, batch_id: int) -> WriterId:
        """A micro-batch of a streaming query."""
        return cls("stream", query_id, batch_id)

    @classmethod
    def of_batch(cls, txn_app_id: str, txn_version: int) -> WriterId:
        """A batch write that may be run again: its application says which one it is."""
        return cls("batch", txn_app_id, txn_version)

    @classmethod
    def of_one_write(cls) -> WriterId:
        """A batch write that is not told from any other."""
        return cls("once", uuid.uuid4().hex, 0)

    def check(self) -> None:
        """Refuse what no client of ours sends.

        Raises:
            RefusedError: an unknown kind, a name that is no printable text of 1 to 256
                characters, or a number that no long can hold.
        """
        name = self.name
        if self.kind not in _MOST:
            raise RefusedError(f"{str(self.kind)[:64]!r} is no kind of writer", "MESSAGE_ILLEGAL")
        if not _is_name(name):
            raise RefusedError(
                f"A writer's name ({name[:64]!r}...) takes 1 to {_LONGEST_NAME} printable "
                "characters.",
                "MESSAGE_ILLEGAL",
            )
        if not 0 <= self.number <= _MOST_NUMBER:
            text = f"{self.number} is no number of a batch: it must not be negative."
            raise RefusedError(text, "MESSAGE_ILLEGAL")

    def __str__(self) -> str:
        words = {"stream": "batch {} of query {}", "batch": "txnVersion {} of txnAppId {}"}
        return words.get(self.kind, "write {1}").format(self.number, self.name)


@dataclass(frozen=True)
class Committed:
    """The last batch of a writer.

    Attributes:
        number: which one.
        rows: how many.
        bytes: of their records.
        physical_offset: where the first stands in the log.
        marker: where the marker stands.
    """

    number: int
    rows: int
    bytes: int
    physical_offset: int
    marker: int


def marker_body(
    writer: WriterId, rows: int, size: int, physical_offset: int, stages: tuple[str, ...]
) -> bytes:
    """The body of a commit's marker (see the module's text)."""
    value = {
        "version": _VERSION, "kind": writer.kind, "name": writer.name, "number": writer.number,
        "rows": rows, "bytes": size, "physicalOffset": physical_offset, "stages": list(stages),
    }  # fmt: skip
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Ledger:
    """What is known of commits. Thread-safe.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._saved = False
        self._mark = 0
        self._last: dict[str, OrderedDict[str, Committed]] = {kind: OrderedDict() for kind in _MOST}

    def __len__(self) -> int:
        return sum(len(table) for table in self._last.values())

    @classmethod
    def open(cls, path: str, store: Store, log_end: int) -> Ledger:
        """Read the file, and the markers that it does not know of.

        Args:
            path: of the file; a missing or damaged one costs a look at all markers of the log.
            store: the store, recovered; its queues are complete.
            log_end: where its log ends.
        """
        ledger = cls(path)
        begin, end = _marker_range(store)
        ledger._load(log_end)
        if not begin <= ledger._mark <= end:
            ledger._mark, ledger._saved = begin, False
        for offset, place, body in _markers(store, ledger._mark, end):
            ledger._take_marker(place, body)
            ledger._mark, ledger._saved = offset + 1, False
        return ledger

    def find(self, writer: WriterId) -> Committed | None:
        """The commit because of which another one of the same batch must do nothing.

        That is the writer's last one, if its number is not below the one asked for.
        """
        with self._lock:
            last = self._last[writer.kind].get(writer.name)
        return last if last is not None and last.number >= writer.number else None

    def add(self, writer: WriterId, committed: Committed, marker_offset: int) -> None:
        """Take up a commit.

        Args:
            marker_offset: offset of its marker in the markers' queue.
        """
        with self._lock:
            self._put(writer.kind, writer.name, committed)
            self._mark = marker_offset + 1
            self._saved = False

    def save(self) -> None:
        """Write the file, durably, unless it says all this already.

        Needed before markers expire; else it only saves time at open.

        Raises:
            StoreWriteError: it could not be written.
        """
        with self._saving:
            with self._lock:
                if self._saved:
                    return
                self._saved = True
                data = self._encode()
            reach("ledger.before_write")
            try:
                replace_file(self._path, data)
            except BaseException:
                self._saved = False
                raise

    def _encode(self) -> bytes:
        writers = [
            [kind, name, c.number, c.rows, c.bytes, c.physical_offset, c.marker]
            for kind, table in self._last.items()
            for name, c in table.items()
        ]
        value = {"version": _VERSION, "mark": self._mark, "writers": writers}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def _put(self, kind: str, name: str, committed: Committed) -> None:
        table = self._last[kind]
        last = table.get(name)
        if last is None or last.number <= committed.number:
            table[name] = committed
            table.move_to_end(name)
        while len(table) > _MOST[kind]:
            table.popitem(last=False)

    def _load(self, log_end: int) -> None:
        """Take over the file, if it says nothing of what the log no longer holds."""
        try:
            with open(self._path, "rb") as file:
                value = json.loads(file.read(_MOST_BYTES))
            rows = [_writer_of(row) for row in value["writers"]]
            mark = value["mark"]
            if value["version"] != _VERSION or not _is_long(mark):
                raise ValueError("it is of another version, or has no mark")
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("%s is made anew from the markers in the log: %s", self._path, error)
            return
        kept = [row for row in rows if row[2].marker < log_end]
        for kind, name, committed in kept:
            self._put(kind, name, committed)
        # Where some were cut off, others of the same writers can stand before the mark.
        self._saved = len(kept) == len(rows)
        self._mark = mark if self._saved else -1

    def _take_marker(self, place: int, body: bytes) -> None:
        try:
            value = json.loads(body)
            first = value["physicalOffset"]
            row = [value[name] for name in ("kind", "name", "number", "rows", "bytes")]
            kind, name, committed = _writer_of([*row, first, place])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("The record at %d of the log is no marker of a commit: %r", place, error)
            return
        self._put(kind, name, committed)


def _writer_of(row: Any) -> tuple[str, str, Committed]:
    """A row of the file, checked: kind, name, and the numbers of `Committed`."""
    kind, name, *numbers = row
    if kind not in _MOST or not _is_name(name) or not all(_is_long(n) for n in numbers):
        raise ValueError(f"{row!r:.100} is no commit")
    return kind, name, Committed(*numbers)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_NUMBER


def _marker_range(store: Store) -> tuple[int, int]:
    """Least and greatest offset of the markers' queue; (0, 0) where there is none."""
    if 0 not in store.directory.topology.queues.get(MARKER_TOPIC, ()):
        return 0, 0
    queue = store.queue(MARKER_TOPIC, 0)
    return queue.min_offset, queue.max_offset


def _markers(store: Store, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Offset, place in the log and body of markers."""
    if start >= end:
        return
    options = ReadOptions(columns=_MARKER_COLUMNS)
    for batch in store.read(MARKER_TOPIC, 0, start, end, options):
        columns = [batch.column(name).to_pylist() for name in _MARKER_COLUMNS]
        yield from zip(*columns, strict=True)
