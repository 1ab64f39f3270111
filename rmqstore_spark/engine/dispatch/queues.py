"""Writes the ConsumeQueues.

    consumequeue/{topic}/{queueId}/{20 digits}      files of one size, named by byte offset

See docs/format.md, "A ConsumeQueue entry" (upstream: ConsumeQueue). Queues can be rebuilt, and are
never authoritative. Entries are flushed lazily. After a crash, recovery walks the log from where
the checkpoint vouches for them. The files are created at full length, and sparse.

`append` and the other methods that change queues belong to one thread at a time; `flush`,
`max_offset` and `ranges` may be called from any.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import (
    FILE_MODE,
    add_folder,
    explained,
    make_folder,
    sync_file,
    sync_folder,
    write_all,
)
from rmqstore_spark.files.handles import HandleCache
from rmqstore_spark.files.holes import written_end
from rmqstore_spark.files.log_folders import segment_start
from rmqstore_spark.layout.constants import is_safe_folder_name
from rmqstore_spark.layout.consumequeue import ENTRY_DTYPE, ENTRY_SIZE, filler_entries, written_mask
from rmqstore_spark.layout.consumequeue_ext import is_ext_address

__all__ = ["DEFAULT_FILE_SIZE", "ConsumeQueues", "Entries"]

Entries = npt.NDArray[np.void]

DEFAULT_FILE_SIZE = 300_000 * ENTRY_SIZE
"""The default of a broker's `mappedFileSizeConsumeQueue`."""

_OPEN_FILES = 256
_BLOCK = 1 << 20


@dataclass
class _State:
    """The state of a queue.

    Attributes:
        min_offset: first offset whose record is still in the log.
        max_offset: one past the last entry.
        begin: first slot that a file holds; -1 if there is no file yet.
        written_end: the slot from which on nothing is written; -1 if unknown.
        file: the file written last, and the byte of the queue at which it starts.
    """

    min_offset: int
    max_offset: int
    begin: int
    written_end: int = -1
    file: tuple[str, int] = ("", -1)


