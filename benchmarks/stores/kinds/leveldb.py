"""LevelDB, through plyvel."""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = ["LevelDb"]


class LevelDb:
    """A log-structured merge tree, in the process."""

    name = "LevelDB"
    keeps = True
    schema = SCHEMA
    settings = """\
lru_cache_size=256 MiB, bloom_filter_bits=10   (doc/index.md), write_buffer_size=4 MiB (default)
write(sync=True) or write(sync=False); a batch an append
expiry: each queue from its beginning; then compact_range, which gives the space back"""

    def missing(self) -> str:
        return package_missing("plyvel")

    def version(self) -> str:
        plyvel = package("plyvel")
        return f"{plyvel.__leveldb_version__}, plyvel {plyvel.__version__}"

    def server(self, folder: Path) -> None:  # noqa: ARG002
        return None

    def open(self, opening: Opening) -> _LevelDb:
        return _LevelDb(opening)


class _LevelDb:
    def __init__(self, opening: Opening) -> None:
        self._db: Any = package("plyvel").DB(
            f"{opening.place}/leveldb", create_if_missing=opening.new,
            lru_cache_size=256 << 20, bloom_filter_bits=10,
        )  # fmt: skip
        self._sync, self._queues = opening.sync, opening.queues

    def append(self, batch: Sequence[Message], writer: int) -> None:  # noqa: ARG002
        changes = self._db.write_batch(sync=self._sync)
        for each in batch:
            key, value, index = entry(each)
            changes.put(key, value)
            changes.put(index, b"")
        changes.write()

    def settle(self) -> None:
        pass

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        bodies = []
        begin, end = message_key(queue, position), message_key(queue + 1, 0)
        with self._db.iterator(start=begin, stop=end, include_key=False) as found:
            for value in found:
                bodies.append(split(value))
                if len(bodies) == most:
                    break
        return bodies

    def find(self, key: str) -> list[bytes]:
        with self._db.iterator(prefix=key_begin(key), include_value=False) as found:
            return [split(self._db.get(place(each))) for each in found]

    def expire(self, before: int) -> None:
        for queue in range(self._queues):
            changes = self._db.write_batch()
            begin, end = message_key(queue, 0), message_key(queue + 1, 0)
            with self._db.iterator(start=begin, stop=end) as found:
                for key, value in found:
                    index = stored_before(value, before)
                    if index is None:
                        break
                    changes.delete(key)
                    changes.delete(index + key[1:])
            changes.write()
        self._db.compact_range()

    def close(self) -> None:
        self._db.close()
