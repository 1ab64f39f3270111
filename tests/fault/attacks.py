"""What a plain client can do to a store process: its memory, and what others get meanwhile.

    python -m tests.fault.attacks            all of it, as the figures in benchmarks/RESULTS.md
    python -m tests.fault.attacks --only NAME --how tls

The attackers use pyarrow and sockets and nothing of this package: what they send is encoded here.
While each attack runs, an honest client puts small and larger blocks, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
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

import pyarrow as pa
from pyarrow import flight

from tests.support.certificates import make_certificates
from tests.support.processes.serving import StoreProcess, eventually

__all__ = [
    *("ATTACKS", "MOST_AFTER", "MOST_DURING", "Outcome", "Target", "attacked", "memory"),
    *("memory_peak_begins", "run"),
]

MOST_DURING: Final = 600 << 20
MOST_AFTER: Final = 400 << 20
"""Bytes of resident memory that a store process may have under an attack, and 10 s after it."""

SCHEMA: Final = pa.schema([pa.field("records", pa.binary(), nullable=False)])
TOKEN: Final = "a-token-of-the-honest-client"
_MAGIC: Final = -626843481
_KEY: Final = "bomb"


class Target(NamedTuple):
    """What is attacked.

    Attributes:
        endpoint: of the store process.
        metrics: `host:port` of its metrics.
        pid: of the process.
        scale: how much of an attack there is; 1 is all of it.
        ca: who signed its certificate, PEM; None where it is not encrypted.
    """

    endpoint: str
    metrics: str
    pid: int
    scale: float
    ca: bytes | None

    def client(self, token: str = TOKEN) -> Any:
        """A client of Arrow Flight, with a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return flight.FlightClient(
            self.endpoint,
            middleware=[_Token(token)],
            generic_options=options,
            tls_root_certs=self.ca,
        )

    def count(self, number: int) -> int:
        """So many of something, in the scale of this run."""
        return max(2, round(number * self.scale))


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


class _Token(flight.ClientMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, _info: Any) -> Any:
        return _Header(self._token)


class _Header(flight.ClientMiddleware):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token else {}


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


