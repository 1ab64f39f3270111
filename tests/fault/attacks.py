"""What a plain client can do to a store process: its memory, and what others get meanwhile.

    python -m tests.fault.attacks            all of it, as the figures in benchmarks/RESULTS.md
    python -m tests.fault.attacks --only NAME --how tls

The attackers use sockets and nothing of the package's clients: what they send is encoded in
`tests.support.processes.plainclient`. While each attack runs, an honest client puts small and
larger blocks, one after the other.
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
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore_spark.wire.protocol import Code
from tests.support.certificates import make_certificates
from tests.support.processes.plainclient import PlainClient, connected, head_of, request
from tests.support.processes.serving import StoreProcess, eventually

__all__ = [
    *("ATTACKS", "MOST_AFTER", "MOST_DURING", "Outcome", "Target", "attacked", "memory"),
    *("memory_peak_begins", "run"),
]

MOST_DURING: Final = 600 << 20
MOST_AFTER: Final = 400 << 20
"""Bytes of resident memory that a store process may have under an attack, and 10 s after it."""

TOKEN: Final = "a-token-of-the-honest-client"
_MAGIC: Final = -626843481
_KEY: Final = "bomb"
_LOGIN: Final = request(Code.LOGIN, b"Bearer " + TOKEN.encode())
_PUT: Final = request(Code.BLOCKS, b'{"op":"put"}')
_STATS: Final = request(Code.STATS, b"{}")


class Target(NamedTuple):
    """What is attacked.

    Attributes:
        endpoint: of the store process.
        metrics: `host:port` of its metrics.
        pid: of the process.
        scale: how much of an attack there is; 1 is all of it.
        tls: what clients use, if they use TLS.
    """

    endpoint: str
    metrics: str
    pid: int
    scale: float
    tls: ssl.SSLContext | None

    def client(self, token: str = TOKEN, seconds: float = 60.0) -> PlainClient:
        """A client with a connection of its own."""
        return PlainClient(self.endpoint, token, seconds=seconds, tls=self.tls)

    def count(self, number: int) -> int:
        """So many of something, in the scale of this run."""
        return max(2, round(number * self.scale))

    @property
    def seconds(self) -> float:
        """How long what is opened is held."""
        return 15 * self.scale


class Outcome(NamedTuple):
    """What an attack did.

    Attributes:
        peak, after: resident bytes of the process, at most and 10 s later.
        puts: of the honest client.
        failed: what failed of them: a status of the process, or the beginning of an error.
        latencies: seconds of each put, ascending.
        told: what the attack has to say.
    """

    peak: int
    after: int
    puts: int
    failed: list[str]
    latencies: list[float]
    told: str

    def latency(self, share: float) -> float:
        """A quantile of the latencies."""
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)]


# ---- what is sent ------------------------------------------------------------------------------


def record(body: bytes, topic: bytes = b"orders", keys: bytes = b"", flags: int = 0) -> bytes:
    """A record as RocketMQ's CommitLog holds it, but for what the store stamps."""
    properties = b"KEYS\x01" + keys if keys else b""
    host = socket.inet_aton("127.0.0.1") + struct.pack(">i", 10911)
    now = int(time.time() * 1000)
    head = struct.pack(
        ">iIiiqqiq8sq8siq",
        _MAGIC, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, 0, flags, now, host, 0, host, 0, 0,
    )  # fmt: skip
    rest = b"".join(
        (
            struct.pack(">i", len(body)), body,
            struct.pack(">b", len(topic)), topic,
            struct.pack(">h", len(properties)), properties,
        )
    )  # fmt: skip
    return struct.pack(">i", 4 + len(head) + len(rest)) + head + rest