class ConsumeQueues:
    """All ConsumeQueues of a store.

    Args:
        store: the store directory.
        file_size: bytes of a queue's file in a store without queues. Otherwise the size of the
            existing files is used.
        open_files: the most files that are kept open.
        keep_units: keep entries that point at extension units. Otherwise they get plain tagsCodes.
    """

    def __init__(
        self,
        store: str,
        *,
        file_size: int = DEFAULT_FILE_SIZE,
        open_files: int = _OPEN_FILES,
        keep_units: bool = True,
    ) -> None:
        self.folder = os.path.join(store, "consumequeue")
        self.file_size = file_size
        self._keep_units = keep_units
        self._states: dict[tuple[str, int], _State] = {}
        self._handles: HandleCache[int] = HandleCache(os.close, open_files)
        self._sizes: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._new_folders: set[str] = set()

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
        self._sizes.update(size for size in sizes if size % ENTRY_SIZE == 0)  # else truncated
        if self._sizes:
            self.file_size = max(self._sizes, key=lambda size: (self._sizes[size], size))
        state = _State(0, 0, -1)
        if bounds is not None:
            state = _State(*bounds, begin, written_end)
        self._states[topic, queue_id] = state

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the queue's next entry; 0 if the queue does not exist."""
        state = self._states.get((topic, queue_id))
        return state.max_offset if state else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset whose record was in the log when the store was opened."""
        state = self._states.get((topic, queue_id))
        return state.min_offset if state else 0

    def begins(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue has a file. Otherwise its next entry may have any offset."""
        return self.begin(topic, queue_id) >= 0

    def begin(self, topic: str, queue_id: int) -> int:
        """Return the first offset that the queue's files have room for; -1 if there is no file."""
        state = self._states.get((topic, queue_id))
        return state.begin if state else -1

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
            entries: k, ENTRY_DTYPE.
            first_offset: queue offset of the first.

        Raises:
            StoreWriteError: the entries could not be written; `errno` says why.
        """
        if not len(entries):
            return
        with self._lock:
            state = self._state(topic, queue_id, first_offset)
            if first_offset > state.max_offset:
                self._fill(topic, queue_id, state, first_offset)
            self._write(topic, queue_id, state, entries.view(np.uint8), first_offset)
            state.max_offset = first_offset + len(entries)

    def reconcile(self, topic: str, queue_id: int, entries: Entries, first_offset: int) -> int:
        """Write entries as `append` does, but only if they differ from those in the file.

        Returns:
            The number of entries that differed.
        """
        state = self._states.get((topic, queue_id))
        is_within = state is not None and state.begin >= 0 and first_offset <= state.max_offset
        data = self._read(topic, queue_id, first_offset, len(entries))
        if state is not None and is_within and data == entries.tobytes():
            state.max_offset = first_offset + len(entries)
            return 0
        held = np.frombuffer(data, ENTRY_DTYPE)
        wanted = entries[: len(held)]
        same = held == wanted
        # An extension unit holds the same tagsCode; its address takes the tagsCode's place.
        same |= (
            self._keep_units
            & is_ext_address(held["tagsCode"])
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
        return np.frombuffer(self._read(topic, queue_id, first_offset, count), ENTRY_DTYPE)

    def _read(self, topic: str, queue_id: int, first_offset: int, count: int) -> bytes:
        parts = []
        at, left = first_offset * ENTRY_SIZE, count * ENTRY_SIZE
        while left > 0:
            start, within = self._split(at)
            try:
                handle = self._open(self._path(topic, queue_id, start), make=False)
            except FileNotFoundError:
                break
            part = os.pread(handle, min(left, self.file_size - within), within)
            if not part:
                break
            parts.append(part)
            at, left = at + len(part), left - len(part)
        data = b"".join(parts)
        return data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]

    def flush(self) -> None:
        """Flush all entries that were written before this call, and the names of their files.

        Raises:
            StoreWriteError: the flush failed; nothing may be taken as flushed.
        """
        with self._lock:
            paths, self._dirty = self._dirty, set()
            folders, self._new_folders = self._new_folders, set()
        try:
            for path in sorted(paths):
                _unless_gone(sync_file, path)
            for folder in sorted(folders):
                _unless_gone(sync_folder, folder)
        except BaseException:
            with self._lock:
                self._dirty |= paths
                self._new_folders |= folders
            raise

    def rewind(self, topic: str, queue_id: int, offset: int) -> None:
        """Set the end of a queue. `trim` wipes the entries behind it."""
        self._states[topic, queue_id].max_offset = offset

    def trim(self) -> int:
        """Wipe the bytes behind the ends of all queues, so that they never come back.

        Returns:
            The number of wiped entries that named messages.
        """
        with self._lock:
            return sum(self._trim(*route, state) for route, state in self._states.items())

    def drop(self, topic: str) -> None:
        """Remove a topic's queues and their files, and a broker's extension units for it."""
        with self._lock:
            self._handles.close()
            for route in [route for route in self._states if route[0] == topic]:
                del self._states[route]
            for kind in (self.folder, f"{self.folder}_ext"):
                folder = os.path.join(kind, _checked(topic))
                with explained(folder, "removed"), suppress(FileNotFoundError):
                    shutil.rmtree(folder)
                if os.path.isdir(kind):
                    sync_folder(kind)

    def close(self) -> None:
        """Close all files, without flushing them."""
        with self._lock:
            self._handles.close()

    # ---- parts ---------------------------------------------------------------------------------

    def _state(self, topic: str, queue_id: int, first_offset: int) -> _State:
        state = self._states.get((topic, queue_id))
        if state is None:
            self._make_folder(topic, queue_id)
            state = self._states[topic, queue_id] = _State(first_offset, 0, -1)
        begin = -(-self._split(first_offset * ENTRY_SIZE)[0] // ENTRY_SIZE)
        if not 0 <= state.begin <= begin:  # no file exists, or only later ones
            state.begin = state.max_offset = begin
            state.min_offset = first_offset
            state.written_end = -1
        return state

    def _make_folder(self, topic: str, queue_id: int) -> None:
        """Create a queue's folder. The next flush makes its name durable, with all other new ones.

        Until then no checkpoint vouches for the queue, and recovery rebuilds it.
        """
        make_folder(self.folder)
        of_topic = os.path.join(self.folder, _checked(topic))
        for above, path in ((self.folder, of_topic), (of_topic, f"{of_topic}/{queue_id}")):
            if add_folder(path):
                self._new_folders.add(above)

    def _fill(self, topic: str, queue_id: int, state: _State, first_offset: int) -> None:
        at = state.max_offset
        while at < first_offset:
            count = min(first_offset - at, _BLOCK // ENTRY_SIZE)
            filled = np.frombuffer(filler_entries(count), ENTRY_DTYPE).copy()
            held = self.read(topic, queue_id, at, count)
            kept = np.flatnonzero(written_mask(held))  # such as entries of damaged records
            filled[kept] = held[kept]
            self._write(topic, queue_id, state, filled.view(np.uint8), at)
            at += count

    def _write(
        self,
        topic: str,
        queue_id: int,
        state: _State,
        data: npt.NDArray[np.uint8],
        first_offset: int,
    ) -> None:
        at = first_offset * ENTRY_SIZE
        if state.written_end >= 0:
            state.written_end = max(state.written_end, (at + len(data)) // ENTRY_SIZE)
        while len(data):
            start, within = self._split(at)
            if state.file[1] != start:
                state.file = self._path(topic, queue_id, start), start
            path, _ = state.file
            part = data[: self.file_size - within]
            self._dirty.add(path)
            with explained(path, "written"):
                write_all(self._open(path, make=True), part, within)
            data, at = data[len(part) :], at + len(part)

    def _split(self, at: int) -> tuple[int, int]:
        """Return the start of the file that holds a byte of the queue, and its offset in there."""
        return at // self.file_size * self.file_size, at % self.file_size

    def _path(self, topic: str, queue_id: int, start: int) -> str:
        return os.path.join(self.folder, _checked(topic), str(queue_id), f"{start:020}")

    def _open(self, path: str, *, make: bool) -> int:
        return self._handles.get(path, self._make if make else _open_existing)

    def _make(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            if os.fstat(descriptor).st_size < self.file_size:
                os.ftruncate(descriptor, self.file_size)
                self._new_folders.add(os.path.dirname(path))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _trim(self, topic: str, queue_id: int, state: _State) -> int:
        if state.written_end == state.max_offset:
            return 0
        folder = os.path.dirname(self._path(topic, queue_id, 0))
        end = state.max_offset * ENTRY_SIZE if state.begin >= 0 else 0
        wiped = 0
        starts = [segment_start(name) for name in os.listdir(folder)]
        for start in sorted(start for start in starts if start is not None):
            path = os.path.join(folder, f"{start:020}")
            if start + self.file_size <= state.begin * ENTRY_SIZE:
                self._remove(path)  # left from before the queue was rebuilt
                continue
            if start + self.file_size <= end:
                continue
            wiped += self._wipe(path, max(0, end - start))
            if start > end or (start == end and start != state.begin * ENTRY_SIZE):
                self._remove(path)
        return wiped

    def _remove(self, path: str) -> None:
        self._handles.drop(path)
        with explained(path, "removed"):
            os.unlink(path)
        self._dirty.discard(path)
        self._new_folders.add(os.path.dirname(path))

    def _wipe(self, path: str, within: int) -> int:
        """Zero a file from a byte on. Return the number of entries that were written there."""
        last = written_end(path, within)
        handle = self._open(path, make=True)  # lengthens a file that is too short
        wiped, end = 0, -(-(last or 0) // ENTRY_SIZE) * ENTRY_SIZE  # an entry can end in zeros
        with explained(path, "wiped"):
            while within < end:
                count = min(_BLOCK // ENTRY_SIZE * ENTRY_SIZE, end - within)
                data = os.pread(handle, count, within)
                if not data:
                    break
                raw = np.frombuffer(data, np.uint8)
                whole = raw[: len(raw) // ENTRY_SIZE * ENTRY_SIZE].view(ENTRY_DTYPE)
                wiped += int(np.count_nonzero(written_mask(whole)))
                write_all(handle, np.zeros_like(raw), within)
                self._dirty.add(path)
                within += len(raw)
        return wiped


def _checked(topic: str) -> str:
    if not is_safe_folder_name(topic):
        raise StoreWriteError(
            f"topic name {topic!r} cannot be the name of a folder: the topic has no queue on disk."
        )
    return topic


def _open_existing(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _unless_gone(sync: Callable[[str], None], path: str) -> None:
    """Flush a file or folder, unless its topic was deleted in the meantime."""
    try:
        sync(path)
    except StoreWriteError as error:
        if error.errno != errno.ENOENT:
            raise
