"""RocksDB, through rocksdict."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.stores.kind import Opening, package, package_missing
from benchmarks.stores.kinds.key_value import (
    SCHEMA,
    entry,
    key_begin,
    message_key,
    place,
    split,
    stored_before,
)
from benchmarks.stores.messages import Message

__all__ = ["RocksDb"]


class RocksDb:
    """A log-structured merge tree, in the process."""

    name = "RocksDB"
    keeps = True
    schema = SCHEMA
    settings = """\
level_compaction_dynamic_level_bytes, max_background_jobs=2, bytes_per_sync=1 MiB, block cache of
256 MiB, blocks of 16 KiB, bloom filter of 10 bits, format_version=5, cached index and filter blocks
pinned for level 0   (wiki: Setup Options and Basic Tuning)
WriteOptions.sync true or false; a batch an append
expiry: DeleteRange for each queue, deletions of index entries; then compaction of all"""

    def missing(self) -> str:
        return package_missing("rocksdict")

    def version(self) -> str:
        return f"of rocksdict {version('rocksdict')}"

    def server(self, folder: Path) -> None:  # noqa: ARG002
        return None

    def open(self, opening: Opening) -> _RocksDb:
        return _RocksDb(opening)


class _RocksDb:
    def __init__(self, opening: Opening) -> None:
        self._package: Any = package("rocksdict")
        options = self._package.Options(raw_mode=True)
        options.create_if_missing(opening.new)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_max_background_jobs(2)
        options.set_bytes_per_sync(1 << 20)
        blocks = self._package.BlockBasedOptions()
        blocks.set_block_cache(self._package.Cache(256 << 20))
        blocks.set_block_size(16 << 10)
        blocks.set_bloom_filter(10, False)
        blocks.set_format_version(5)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options.set_block_based_table_factory(blocks)
        self._db: Any = self._package.Rdict(f"{opening.place}/rocksdb", options)
        self._how = self._package.WriteOptions()
        self._how.sync = opening.sync
        self._queues = opening.queues

    def append(self, batch: Sequence[Message], writer: int) -> None:  # noqa: ARG002
        changes = self._package.WriteBatch(raw_mode=True)
        for each in batch:
            key, value, index = entry(each)
            changes.put(key, value)
            changes.put(index, b"")
        self._db.write(changes, self._how)

    def settle(self) -> None:
        pass

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        bodies: list[bytes] = []
        end = message_key(queue + 1, 0)
        for key, value in self._db.items(from_key=message_key(queue, position)):
            if key >= end or len(bodies) == most:
                break
            bodies.append(split(value))
        return bodies

    def find(self, key: str) -> list[bytes]:
        begin, places = key_begin(key), []
        for found in self._db.keys(from_key=begin):
            if not found.startswith(begin):
                break
            places.append(place(found))
        return [split(self._db[each]) for each in places]

    def expire(self, before: int) -> None:
        for queue in range(self._queues):
            changes = self._package.WriteBatch(raw_mode=True)
            begin = message_key(queue, 0)
            end, last = message_key(queue + 1, 0), b""
            for key, value in self._db.items(from_key=begin):
                index = stored_before(value, before) if key < end else None
                if index is None:
                    break
                changes.delete(index + key[1:])
                last = key
            if last:
                changes.delete_range(begin, last + b"\0")
                self._db.write(changes, self._how)
        self._db.flush()
        self._db.compact_range(None, None)

    def close(self) -> None:
        self._db.close()
