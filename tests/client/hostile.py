"""A server that answers with what only an attacker, or a damaged process, sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rmqstore_spark.remoting.codec.command import Command, decode_header
from rmqstore_spark.remoting.codec.frames import HEAD_BYTES, frame_lengths
from tests.support.waiting import PATIENCE

__all__ = ["Answering", "hostile"]

Answering = Callable[[socket.socket, Command, threading.Event], None]
"""Gets a connection, the header of its first request, and an event that ends it."""


@contextmanager
def hostile(
    answering: Answering, wrap: Callable[[socket.socket], socket.socket] | None = None
) -> Iterator[str]:
    """Serve connections; the address is the value of the context.

    Args:
        answering: what each of them meets, in a thread of its own.
        wrap: encrypts a connection.
    """
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    threads = []

    def serve(accepted: socket.socket) -> None:
        with suppress(OSError), wrap(accepted) if wrap else accepted as connection:
            data = connection.recv(1 << 16)
            form, header, _ = frame_lengths(memoryview(data), 0, 1 << 31)
            asked = decode_header(form, data[HEAD_BYTES : HEAD_BYTES + header])
            answering(connection, asked, ended)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    threads.append(threading.Thread(target=accept, daemon=True))
    threads[-1].start()
    try:
        yield "127.0.0.1:{1}".format(*listening.getsockname())
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in threads:
            thread.join(PATIENCE)
