"""PostgreSQL, through psycopg, with a server in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any, Final

from benchmarks.stores.kind import Opening, Server, package, package_missing
from benchmarks.stores.kinds.server_process import ServerProcess, run_as
from benchmarks.stores.messages import FIRST, SPAN, Message

__all__ = ["PostgreSql"]

_USER: Final = "postgres"
_PARTS: Final = 8
_PART: Final = SPAN // _PARTS
_TABLE: Final = """\
CREATE TABLE messages (
  queue integer NOT NULL, position bigint NOT NULL, stored bigint NOT NULL,
  message_key text NOT NULL, body bytea NOT NULL, PRIMARY KEY (queue, position, stored)
) PARTITION BY RANGE (stored);
CREATE INDEX ON messages (message_key);"""
_TYPES: Final = ("int4", "int8", "int8", "text", "bytea")


class PostgreSql:
    """A server; partitions by time, as its manual advises for data that expires."""

    name = "PostgreSQL"
    keeps = True
    schema = f"""{_TABLE}
-- {_PARTS} partitions of an hour, and a default one; expiry drops partitions"""
    settings = """\
shared_buffers=25 % of memory   (manual, 20.4.1), max_wal_size=4GB   (14.4.6), fsync=on
synchronous_commit=on or off   (30.4)
COPY in binary form for an append of many messages   (14.4.2)
a prepared INSERT that commits itself for one
ANALYZE after a load   (14.4.8)"""

    def missing(self) -> str:
        if not _program("postgres"):
            return "no PostgreSQL server; Debian: apt-get install postgresql"
        return package_missing("psycopg")

    def version(self) -> str:
        text = subprocess.run([_program("postgres"), "--version"], capture_output=True, text=True)
        return f"{text.stdout.split()[2]}, psycopg {package('psycopg').__version__}"

    def server(self, folder: Path) -> Server:
        def make() -> None:
            command = [_program("initdb"), "-D", str(folder), "-U", "bench", "-A", "trust"]
            command += ["--no-sync", "-E", "UTF8", "--locale=C"]
            subprocess.run(command, check=True, capture_output=True, cwd="/", **run_as(_USER))

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        settings = {
            "listen_addresses": "", "shared_buffers": f"{memory // 4}MB", "max_wal_size": "4GB",
            "fsync": "on",
        }  # fmt: skip

        def command(place: str) -> list[str]:
            options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
            return [_program("postgres"), "-D", str(folder), "-k", place, *options]

        def ask(place: str) -> None:
            with _connect(place) as connection:
                connection.execute("SELECT 1")

        error = package("psycopg").OperationalError
        return ServerProcess(folder, _USER, signal.SIGINT, make, command, ask, error)

    def open(self, opening: Opening) -> _PostgreSql:
        return _PostgreSql(opening)


class _PostgreSql:
    def __init__(self, opening: Opening) -> None:
        self._connections = [_connect(opening.place) for _ in range(opening.writers)]
        self._db = db = self._connections[0]
        self._new = opening.new
        if opening.new:
            db.execute("DROP TABLE IF EXISTS messages")
            db.execute(_TABLE)
            for number in range(_PARTS):
                begin = FIRST + number * _PART
                db.execute(
                    f"CREATE TABLE messages_{number} PARTITION OF messages "
                    f"FOR VALUES FROM ({begin}) TO ({begin + _PART})"
                )
            db.execute("CREATE TABLE messages_rest PARTITION OF messages DEFAULT")
        for each in self._connections:
            each.execute(f"SET synchronous_commit = {'on' if opening.sync else 'off'}")

    def append(self, batch: Sequence[Message], writer: int) -> None:
        db = self._connections[writer]
        if len(batch) == 1:  # committed by itself: one round trip
            insert = "INSERT INTO messages VALUES (%s, %s, %s, %s, %s)"
            db.execute(insert, batch[0], prepare=True)
            return
        with db.cursor() as cursor, cursor.copy("COPY messages FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(_TYPES)
            for each in batch:
                copy.write_row(each)

    def settle(self) -> None:
        pass

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        rows = self._db.execute(
            "SELECT body FROM messages WHERE queue = %s AND position >= %s "
            "ORDER BY position LIMIT %s",
            (queue, position, most), prepare=True, binary=True,
        )  # fmt: skip
        return [body for (body,) in rows]

    def find(self, key: str) -> list[bytes]:
        rows = self._db.execute(
            "SELECT body FROM messages WHERE message_key = %s", (key,), prepare=True, binary=True
        )
        return [body for (body,) in rows]

    def expire(self, before: int) -> None:
        for number in range(_PARTS):
            if FIRST + (number + 1) * _PART <= before:
                self._db.execute(f"DROP TABLE messages_{number}")

    def close(self) -> None:
        if self._new:
            self._db.execute("ANALYZE messages")
        for each in self._connections:
            each.close()


def _connect(place: str) -> Any:
    return package("psycopg").connect(host=place, user="bench", dbname="postgres", autocommit=True)


def _program(name: str) -> str:
    """Return the path of a program of the newest server that Debian's packages installed."""
    return max(glob(f"/usr/lib/postgresql/*/bin/{name}"), default="")
