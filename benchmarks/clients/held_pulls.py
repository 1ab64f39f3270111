"""What pulls that wait for messages cost a store process."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Final

import psutil

from benchmarks.clients.brokers import QUEUES
from benchmarks.clients.rounds import count_of, seconds_of
from benchmarks.report.figures import Figure, met
from rmqstore_spark.embedding import EmbeddedStore, Setting
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.server.system import allow_many_files
from tests.broker.broker import message, pull
from tests.support.processes.ports import free_port

__all__ = ["held_figures"]

_PULLS: Final = 10_000
_OTHER_FILES: Final = 1_000
"""Files that this process has open beside its connections, at most."""
_HOLD_MS: Final = 60_000
_WAITS_AND_SUBSCRIBES: Final = 6
_SETTLE: Final = 3.0
"""Seconds until the store process has done what the pulls ask for, and nothing is left but them."""
_MEASURED: Final = 10.0
_PATIENCE: Final = 60.0
_PIECE: Final = 1 << 16
_AIM_CPU: Final = 0.02
_AIM_MEMORY: Final = 100_000_000

_SECTION: Final = "Pulls that wait at a store process"


def held_figures(folder: Path) -> list[Figure]:
    """Hold pulls of all queues of a topic, each with a connection of its own if files allow it.

    Then a message to each queue answers all of them, which shows that they were held.
    """
    allow_many_files()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES
    pulls = count_of(_PULLS)
    count = min(pulls, most)
    port = free_port()
    settings: dict[str, Setting] = {
        "clients": "all", "vipListenPort": 0, "waitTimeMillsInSendQueue": 60_000,
    }  # fmt: skip
    store = EmbeddedStore(folder / "held", port=port, settings=settings)
    with store, ExitStack() as ends:
        process = psutil.Process(store.pid)
        sender = ends.enter_context(_connected(port))
        _send_to_all(sender)
        time.sleep(_SETTLE)
        idle, before = _cores(process), process.memory_info().rss
        held = [ends.enter_context(_connected(port)) for _ in range(count)]
        for number, connection in zip(range(pulls), cycle(held), strict=False):
            connection.sendall(encode_frame(_pull(number)))
        time.sleep(_SETTLE)
        busy, after = _cores(process), process.memory_info().rss
        _send_to_all(sender)
        _await_all(held, pulls)
    name = f"{pulls:,} pulls held, {count:,} connections"
    return [
        Figure(
            _SECTION, f"{name}: CPU", f"{busy:.2%} of a core", "none", f"{idle:.2%} of a core",
            f"{busy - idle:+.2%}", f"under {_AIM_CPU:+.0%}", met(busy - idle < _AIM_CPU),
        ),
        Figure(
            _SECTION, f"{name}: memory", f"{after / 1e6:.0f} MB", "none", f"{before / 1e6:.0f} MB",
            f"{(after - before) / 1e6:+.0f} MB", f"under {_AIM_MEMORY / 1e6:+.0f} MB",
            met(after - before < _AIM_MEMORY),
        ),
    ]  # fmt: skip


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), _PATIENCE)


def _pull(number: int) -> Command:
    """Return a pull from behind the only message of a queue."""
    fields = {"sysFlag": str(_WAITS_AND_SUBSCRIBES), "suspendTimeoutMillis": str(_HOLD_MS)}
    request = pull(1, queue=number % QUEUES, **fields)
    request.opaque = number
    return request


def _send_to_all(sender: socket.socket) -> None:
    """Send a message to each queue, and wait until all are stored."""
    reader = FrameReader()
    for queue in range(QUEUES):
        sender.sendall(encode_frame(message(b"x" * 100, queue=queue, d=str(QUEUES))))
        answers: list[Command] = []
        while not answers:
            answers = _received(sender, reader)
        if answers[0].code != ResponseCode.SUCCESS:
            raise SystemExit(f"a message was not stored: {answers[0].remark}")


def _await_all(held: Sequence[socket.socket], pulls: int) -> None:
    """Wait until all pulls have their message."""
    until = time.monotonic() + _PATIENCE
    with selectors.DefaultSelector() as selector:
        for connection in held:
            selector.register(connection, selectors.EVENT_READ, (connection, FrameReader()))
        while pulls > 0:
            if time.monotonic() > until:
                raise SystemExit(f"{pulls} pulls were not answered")
            for key, _ in selector.select(1.0):
                for answer in _received(*key.data):
                    if answer.code != ResponseCode.SUCCESS:
                        raise SystemExit(f"a pull was not held: {answer.remark}")
                    pulls -= 1


def _received(connection: socket.socket, reader: FrameReader) -> list[Command]:
    """Return the answers that are complete with what arrives next."""
    data = connection.recv(_PIECE)
    if not data:
        raise SystemExit("the store process has closed a connection")
    answers, error = reader.feed(data)
    if error is not None:
        raise error
    return answers


def _cores(process: psutil.Process) -> float:
    """Return how much of a core a process takes."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds_of(_MEASURED))
    after, took = process.cpu_times(), time.monotonic() - began
    return (after.user + after.system - before.user - before.system) / took
