"""Knows which batches are committed, so that a repeated commit does nothing.

A commit leaves a marker in the log (`marker`), after the rows of its batch and published with them.
A marker stands for its own number and no other. A batch is known if a marker has its writer and its
number. It must then have the content that the marker says: as many rows and bytes of bodies, and
the same digest, unless the marker is older than digests.

A writer's numbers ascend. The last number of each writer is in memory; Spark repeats no other. An
earlier one, or a writer that was evicted, is looked up among the markers in the log. A number below
the last that is not found there is refused.

The markers are authoritative: they survive a crash with the rows, and go to replicas with the log.
`<store>/rmqstore/ledger.json` holds the content of markers that may have expired since, and the
offset in their queue up to which it is complete (`mark`). Later markers are read from the log when
the store is opened. If the file lists a commit that is no longer in the log (the log was cut), the
log is right.

If clients show certificates, a writer belongs to the identity that first committed as it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import Content, WriterId, is_writer_name
from rmqstore_spark.engine.batches.marker import Committed, is_another, is_long
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.files.durable import replace_file

if TYPE_CHECKING:
    from rmqstore_spark.engine.batches.markers import Markers

_log = logging.getLogger(__name__)

_VERSION: Final = 3
_MOST_BYTES: Final = 1 << 30  # of the file: more than all entries can take
_MOST: Final = {"stream": 100_000, "batch": 100_000, "once": 10_000}


# What errors say about each kind of writer, and what to do.
_NAMED: Final = {"stream": "query id", "batch": "txnAppId", "once": "name"}
_OWN: Final = {
    "stream": "Run the query with the certificate of that client, or with a new checkpoint.",
    "batch": "Write with the certificate of that client, or under another txnAppId.",
    "once": "Run the write again.",
}
_BEHIND: Final = {
    "stream": (
        "The query's checkpoint is older than what the query has written, or two queries share "
        "one id (a copied checkpoint), or something else commits under it. Start the query "
        "with a new checkpoint, from the offsets after its last batch in the log."
    ),
    "batch": (
        "The txnVersion must ascend within a txnAppId: give the write a higher txnVersion, or "
        "a separate txnAppId."
    ),
    "once": "Run the write again.",
}
_OTHERS: Final = {
    "stream": (
        "Either another program commits under this query's id (such as a second query with a "
        "copy of its checkpoint), or the batch gave different rows when it ran again. Check "
        "the rows in the log. Then start the query with a new checkpoint: from the offsets "
        "after this batch if they are its rows, from those of this batch if they are not."
    ),
    "batch": (
        "Either two writes share this txnAppId and txnVersion, such as those to two topics in "
        "one foreachBatch, or the write gave different rows when it ran again (with atomic=false: "
        "other rows in a partition), or it ran again with another value of atomic. Give each "
        "target a txnAppId of its own, or this write a txnVersion above all that were used. Skip "
        "this write if the rows in the log are its rows."
    ),
    "once": (
        "The task gave different rows when it ran again. The rows in the log stay. Make the "
        "rows the same each time (no rand(), no clock), or write with atomic=true."
    ),
}


class Ledger:
    """The committed batches of a store. Thread-safe.

    Args:
        path: the path of the file.
        markers: the markers in the log.
    """

    def __init__(self, path: str, markers: Markers) -> None:
        self._path = path
        self._markers = markers
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._saved = False
        self._mark = 0
        self._last: dict[str, OrderedDict[str, Committed]] = {kind: OrderedDict() for kind in _MOST}

    def __len__(self) -> int:
        return sum(len(table) for table in self._last.values())

    @classmethod
    def open(cls, path: str, markers: Markers, log_end: int) -> Ledger:
        """Read the file, and the markers that it does not cover.

        Args:
            path: the path of the file. If it is missing or damaged, all markers of the log are
                read.
            markers: the markers of the recovered store, whose queues are complete.
            log_end: where its log ends.
        """
        ledger = cls(path, markers)
        ledger._load(log_end)
        ledger.catch_up()
        return ledger

    def catch_up(self) -> None:
        """Read the markers that came since: with the log before an opening, or from a master.

        Raises:
            RmqStoreError: the log cannot be read.
        """
        begin, end = self._markers.range()
        with self._lock:
            if not begin <= self._mark <= end:
                self._mark, self._saved = begin, False
            mark = self._mark
        for offset, marked in self._markers.read(mark, end):
            with self._lock:
                if marked is not None:
                    writer, committed = marked
                    self._put(writer.kind, writer.name, committed)
                self._mark, self._saved = max(self._mark, offset + 1), False

    def recall(self, writer: WriterId) -> tuple[Committed, ...]:
        """Look up in the log what is not in memory, if it is needed to decide on a commit.

        This can take a while: do not call it under the append lock.

        Returns:
            The writer's last batch in the log, and the requested one; for `find`.

        Raises:
            RmqStoreError: the log cannot be read.
        """
        with self._lock:
            table = self._last[writer.kind]
            last = table.get(writer.name)
            is_full = len(table) >= _MOST[writer.kind]
        if writer.kind == "once":
            return ()  # its name is unique: it was never here
        if last is None and not is_full:
            return ()
        if last is not None and writer.number >= last.number:
            return ()
        return self._markers.of(writer)

    def find(
        self,
        writer: WriterId,
        content: Content,
        identity: str = "",
        recalled: Sequence[Committed] = (),
    ) -> Committed | None:
        """Find the earlier commit of a batch, which makes a new one do nothing.

        Args:
            writer: identifies the batch.
            content: its content.
            identity: the identity in the client's certificate; empty if there is none.
            recalled: the result of `recall`.

        Returns:
            None if the batch has not been committed, and may be.

        Raises:
            RefusedError: the writer belongs to another client; or the number was used for something
                else, or is below the writer's last and was never seen.
        """
        with self._lock:
            last = self._last[writer.kind].get(writer.name)
        known = {one.number: one for one in recalled}
        if last is not None:
            known[last.number] = last
        if not known:
            return None
        last = known[max(known)]
        if is_another(identity, last.identity):
            raise RefusedError(
                f"{writer} cannot be committed: its {_NAMED[writer.kind]} belongs to the client "
                f"{last.identity!r}, which committed under it first; this client is "
                f"{identity!r}. {_OWN[writer.kind]}",
                PutStatus.NO_PERMISSION,
            )
        if writer.number > last.number:
            return None
        found = known.get(writer.number)
        if found is None:
            raise RefusedError(
                f"{writer} cannot be committed: {last.number} has been committed already (its "
                f"marker is at {last.marker} in the log), and the log has no marker of "
                f"{writer.number}. Nothing was committed. {_BEHIND[writer.kind]}",
                PutStatus.MESSAGE_ILLEGAL,
            )
        if not found.content.is_like(content):
            raise RefusedError(
                f"{writer} has been committed already with different content: {found} in the log. "
                f"The new commit has {content}. Nothing was committed. {_OTHERS[writer.kind]}",
                PutStatus.MESSAGE_ILLEGAL,
            )
        return found

    def add(self, writer: WriterId, committed: Committed, marker_offset: int) -> None:
        """Add a commit.

        Args:
            marker_offset: offset of its marker in the markers' queue.
        """
        with self._lock:
            self._put(writer.kind, writer.name, committed)
            self._mark = marker_offset + 1
            self._saved = False

    def save(self) -> None:
        """Write the file durably, unless it is up to date.

        This is needed before markers expire. Otherwise it only saves time when the store is opened.

        Raises:
            StoreWriteError: the file could not be written.
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
            [kind, name, *committed.to_row()]
            for kind, table in self._last.items()
            for name, committed in table.items()
        ]
        value = {"version": _VERSION, "mark": self._mark, "writers": writers}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def _put(self, kind: str, name: str, committed: Committed) -> None:
        table = self._last[kind]
        last = table.get(name)
        if last is not None and last.identity and not committed.identity:
            committed = replace(committed, identity=last.identity)
        if last is None or last.number <= committed.number:
            table[name] = committed
            table.move_to_end(name)
        while len(table) > _MOST[kind]:
            table.popitem(last=False)

    def _load(self, log_end: int) -> None:
        """Load the file, except for commits that the log no longer holds."""
        try:
            with open(self._path, "rb") as file:
                value = json.loads(file.read(_MOST_BYTES))
            take = {1: _row_of_version_1, 2: _row_of_version_2, _VERSION: _row}[value["version"]]
            rows = [take(row) for row in value["writers"]]
            mark = value["mark"]
            if not is_long(mark):
                raise ValueError("it has no mark")
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("Rebuilding %s from the markers in the log: %r", self._path, error)
            return
        kept = [row for row in rows if row[2].marker < log_end]
        for kind, name, committed in kept:
            self._put(kind, name, committed)
        # If some were cut off, other commits of the same writers can stand before the mark.
        self._saved = len(kept) == len(rows) and value["version"] == _VERSION
        self._mark = mark if len(kept) == len(rows) else -1


def _row(row: Any) -> tuple[str, str, Committed]:
    """Check a row of the file; return kind, name and commit."""
    kind, name, *numbers, time, digest, topics, identity = row
    if kind not in _MOST or not is_writer_name(name):
        raise ValueError(f"{row!r:.100} is not a commit")
    return kind, name, Committed.of_values(numbers, time, digest, topics, identity)


def _row_of_version_2(row: Any) -> tuple[str, str, Committed]:
    """Check a row of version 2, which had no time, digest and topics."""
    *values, identity = row
    return _row([*values, None, None, {}, identity])


def _row_of_version_1(row: Any) -> tuple[str, str, Committed]:
    """Check a row of version 1, which had no bytes of bodies and no identity either."""
    kind, name, number, rows, size, first, marker = row
    return _row_of_version_2([kind, name, number, rows, size, None, first, marker, ""])
