"""The driver of all attacks: processes to attack, honest clients of them, and their memory."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore_spark.wire.protocol import Code
from tests.fault.attacks import frames
from tests.fault.attacks.frames import Line
from tests.namesrv.serving import NamesrvProcess
from tests.support.accounts import SECRET, guarded
from tests.support.certificates import make_certificates
from tests.support.processes.forked import start
from tests.support.processes.plainclient import PlainClient, connected, request
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

MOST_DURING: Final = 600 << 20
MOST_AFTER: Final = 400 << 20
"""Bytes of resident memory that a process may have under an attack, and 10 s after it."""

_TIMEOUT_S: Final = 3.0
"""After that, an honest client of RocketMQ's protocol gives up: as its producers do."""
_PUTS: Final = 10
_LARGE_SEGMENTS: Final = "mappedFileSizeCommitLog=1073741824"


class _Refused(OSError):
    """An honest client was told a status that is not the one for success."""


@dataclass(frozen=True)
class Target:
    """What is attacked.

    Attributes:
        store: the endpoint of Spark and the command.
        broker, names: endpoints of RocketMQ's protocol: the store process and a name server.
        metrics: `host:port` of the store process's metrics.
        pids: of the processes.
        seconds: how long what is opened is held.
        scale: how much of an attack there is; 1 is all of it.
        tls: what clients use, if they use TLS.
    """

    store: str
    broker: str
    names: str
    metrics: str
    pids: tuple[int, ...]
    seconds: float
    scale: float
    tls: ssl.SSLContext | None

    def client(self, secret: str = SECRET, seconds: float = 60.0) -> PlainClient:
        """A client of the store with a connection of its own."""
        return PlainClient(self.store, secret, seconds=seconds, tls=self.tls)

    def line(self, endpoint: str, seconds: float = 60.0) -> closing[Line]:
        """A connection to a broker or a name server that asks and waits for its answers."""
        return closing(Line(self.connect(endpoint, seconds)))

    def connect(self, endpoint: str, seconds: float = 10.0) -> socket.socket:
        """Connect to one of them, for operations that take so long at most."""
        return connected(endpoint, seconds, self.tls)

    def count(self, number: int) -> int:
        """So many of something, in the scale of this run."""
        return max(2, round(number * self.scale))


class Outcome(NamedTuple):
    """What an attack did.

    Attributes:
        peak, after: resident bytes of the larger process, at most and 10 s later.
        asked: by honest clients.
        failed: what failed of that: a status of the process, or an error.
        latencies: seconds of each, ascending.
        seconds: that the attack took.
        told: what the attack has to say.
    """

    peak: int
    after: int
    asked: int
    failed: list[str]
    latencies: list[float]
    seconds: float
    told: str

    def latency(self, share: float) -> float:
        """A quantile of the latencies."""
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


Ask = Callable[[], object]


@contextmanager
def _putting(target: Target) -> Iterator[Ask]:
    """Put one message, and now and then 256 KiB."""
    blocks = iter([*[frames.block(1)] * (_PUTS - 1), frames.block(256 << 10)])
    with target.client(seconds=30) as client:
        client.begin(op="put")

        def put() -> None:
            status = client.put(next(blocks))
            if status != "PUT_OK":
                raise _Refused(status)

        yield put
        client.send(request(Code.FINISH))


@contextmanager
def _asking(target: Target, endpoint: str, requests: Sequence[bytes]) -> Iterator[Ask]:
    """Ask the same on and on."""
    each = cycle(requests)
    with target.line(endpoint, _TIMEOUT_S) as line:

        def ask() -> None:
            code, _ = line.ask(next(each))
            if code:
                raise _Refused(f"code {code}")

        yield ask


def _honest_clients(target: Target) -> Iterator[_Honest]:
    """Those of a target: they put, or send, pull and ask for routes."""
    if not target.broker:
        yield _Honest(partial(_putting, target), _PUTS)
        return
    sends = [frames.send(os.urandom(1024))] * 9
    sends += [frames.send(os.urandom(256 << 10))] if target.names else []
    asked = [(target.broker, sends)]
    if target.names:
        asked += [(target.broker, [frames.pull("small")])]
        asked += [(target.names, [frames.frame(frames.ROUTE, {"topic": "known"})])]
    for endpoint, requests in asked:
        yield _Honest(partial(_asking, target, endpoint, requests), 1 << 30)


