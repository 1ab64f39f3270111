"""SQLite, with a write-ahead log."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.stores.kind import Opening
from benchmarks.stores.messages import Message

__all__ = ["Sqlite"]

_SCHEMA: Final = """\
CREATE TABLE messages (
  queue INTEGER NOT NULL, position INTEGER NOT NULL, stored INTEGER NOT NULL,
  key TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (queue, position)
);
CREATE INDEX messages_key ON messages (key);
CREATE INDEX messages_stored ON messages (stored);"""


class Sqlite:
    """One file, in the process. Threads take turns with one connection: it has one writer."""

    name = "SQLite"
    keeps = True
    schema = _SCHEMA
    settings = """\
PRAGMA journal_mode=WAL
PRAGMA synchronous=FULL   (synchronous), NORMAL   (asynchronous): sqlite.org/pragma.html
PRAGMA cache_size=-262144, mmap_size=1073741824
a transaction an append; threads take turns with one connection"""

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return sqlite3.sqlite_version

    def server(self, folder: Path) -> None:  # noqa: ARG002
        return None

    def open(self, opening: Opening) -> _Sqlite:
        return _Sqlite(opening)


class _Sqlite:
    def __init__(self, opening: Opening) -> None:
        path = Path(opening.place) / "messages.db"
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if opening.sync else 'NORMAL'}")
        self._db.execute("PRAGMA cache_size=-262144")
        self._db.execute("PRAGMA mmap_size=1073741824")
        if opening.new:
            self._db.executescript(_SCHEMA)

    def append(self, batch: Sequence[Message], writer: int) -> None:  # noqa: ARG002
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", batch)
            self._db.execute("COMMIT")

    def settle(self) -> None:
        pass

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        rows = self._db.execute(
            "SELECT body FROM messages WHERE queue = ? AND position >= ? ORDER BY position LIMIT ?",
            (queue, position, most),
        )
        return [body for (body,) in rows]

    def find(self, key: str) -> list[bytes]:
        rows = self._db.execute("SELECT body FROM messages WHERE key = ?", (key,))
        return [body for (body,) in rows]

    def expire(self, before: int) -> None:
        self._db.execute("DELETE FROM messages WHERE stored < ?", (before,))
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._db.close()
