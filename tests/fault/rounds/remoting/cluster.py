"""A store process that is a broker, and its name server; both are killed and started again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rmqstore_spark.client import StoreClient
from tests.fault.remote import Restarted
from tests.namesrv.serving import NamesrvProcess
from tests.support.processes.ports import free_port

DELAYS: Final = "1s 1s 1s 1s"
"""What was sent back comes again after a second."""

_QUEUES: Final = 4
_OFTEN: Final = (
    "transactionTimeOut=0", "transactionCheckInterval=200", "transactionCheckMax=1000000",
    "flushConsumerOffsetInterval=500",
)  # fmt: skip
"""Transactions are checked at once, and the progress of consumers is saved when it is reported."""


class Cluster:
    """A broker and its name server.

    Args:
        folder: for their files, and those of applications.

    Attributes:
        store: the store directory.
        name_server: the address of the name server.
        broker: the store process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "broker" / "store"
        self.ends = ExitStack()
        self._name_port = free_port()
        self.name_server = f"127.0.0.1:{self._name_port}"
        self._name_process: NamesrvProcess | None = None
        settings = (
            "clients=all", f"listenPort={free_port()}", "vipListenPort=0",
            "registerNameServerPeriod=10000",
            f"namesrvAddr={self.name_server}", f"messageDelayLevel={DELAYS}", *_OFTEN,
        )  # fmt: skip
        self.broker = Restarted(self.ends, self.store, 0, *settings)

    def start(self, topic: str) -> None:
        """Start both, and make a topic with some queues."""
        self.start_name_server()
        with StoreClient(self.broker.start().endpoint) as client:
            client.create_topic(topic, write_queue_nums=_QUEUES)

    def start_name_server(self) -> None:
        """Start it."""
        server = NamesrvProcess(self.folder, "--port", str(self._name_port))
        self._name_process = self.ends.enter_context(server)

    def kill_name_server(self) -> None:
        """Kill it."""
        assert self._name_process is not None
        self._name_process.process.kill()
        self._name_process.process.wait()

    def is_stopped(self) -> bool:
        """Whether the store process has stopped at its failpoint."""
        assert self.broker.process is not None
        state = Path(f"/proc/{self.broker.process.process.pid}/stat").read_text()
        return state.rpartition(") ")[2].startswith("T")
