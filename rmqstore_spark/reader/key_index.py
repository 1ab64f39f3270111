"""Finds the stretches of the log that IndexFiles cover, and looks up keys in them.

An index file has no checksum, and a broker that was killed drops the files that its checkpoint does
not vouch for. So a file counts only if its header agrees with its entries, and with the records
where it begins and ends. For everything else the log itself must be read (docs/format.md,
"An IndexFile" and "Start, recovery").
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from rmqstore_spark.errors import CorruptStoreError, RmqStoreError
from rmqstore_spark.files.configfiles import Told
from rmqstore_spark.files.systems.base import Files, join
from rmqstore_spark.layout.index.format import (
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT_DTYPE,
    SLOT_SIZE,
    IndexEntries,
    IndexHeader,
    decode_entries,
    entry_position,
    follow_chain,
    slot_position,
)
from rmqstore_spark.layout.index.geometry import infer_slots, slots_match
from rmqstore_spark.layout.spans import I8
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.log.end import record_head

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_told = Told()
_MAX_READ: Final = 32 << 20  # bytes of entries in one request for all chains
_REMOTE_GAP: Final = 64 << 10

_Chain = Generator[tuple[int, int], IndexEntries, I8]


@dataclass(frozen=True)
class IndexedStretch:
    """A stretch of the log whose keys are all in one index file.

    Attributes:
        path: the index file.
        slots: number of its slots.
        begin: the beginPhyOffset of its header. The file holds nothing before it.
        start: physical offset of the first unit (`CommitLog.unit_start`) whose keys are all in this
            file, or in this file and the previous one.
        end: one past the last such unit.
        last: physical offset of the last record of the stretch; None if a broker may still add
            entries.
        edges: physical offsets of records of which the neighboring files may hold some keys.
    """

    path: str
    slots: int
    begin: int
    start: int
    end: int
    last: int | None
    edges: tuple[int, ...]

    def offsets(self, files: Files, hashes: npt.NDArray[np.int32]) -> I8:
        """Return the physical offsets that the file holds for some key hashes.

        Args:
            files: the file system of the index file.
            hashes: as `hashing.index_key_hash` returns them.

        Returns:
            Physical offsets of records, ascending, each once. Hashes collide, so the caller must
            check the keys of the records.

        Raises:
            CorruptStoreError: a chain of the file is broken, or leads out of its stretch.
        """
        wanted = np.unique(hashes)
        newest = self._newest(files, wanted)
        # Read after the slots: a broker may have added keys since the stretch was listed.
        header = IndexHeader.decode(files.read(self.path, 0, HEADER_SIZE), file=self.path)
        counted = header.next_entry
        if self.last is None:
            # A writer writes entries, then slots, then the header, and may be in between. A slot
            # that is damaged leads to an entry of another chain, or past the file's end.
            counted = max(counted, int(newest.max(initial=0)))
        gap = files.max_gap if files.is_local else _REMOTE_GAP
        chains = [
            follow_chain(key_hash, self.slots, slot, counted, max_gap=gap, file=self.path)
            for key_hash, slot in zip(wanted.tolist(), newest.tolist(), strict=True)
        ]
        found = _Walker(files, self).run(chains)
        for offsets in found:
            if (np.diff(offsets) > 0).any():
                raise CorruptStoreError("a chain of an index is out of order", file=self.path)
        every = np.unique(np.concatenate([*found, np.empty(0, np.int64)]))
        if len(every) and (
            every[0] < self.begin or (self.last is not None and every[-1] > self.last)
        ):
            raise CorruptStoreError(
                "an index entry leads outside the part of the log that the file's header states",
                file=self.path,
            )
        return every

    def _newest(self, files: Files, hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the newest entry of each hash, from its slot."""
        numbers, places = np.unique(hashes.astype(np.int64) % self.slots, return_inverse=True)
        out = np.empty(len(numbers) * SLOT_SIZE, np.uint8)
        offsets = slot_position(0) + numbers * SLOT_SIZE
        done = files.read_spans(self.path, offsets, np.full(len(numbers), SLOT_SIZE), out)
        held = out.view(SLOT_DTYPE)
        if done < len(numbers) or (held < 0).any():
            raise CorruptStoreError("a slot of an index is damaged", file=self.path)
        return held[places.ravel()].astype(np.int32)


class _Walker:
    """Follows many chains of one file in parallel: each step is one request for all of them."""

    def __init__(self, files: Files, stretch: IndexedStretch) -> None:
        self._files = files
        self._path = stretch.path
        self._entries_at = entry_position(stretch.slots, 0)
        self._found: list[I8] = []

    def run(self, chains: Sequence[_Chain]) -> list[I8]:
        """Return the offsets of each chain. The order of the chains is arbitrary."""
        active = [(chain, wanted) for chain in chains if (wanted := self._next(chain, None))]
        while active:
            going_on = []
            for group in _groups(sorted(active, key=lambda pair: pair[1])):
                for (chain, _), entries in zip(group, self._read(group), strict=True):
                    if wanted := self._next(chain, entries):
                        going_on.append((chain, wanted))
            active = going_on
        return self._found

    def _next(self, chain: _Chain, entries: IndexEntries | None) -> tuple[int, int] | None:
        """Return the entries that a chain reads next; None at its end."""
        try:
            return next(chain) if entries is None else chain.send(entries)
        except StopIteration as end:
            self._found.append(end.value)
            return None

    def _read(self, group: list[tuple[_Chain, tuple[int, int]]]) -> list[IndexEntries]:
        wanted = np.array([span for _, span in group], np.int64)
        lengths = wanted[:, 1] * ENTRY_SIZE
        out = np.empty(int(lengths.sum()), np.uint8)
        offsets = self._entries_at + wanted[:, 0] * ENTRY_SIZE
        if self._files.read_spans(self._path, offsets, lengths, out) < len(group):
            raise CorruptStoreError(
                "the index ends before an entry that one of its chains leads to", file=self._path
            )
        return [decode_entries(part) for part in np.split(out, np.cumsum(lengths)[:-1])]


