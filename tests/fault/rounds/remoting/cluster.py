"""A store process that is a broker, and its name server; both are killed and started again."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.client import StoreClient
from tests.fault.remote import serve
from tests.namesrv.serving import NamesrvProcess
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, eventually

__all__ = ["DELAYS", "Cluster"]

DELAYS: Final = "1s 1s 1s 1s"
"""What was sent back comes again after a second."""

_QUEUES: Final = 4
_OFTEN: Final = (
    "transactionTimeOut=0", "transactionCheckInterval=200", "transactionCheckMax=1000000",
    "flushConsumerOffsetInterval=500",
)  # fmt: skip
"""Transactions are checked at once, and the progress of consumers is saved when it is reported."""


class Cluster:
    """A broker and its name server, as a context manager.

    Args:
        folder: for their files.

    Attributes:
        store: the store directory.
        folder: for files of applications.
        name_server: the address of the name server.
        killed: when the store process was, in milliseconds of the wall clock.
    """

    def __init__(self, folder: Path) -> None:
        self.store = folder / "broker" / "store"
        self.store.parent.mkdir(parents=True)
        self.folder = folder
        self.killed: list[int] = []
        self._ends = ExitStack()
        self._name_port, self._port = free_port(), free_port()
        self.name_server = f"127.0.0.1:{self._name_port}"
        self._name_process: NamesrvProcess | None = None
        self._process: StoreProcess | None = None

    def __enter__(self) -> Cluster:
        with ExitStack() as undo:
            undo.callback(self._ends.close)
            self.start_name_server()
            self.start_store().ready()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def make_topic(self, topic: str) -> None:
        """Make a topic with some queues."""
        with StoreClient(self._running().endpoint) as client:
            client.create_topic(topic, write_queue_nums=_QUEUES)

    def start_name_server(self) -> None:
        """Start it."""
        server = NamesrvProcess(self.folder, "--port", str(self._name_port))
        self._name_process = self._ends.enter_context(server)

    def kill_name_server(self) -> None:
        """Kill it."""
        assert self._name_process is not None
        self._name_process.process.kill()
        self._name_process.process.wait()

    def start_store(self, failpoint: str = "") -> StoreProcess:
        """Start the store process, which may die or stop at a failpoint."""
        settings = (
            "clients=all", f"listenPort={self._port}", "vipListenPort=0",
            "registerNameServerPeriod=10000",
            f"namesrvAddr={self.name_server}", f"messageDelayLevel={DELAYS}", *_OFTEN,
        )  # fmt: skip
        environment = {"RMQSTORE_FAILPOINT": failpoint}
        process = serve(self.store, 0, *settings, environment=environment)
        self._process = self._ends.enter_context(process)
        return process

    def kill_store(self) -> None:
        """Kill the store process, if it is running."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self._process.process.wait()
            self.killed.append(time.time_ns() // 1_000_000)
            self._process = None

    def keep_store(self) -> None:
        """Start the store process if it is not running."""
        if self._process is None:
            self.start_store().ready()

    def is_stopped(self) -> bool:
        """Whether the store process has stopped at its failpoint."""
        state = Path(f"/proc/{self._running().process.pid}/stat").read_text()
        return state.rpartition(") ")[2].startswith("T")

    def resume(self) -> None:
        """Let a store process that has stopped continue."""
        self._running().signal(signal.SIGCONT)

    def stats(self) -> dict[str, Any]:
        """The figures of the store."""
        with StoreClient(self._running().endpoint) as client:
            return client.stats()

    def close(self) -> None:
        """End the store process, which closes its store."""
        process = self._running()
        process.signal(signal.SIGTERM)
        eventually(lambda: process.process.poll() is not None)
        assert process.process.returncode == 0, process.output

    def _running(self) -> StoreProcess:
        assert self._process is not None
        return self._process
