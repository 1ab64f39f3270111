"""A TCP connection that breaks: between a client and a store process, on request."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_CHUNK = 1 << 16


class BreakingProxy:
    """Passes bytes on between clients and a port of this machine, until the test breaks it.

    Args:
        port: of the store process.

    Attributes:
        port: where clients connect.
        connections: how many have been made.
        swallowed: bytes of answers that were not handed on.
        cuts: how often connections were cut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._left: dict[str, int] = {}
        self._drops = False
        self._passing = threading.Event()
        self._passing.set()
        self.connections = self.swallowed = self.cuts = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> BreakingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing it alone does not end what waits for connections
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._accepting.join()
        self.release()
        self.cut()

    @property
    def endpoint(self) -> str:
        """For clients."""
        return f"rmq://127.0.0.1:{self.port}"

    def drop_answers(self) -> None:
        """Let what comes from the store process get lost, until the next `cut`."""
        with self._lock:
            self._drops = True

    def hold(self) -> None:
        """Keep all bytes of both directions, as a network that is parted, until `release`."""
        self._passing.clear()

    def release(self) -> None:
        """Hand on what was kept, on connections that are still there, and what comes."""
        self._passing.set()

    def cut_after(self, direction: str, count: int) -> None:
        """Cut all connections when so many more bytes have gone "up" or "down"."""
        with self._lock:
            self._left = {direction: count}

    def cut(self) -> None:
        """Cut all connections at once; later ones are handed on."""
        with self._lock:
            self._drops = False
            self._left = {}
            self.cuts += 1
            doomed, self._open = self._open, set()
        for each in doomed:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.connections += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                for source, sink, direction in (
                    (client, server, "up"),
                    (server, client, "down"),
                ):
                    threading.Thread(
                        target=self._pump, args=(source, sink, direction), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._passing.wait()
                with self._lock:
                    if sink not in self._open:  # it is cut, and about to be closed
                        break
                    if direction == "down" and self._drops:
                        self.swallowed += len(data)
                        continue
                    left = self._left.get(direction)
                    is_last = left is not None and len(data) >= left
                    if left is not None:
                        data = data[:left]
                        self._left[direction] = left - len(data)
                sink.sendall(data)
                if is_last:
                    self.cut()
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
