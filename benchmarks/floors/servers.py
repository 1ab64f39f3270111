"""Servers that receive and answer as a store process does, and do nothing in between.

    python -m benchmarks.floors.servers NAME FOLDER

prints its ports, and runs until its input ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvloop

from benchmarks.means.child import ROOT

__all__ = ["ANSWER", "APPENDED", "BLOCKS", "LENGTH", "LOOP", "SYNCED", "running"]

LOOP: Final = "loop"
"""Frames, in the one thread of an event loop, as for RocketMQ's clients."""
APPENDED: Final = "appended"
"""Frames, in a thread for each connection, as for clients of the endpoint: each is appended to a
file, and answered."""
SYNCED: Final = "synced"
"""As APPENDED, and answered when it is on the disk: those that come meanwhile are flushed together.
"""
BLOCKS: Final = "blocks"
"""As LOOP, but each frame is appended to a file, to which a thread appends what comes on another
port; the file is flushed now and then, as that of ASYNC_FLUSH is."""

LENGTH: Final = 4
ANSWER: Final = (96).to_bytes(LENGTH, "big") + bytes(96)
"""About as long as the answer to a send."""
_ROOM: Final = 4 << 20
_FILE: Final = 1 << 30
"""Bytes of a file that is there before something is written, as a segment of a log is."""
_FLUSH_S: Final = 0.5


@contextmanager
def running(name: str, folder: Path) -> Iterator[tuple[Sequence[int], int]]:
    """Run a server in a process of its own; yield its ports and its process number.

    BLOCKS has the port of its blocks before that of its frames.
    """
    command = [sys.executable, "-m", __name__, name, str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            yield [int(port) for port in process.stdout.readline().split()], process.pid
        finally:
            process.kill()


class _Frames(asyncio.Protocol):
    """Answers each frame of a connection, appended to a file before if there is one."""

    def __init__(self, file: _File | None = None) -> None:
        self._file = file
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        data = self._left + data
        at = answers = 0
        while len(data) - at >= LENGTH:
            end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")
            if end > len(data):
                break
            if self._file is not None:
                self._file.put(memoryview(data)[at:end])
            at, answers = end, answers + 1
        self._left = data[at:]
        self._transport.write(ANSWER * answers)


async def _serve_loop(file: _File | None = None) -> None:
    frames = partial(_Frames, file)
    server = await asyncio.get_running_loop().create_server(frames, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _accept(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve_one, args=(connection, serve), daemon=True).start()


def _serve_one(connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with connection, suppress(ConnectionError):  # a caller that is killed
        serve(connection)


class _File:
    """A file to which threads append, and where they wait for the disk together, if they do."""

    def __init__(self, folder: str, *, is_synced: bool) -> None:
        self._is_synced = is_synced
        self._descriptor = os.open(Path(folder, "frames"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self._descriptor, 0, _FILE)
        self._append, self._flush = threading.Lock(), threading.Lock()
        self._written = self._flushed = 0

    def put(self, data: memoryview) -> None:
        with self._append:
            os.pwrite(self._descriptor, data, self._written % (_FILE - _ROOM))
            end = self._written = self._written + len(data)
        if not self._is_synced:
            return
        with self._flush:
            if self._flushed < end:
                written = self._written
                os.fdatasync(self._descriptor)
                self._flushed = written

    def serve(self, connection: socket.socket) -> None:
        """Put and answer each frame."""
        room = memoryview(bytearray(_ROOM))
        while connection.recv_into(room[:LENGTH], 0, socket.MSG_WAITALL):
            size = int.from_bytes(room[:LENGTH], "big")
            connection.recv_into(room[:size], 0, socket.MSG_WAITALL)
            self.put(room[:size])
            connection.sendall(ANSWER)

    def serve_blocks(self, connection: socket.socket) -> None:
        """Put and answer blocks of one size."""
        room = memoryview(bytearray(_ROOM))
        while connection.recv_into(room, 0, socket.MSG_WAITALL):
            self.put(room)
            connection.sendall(ANSWER)

    def flush(self) -> None:
        """Flush it now and then."""
        while True:
            time.sleep(_FLUSH_S)
            os.fdatasync(self._descriptor)


def main(name: str, folder: str) -> None:
    """Serve; see this module."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    if name in (APPENDED, SYNCED):
        print(server.getsockname()[1], flush=True)
        _accept(server, _File(folder, is_synced=name == SYNCED).serve)
    file = None
    if name == BLOCKS:
        print(server.getsockname()[1], end=" ")
        file = _File(folder, is_synced=False)
        accept = partial(_accept, server, file.serve_blocks)
        for work in (accept, file.flush):
            threading.Thread(target=work, daemon=True).start()
    uvloop.run(_serve_loop(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