class _Honest:
    """A client that asks now and then, on a connection that it opens again if it must.

    Args:
        opened: opens a connection, and gives what asks once.
        turns: so often it asks on one connection.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[Ask]], turns: int) -> None:
        self.latencies: list[float] = []
        self.failed: list[str] = []
        self._opened, self._turns = opened, turns
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set() or not self.latencies:
            begin = time.monotonic()
            try:
                with self._opened() as ask:
                    for _ in range(self._turns):
                        ask()
                        self.latencies.append(time.monotonic() - begin)
                        if self._stop.wait(0.01):
                            break
                        begin = time.monotonic()
            except (OSError, AssertionError) as error:
                is_told = isinstance(error, _Refused)
                self.failed.append(str(error) if is_told else f"{type(error).__name__}: {error}")
                self.latencies.append(time.monotonic() - begin)


def run(attack: Callable[[Target], str], target: Target) -> Outcome:
    """Do one attack, and look at the processes and at honest clients meanwhile."""
    for pid in target.pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins again
    begin, honest = time.monotonic(), list(_honest_clients(target))
    with ExitStack() as at_work:
        for one in honest:
            at_work.enter_context(one)
        told = attack(target)
        seconds = time.monotonic() - begin
    peak = _memory(target, "VmHWM")
    with suppress(AssertionError):
        eventually(lambda: _memory(target, "VmRSS") < MOST_AFTER, 10)
    latencies = sorted(each for one in honest for each in one.latencies)
    failed = [each for one in honest for each in one.failed]
    after = _memory(target, "VmRSS")
    return Outcome(peak, after, len(latencies), failed, latencies, seconds, told)


def _memory(target: Target, name: str) -> int:
    """A figure of the larger process's memory in bytes, by its name in /proc/PID/status."""
    found = (Path(f"/proc/{pid}/status").read_text() for pid in target.pids)
    return max(int(status.partition(f"{name}:")[2].split()[0]) << 10 for status in found)


@contextmanager
def attacked(
    folder: Path,
    what: str = "store",
    scale: float = 1.0,
    how: str = "tcp",
    seconds: float | None = None,
) -> Iterator[Target]:
    """Processes to attack.

    Args:
        folder: for their files.
        what: a "store"; a broker and a name server, as "ports"; or a "broker" alone, with the
            settings that it has by itself.
        scale: see `Target`.
        how: over "tcp", "tls" or a unix "socket".
        seconds: how long what is opened is held; by default in that scale, too.
    """
    settings, of_names, tls = [] if what == "broker" else [_LARGE_SEGMENTS], list[str](), None
    port = free_port()
    if what == "store":
        accounts = guarded(folder / "accounts.yml")
        settings += ["aclEnable=true", f"aclPath={accounts['acl_path']}"]
        settings += ["metricsPromExporterPort=0"]
    else:
        settings += ["clients=all", f"listenPort={port}", "vipListenPort=0"]
    if how == "tls":
        made = make_certificates(folder / "certificates")
        of_names = [
            f"tlsServerCertPath={made.server_cert}", f"tlsServerKeyPath={made.server_key}",
        ]  # fmt: skip
        settings += of_names
        tls = ssl.create_default_context(cafile=made.ca)
    elif how == "socket":
        settings.append(f"listenSocket={folder}/run/s")
    with ExitStack() as ends:
        given = [f"--set={setting}" for setting in settings]
        # Figures are those of a process that shares no memory with another.
        begin = subprocess.Popen if scale == 1 else start
        process = ends.enter_context(StoreProcess(folder / "store", folder, *given, begin=begin))
        ready = process.ready()
        pids, name_server = [ready["pid"]], None
        if what == "ports":
            given = [f"--set={setting}" for setting in of_names]
            name_server = ends.enter_context(NamesrvProcess(folder, *given, begin=begin))
            pids.append(name_server.process.pid)
        target = Target(
            store=ready["endpoints"][-1],
            broker="" if what == "store" else f"rmq://127.0.0.1:{port}",
            names="" if name_server is None else f"rmq://{name_server.address}",
            metrics=ready.get("metrics", ""),
            pids=tuple(pids),
            seconds=(15 if what == "store" else 20) * scale if seconds is None else seconds,
            scale=scale,
            tls=tls,
        )
        _prepare(target, ends)
        yield target
        assert process.process.poll() is None, process.output
        assert name_server is None or name_server.process.poll() is None, name_server


def _prepare(target: Target, ends: ExitStack) -> None:
    """Make topics and messages for the honest clients, and for some attackers."""
    if not target.broker:
        with target.client() as client:
            assert client.ask(Code.OPEN, {"topics": ["orders"]}).json()
        return
    sizes = {"orders": 1024, "small": 1024, "known": 1}
    with target.line(target.broker) as line:
        for topic, size in {**sizes, **({"large": 4_000_000} if target.names else {})}.items():
            assert line.ask(frames.send(bytes(size), topic, keys="k"))[0] == 0
        assert line.ask(frames.pull("small"))[0] == 0
    if target.names:
        ends.enter_context(target.line(target.names)).ask(frames.register(0, ["known"]))
