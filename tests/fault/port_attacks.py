"""What plain clients can do to the ports of RocketMQ's protocol: a broker's and a name server's.

    python -m tests.fault.port_attacks            all of it, as the figures in benchmarks/RESULTS.md
    python -m tests.fault.port_attacks --only NAME

The attackers use sockets and nothing of this package: what they send is encoded here. While each
attack runs, honest clients send, pull and ask for routes, each on a connection of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.fault.attacks import memory, memory_peak_begins
from tests.namesrv.serving import NamesrvProcess
from tests.support.certificates import make_certificates
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

__all__ = [
    "MOST_AFTER",
    "MOST_DURING",
    "PORT_ATTACKS",
    "PortOutcome",
    "Ports",
    "attack_ports",
    "half_small_sends",
    "serving",
    "unread_pulls",
]

MOST_DURING: Final = 600 << 20
MOST_AFTER: Final = 400 << 20
"""Bytes of resident memory that a process may have under an attack, and 10 s after it."""

_MIB: Final = 1 << 20
_TIMEOUT: Final = 3.0
"""Seconds after which an honest client gives up."""

_SEND, _PULL, _QUERY, _VIEW, _HEARTBEAT = 310, 11, 12, 33, 34
_CREATE_TOPIC, _DELETE_TOPIC = 17, 215
_ALL_TOPICS, _REGISTER, _ROUTE, _TOPIC_LIST = 21, 103, 105, 206
_GROUP: Final = {"consumerGroup": "honest"}


class Ports(NamedTuple):
    """What is attacked.

    Attributes:
        broker, name_server: `host:port`.
        pids: of the two processes.
        scale: how much of an attack there is; 1 is all of it.
        tls: what clients use, if they use TLS.
    """

    broker: str
    name_server: str
    pids: tuple[int, int]
    scale: float
    tls: ssl.SSLContext | None = None

    def count(self, number: int) -> int:
        """So many of something, in the scale of this run."""
        return max(2, round(number * self.scale))

    @property
    def seconds(self) -> float:
        """How long what is opened is held."""
        return 20 * self.scale

    def connect(self, address: str, seconds: float) -> socket.socket:
        """Connect to one of the two, for operations that take so long at most."""
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), seconds)
        if self.tls is None:
            return plain
        try:
            return self.tls.wrap_socket(plain, server_hostname=host)
        except OSError:
            plain.close()
            raise

    def line(self, address: str, seconds: float = 60.0) -> closing[Line]:
        """A connection that asks and waits for its answers."""
        return closing(Line(self.connect(address, seconds)))


class PortOutcome(NamedTuple):
    """What an attack did.

    Attributes:
        peak, after: resident bytes of the larger process, at most and 10 s later.
        asked: by honest clients.
        failed: what failed of that.
        latencies: seconds of each, ascending.
    """

    peak: int
    after: int
    asked: int
    failed: list[str]
    latencies: list[float]

    def latency(self, share: float) -> float:
        """A quantile of the latencies."""
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


# ---- what is sent ------------------------------------------------------------------------------


def frame(code: int, ext: dict[str, str], body: bytes = b"", opaque: int = 1) -> bytes:
    """A request, as Java's clients encode it."""
    told = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 409}  # fmt: skip
    header = json.dumps(told).encode()
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def send_frame(body: bytes, topic: str = "orders", queue: int = 0, keys: str = "") -> bytes:
    """A request to send a message."""
    properties = f"KEYS\x01{keys}" if keys else ""
    ext = {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
           "g": str(int(time.time() * 1000)), "h": "0", "i": properties}  # fmt: skip
    return frame(_SEND, ext, body)


