"""The other end of a replication as a plain socket, and stores of ours in both roles."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.ha.follower import LogFollower
from rmqstore_spark.ha.master import Master
from tests.support.stores.golden import load_meta
from tests.support.waiting import PATIENCE, eventually

__all__ = [
    "PlainMaster",
    "PlainSlave",
    "caught_up",
    "following",
    "frames",
    "log_bytes",
    "log_files",
    "mastering",
    "queue_files",
    "sizes_of",
]  # fmt: skip

SMALL = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 600,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "disk_max_used_space_ratio": 99,
}


def frames(log: bytes, begin: int, size: int) -> Iterator[bytes]:
    """A log as the frames of a master, from an offset on."""
    for at in range(begin, len(log), size):
        part = log[at : at + size]
        yield struct.pack(">qi", at, len(part)) + part


class PlainMaster:
    """A master of the tests: a function gets each connection and its first report.

    Attributes:
        reports: all that slaves have reported.
    """

    def __init__(self, serve: Callable[[socket.socket, int], object]) -> None:
        self._serve = serve
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.reports: list[int] = []
        self.connections = 0
        threading.Thread(target=self._run, daemon=True).start()

    def __enter__(self) -> PlainMaster:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self) -> None:
        """Break all connections."""
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                self.connections += 1
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError, struct.error):  # a slave that leaves before its report
            (first,) = struct.unpack(">q", connection.recv(8, socket.MSG_WAITALL))
            self.reports.append(first)
            reading = threading.Thread(target=self._read, args=(connection,), daemon=True)
            reading.start()
            self._serve(connection, first)
            reading.join()

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while len(data := connection.recv(8, socket.MSG_WAITALL)) == 8:
                self.reports.append(struct.unpack(">q", data)[0])


class PlainSlave:
    """A slave of the tests, which reports any offset."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)), timeout=PATIENCE)

    def __enter__(self) -> PlainSlave:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def report(self, offset: int) -> None:
        self.connection.sendall(struct.pack(">q", offset))

    def frame(self) -> tuple[int, bytes]:
        """The next frame: its offset and its bytes."""
        offset, size = struct.unpack(">qi", self._exactly(12))
        return offset, self._exactly(size)

    def is_closed(self) -> bool:
        """Whether the master closes the connection; waits for that."""
        try:
            while self.connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.connection.recv(size - len(data))
            assert part, "the master closed the connection"
            data += part
        return data


def sizes_of(folder: Path) -> dict[str, int]:
    """The sizes of a golden store, as attributes of a configuration."""
    meta = load_meta(folder)
    return {
        "mapped_file_size_commit_log": meta.commitlog_file_size,
        "mapped_file_size_consume_queue": meta.consumequeue_file_size,
        "max_hash_slot_num": meta.index_slots,
        "max_index_num": meta.index_entries,
        "disk_max_used_space_ratio": 99,
    }


@contextmanager
def mastering(path: Path, **settings: Any) -> Iterator[tuple[StoreWriter, Master]]:
    """A store that takes slaves; with a `clock`, if that is among the settings."""
    given = {"clock": settings.pop("clock")} if "clock" in settings else {}
    config = StoreConfig(**{**SMALL, "ha_listen_port": 0, **settings})
    with StoreWriter.open(path, config, **given) as store:
        master = Master(store)
        try:
            yield store, master
        finally:
            master.close()


@contextmanager
def following(
    path: Path, address: str, **settings: Any
) -> Iterator[tuple[StoreWriter, LogFollower]]:
    """A store that follows a master."""
    config = StoreConfig(
        **{**SMALL, "broker_role": "SLAVE", "ha_master_address": address, **settings}
    )
    with StoreWriter.open(path, config) as store:
        follower = LogFollower(store)
        try:
            yield store, follower
        finally:
            follower.close()


def caught_up(store: StoreWriter, end: int) -> None:
    """Wait until a follower has a log up to an offset."""
    eventually(lambda: store.replica.end == end)


def log_files(path: Path) -> dict[str, bytes]:
    """The segments of a store."""
    folder = path / "commitlog"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.isdecimal()}


def log_bytes(path: Path, begin: int, end: int) -> bytes:
    """The log of a store between two physical offsets."""
    whole = b"".join(data for _, data in sorted(log_files(path).items()))
    first = min(map(int, log_files(path)))
    return whole[begin - first : end - first]


def queue_files(path: Path) -> dict[str, bytes]:
    """The files of all queues of a store, without those that are removed meanwhile."""
    folder = path / "consumequeue"
    found = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if file.is_file():
                found[str(file.relative_to(folder))] = file.read_bytes()
    return found