def block(size: int) -> bytes:
    """A block of about so many bytes, of messages of 1 KiB."""
    one = record(os.urandom(1024))
    return one * max(1, size // len(one))


def stage() -> dict[str, Any]:
    return {"op": "stage", "stageId": uuid.uuid4().hex}


# ---- attacks -----------------------------------------------------------------------------------


def without_a_token(target: Target) -> str:
    """8 clients without a token send 300 MB each in one action."""
    body = bytes(target.count(300) << 20)

    def send(_number: int) -> str:
        with target.client("") as client:
            return client.ask(Code.OPEN, body).status or "accepted"

    return _in_threads(8, send)


def guessed_tokens(target: Target) -> str:
    """32 clients try one token after the other, each on a connection of its own."""
    until = time.monotonic() + target.seconds

    def guess(number: int) -> str:
        tried = 0
        while time.monotonic() < until:
            with target.client("", 5) as client:
                status = client.ask(Code.LOGIN, b"Bearer a-token-%d-%d" % (number, tried)).status
            assert status == "UNAUTHENTICATED", status
            tried += 1
        return "wrong"

    return _in_threads(32, guess)


def silent_connections(target: Target) -> str:
    """2,000 connections that do nothing."""
    with _held(target, target.count(2000), b""):
        time.sleep(target.seconds)
    return "held"


def half_frames(target: Target) -> str:
    """1,000 connections that have logged in send half a frame each."""
    with _held(target, target.count(1000), _LOGIN + head_of(Code.STATS, 2)[:40]):
        time.sleep(target.seconds)
    return "held"


def headers_without_end(target: Target) -> str:
    """200 connections announce headers of 16 MB, and send them."""
    data = struct.pack(">iI", 1 << 30, 0xFFFFFF) + bytes(1 << 20)
    with _held(target, target.count(200), data):
        time.sleep(target.seconds)
    return "held"


def announced_bodies(target: Target) -> str:
    """400 connections announce requests of 4 MB, and of 1 MB, and send none of them."""
    with _held(
        target,
        target.count(400),
        _LOGIN + head_of(Code.COMMIT, 4 << 20),
        _LOGIN + head_of(Code.END_TRANSACTIONS, 1 << 20),
    ) as held:
        _hold_on(target, held)
    return "held"


def announced_blocks(target: Target) -> str:
    """250 streams announce blocks of 1 MB, send none, and begin again when they are refused."""
    return _again_and_again(target, 250, _LOGIN + _PUT + head_of(Code.BLOCK, 1 << 20))


def bodies_but_for_a_byte(target: Target) -> str:
    """250 streams send blocks of 1 MB but for the last byte, and begin again when refused."""
    data = _LOGIN + _PUT + head_of(Code.BLOCK, 1 << 20) + bytes((1 << 20) - 1)
    return _again_and_again(target, 250, data)


def slow_senders(target: Target) -> str:
    """40 streams begin blocks of 30 MB, and send a byte now and then."""
    with _held(target, 40, _LOGIN + _PUT + head_of(Code.BLOCK, 30 << 20)) as held:
        _hold_on(target, held)
    return "held"


def stray_blocks(target: Target) -> str:
    """16 clients send blocks of 30 MB outside of a stream, again and again."""
    data, until = bytes(30 << 20), time.monotonic() + target.seconds

    def send(_number: int) -> str:
        told = set()
        while time.monotonic() < until:
            with target.client() as client:
                told.add(client.ask(Code.BLOCK, data).status)
        return ", ".join(sorted(told))

    return _in_threads(16, send)


def refused_streams_that_go_on(target: Target) -> str:
    """32 clients send blocks on and on in a stream that was refused."""
    data = request(Code.BLOCK, bytes(1 << 20)) * 8

    def send(_number: int) -> str:
        with target.client() as client:
            client.begin(op="drop")
            until = time.monotonic() + target.seconds
            while time.monotonic() < until:
                client.socket.sendall(data)
            return client.answer().status

    return _in_threads(32, send)


def tiny_requests(target: Target) -> str:
    """64 clients ask for next to nothing, on and on."""
    until = time.monotonic() + target.seconds

    def ask(_number: int) -> str:
        with target.client() as client:
            while time.monotonic() < until:
                client.ask(Code.INFO, b'{"path":"checkpoint"}')
        return "answered"

    return _in_threads(64, ask)


def unread_answers(target: Target) -> str:
    """250 clients send 5,000 requests each before they read an answer, which they never do."""
    with _held(target, target.count(250), _LOGIN + _STATS * 5000):
        time.sleep(target.seconds)
    return "held"


def stages_of_32(target: Target) -> str:
    """32 tasks stage 10 blocks of 4 MB each, as a sink does."""
    return _many_streams(target, 32, 10, 4 << 20, stage)


def stages_of_100(target: Target) -> str:
    """100 tasks stage 10 blocks of 4 MB each."""
    return _many_streams(target, 100, 10, 4 << 20, stage)


def stages_of_200(target: Target) -> str:
    """200 tasks stage 10 blocks of 4 MB each."""
    return _many_streams(target, 200, 10, 4 << 20, stage)


def large_puts(target: Target) -> str:
    """16 clients put 4 blocks of 30 MB each."""
    return _many_streams(target, 16, 4, 30 << 20, lambda: {"op": "put"})


def large_stages(target: Target) -> str:
    """48 tasks stage 4 blocks of 30 MB each."""
    return _many_streams(target, 48, 4, 30 << 20, stage)


def bombs(target: Target) -> str:
    """Messages that unpack to 4,000 times their size, asked for by 16 clients at once."""
    packed = zlib.compress(bytes(16 << 20), 9)
    bomb = record(packed, keys=_KEY.encode(), flags=0x301)
    with target.client() as client:
        client.begin(op="put")
        for number in range(10):
            client.put(bomb * 8, number)
        client.ask(Code.FINISH)
        client.ask(Code.FLUSH, b"{}")

    def ask(_number: int) -> str:
        with target.client() as client:
            query = {"topic": "orders", "key": _KEY, "maxNum": 1024}
            return client.ask(Code.QUERY, query).status or "answered"

    return _in_threads(target.count(16), ask)


def idle_streams(target: Target) -> str:
    """256 streams that send nothing, each with a connection of its own."""
    with _held(target, 256, _LOGIN + _PUT):
        time.sleep(target.seconds)
    return "held"


def idle_readers(target: Target) -> str:
    """200 clients ask for 64 MB of the log each, and take nothing."""
    with _held(target, target.count(200), _LOGIN + _read_of_the_log()):
        time.sleep(target.seconds)
    return "held"


def slow_readers(target: Target) -> str:
    """200 clients ask for 64 MB of the log each, and take a little now and then."""
    with _held(target, target.count(200), _LOGIN + _read_of_the_log()) as held:
        until = time.monotonic() + target.seconds
        while time.monotonic() < until:
            for one in held:
                with suppress(OSError):
                    one.recv(32 << 10)
            time.sleep(0.1)
    return "held"


def half_requests(target: Target) -> str:
    """30 clients of the metrics' port send half a request each; supervisors ask for its health."""
    host, _, port = target.metrics.rpartition(":")
    answered = []
    with ExitStack() as opened:
        for _ in range(30):
            held = opened.enter_context(socket.create_connection((host, int(port)), 10))
            held.sendall(b"GET /met")
        until = time.monotonic() + 12 * target.scale
        while time.monotonic() < until:
            begin = time.monotonic()
            answered.append((_health(host, int(port)), time.monotonic() - begin))
            time.sleep(0.1)
    refused = sum(1 for status, _ in answered if status != 200)
    slowest = max(seconds for _, seconds in answered)
    return f"{refused} of {len(answered)} probes not answered 200, slowest {slowest:.1f} s"


def vanishing_batch(target: Target) -> str:
    """Commits nothing under the id of another's query, with the highest number there is."""
    writer = {"kind": "stream", "name": "a-query-of-others", "number": (1 << 63) - 1}
    with target.client() as client:
        answer = client.ask(Code.COMMIT, {"writer": writer, "stages": []})
        return f"refused: {answer.status}" if answer.status else "COMMITTED"


def unreadable_records(target: Target) -> str:
    """Puts records that no reader takes: a body that does not unpack, a negative reconsumeTimes."""
    broken = record(b"not compressed at all", flags=0x301)
    negative = bytearray(record(b"a body"))
    struct.pack_into(">i", negative, 4 + 68, -1)
    with target.client() as client:
        client.begin(op="put")
        told = [client.put(bytes(one), number) for number, one in enumerate((broken, negative))]
    return ", ".join(told)


ATTACKS: Final[Sequence[Callable[[Target], str]]] = (
    without_a_token,
    guessed_tokens,
    silent_connections,
    half_frames,
    headers_without_end,
    announced_bodies,
    announced_blocks,
    bodies_but_for_a_byte,
    slow_senders,
    stray_blocks,
    refused_streams_that_go_on,
    tiny_requests,
    unread_answers,
    stages_of_32,
    stages_of_100,
    stages_of_200,
    large_puts,
    large_stages,
    idle_streams,
    idle_readers,
    slow_readers,
    half_requests,
    vanishing_batch,
    unreadable_records,
    bombs,
)


# ---- how ---------------------------------------------------------------------------------------


def _in_threads(count: int, work: Callable[[int], str]) -> str:
    """Do something in so many threads; what came of it, counted."""
    told: list[str] = []

    def run(number: int) -> None:
        try:
            told.append(work(number))
        except (OSError, AssertionError) as error:
            told.append(f"{type(error).__name__}: {str(error)[:60]}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "; ".join(f"{told.count(one)} x {one}" for one in sorted(set(told)))


def _many_streams(
    target: Target, count: int, blocks: int, size: int, command: Callable[[], dict[str, Any]]
) -> str:
    """Streams that send blocks without waiting for answers, and then take these."""
    sent = block(size)
    blocks = target.count(blocks)

    def send(_number: int) -> str:
        with target.client() as client:
            client.begin(**command())
            for number in range(blocks):
                client.send(head_of(Code.BLOCK, len(sent), number), sent)
            for _ in range(blocks):
                status = client.answer().acknowledged
                if status != "PUT_OK":
                    return f"told {status}"
            return client.ask(Code.FINISH).status or "stored"

    return _in_threads(count, send)


def _read_of_the_log() -> bytes:
    ranges = {"counts": [16], "offsets": [0] * 16, "lengths": [4 << 20] * 16}
    return request(Code.READ, json.dumps({"paths": ["commitlog/" + "0" * 20], **ranges}).encode())


@contextmanager
def _held(target: Target, count: int, *data: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which something was sent, in turn, as far as it is taken."""
    with ExitStack() as opened:
        held = []
        for number in range(count):
            with suppress(OSError):
                held.append(opened.enter_context(_sent(target, data[number % len(data)])))
        yield held


def _sent(target: Target, data: bytes) -> socket.socket:
    """A connection on which something was sent, as far as it is taken within a second."""
    one = connected(target.endpoint, 1.0, target.tls)
    with suppress(OSError):
        one.sendall(data)
    one.setblocking(False)
    return one


def _hold_on(target: Target, held: Sequence[socket.socket]) -> None:
    """Send a byte now and then on some connections."""
    until = time.monotonic() + target.seconds
    while time.monotonic() < until:
        for one in held:
            with suppress(OSError):
                one.send(b"x")
        time.sleep(0.2)


def _again_and_again(target: Target, count: int, data: bytes) -> str:
    """Connections on which the same is sent; each that the process ends is replaced."""
    until = time.monotonic() + target.seconds
    with ExitStack() as opened:
        held: list[socket.socket | None] = [None] * target.count(count)
        while time.monotonic() < until:
            for number, one in enumerate(held):
                if one is None or _has_ended(one):
                    with suppress(OSError):
                        held[number] = opened.enter_context(_sent(target, data))
            time.sleep(0.1)
    return "held"


def _has_ended(one: socket.socket) -> bool:
    try:
        while data := one.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError as error:
        if not isinstance(error, ssl.SSLWantReadError):
            one.close()
        return not isinstance(error, ssl.SSLWantReadError)
    one.close()
    return not data


def _health(host: str, port: int) -> int:
    with suppress(OSError), socket.create_connection((host, port), 5) as connection:
        connection.settimeout(5)
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = connection.recv(64)
        return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0
    return 0


class _Honest:
    """A client that puts while others attack: one message, and now and then 256 KiB."""

    def __init__(self, target: Target) -> None:
        self.latencies: list[float] = []
        self.failed: list[str] = []
        self._target = target
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
                with self._target.client(seconds=30) as client:
                    client.begin(op="put")
                    for number, size in enumerate([1] * 9 + [256 << 10]):
                        status = client.put(block(size), number)
                        self.latencies.append(time.monotonic() - begin)
                        if status != "PUT_OK":
                            self.failed.append(status)
                            break
                        self._stop.wait(0.01)
                        begin = time.monotonic()
                    else:
                        client.ask(Code.FINISH)
            except (OSError, AssertionError) as error:
                self.failed.append(f"{type(error).__name__} {error}"[:60])
                self.latencies.append(time.monotonic() - begin)


def memory_peak_begins(pid: int) -> None:
    """Let the peak of a process's resident memory begin again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def memory(pid: int, name: str) -> int:
    """A figure of a process's memory in bytes, by its name in /proc/PID/status."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


def run(attack: Callable[[Target], str], target: Target) -> Outcome:
    """Do one attack, and look at the process and at an honest client meanwhile."""
    memory_peak_begins(target.pid)
    with _Honest(target) as honest:
        told = attack(target)
    peak = memory(target.pid, "VmHWM")
    with suppress(AssertionError):
        eventually(lambda: memory(target.pid, "VmRSS") < MOST_AFTER, 10)
    after = memory(target.pid, "VmRSS")
    latencies = sorted(honest.latencies)
    return Outcome(peak, after, len(latencies), honest.failed, latencies, told)


@contextmanager
def attacked(folder: Path, scale: float = 1.0, how: str = "tcp") -> Iterator[Target]:
    """A store process to attack.

    Args:
        folder: for its files.
        scale: see `Target`.
        how: over "tcp", "tls" or a unix "socket".
    """
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    settings = [
        f"--set=tokenPath={token}",
        "--set=metricsPromExporterPort=0",
        "--set=mappedFileSizeCommitLog=1073741824",
    ]
    tls = None
    if how == "tls":
        made = make_certificates(folder / "certificates")
        settings += [f"--set=tlsCertPath={made.server_cert}", f"--set=tlsKeyPath={made.server_key}"]
        tls = ssl.create_default_context(cafile=made.ca)
    elif how == "socket":
        settings.append(f"--set=flightSocket={folder}/run/s")
    with StoreProcess(folder / "store", folder, *settings) as process:
        ready = process.ready()
        endpoint = ready["endpoints"][-1]
        target = Target(endpoint, ready["metrics"], ready["pid"], scale, tls)
        with target.client() as client:
            assert client.ask(Code.OPEN, {"topics": ["orders"]}).json()
        yield target
        assert process.process.poll() is None, process.output


def main() -> None:
    """Do all attacks, and print a line of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.attacks")
    parser.add_argument("--only", action="append", default=[], help="the name of an attack")
    parser.add_argument("--how", default="tcp", choices=["tcp", "tls", "socket"])
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the store goes")
    given = parser.parse_args()
    out = sys.stdout.write
    out("attack | peak MB | 10 s later MB | puts | failed | median ms | p99 ms | what came of it\n")
    for attack in ATTACKS:
        if given.only and attack.__name__ not in given.only:
            continue
        with (
            tempfile.TemporaryDirectory(dir=given.folder) as folder,
            attacked(Path(folder), how=given.how) as target,
        ):
            found = run(attack, target)
        out(
            f"{attack.__name__} | {found.peak >> 20} | {found.after >> 20} | {found.puts} | "
            f"{len(found.failed)} | {found.latency(0.5) * 1000:.1f} | "
            f"{found.latency(0.99) * 1000:.0f} | {found.told} {found.failed[:2] or ''}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