def pull_frame(topic: str, offset: int, opaque: int = 1, hold_ms: int = 0) -> bytes:
    """A request for messages."""
    ext = {
        "consumerGroup": "honest", "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6" if hold_ms else "4", "commitOffset": "0",
        "suspendTimeoutMillis": str(hold_ms), "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return frame(_PULL, ext, opaque=opaque)


def register_frame(number: int, topics: Sequence[str]) -> bytes:
    """The registration of a broker."""
    table = {
        name: {"topicName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}
        for name in topics
    }
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
    ext = {"brokerName": f"broker-{number}", "brokerAddr": f"10.0.0.1:{number}",
           "clusterName": "attackers", "brokerId": "0", "haServerAddr": "10.0.0.1:1",
           "compressed": "false", "bodyCrc32": "0"}  # fmt: skip
    return frame(_REGISTER, ext, body)


class Line:
    """A connection that asks and waits for its answer."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def ask(self, data: bytes) -> tuple[int, dict[str, Any], int]:
        """Send a request; returns code, fields and length of the body of its answer."""
        self._socket.sendall(data)
        return self._answer()

    def ask_all(self, requests: Sequence[bytes]) -> None:
        """Send requests, which succeed, before their answers are read."""
        self._socket.sendall(b"".join(requests))
        for _ in requests:
            code, fields, _ = self._answer()
            assert code == 0, fields

    def _answer(self) -> tuple[int, dict[str, Any], int]:
        length, mark = struct.unpack(">iI", self._read(8))
        header = json.loads(self._read(mark & 0xFFFFFF))
        rest = length - 4 - (mark & 0xFFFFFF)
        self._read(rest)
        return header["code"], header.get("extFields") or {}, rest

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            data = self._socket.recv(min(count - len(found), _MIB))
            if not data:
                raise ConnectionError("the connection was closed")
            found += data
        return bytes(found)


# ---- attacks -----------------------------------------------------------------------------------


@contextmanager
def _opened(ports: Ports, address: str, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which something was sent, as far as it is taken."""
    with ExitStack() as held:
        opened = []
        for _ in range(count):
            with suppress(OSError):
                one = held.enter_context(ports.connect(address, 10))
                one.setblocking(False)
                opened.append(one)
        _send_on(opened, data)
        yield opened


def _send_on(opened: Sequence[socket.socket], data: bytes, seconds: float = 2.0) -> None:
    """Send the same on some connections, until all of it is taken or the time is over."""
    left = dict.fromkeys(opened, 0)
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        is_blocked = True
        for one, at in list(left.items()):
            try:
                left[one] = at + one.send(data[at : at + _MIB])
                is_blocked = False
            except (BlockingIOError, ssl.SSLWantWriteError):
                continue
            except OSError:
                del left[one]
                continue
            if left[one] >= len(data):
                del left[one]
        if is_blocked:
            time.sleep(0.01)


def half_sends(ports: Ports) -> None:
    """1,000 connections send half a message of 8 MiB each to the broker."""
    _half(ports, ports.broker, send_frame(bytes(8 * _MIB)))


def half_registrations(ports: Ports) -> None:
    """1,000 connections send half a registration of 8 MiB each to the name server."""
    _half(ports, ports.name_server, frame(_REGISTER, {"brokerName": "b"}, bytes(8 * _MIB)))


def _half(ports: Ports, address: str, whole: bytes) -> None:
    with _opened(ports, address, ports.count(1000), whole[: len(whole) // 2]):
        time.sleep(ports.seconds)


def half_small_sends(ports: Ports) -> None:
    """4,000 connections send a message of 64 KiB each to the broker, but for the last byte."""
    whole = send_frame(bytes(64 << 10))
    with _opened(ports, ports.broker, ports.count(4000), whole[:-1]):
        time.sleep(ports.seconds)


def slow_sends(ports: Ports) -> None:
    """400 connections begin messages of 4 MiB, and send a byte now and then."""
    whole = send_frame(bytes(4 * _MIB))
    with _opened(ports, ports.broker, ports.count(400), whole[: 1 << 16]) as opened:
        until = time.monotonic() + ports.seconds
        while time.monotonic() < until:
            _send_on(opened, b"x", 0.1)
            time.sleep(0.1)


def unread_pulls(ports: Ports) -> None:
    """40 connections ask 3,000 times for a message of 4 MiB each, and read nothing."""
    asked = pull_frame("large", 0) * 3000
    with _opened(ports, ports.broker, ports.count(40), asked):
        time.sleep(ports.seconds)


def unread_small_pulls(ports: Ports) -> None:
    """200 connections ask 5,000 times for a message of 1 KiB each, and read nothing."""
    asked = pull_frame("small", 0) * 5000
    with _opened(ports, ports.broker, ports.count(200), asked):
        time.sleep(ports.seconds)


def pulls_of_the_gone(ports: Ports) -> None:
    """40 connections ask 3,000 times for a message of 4 MiB each, and go, again and again."""
    asked = pull_frame("large", 0) * 3000
    until = time.monotonic() + ports.seconds
    while time.monotonic() < until:
        with _opened(ports, ports.broker, ports.count(40), asked):
            pass


def held_pulls(ports: Ports) -> None:
    """200 connections wait with 64 pulls each for a message of 4 MiB, and do not read it."""
    with ports.line(ports.broker) as line:
        end = int(line.ask(pull_frame("large", 0))[1]["maxOffset"])
        asked = pull_frame("large", end, hold_ms=60_000) * 64
        with _opened(ports, ports.broker, ports.count(200), asked):
            time.sleep(1)
            line.ask(send_frame(bytes(4_000_000), "large"))
            time.sleep(ports.seconds)


def unread_queries(ports: Ports) -> None:
    """40 connections ask 500 times for all messages with a key, and read nothing."""
    ext = {"topic": "large", "key": "k", "maxNum": "64", "beginTimestamp": "0",
           "endTimestamp": str(1 << 62)}  # fmt: skip
    with _opened(ports, ports.broker, ports.count(40), frame(_QUERY, ext) * 500):
        time.sleep(ports.seconds)


def unread_tables(ports: Ports) -> None:
    """40 connections ask the broker 2,000 times for all topics, and read nothing."""
    with _opened(ports, ports.broker, ports.count(40), frame(_ALL_TOPICS, {}) * 2000):
        time.sleep(ports.seconds)


def unread_lists(ports: Ports) -> None:
    """200 connections ask the name server 2,000 times for all 50,000 topics, and read nothing."""
    with ports.line(ports.name_server) as line:
        line.ask(register_frame(1, [f"topic-{n:06}" for n in range(50_000)]))
        with _opened(ports, ports.name_server, ports.count(200), frame(_TOPIC_LIST, {}) * 2000):
            time.sleep(ports.seconds)


def large_registrations(ports: Ports) -> None:
    """100 connections register 50,000 topics of their own each, of which 200,000 are taken."""

    def register(number: int) -> None:
        names = [f"topic-{number}-{n:06}" for n in range(50_000)]
        with suppress(OSError), ports.line(ports.name_server) as line:
            line.ask(register_frame(number + 2, names))

    threads = [
        threading.Thread(target=register, args=(number,)) for number in range(ports.count(100))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def deletions(ports: Ports) -> None:
    """A client creates 4,000 topics, sends to each, and deletes all without waiting."""
    topics = [f"short-{number}" for number in range(ports.count(4000))]
    created = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    with ports.line(ports.broker) as line:
        line.ask_all([frame(_CREATE_TOPIC, {"topic": topic, **created}) for topic in topics])
        for topic in topics:
            line.ask(send_frame(b"x", topic))
        line.ask_all([frame(_DELETE_TOPIC, {"topic": topic}) for topic in topics])


def leaving_brokers(ports: Ports) -> None:
    """1,000 brokers with 400 topics of their own leave the name server at once."""
    with ExitStack() as held:
        for number in range(ports.count(1000)):
            line = held.enter_context(ports.line(ports.name_server))
            line.ask(register_frame(number + 2, [f"topic-{number}-{n:06}" for n in range(400)]))
    time.sleep(ports.seconds / 4)


PORT_ATTACKS: Final[Sequence[Callable[[Ports], None]]] = (
    half_sends,
    half_registrations,
    half_small_sends,
    slow_sends,
    unread_pulls,
    unread_small_pulls,
    pulls_of_the_gone,
    held_pulls,
    unread_queries,
    unread_tables,
    unread_lists,
    deletions,
    large_registrations,
    leaving_brokers,
)


# ---- how ---------------------------------------------------------------------------------------


class _Honest:
    """A client that asks the same now and then, on a connection that it opens again if it must."""

    def __init__(self, ports: Ports, address: str, requests: Sequence[bytes]) -> None:
        self.latencies: list[float] = []
        self.failed: list[str] = []
        self._ports = ports
        self._address = address
        self._requests = requests
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        requests = cycle(self._requests)
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                with self._ports.line(self._address, _TIMEOUT) as line:
                    while not self._stop.is_set():
                        code = line.ask(next(requests))[0]
                        self._note(begin, f"code {code}" if code else "")
                        begin = time.monotonic()
            except OSError as error:
                self._note(begin, f"{type(error).__name__}: {error}")

    def _note(self, begin: float, failure: str) -> None:
        self.latencies.append(time.monotonic() - begin)
        if failure:
            self.failed.append(failure)
        self._stop.wait(0.01)


def attack_ports(how: Callable[[Ports], None], ports: Ports) -> PortOutcome:
    """Do one attack, and look at the processes and at honest clients meanwhile."""
    for pid in ports.pids:
        memory_peak_begins(pid)
    sends = [send_frame(os.urandom(1024))] * 9 + [send_frame(os.urandom(256 << 10))]
    honest = [
        _Honest(ports, ports.broker, sends),
        _Honest(ports, ports.broker, [pull_frame("small", 0)]),
        _Honest(ports, ports.name_server, [frame(_ROUTE, {"topic": "known"})]),
    ]
    with ExitStack() as at_work:
        for one in honest:
            at_work.enter_context(one)
        how(ports)
    peak = max(memory(pid, "VmHWM") for pid in ports.pids)

    def now() -> int:
        return max(memory(pid, "VmRSS") for pid in ports.pids)

    with suppress(AssertionError):
        eventually(lambda: now() < MOST_AFTER, 10)
    latencies = sorted(each for one in honest for each in one.latencies)
    failed = [each for one in honest for each in one.failed]
    return PortOutcome(peak, now(), len(latencies), failed, latencies)


@contextmanager
def serving(folder: Path, scale: float = 1.0, tls: bool = False) -> Iterator[Ports]:
    """A broker and a name server to attack.

    Args:
        folder: for their files.
        scale: see `Ports`.
        tls: whether clients use TLS.
    """
    port = free_port()
    settings = [
        "--set=clients=all",
        f"--set=listenPort={port}",
        "--set=vipListenPort=0",
        "--set=mappedFileSizeCommitLog=1073741824",
    ]
    of_names, context = [], None
    if tls:
        made = make_certificates(folder / "certificates")
        cert, key = made.server_cert, made.server_key
        settings += [f"--set=tlsServerCertPath={cert}", f"--set=tlsServerKeyPath={key}"]
        of_names += [f"--set=tlsServerCertPath={cert}", f"--set=tlsServerKeyPath={key}"]
        context = ssl.create_default_context(cafile=made.ca)
    with (
        StoreProcess(folder / "store", folder, *settings) as process,
        NamesrvProcess(folder, *of_names) as names,
    ):
        pids = process.ready()["pid"], names.process.pid
        ports = Ports(f"127.0.0.1:{port}", names.address, pids, scale, context)
        with ports.line(ports.broker) as line:
            for topic, size in (("large", 4_000_000), ("small", 1024), ("orders", 1024)):
                assert line.ask(send_frame(bytes(size), topic, keys="k"))[0] == 0
            assert line.ask(pull_frame("small", 0))[0] == 0
        with ports.line(ports.name_server) as brokers:
            brokers.ask(register_frame(0, ["known"]))
            yield ports
        assert process.process.poll() is None, process.output
        assert names.process.poll() is None, names.log


def main() -> None:
    """Do all attacks, and print a line of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.port_attacks")
    parser.add_argument("--only", action="append", default=[], help="the name of an attack")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tls", action="store_true", help="all clients use TLS")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the store goes")
    given = parser.parse_args()
    out = sys.stdout.write
    out("attack | peak MB | 10 s later MB | asked | failed | median ms | p99 ms | most ms\n")
    for how in PORT_ATTACKS:
        if given.only and how.__name__ not in given.only:
            continue
        with (
            tempfile.TemporaryDirectory(dir=given.folder) as folder,
            serving(Path(folder), given.scale, given.tls) as ports,
        ):
            found = attack_ports(how, ports)
        told = " | ".join(f"{found.latency(share) * 1000:.0f}" for share in (0.5, 0.99, 1.0))
        out(
            f"{how.__name__} | {found.peak >> 20} | {found.after >> 20} | {found.asked} | "
            f"{len(found.failed)} | {told} {found.failed[:3] or ''}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
