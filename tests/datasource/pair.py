"""A store process and its follower, both of which can be killed and started again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rmqstore_spark.client import StoreClient
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, block_of, eventually

PART = 600
PATIENCE = 240.0


class Pair:
    """A store process and its follower, both of which can be killed and started again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = {name: free_port() for name in ("first", "second", "ha")}
        self._settings = {
            "first": [f"--set=haListenPort={self._ports['ha']}"],
            "second": [
                "--set=brokerRole=SLAVE",
                f"--set=haMasterAddress=127.0.0.1:{self._ports['ha']}",
            ],
        }
        self.written = 0
        self.processes = {name: self._started(name) for name in ("first", "second")}

    def _started(self, name: str) -> StoreProcess:
        place = self._folder / name
        place.mkdir(exist_ok=True)
        port = str(self._ports[name])
        process = StoreProcess(place / "store", place, "--port", port, *self._settings[name])
        process.ready()
        return self._stack.enter_context(process)

    def restart(self, name: str) -> None:
        self.processes[name] = self._started(name)

    @property
    def endpoint(self) -> str:
        return "|".join(f"rmq://127.0.0.1:{self._ports[name]}" for name in ("first", "second"))

    @property
    def ha_address(self) -> str:
        """Where the first one serves slaves."""
        return f"127.0.0.1:{self._ports['ha']}"

    def put(self, count: int = PART) -> None:
        numbers = range(self.written, self.written + count)
        bodies = [b"%d" % number for number in numbers]
        with (
            StoreClient(self.processes["first"].endpoint) as client,
            client.put_stream() as stream,
        ):
            stream.send(block_of(bodies, queue_ids=[number % 3 for number in numbers]))
            stream.drain()
        self.written += count

    def follower_has_all(self) -> None:
        with (
            StoreClient(self.processes["first"].endpoint) as first,
            StoreClient(self.processes["second"].endpoint) as second,
        ):
            end = first.stats()["commitLogMaxOffset"]
            eventually(lambda: second.stats()["commitLogMaxOffset"] == end, PATIENCE)
