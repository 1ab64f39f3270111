"""Writes the ConsumeQueues.

See docs/format.md, "A ConsumeQueue entry" (upstream: ConsumeQueue). Queues can be rebuilt, and are
never authoritative. Entries are flushed lazily. After a crash, recovery walks the log from where
the checkpoint vouches for them. `queue_files` has their files.

`append` and the other methods that change queues belong to one thread at a time; `flush`,
`max_offset` and `ranges` may be called from any.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from rmqstore_spark.engine.dispatch.queue_files import QueueFiles
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.files.systems.base import most_open_files
from rmqstore_spark.layout.queues.format import Entries, QueueFormat
from rmqstore_spark.layout.spans import U1

_OPEN_FILES: Final = 256
_MOST_OPEN_FILES: Final = 1 << 14
_SHARE: Final = 4
"""Connections, the log and readers need the other files that the process may have open."""
_UNITS_SOUGHT = 10_000  # entries; files of units are large, and hold those of many more
_FILLED_AT_ONCE = 1 << 16  # entries


@dataclass(slots=True)
class _State:
    """The state of a queue.

    Attributes:
        min_offset: first offset whose record is still in the log.
        max_offset: one past the last entry.
        begin: first slot that a file holds; -1 if there is no file yet.
        written_end: the slot from which on nothing is written; -1 if unknown.
    """

    min_offset: int
    max_offset: int
    begin: int
    written_end: int = -1


class QueueWatcher(Protocol):
    """Wants to know when queues have grown."""

    def queue_grew(self, topic: str, queue_id: int) -> None:
        """Take note that a queue has new entries. Called by the dispatcher; must not wait."""


class ConsumeQueues:
    """All ConsumeQueues of a store.

    Args:
        store: the store directory.
        queue_format: the format of their files.
        file_size: bytes of a queue's file in a store without queues, rounded up to whole entries;
            the format's by default. Otherwise the size of the existing files is used.
        open_files: the most files that are kept open; by default a quarter of those that the
            process may have open, at least 256 and at most 16,384.
        keep_units: keep entries that point at extension units. Otherwise they get plain tagsCodes.

    Attributes:
        format: the format of their files.
        watcher: is told when a queue has grown; None: nobody is.
    """

    def __init__(
        self,
        store: str,
        queue_format: QueueFormat,
        *,
        file_size: int | None = None,
        open_files: int | None = None,
        keep_units: bool = True,
    ) -> None:
        size = queue_format.slot_from(file_size or queue_format.file_size) * queue_format.size
        folder = os.path.join(store, "consumequeue")
        self.format = queue_format
        open_files = open_files or most_open_files(_SHARE, _OPEN_FILES, _MOST_OPEN_FILES)
        self._files = QueueFiles(folder, queue_format, size, open_files)
        self._keep_units = keep_units
        self.watcher: QueueWatcher | None = None
        self._states: dict[tuple[str, int], _State] = {}
        self._sizes: Counter[int] = Counter()
        self._removing = threading.Lock()

    @property
    def file_size(self) -> int:
        """Bytes of a queue's file."""
        return self._files.size

    # ---- queues and their offsets ----------------------------------------------------------------

    def load(
        self,
        topic: str,
        queue_id: int,
        sizes: Sequence[int],
        bounds: tuple[int, int] | None,
        begin: int,
        written_end: int = -1,
    ) -> None:
        """Register a queue that the store has.

        Args:
            topic, queue_id: the queue.
            sizes: bytes of its files.
            bounds: the least offset whose record is in the log, and one past the last offset. None
                if the files are inconsistent, and the queue must be rebuilt.
            begin: the first slot that a file holds.
            written_end: the slot from which on nothing is written; -1 if unknown.
        """
        for size in sizes:
            if size % self.format.size == 0:  # else it was cut short
                self._sizes[size] += 1
                usual = self._files.size
                if (self._sizes[size], size) > (self._sizes[usual], usual):
                    self._files.size = size
        self._states[topic, queue_id] = (
            _State(0, 0, -1) if bounds is None else _State(*bounds, begin, written_end)
        )

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the queue's next entry; 0 if the queue does not exist."""
        state = self._states.get((topic, queue_id))
        return state.max_offset if state else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset whose record is in the log, as of the last `expire`."""
        state = self._states.get((topic, queue_id))
        return state.min_offset if state else 0

    def begins(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue has a file. Otherwise its next entry may have any offset."""
        return self.begin(topic, queue_id) >= 0

    def begin(self, topic: str, queue_id: int) -> int:
        """Return the first offset that the queue's files have room for; -1 if there is no file."""
        state = self._states.get((topic, queue_id))
        return state.begin if state else -1

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, route: tuple[str, int]) -> bool:
        return route in self._states

    def ranges(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Return minOffset and maxOffset of each queue, by topic and queueId."""
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for (topic, queue_id), state in list(self._states.items()):
            found.setdefault(topic, {})[queue_id] = state.min_offset, state.max_offset
        return found

    # ---- writing -------------------------------------------------------------------------------

    def append(self, topic: str, queue_id: int, entries: Entries, first_offset: int) -> None:
        """Write entries of a queue, from an offset on. Repeating it does no harm.

        Slots between the queue's end (or the beginning of its first file) and the first entry are
        filled as a broker fills them. Entries after the last one are not touched, and no longer
        count.

        Args:
            topic: a name that is safe for a folder.
            queue_id: not negative.
            entries: k, in the dtype of the format.
            first_offset: queue offset of the first.

        Raises:
            StoreWriteError: the entries could not be written; `errno` says why.
        """
        self.append_bytes(
            topic, queue_id, np.frombuffer(entries, np.uint8), len(entries), first_offset
        )

    def append_bytes(
        self, topic: str, queue_id: int, data: bytes | U1, count: int, first_offset: int
    ) -> None:
        """Write entries as `append` does.

        Args:
            topic, queue_id, first_offset: as for `append`.
            data: the bytes of the entries.
            count: how many they are.
        """
        if not count:
            return
        width = self.format.size
        state = self._states.get((topic, queue_id))
        begin = first_offset * width // self._files.size * self._files.size // width
        if state is None or not 0 <= state.begin <= begin:  # no file exists, or only later ones
            state = self._begun(topic, queue_id, state, first_offset)
        assert 0 <= state.begin <= first_offset, (
            f"entries of {topic}/{queue_id} from {first_offset} on lie before its files, which "
            f"begin at {state.begin}"
        )
        if first_offset > state.max_offset:
            self._fill(topic, queue_id, state, state.max_offset, first_offset)
        self._write(topic, queue_id, state, data, count, first_offset)
        state.max_offset = first_offset + count
        if self.watcher is not None:
            self.watcher.queue_grew(topic, queue_id)

    def reconcile(self, topic: str, queue_id: int, entries: Entries, first_offset: int) -> int:
        """Write entries as `append` does, but only if they differ from those in the file.

        Returns:
            The number of entries that differed.
        """
        state = self._states.get((topic, queue_id))
        is_within = state is not None and state.begin >= 0 and first_offset <= state.max_offset
        data = self.read_bytes(topic, queue_id, first_offset, len(entries))
        if state is not None and is_within and data == entries.tobytes():
            state.max_offset = first_offset + len(entries)
            return 0
        of_file = self._files.size // self.format.size
        here = of_file - first_offset % of_file
        if len(data) < len(entries) * self.format.size and here < len(entries):
            # A file is missing, and later ones may be there.
            edges = [0, *range(here, len(entries), of_file), len(entries)]
            return sum(
                self.reconcile(topic, queue_id, entries[begin:end], first_offset + begin)
                for begin, end in pairwise(edges)
            )
        held = self.format.decode(data)
        wanted = entries[: len(held)]
        same = held == wanted
        # An extension unit holds the same tagsCode; its address takes the tagsCode's place.
        same |= (
            self._keep_units
            & self.format.in_units(held["tagsCode"])
            & (held["physicalOffset"] == wanted["physicalOffset"])
            & (held["size"] == wanted["size"])
        )
        if state is not None and is_within and len(held) == len(entries) and same.all():
            state.max_offset = first_offset + len(entries)
            return 0
        entries = entries.copy()
        entries[: len(held)][same] = held[same]
        self.append(topic, queue_id, entries, first_offset)
        return len(entries) - int(np.count_nonzero(same))

    def read(self, topic: str, queue_id: int, first_offset: int, count: int) -> Entries:
        """Read entries from some slots, up to the first missing file."""
        return self.format.decode(self.read_bytes(topic, queue_id, first_offset, count))

    def read_bytes(
        self, topic: str, queue_id: int, first_offset: int, count: int, *, may_wait: bool = True
    ) -> bytes:
        """Read entries as `read` does, and return their bytes.

        Args:
            topic, queue_id: the queue.
            first_offset: of the first entry.
            count: most entries.
            may_wait: wait for the disk, and for other threads, if need be.

        Raises:
            BlockingIOError: it would have to wait, and may not.
        """
        width = self.format.size
        data = self._files.read(
            topic, queue_id, first_offset * width, count * width, may_wait=may_wait
        )
        return data[: len(data) // width * width]

    def flush(self) -> None:
        """Flush all entries that were written before this call, and the names of their files.

        Raises:
            StoreWriteError: the flush failed; nothing may be taken as flushed.
        """
        self._files.flush()

    def rewind(self, topic: str, queue_id: int, offset: int) -> None:
        """Set the end of a queue. `trim` wipes the entries behind it."""
        self._states[topic, queue_id].max_offset = offset

    def restart(self, topic: str, queue_id: int) -> None:
        """Remove all entries of a queue, which begins again at offset 0.

        Raises:
            StoreWriteError: an entry could not be removed.
        """
        with self._removing:
            self._files.trim(topic, queue_id, 0, 0)
            self._states[topic, queue_id] = _State(0, 0, -1)

    def trim(self) -> int:
        """Wipe the bytes behind the ends of all queues, so that they never come back.

        Returns:
            The number of wiped entries that named messages.
        """
        return sum(self._trim(*route, state) for route, state in self._states.items())

    def expire(self, topic: str, queue_id: int, log_begin: int) -> int:
        """Remove the files of a queue whose messages have all expired; the last file stays.

        The minimum offset becomes that of the first entry whose record is in the log; one past the
        last entry if there is none. (Upstream: ConsumeQueue.deleteExpiredFile, correctMinOffset.)
        May be called from any thread, beside `append`.

        Args:
            topic, queue_id: the queue.
            log_begin: physical offset of the log's first byte.

        Returns:
            The number of removed files.

        Raises:
            StoreWriteError: a file could not be removed.
        """
        with self._removing:
            state = self._states.get((topic, queue_id))
            if state is None or state.begin < 0 or state.max_offset <= state.begin:
                return 0
            return self._expire(topic, queue_id, state, log_begin)

    def first_from(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the first offset whose record lies at or past a physical offset.

        Args:
            physical_offset: at least where the log begins.

        Returns:
            Between the queue's minimum and maximum offset.
        """
        least, most = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if least == most or self._is_from(topic, queue_id, least, physical_offset):
            return least
        return bisect_left(
            range(most),
            True,
            least,
            key=lambda o: self._is_from(topic, queue_id, o, physical_offset),
        )

    def drop(self, topics: Collection[str]) -> None:
        """Remove all queues of topics, their files, and a broker's extension units for them."""
        gone = set(topics)
        with self._removing:
            for route in [route for route in self._states if route[0] in gone]:
                del self._states[route]
            self._files.drop([(topic, None) for topic in topics])

    def drop_older(self, topic: str, end: int) -> int:
        """Remove a topic's entries whose records lie before a physical offset. May be repeated.

        A queue with later entries keeps those, at their offsets. It looks as if it had begun with
        the first of them: fillers are before it in its file.

        Returns:
            The number of queues that had such entries.

        Raises:
            StoreWriteError: an entry could not be removed.
        """
        with self._removing:
            firsts = {r: self.first_from(*r, end) for r in self._states if r[0] == topic}
            older = [r for r, first in firsts.items() if first == self.max_offset(*r)]
            for route in older:
                del self._states[route]
            self._files.drop(older)
            begun = {r: self._states[r] for r in firsts.keys() - set(older)}
            begun = {r: state for r, state in begun.items() if state.min_offset < firsts[r]}
            for route, state in begun.items():
                self._expire(*route, state, end)
                self._fill(*route, state, state.begin, state.min_offset, over=True)
        return len(older) + len(begun)

    def close(self) -> None:
        """Close all files, without flushing them."""
        self._files.close()

    # ---- parts ---------------------------------------------------------------------------------

    def _begun(self, topic: str, queue_id: int, state: _State | None, first_offset: int) -> _State:
        """Let a queue, of which no earlier file exists, begin with the file of an offset."""
        if state is None:
            self._files.make_folder(topic, queue_id)
            state = self._states[topic, queue_id] = _State(first_offset, 0, -1)
        begin = self.format.slot_from(self._files.begin(first_offset * self.format.size))
        state.begin = state.max_offset = begin
        state.min_offset = first_offset
        state.written_end = -1
        return state

    def _is_from(self, topic: str, queue_id: int, offset: int, physical_offset: int) -> bool:
        entry = self.read(topic, queue_id, offset, 1)
        if not len(entry) or self.format.is_filler(entry)[0]:
            return False
        return int(entry["physicalOffset"][0]) >= physical_offset

    def _expire(self, topic: str, queue_id: int, state: _State, log_begin: int) -> int:
        state.min_offset = self.first_from(topic, queue_id, log_begin)
        last_kept = min(state.min_offset, state.max_offset - 1) * self.format.size
        kept = self._files.begin(last_kept)
        gone = [start for start in self._files.starts(topic, queue_id) if start < kept]
        for start in gone:
            self._files.remove(topic, queue_id, start)
            reach("expiry.after_queue_file")
        if gone:
            state.begin = max(state.begin, self.format.slot(kept))
        assert state.begin <= state.min_offset <= state.max_offset, (
            f"{topic}/{queue_id} holds {state.min_offset} to {state.max_offset}, and its files "
            f"begin at {state.begin}"
        )
        return len(gone) + self._expire_units(topic, queue_id, state)

    def _expire_units(self, topic: str, queue_id: int, state: _State) -> int:
        """Remove the files of extension units before those of the first messages in the log."""
        starts = self._files.starts(topic, queue_id, units=True)
        if len(starts) < 2:
            return 0
        entries = self.read(topic, queue_id, state.min_offset, _UNITS_SOUGHT)
        codes = entries["tagsCode"].astype(np.int64)
        with_units = codes[self.format.in_units(codes)]
        if not len(with_units):
            return 0
        least = int(self.format.unit_offsets(with_units[:1])[0])
        gone = [start for start, end in pairwise(starts) if end <= least]
        for start in gone:
            self._files.remove(topic, queue_id, start, units=True)
        return len(gone)

    def _fill(
        self,
        topic: str,
        queue_id: int,
        state: _State,
        at: int,
        end: int,
        *,
        over: bool = False,
    ) -> None:
        """Write fillers from an offset to another, if need be over what is written there."""
        while at < end:
            count = min(end - at, _FILLED_AT_ONCE)
            filled = self.format.fillers(count)
            if not over:
                held = self.read(topic, queue_id, at, count)
                kept = np.flatnonzero(self.format.is_written(held))  # as those of damaged records
                filled[kept] = held[kept]
            data = np.frombuffer(filled, np.uint8)
            self._write(topic, queue_id, state, data, count, at)
            at += count

    def _write(
        self,
        topic: str,
        queue_id: int,
        state: _State,
        data: bytes | U1,
        count: int,
        first_offset: int,
    ) -> None:
        if state.written_end >= 0:
            state.written_end = max(state.written_end, first_offset + count)
        self._files.write(topic, queue_id, data, first_offset * self.format.size)

    def _trim(self, topic: str, queue_id: int, state: _State) -> int:
        if state.written_end == state.max_offset:
            return 0
        end = state.max_offset if state.begin >= 0 else 0
        width = self.format.size
        return self._files.trim(topic, queue_id, state.begin * width, end * width)
