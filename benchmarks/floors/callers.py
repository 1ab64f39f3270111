"""Callers that send frames and wait for answers, of a store process or of a server of `servers`.

They use sockets without any client's code, so that both ends of a comparison cost the same here.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

__all__ = [
    "call_at_fixed_times",
    "call_by_many",
    "call_by_threads",
    "call_one_by_one",
    "connected",
    "exchange",
]

_PERIOD: Final = 0.004
_LENGTH: Final = 4
_ROOM: Final = 64 << 10


def connected(port: int) -> socket.socket:
    """Return a connection that sends at once."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(connection: socket.socket, frame: bytes | memoryview) -> None:
    """Send a frame, and wait for the answer to it."""
    connection.sendall(frame)
    data = connection.recv(_ROOM)
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    while len(data) < end:
        data += connection.recv(_ROOM)


def call_one_by_one(port: int, frame: bytes, seconds: float) -> int:
    """Return how many calls one connection made, each after the answer to the one before."""
    count = 0
    with connected(port) as connection:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            exchange(connection, frame)
            count += 1
    return count


def call_by_many(port: int, frame: bytes, clients: int, seconds: float) -> int:
    """Return how many calls several connections made, all in this thread."""
    count = 0
    sockets = [connected(port) for _ in range(clients)]
    opened = {connection.fileno(): connection for connection in sockets}
    with selectors.DefaultSelector() as ready:
        for connection in opened.values():
            ready.register(connection, selectors.EVENT_READ)
            connection.sendall(frame)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for key, _ in ready.select():
                opened[key.fd].recv(_ROOM)  # answers are shorter than what is received at once
                opened[key.fd].sendall(frame)
                count += 1
    for connection in opened.values():
        connection.close()
    return count


def call_by_threads(call: Callable[[], Callable[[], object]], threads: int, seconds: float) -> int:
    """Return how many calls threads of this process made.

    Args:
        call: called in each thread, returns the function that calls once.
        threads: how many there are.
        seconds: how long they call.
    """
    counts = [0] * threads
    stop = threading.Event()

    def run(number: int) -> None:
        once = call()
        while not stop.is_set():
            once()
            counts[number] += 1

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in running:
        thread.join()
    return sum(counts)


def call_at_fixed_times(port: int, frame: bytes, seconds: float) -> float:
    """Return the p99 in seconds of calls that begin every 4 ms, with what they wait for others."""
    found = []
    with connected(port) as connection:
        due = time.perf_counter()
        until = due + seconds
        while due < until:
            time.sleep(max(due - time.perf_counter(), 0.0))
            exchange(connection, frame)
            found.append(time.perf_counter() - due)
            due += _PERIOD
    return float(np.percentile(found, 99))