def block(size: int) -> pa.RecordBatch:
    """A block of about so many bytes, of messages of 1 KiB."""
    one = record(os.urandom(1024))
    return batch(one * max(1, size // len(one)))


def batch(data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=SCHEMA)


def stream(client: Any, command: dict[str, Any]) -> tuple[Any, Any]:
    """A stream of blocks."""
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, reader = client.do_exchange(descriptor)
    writer.begin(SCHEMA)
    return writer, reader


def stage() -> dict[str, Any]:
    return {"op": "stage", "stageId": uuid.uuid4().hex}


# ---- attacks -----------------------------------------------------------------------------------


def without_a_token(target: Target) -> str:
    """8 clients without a token send 300 MB each in one action."""
    body = bytes(target.count(300) << 20)

    def send(_number: int) -> str:
        with target.client("") as client:
            list(client.do_action(flight.Action("open", body)))
        return "accepted"

    return _in_threads(8, send)


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
        writer, reader = stream(client, {"op": "put"})
        for number in range(10):
            writer.write_with_metadata(batch(bomb * 8), struct.pack("<q", number))
            reader.read_chunk()
        writer.done_writing()
        writer.close()
        list(client.do_action(flight.Action("flush", b"{}")))
    query = json.dumps({"topic": "orders", "key": _KEY, "maxNum": 1024}).encode()

    def ask(_number: int) -> str:
        with target.client() as client:
            list(client.do_action(flight.Action("query", query)))
        return "answered"

    return _in_threads(target.count(16), ask)


def idle_streams(target: Target) -> str:
    """256 streams that send nothing, each with a connection of its own."""
    with ExitStack() as opened:
        for _ in range(256):
            client = opened.enter_context(target.client())
            with suppress(flight.FlightError, pa.ArrowException):
                opened.callback(_quietly, stream(client, {"op": "put"})[0].close)
        time.sleep(10 * target.scale)
    return "held"


def slow_senders(target: Target) -> str:
    """40 streams begin blocks of 30 MB, and send a byte now and then."""
    with ExitStack() as opened:
        held = [opened.enter_context(_slow_block(target, 30 << 20)) for _ in range(40)]
        until = time.monotonic() + 15 * target.scale
        while time.monotonic() < until:
            for connection in held:
                with suppress(OSError):
                    connection.send(_frame(0, 0, 1, b"x"))
            time.sleep(0.2)
    return "held"


def idle_readers(target: Target) -> str:
    """200 clients ask for 64 MB of the log each, and take nothing."""
    ticket = json.dumps(
        {
            "paths": ["commitlog/" + "0" * 20],
            "counts": [16],
            "offsets": [0] * 16,
            "lengths": [4 << 20] * 16,
        }
    ).encode()
    with ExitStack() as opened:
        for _ in range(target.count(200)):
            client = opened.enter_context(target.client())
            reader = client.do_get(flight.Ticket(ticket))
            opened.callback(reader.cancel)
        time.sleep(10 * target.scale)
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
    commit = {
        "writer": {"kind": "stream", "name": "a-query-of-others", "number": (1 << 63) - 1},
        "stages": [],
    }
    with target.client() as client:
        try:
            list(client.do_action(flight.Action("commit", json.dumps(commit).encode())))
        except flight.FlightError as error:
            return f"refused: {str(error)[:80]}"
    return "COMMITTED"


def unreadable_records(target: Target) -> str:
    """Puts records that no reader takes: a body that does not unpack, a negative reconsumeTimes."""
    broken = bytearray(record(b"not compressed at all", flags=0x301))
    negative = bytearray(record(b"a body"))
    struct.pack_into(">i", negative, 4 + 68, -1)
    told = []
    with target.client() as client:
        writer, reader = stream(client, {"op": "put"})
        for number, one in enumerate((broken, negative)):
            writer.write_with_metadata(batch(bytes(one)), struct.pack("<q", number))
            told.append(_status(reader.read_chunk().app_metadata.to_pybytes()))
        writer.close()
    return ", ".join(told)


ATTACKS: Final[Sequence[Callable[[Target], str]]] = (
    without_a_token,
    stages_of_32,
    stages_of_100,
    stages_of_200,
    large_puts,
    large_stages,
    idle_streams,
    slow_senders,
    idle_readers,
    half_requests,
    vanishing_batch,
    unreadable_records,
    bombs,
)


# ---- how ---------------------------------------------------------------------------------------


def _status(answer: bytes) -> str:
    """The status of an acknowledgement; see the protocol's page."""
    return answer[20 : 20 + answer[17]].decode()


def _quietly(work: Callable[[], object]) -> None:
    with suppress(flight.FlightError, pa.ArrowException):
        work()


def _in_threads(count: int, work: Callable[[int], str]) -> str:
    """Do something in so many threads; what came of it, counted."""
    told: list[str] = []

    def run(number: int) -> None:
        try:
            told.append(work(number))
        except (flight.FlightError, pa.ArrowException, StopIteration) as error:
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
            writer, reader = stream(client, command())
            for number in range(blocks):
                writer.write_with_metadata(sent, struct.pack("<q", number))
            for _ in range(blocks):
                status = _status(reader.read_chunk().app_metadata.to_pybytes())
                if status != "PUT_OK":
                    return f"told {status}"
            writer.write_metadata(b"finish")
            reader.read_chunk()
            _quietly(writer.close)
            return "stored"

    return _in_threads(count, send)


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return struct.pack(">IBBI", len(payload), kind, flags, number)[1:] + payload


@contextmanager
def _slow_block(target: Target, size: int) -> Iterator[socket.socket]:
    """A connection of raw HTTP/2 on which a block of some size has begun."""
    host, _, port = target.endpoint.removeprefix("rmq://").rpartition(":")

    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    headers = b"\x83\x86" + b"".join(
        b"\0" + text(name) + text(value)
        for name, value in (
            (b":path", b"/arrow.flight.protocol.FlightService/DoExchange"),
            (b":authority", b"store"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"authorization", b"Bearer " + TOKEN.encode()),
        )
    )
    command = b'{"op":"put"}'
    descriptor = b"\x08\x02\x12" + text(command)
    first = b"\x0a" + text(descriptor)
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        connection.sendall(_frame(1, 4, 1, headers))
        connection.sendall(_frame(0, 0, 1, struct.pack(">BI", 0, len(first)) + first))
        connection.sendall(_frame(0, 0, 1, struct.pack(">BI", 0, size)))
        connection.setblocking(False)
        yield connection


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
        blocks = [block(1)] * 9 + [block(256 << 10)]
        count = 0
        while not self._stop.is_set() or not count:
            begin = time.monotonic()
            try:
                with self._target.client() as client:
                    writer, reader = stream(client, {"op": "put"})
                    for sent in blocks:
                        begin = time.monotonic()
                        writer.write_with_metadata(sent, struct.pack("<q", count))
                        answer = reader.read_chunk().app_metadata.to_pybytes()
                        self.latencies.append(time.monotonic() - begin)
                        count += 1
                        if _status(answer) != "PUT_OK":
                            self.failed.append(_status(answer))
                            break
                        self._stop.wait(0.01)
                    _quietly(writer.close)
            except (flight.FlightError, pa.ArrowException, StopIteration) as error:
                self.failed.append(str(error).partition(":")[0])
                self.latencies.append(time.monotonic() - begin)
                count += 1


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
    ca = None
    if how == "tls":
        made = make_certificates(folder / "certificates")
        settings += [f"--set=tlsCertPath={made.server_cert}", f"--set=tlsKeyPath={made.server_key}"]
        ca = Path(made.ca).read_bytes()
    elif how == "socket":
        settings.append(f"--set=flightSocket={folder}/run/s")
    with StoreProcess(folder / "store", folder, *settings) as process:
        ready = process.ready()
        endpoint = ready["endpoints"][-1]
        target = Target(endpoint, ready["metrics"], ready["pid"], scale, ca)
        with target.client() as client:
            list(client.do_action(flight.Action("open", b'{"topics":["orders"]}')))
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