def _groups(
    active: list[tuple[_Chain, tuple[int, int]]],
) -> Generator[list[tuple[_Chain, tuple[int, int]]], None, None]:
    """Group the reads of many chains into requests of limited size."""
    group: list[tuple[_Chain, tuple[int, int]]] = []
    size = 0
    for pair in active:
        length = pair[1][1] * ENTRY_SIZE
        if group and size + length > _MAX_READ:
            yield group
            group, size = [], 0
        group.append(pair)
        size += length
    if group:
        yield group


def indexed_stretches(store: Store) -> list[IndexedStretch]:
    """Return the stretches of the log that index files cover, ascending and without overlaps.

    Index files that cannot be trusted are logged and left out.
    """
    directory = store.directory
    infos, strays = directory.index_files()
    for stray in strays:
        tell_once(directory.files, stray.path, f"Skipped {stray.path}: {stray.reason}.")
    judge = _Judge(store)
    found = []
    for info in infos:
        path = join(directory.index_folder, info.name)
        try:
            stretch = judge.stretch(path, info.size)
        except FileNotFoundError:
            continue  # it expired after it was listed
        except RmqStoreError as error:
            tell_once(directory.files, path, f"Reading the log instead of an index file: {error}")
            continue
        if stretch is not None:
            found.append(stretch)
    return _apart(sorted(found, key=lambda stretch: (stretch.start, stretch.end)))


def tell_once(files: Files, path: str, text: str) -> None:
    """Log a warning of a file in `index/`, unless the process has told of that file before."""
    if _told.is_new(files, path, "damaged"):
        _log.warning("%s", text)


def _apart(found: list[IndexedStretch]) -> list[IndexedStretch]:
    """Cut each stretch where the previous one ends. Nothing is left of the copy of a file."""
    kept: list[IndexedStretch] = []
    for stretch in found:
        start = max(stretch.start, kept[-1].end if kept else 0)
        if start < stretch.end:
            kept.append(replace(stretch, start=start))
    return kept


class _Judge:
    """Decides how far the index files of a store can be trusted."""

    def __init__(self, store: Store) -> None:
        self._files = store.directory.files
        self._log: CommitLog = store.log
        self._written = store.is_being_written
        self._slots: int | None = None  # of the previous file: a broker gives all the same number
        self._vouched: int | None = None
        if not store.is_closed_cleanly and not self._written:
            checkpoint = store.checkpoint
            self._vouched = checkpoint.index_msg_timestamp if checkpoint else 0

    def stretch(self, path: str, size: int) -> IndexedStretch | None:
        """Return the stretch that a file covers; None if it covers none.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        read = partial(self._files.read, path)
        head = read(0, HEADER_SIZE)
        if self._written and len(head) < HEADER_SIZE:
            return None  # it is being made
        header = IndexHeader.decode(head, file=path)
        if header.index_count <= 1 or header.end_phy_offset < self._log.min_offset:
            return None  # it has no key yet, or all its records have expired
        if self._vouched is not None and header.end_timestamp > self._vouched:
            _log.info(
                "Reading the log instead of %s: the store was not closed cleanly, and its "
                "checkpoint does not show that this file was flushed", path,
            )  # fmt: skip
            return None
        slots = self._slots
        if slots is None or not slots_match(size, header, slots, read):
            slots = infer_slots(size, read)
        if slots is None:
            raise CorruptStoreError(
                "the header of an index file does not agree with its entries", file=path
            )
        self._slots = slots
        for _ in range(_ATTEMPTS):
            stretch = self._matched(path, header, slots)
            seen, header = header, IndexHeader.decode(read(0, HEADER_SIZE), file=path)
            if stretch is not None:
                return stretch
            if header == seen:
                break
        raise CorruptStoreError(
            "the log has other records where an index file begins or ends", file=path
        )

    def _matched(self, path: str, header: IndexHeader, slots: int) -> IndexedStretch | None:
        """Return the stretch, if the log has the first and last record that the header names."""
        log = self._log
        begin, last = header.begin_phy_offset, header.end_phy_offset
        edges = []
        start = log.min_offset
        if begin >= start:
            if self._size(begin, header.begin_timestamp) is None:
                return None
            start = log.unit_start(begin)
            edges.append(begin)
        if self._written and last >= log.file_end:
            # The log was listed before the broker wrote this record: end where the listing ends.
            return IndexedStretch(path, slots, begin, start, log.file_end, None, tuple(edges))
        size = self._size(last, header.end_timestamp)
        if size is None:
            return None
        edges.append(last)
        ends_at = None if self._written else last
        return IndexedStretch(path, slots, begin, start, last + size, ends_at, tuple(edges))

    def _size(self, offset: int, timestamp: int) -> int | None:
        """Return the size of the record at an offset; None if none was stored at that time."""
        record = record_head(self._log, offset)
        if record is None or int(record.store_timestamp[0]) != timestamp:
            return None
        return int(record.store_size[0])
