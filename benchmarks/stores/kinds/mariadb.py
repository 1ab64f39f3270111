"""MariaDB, through its own connector, with a server in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.stores.kind import Opening, Server, package, package_missing
from benchmarks.stores.kinds.server_process import ServerProcess, run_as
from benchmarks.stores.messages import FIRST, SPAN, Message

__all__ = ["MariaDb"]

_USER: Final = "mysql"
_PARTS: Final = 8
_PART: Final = SPAN // _PARTS
_TABLE: Final = """\
CREATE TABLE messages (
  queue INT NOT NULL, position BIGINT NOT NULL, stored BIGINT NOT NULL,
  message_key VARCHAR(64) CHARACTER SET ascii NOT NULL, body VARBINARY(4096) NOT NULL,
  PRIMARY KEY (queue, position, stored), INDEX (message_key)
) ENGINE=InnoDB PARTITION BY RANGE (stored)"""
_SOCKET: Final = "mariadb.sock"


class MariaDb:
    """A server with InnoDB; partitions by time, as its manual advises for data that expires."""

    name = "MariaDB"
    keeps = True
    schema = f"""{_TABLE}
-- {_PARTS} partitions of an hour, and one for later ones; expiry drops partitions"""
    settings = """\
innodb_buffer_pool_size=25 % of memory, innodb_log_file_size=1G   (InnoDB System Variables)
innodb_flush_log_at_trx_commit=1 or 2, innodb_doublewrite=ON, no binary log
executemany of the connector: one bulk command a batch, in a transaction
autocommit for an append of one message
ANALYZE TABLE after a load"""

    def missing(self) -> str:
        if not shutil.which("mariadbd") or not shutil.which("mariadb-install-db"):
            return "no MariaDB server; Debian: apt-get install mariadb-server libmariadb-dev"
        return package_missing("mariadb")

    def version(self) -> str:
        text = subprocess.run(["mariadbd", "--version"], capture_output=True, text=True).stdout
        return f"{text.split('Ver ')[1].split('-')[0]}, connector {package('mariadb').__version__}"

    def server(self, folder: Path) -> Server:
        def make() -> None:
            command = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}"]
            command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
            subprocess.run(command, check=True, capture_output=True, cwd="/", **run_as(_USER))

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20

        def command(place: str) -> list[str]:
            return [
                "mariadbd", "--no-defaults", f"--datadir={folder}", f"--socket={place}/{_SOCKET}",
                f"--pid-file={place}/pid", "--skip-networking", "--innodb-log-file-size=1G",
                f"--innodb-buffer-pool-size={memory // 4}M", "--innodb-doublewrite=ON",
            ]  # fmt: skip

        def ask(place: str) -> None:
            with _connect(place, "") as connection:
                connection.cursor().execute("SELECT 1")

        error = package("mariadb").Error
        return ServerProcess(folder, _USER, signal.SIGTERM, make, command, ask, error)

    def open(self, opening: Opening) -> _MariaDb:
        return _MariaDb(opening)


class _MariaDb:
    def __init__(self, opening: Opening) -> None:
        self._new = opening.new
        with _connect(opening.place, "") as db, db.cursor() as cursor:
            cursor.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit={1 if opening.sync else 2}")
            if opening.new:
                cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
                cursor.execute("DROP TABLE IF EXISTS bench.messages")
                cursor.execute("USE bench")
                parts = [
                    f"PARTITION p{number} VALUES LESS THAN ({FIRST + (number + 1) * _PART})"
                    for number in range(_PARTS)
                ]
                rest = "PARTITION rest VALUES LESS THAN MAXVALUE"
                cursor.execute(f"{_TABLE} ({', '.join([*parts, rest])})")
        self._connections = [_connect(opening.place, "bench") for _ in range(opening.writers)]
        self._cursors = [each.cursor() for each in self._connections]
        self._cursor = self._connections[0].cursor(prepared=True)

    def append(self, batch: Sequence[Message], writer: int) -> None:
        cursor, insert = self._cursors[writer], "INSERT INTO messages VALUES (?, ?, ?, ?, ?)"
        connection, is_alone = self._connections[writer], len(batch) == 1
        if connection.autocommit != is_alone:
            connection.autocommit = is_alone
        if is_alone:
            cursor.execute(insert, tuple(batch[0]))
        else:
            cursor.executemany(insert, [tuple(each) for each in batch])
            connection.commit()

    def settle(self) -> None:
        pass

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        return self._bodies(
            "SELECT body FROM messages WHERE queue = ? AND position >= ? ORDER BY position LIMIT ?",
            (queue, position, most),
        )

    def find(self, key: str) -> list[bytes]:
        return self._bodies("SELECT body FROM messages WHERE message_key = ?", (key,))

    def _bodies(self, query: str, values: tuple[object, ...]) -> list[bytes]:
        self._cursor.execute(query, values)
        return [bytes(body) for (body,) in self._cursor.fetchall()]

    def expire(self, before: int) -> None:
        parts = [f"p{number}" for number in range(_PARTS) if FIRST + (number + 1) * _PART <= before]
        self._cursors[0].execute(f"ALTER TABLE messages DROP PARTITION {', '.join(parts)}")

    def close(self) -> None:
        if self._new:
            self._cursors[0].execute("ANALYZE TABLE messages")
            self._cursors[0].fetchall()
        for each in self._connections:
            each.close()


def _connect(place: str, database: str) -> Any:
    return package("mariadb").connect(
        unix_socket=f"{place}/{_SOCKET}", user="root", database=database or None
    )
