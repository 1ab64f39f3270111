"""Stores that are served to the tests: by this process, or by one of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.broker.runner import BrokerRunner
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.server.server import StoreServer
from rmqstore_spark.server.stores.served import ServedPort, ServedStore
from rmqstore_spark.server.stores.written import WrittenStore
from rmqstore_spark.wire.endpoint import announced_endpoint
from tests.support.messages.blocks import encoded
from tests.support.messages.traffic import FIRST_TIME
from tests.support.processes.forked import is_stopped, start
from tests.support.waiting import PATIENCE, eventually

__all__ = [
    "Served",
    "StoreProcess",
    "block_of",
    "eventually",
    "port_of",
    "served",
    "server_of",
    "serving_brokers_clients",
]

_START = 120.0  # a process that imports and recovers, on a machine that starves it


class Served(NamedTuple):
    """A store that this process serves."""

    store: StoreWriter
    server: StoreServer
    stopped: threading.Event
    port: ServedPort

    @property
    def endpoint(self) -> str:
        """Where it is served over TCP."""
        return str(self.server.endpoints[0])

    @property
    def socket(self) -> str:
        """Where it is served over a unix socket."""
        return str(self.server.endpoints[1])


@contextmanager
def served(path: Path, **settings: Any) -> Iterator[Served]:
    """Serve a store.

    Args:
        path: the store.
        settings: attributes of StoreConfig.
    """
    config = StoreConfig(**{"listen_port": 0, "mapped_file_size_commit_log": 1 << 20, **settings})
    stopped = threading.Event()
    port = port_of(config)
    if port.bound is not None:
        config = config.listening_on(port.bound.getsockname()[1])
    with port.protection.watched(), StoreWriter.open(path, config) as store:
        server = server_of([WrittenStore(store)], config, port, stopped.set)
        try:
            yield Served(store, server, stopped, port)
        finally:
            server.drain(PATIENCE)
            server.close()


def port_of(config: StoreConfig) -> ServedPort:
    """The port of a configuration, bound, and what protects it."""
    has_port = config.listen_port >= 0
    bound = bound_port(config.bind_address, config.listen_port) if has_port else None
    return ServedPort(bound, Protection.of(config))


def server_of(
    stores: Sequence[ServedStore],
    config: StoreConfig,
    port: ServedPort | None = None,
    stop: Callable[[], None] = lambda: None,
) -> StoreServer:
    """A server of stores; on the port of its configuration by default."""
    port = port or port_of(config)
    return StoreServer(stores, config, port.protection, port.bound, stop)


@contextmanager
def serving_brokers_clients(here: Served) -> Iterator[BrokerRunner]:
    """Let RocketMQ's clients use a store that is served to `clients=all`."""
    assert here.port.bound is not None
    runner = BrokerRunner(
        here.store,
        here.port.bound,
        here.port.protection,
        endpoint=announced_endpoint(here.server.endpoints, "127.0.0.1"),
        other=here.server.protocol,
    )
    try:
        yield runner
    finally:
        runner.close()


_ANY_PORT: Final = ("--set=listenPort=0",)


class StoreProcess:
    """A store process of its own, as `rmqstore serve` starts it.

    Args:
        path: the store.
        folder: for its ready file and output.
        arguments: of the command.
        environment: variables beside those of this process.
        begin: starts it; `subprocess.Popen` as a user does, with imports of its own.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        begin: Callable[..., Any] = start,
    ) -> None:
        self.path = path
        self.ready_file = folder / "ready.json"
        self.ready_file.unlink(missing_ok=True)
        self._output = (folder / "output").open("w+b")
        self.process = begin(
            [
                *(sys.executable, "-m", "rmqstore_spark.cli", "serve"),
                *("--store", str(path), "--ready-file", str(self.ready_file)),
                "--set=mappedFileSizeCommitLog=1048576",
                *(() if any(each.startswith("--port") for each in arguments) else _ANY_PORT),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._output.close()

    def is_settled(self) -> bool:
        """Whether it serves, or has ended."""
        return self.ready_file.exists() or self.process.poll() is not None

    def ready(self) -> dict[str, Any]:
        """What the ready file says, once it is there."""
        eventually(self.is_settled, _START)
        assert self.ready_file.exists(), self.output
        told: dict[str, Any] = json.loads(self.ready_file.read_text())
        return told

    @property
    def endpoint(self) -> str:
        """Where it serves, once it does."""
        return str(self.ready()["endpoint"])

    @property
    def output(self) -> str:
        """All that it has printed."""
        return os.pread(self._output.fileno(), 1 << 20, 0).decode()

    def signal(self, number: int) -> None:
        """Send it a signal; return after SIGSTOP when it stands still, or has ended."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            eventually(lambda: is_stopped(self.process.pid) or self.process.poll() is not None)

    def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        code: int = self.process.wait(PATIENCE)
        return code


def block_of(
    bodies: list[bytes],
    topic: str = "orders",
    queue_ids: list[int] | None = None,
    properties: bytes = b"",
) -> U1:
    """A block of messages, as an executor encodes them."""
    count = len(bodies)
    return encoded(
        pa.record_batch(
            {
                "topic": pa.array([topic] * count, pa.string()),
                "queueId": pa.array(queue_ids or [0] * count, pa.int32()),
                "body": pa.array(bodies, pa.binary()),
                "properties": pa.array([properties] * count, pa.binary()),
                "bornTimestamp": pa.array([FIRST_TIME] * count, pa.int64()),
            }
        )
    )
