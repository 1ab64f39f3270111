"""What connections cost a store process: those that are only open, and those that send.

Both protocols have the same frames. So one loop over sockets is the client of both, and of any
number of connections; what it sends is encoded before.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from benchmarks.means.child import in_child
from rmqstore_spark.embedding import EmbeddedStore, Setting
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.server.system import allow_many_files
from rmqstore_spark.wire.codec import encode
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import Code
from rmqstore_spark.wire.reading import OpenRequest
from tests.broker.broker import message
from tests.support.processes.ports import free_port
from tests.support.processes.serving import block_of

__all__ = ["hold", "measure_connections", "measure_senders", "send"]

REMOTING: Final = "remoting"
ENDPOINT: Final = "endpoint"

_BODY: Final = b"x" * 100
_QUEUES: Final = 8
_STREAMS: Final = 2_000
"""maxStreams: four times as many connections with the endpoint stay open."""
_MOST: Final = {REMOTING: 10_000, ENDPOINT: 5_000}
"""Connections: those with the endpoint are a thread each, in the store process."""
_IDLE: Final = 5_000
"""Connections that are only open, beside those that send."""
_PATIENCE: Final = 60.0
_SETTLE: Final = 1.0
_HELD_SECONDS: Final = 3.0
_WARM_SECONDS: Final = 0.5
_SEND_SECONDS: Final = 1.5
_PIECE: Final = 1 << 16
_LENGTH: Final = struct.Struct(">i")


def measure_connections(folder: Path, count: int) -> Mapping[str, float]:
    """Open a number of connections of each protocol, each of which has asked once."""
    found: dict[str, float] = {}
    for protocol in (REMOTING, ENDPOINT):
        if count <= _MOST[protocol]:
            with _served(folder / protocol) as (port, process):
                found |= in_child(
                    f"{__name__}:hold", count=count, protocol=protocol, port=port, process=process
                )
    return found


def measure_senders(folder: Path, count: int) -> Mapping[str, float]:
    """Let a number of connections send, each of which waits for its answer."""
    found: dict[str, float] = {}
    for protocol, idle in ((REMOTING, _IDLE), (ENDPOINT, 0)):
        with _served(folder / protocol) as (port, process):
            found |= in_child(
                f"{__name__}:send", count=count, idle=idle, protocol=protocol, port=port,
                process=process,
            )  # fmt: skip
    return found


@contextmanager
def _served(path: Path) -> Iterator[tuple[int, int]]:
    """Serve a new store; the value is its port and its process number."""
    port = free_port()
    settings: dict[str, Setting] = {
        "clients": "all", "vipListenPort": 0, "maxStreams": _STREAMS,
        "flushDiskType": "ASYNC_FLUSH", "defaultTopicQueueNums": _QUEUES,
    }  # fmt: skip
    store = EmbeddedStore(path, port=port, settings=settings)
    with store:
        assert store.pid is not None  # noqa: S101 - it runs
        yield port, store.pid


def hold(count: int, protocol: str, port: int, process: int) -> dict[str, float]:
    """Open connections, and wait.

    Returns:
        Bytes that the store process has, and the part of a core that it takes meanwhile.
    """
    served = psutil.Process(process)
    with ExitStack() as ends:
        opened = [ends.enter_context(_Connection(protocol, port)) for _ in range(count)]
        for connection in opened:
            connection.ask(_first(protocol))
        time.sleep(_SETTLE)
        before, began = _cpu(served), time.monotonic()
        time.sleep(_HELD_SECONDS)
        cores = (_cpu(served) - before) / (time.monotonic() - began)
        memory = float(served.memory_info().rss)
        for connection in (opened[0], opened[-1]):  # they are still open
            connection.ask(_first(protocol))
    return {f"{protocol}: memory": memory, f"{protocol}: CPU": cores}


def send(count: int, idle: int, protocol: str, port: int, process: int) -> dict[str, float]:
    """Let connections send messages of 100 B; then again, beside others that are only open.

    Returns:
        Messages a second, and seconds of CPU of the store process for each.
    """
    served = psutil.Process(process)
    with ExitStack() as ends:
        sending = [ends.enter_context(_Connection(protocol, port)) for _ in range(count)]
        for connection in sending:
            connection.begin()
        found = _measured(protocol, sending, served)
        for _ in range(idle):
            ends.enter_context(_Connection(protocol, port)).ask(_first(protocol))
        if idle:
            found |= _measured(f"{protocol}, beside {idle:,} idle", sending, served)
    return found


def _measured(
    name: str, sending: Sequence[_Connection], served: psutil.Process
) -> dict[str, float]:
    _exchange(sending, _WARM_SECONDS)
    before, began = _cpu(served), time.perf_counter()
    sent = _exchange(sending, _SEND_SECONDS)
    took, spent = time.perf_counter() - began, _cpu(served) - before
    return {f"{name}: sends": sent / took, f"{name}: CPU of a send": spent / sent}


class _Connection:
    """A connection that has at most one request on its way."""

    def __init__(self, protocol: str, port: int) -> None:
        allow_many_files()
        self._protocol = protocol
        self.socket = socket.create_connection(("127.0.0.1", port), _PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._missing = 0
        self._head = b""
        self._number = 0

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: bytes) -> None:
        """Send a request, and wait until it is answered with success."""
        self.socket.sendall(request)
        reader = FrameReader()
        answers: list[Command] = []
        while not answers:
            data = self.socket.recv(_PIECE)
            if not data:
                raise SystemExit(f"a connection over {self._protocol} was closed")
            answers, error = reader.feed(data)
            if error is not None:
                raise error
        if answers[0].code != ResponseCode.SUCCESS:
            raise SystemExit(f"a request was refused: {answers[0].remark}")

    def begin(self) -> None:
        """Make it ready to send: the first message shows that it can."""
        if self._protocol == ENDPOINT:
            self.ask(_first(ENDPOINT))
            self.socket.sendall(_stream())
        self.ask(_message(self._protocol, self._number))

    def send(self) -> None:
        """Send the next message."""
        self._number += 1
        self.socket.sendall(_message(self._protocol, self._number))

    def receive(self) -> bool:
        """Read the bytes that have come; return whether the answer is complete."""
        data = self._head + self.socket.recv(_PIECE)
        if not data:
            raise SystemExit(f"a connection over {self._protocol} was closed")
        if not self._missing:
            if len(data) < _LENGTH.size:
                self._head = data
                return False
            self._missing = _LENGTH.unpack_from(data)[0] + _LENGTH.size
            self._head = b""
        self._missing -= len(data)
        return not self._missing


def _exchange(connections: Sequence[_Connection], seconds: float) -> int:
    """Send on all connections, again when each is answered; return the number of answers."""
    until = time.perf_counter() + seconds
    answered, waiting = 0, len(connections)
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send()
        while waiting:
            for key, _ in selector.select(_PATIENCE):
                if key.data.receive():
                    answered += 1
                    if time.perf_counter() < until:
                        key.data.send()
                    else:
                        waiting -= 1
    return answered


def _first(protocol: str) -> bytes:
    """Return a request that is answered, and after which the connection only waits."""
    if protocol == ENDPOINT:
        return encode_frame(Command(Code.OPEN, {}, encode(OpenRequest(("orders",), creates=True))))
    return _message(REMOTING, 0)


def _stream() -> bytes:
    """Return the request that begins a stream of puts; it is not answered."""
    return encode_frame(Command(Code.BLOCKS, {}, encode(StreamCommand("put"))))


@cache
def _message(protocol: str, number: int) -> bytes:
    """Return the request that puts a message; with the endpoint, they are numbered."""
    if protocol == REMOTING:
        return _remoting_message(number % _QUEUES)
    return encode_frame(Command(Code.BLOCK, {}, _block(number % _QUEUES), opaque=number))


@cache
def _remoting_message(queue: int) -> bytes:
    return encode_frame(message(_BODY, queue=queue, d=str(_QUEUES)))


@cache
def _block(queue: int) -> bytes:
    return block_of([_BODY], "orders", [queue]).tobytes()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
