"""Store processes in both roles; a restart gives each the configuration that it had."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rmqstore_spark.client import StoreClient
from rmqstore_spark.reader import Store
from tests.fault.remote import serve
from tests.fault.rounds.life import SMALL
from tests.ha.peers import log_bytes
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, block_of, eventually

__all__ = ["Member", "bodies_of", "following", "members"]

_SOON = ("haHousekeepingInterval=2000", "haSendHeartbeatInterval=200", "slaveTimeout=3000")


class Member:
    """A store, and the process that serves it, which can be killed and started again.

    Attributes:
        path: the store.
        port: where it serves its slaves as a master.
        settings: its configuration beside that port and small files.
    """

    def __init__(self, path: Path, *settings: str) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.settings = settings
        self._process: StoreProcess | None = None

    @property
    def address(self) -> str:
        """Where it serves its slaves as a master."""
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> StoreProcess:
        assert self._process is not None
        return self._process

    @property
    def endpoint(self) -> str:
        return self.process.endpoint

    def start(self, failpoint: str = "") -> Member:
        """Start its process; wait until it serves, unless it is to be killed somewhere."""
        given = (f"haListenPort={self.port}", *_SOON, *self.settings)
        environment = {"RMQSTORE_FAILPOINT": failpoint}
        self._process = serve(self.path, 0, *given, environment=environment)
        self.process.ready()
        return self

    def kill(self) -> None:
        """Kill its process, and close what belongs to it."""
        if self._process is not None:
            self._process.__exit__()
        self._process = None

    def stop(self) -> None:
        """Stop its process, and wait for that."""
        self.process.signal(signal.SIGTERM)
        assert self.process.wait() == 0, self.process.output
        self.kill()

    def stats(self) -> dict[str, Any]:
        with StoreClient(self.endpoint) as client:
            return client.stats()

    def put(self, *bodies: bytes) -> str:
        """Put messages; returns the status."""
        with StoreClient(self.endpoint) as client, client.put_stream() as stream:
            return stream.put(block_of(list(bodies))).status

    @property
    def end(self) -> int:
        """Where its log ends."""
        return int(self.stats()["commitLogMaxOffset"])

    def has_caught_up(self, master: Member) -> int:
        """Wait until its log ends where its master's does; returns where that is."""
        return int(eventually(lambda: self.end == master.end and master.end))

    def is_alone(self) -> None:
        """Wait until it knows that its master is not there."""
        eventually(lambda: _is_alone(self.stats()))

    sizes = SMALL

    def log(self, end: int) -> bytes:
        return log_bytes(self.path, 0, end)


def following(master: Member) -> tuple[str, str]:
    """The configuration of a slave."""
    return "brokerRole=SLAVE", f"haMasterAddress={master.address}"


def _is_alone(stats: dict[str, Any]) -> bool:
    return stats["replicationState"] == "CONNECTING" and bool(stats["replicationError"])


def bodies_of(endpoint: str, topic: str = "orders") -> list[bytes]:
    """The bodies of the messages in a topic."""
    with Store.open(endpoint) as store:
        parts = [
            part for queue in store.queues([topic]) for part in store.read(topic, queue.queue_id)
        ]
        return sorted(body for part in parts for body in part["body"].to_pylist())


@contextmanager
def members(
    folder: Path,
    slaves: int = 1,
    *settings: str,
    masters: Sequence[str] = (),
    slaves_of: Sequence[str] = (),
) -> Iterator[list[Member]]:
    """A master and slaves of it that have been started; the first one is the master.

    Args:
        folder: for their stores.
        slaves: how many.
        settings: the configuration of all.
        masters, slaves_of: more of the master's, and of the slaves'.
    """
    with ExitStack() as ends:
        master = Member(folder / "0" / "store", *settings, *masters)
        made = [master]
        for number in range(1, slaves + 1):
            given = (*following(master), *settings, *slaves_of)
            made.append(Member(folder / str(number) / "store", *given))
        for each in made:
            ends.callback(each.kill)
            each.start()
        yield made
