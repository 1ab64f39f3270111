"""A store process for the tests of the sinks, and what its store holds."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from rmqstore_spark.client import StoreClient
from rmqstore_spark.embedding import EmbeddedStore, Setting
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.options import ReadOptions
from tests.support.processes.forked import start
from tests.support.processes.ports import free_port
from tests.support.stores.storing import until

__all__ = ["Served"]

_PATIENCE = 60.0
_MARKERS = "rmq_sys_RMQSTORE_COMMIT"


class _Quick(EmbeddedStore):
    """An embedded store whose process begins where the imports end."""

    def _begin(self, ready: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.PIPE, "stdout": output, "stderr": subprocess.STDOUT}
        return cast("subprocess.Popen[bytes]", start(self._command(ready), **streams))


class Served:
    """A store with a process that writes it; small files, so that they roll.

    Its port is one that no other test's process takes while this one is gone.

    Args:
        path: of the store.
        settings: keys of its configuration; `listenPort` is a free one by default.
    """

    def __init__(self, path: Path, **settings: Setting) -> None:
        self.path = path
        defaults: dict[str, Setting] = {
            "mappedFileSizeCommitLog": 4 << 20,
            "mappedFileSizeConsumeQueue": 20 * 5000,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
        }
        port = int(settings.pop("listenPort", 0)) or free_port()
        self.process = _Quick(path, port=port, settings=defaults | settings)
        self.endpoint = self.process.start()

    def client(self) -> StoreClient:
        """A client of the process."""
        return StoreClient(self.endpoint)

    def restart(self) -> None:
        """Start the process that was killed, or stopped, on its old port."""
        self.endpoint = self.process.start()

    def rows(
        self,
        topic: str,
        columns: Sequence[str] = ("queueId", "queueOffset", "body"),
        least: int | None = None,
    ) -> list[dict[str, Any]]:
        """The messages of a topic by queue, once the process has put them into queues.

        Args:
            least: wait until there are so many; otherwise until the queues hold what the log does.
        """
        if least is None:
            self._wait_for_queues()
        deadline = time.monotonic() + _PATIENCE
        while True:
            rows = self._queued(topic, columns)
            wanted = self._logged(topic) if least is None else least
            if len(rows) >= wanted:
                return rows
            assert time.monotonic() < deadline, f"{len(rows)} of {wanted} messages are in queues"
            time.sleep(0.05)

    def bodies(self, topic: str, least: int | None = None) -> Counter[bytes]:
        """How often each body is in a topic."""
        return Counter(row["body"] for row in self.rows(topic, least=least))

    def commits(self) -> int:
        """How many markers of commits the log holds."""
        self._wait_for_queues()
        return self._logged(_MARKERS)

    def _wait_for_queues(self) -> None:
        """Wait until the queues hold what the log does: a scan of a live store ends with them."""

        def hold() -> bool:
            with suppress(ServiceError), StoreClient(self.endpoint, retries=0) as client:
                return not client.stats()["dispatchBehindBytes"]
            return self.process.pid is None  # a process that was killed is behind with nothing

        until(hold, _PATIENCE)

    def stages(self) -> int:
        """How many stages wait for their commit."""
        with StoreClient(self.endpoint) as client:
            return int(client.stats()["stages"])

    def wait_for_no_stage(self) -> None:
        """Wait until no stage is left.

        One that its task gave up goes when the process has learnt that its client is gone.
        """
        until(lambda: self.stages() == 0, _PATIENCE)

    def _queued(self, topic: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with Store.open(str(self.path)) as store:
            for queue_id in store.directory.topology.queues.get(topic, ()):
                queue = store.queue(topic, queue_id)
                options = ReadOptions(columns=tuple(columns))
                for batch in store.read(
                    topic, queue_id, queue.min_offset, queue.max_offset, options
                ):
                    found += batch.to_pylist()
        return found

    def _logged(self, topic: str) -> int:
        with Store.open(str(self.path)) as store:
            options = ReadOptions(columns=("topic",))
            topics = [t for batch in store.scan(options=options) for t in batch[0].to_pylist()]
        return topics.count(topic)
