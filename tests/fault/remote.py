"""A store process that is killed and started again, and clients that continue whatever happens."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rmqstore_spark.base.types import CommitRequest, CommitResult, StageInfo, WriterId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError
from tests.fault.claims import CLIENT, Claims
from tests.fault.messages import TOPICS, block
from tests.fault.rounds.life import SMALL
from tests.support.processes.serving import StoreProcess, eventually

_PATIENCE_S: Final = 60.0
_LONG_S: Final = 240.0
_QUERY: Final = "fault-test"


def serve(
    store: Path, port: int = 0, *settings: str, environment: Mapping[str, str] | None = None
) -> StoreProcess:
    """Start `rmqstore serve` with small files."""
    given = (f"listenPort={port}", *SMALL, *settings)
    arguments = [f"--set={pair}" for pair in given]
    return StoreProcess(store, store.parent, *arguments, environment=environment)


class Restarted:
    """A store process that is killed and started again.

    Args:
        ends: what ends it in the end.
        store: the store directory.
        port: of its clients; 0: another one each time.
        settings: of the store's configuration.

    Attributes:
        process: the one that is running.
        killed: when it was, in milliseconds of the wall clock.
    """

    def __init__(self, ends: ExitStack, store: Path, port: int, *settings: str) -> None:
        store.parent.mkdir(parents=True, exist_ok=True)
        self.store, self.port, self._settings, self._ends = store, port, settings, ends
        self.process: StoreProcess | None = None
        self.killed: list[int] = []

    def start(self, failpoint: str = "") -> StoreProcess:
        """Start it; it may die or stop at a failpoint. Without one, it serves then."""
        environment = {"RMQSTORE_FAILPOINT": failpoint}
        process = serve(self.store, self.port, *self._settings, environment=environment)
        self.process = self._ends.enter_context(process)
        if not failpoint:
            process.ready()
        return process

    def kill(self) -> None:
        """Kill it, if it is running."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            assert self.process.process.wait() == -signal.SIGKILL, self.process.output
            self.killed.append(time.time_ns() // 1_000_000)
            self.process = None

    def keep(self) -> None:
        """Start it if it is not running."""
        if self.process is None:
            self.start()

    def die_at(self, failpoint: str, seconds: float, cause: Callable[[], object] = int) -> bool:
        """Let it die at a failpoint; kill it if it does not get there soon. Starts no other.

        Args:
            failpoint: with how often it gets there before.
            seconds: that it has when it serves.
            cause: called again and again meanwhile.

        Returns:
            Whether it got there.
        """
        process = self.start(failpoint)
        eventually(process.is_settled, _LONG_S)
        deadline = time.monotonic() + seconds
        while process.process.poll() is None and time.monotonic() < deadline:
            cause()
            time.sleep(0.02)
        is_dead = process.process.poll() is not None
        self.kill()
        return is_dead

    def stats(self) -> dict[str, Any]:
        """The figures of the store."""
        assert self.process is not None
        with StoreClient(self.process.endpoint) as client:
            return client.stats()

    def close(self) -> None:
        """End it, which closes its store."""
        process, self.process = self.process, None
        assert process is not None
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.output


def stage(client: StoreClient, first: int, count: int) -> StageInfo:
    """Stage messages."""
    with client.stage_stream() as stream:
        stream.send(block(first, count))
        return stream.finish()


def request_of(number: int, *stages: StageInfo, query: str = _QUERY) -> CommitRequest:
    """The commit of a batch of a query."""
    return CommitRequest(WriterId("stream", query, number), stages)


class RemoteWriter:
    """Puts and commits messages, and says in `claims` what it was told.

    Args:
        endpoint: of the store process.
        claims: what was done.
        timeout_s: seconds that it waits for an answer.
        patience_s: seconds within which a commit must succeed.
        query: whose batches it commits.
    """

    def __init__(
        self,
        endpoint: str,
        claims: Claims,
        timeout_s: float = 5.0,
        patience_s: float = _PATIENCE_S,
        query: str = _QUERY,
    ) -> None:
        self.claims = claims
        self._query = query
        self._patience_s = patience_s
        self._client = StoreClient(endpoint, timeout_s=timeout_s, retries=2)
        self.failures = 0
        self.served_since = 0.0

    def make_topics(self) -> None:
        """Make the topics; asked again, it does no harm."""
        for topic in TOPICS:
            self._client.create_topic(topic, write_queue_nums=4)

    def put(self, count: int) -> None:
        """Put messages, once: they are acknowledged or not."""
        first = self.claims.next_number
        self.claims.begin("put", first, count)
        try:
            with self._client.put_stream() as stream:
                if stream.put(block(first, count)).is_ok:
                    self.claims.done("put", first)
        except RmqStoreError:
            self.failures += 1

    def commit(self, count: int) -> CommitResult:
        """Commit a batch of two tasks, staging and committing it again until that succeeds."""
        first, half = self.claims.next_number, count // 2
        self.claims.begin("commit", first, count)
        begin = time.monotonic()
        while True:
            try:
                stages = [
                    stage(self._client, first, half),
                    stage(self._client, first + half, count - half),
                ]
                result = self._client.commit(request_of(first, *stages, query=self._query))
            except RmqStoreError:
                self.failures += 1
                # Kills in a row may let no commit through: only an undisturbed process must.
                late = time.monotonic() - max(begin, self.served_since)
                assert late < self._patience_s, "the commit does not happen"
            else:
                self.claims.done("commit", first)
                return result

    def abandon(self, count: int) -> None:
        """Stage messages that nobody commits."""
        first = self.claims.next_number
        self.claims.begin("stage", first, count)
        try:
            stage(self._client, first, count)
        except RmqStoreError:
            self.failures += 1

    def write_until(self, end: threading.Event, seed: int, *, most: int = sys.maxsize) -> None:
        """Put and commit until told to end, or until there are so many messages."""
        drawn = random.Random(seed)
        while not end.is_set() and self.claims.next_number < most:
            write = self.commit if drawn.random() < 0.5 else self.put
            write(drawn.choice((2, 7, 60, 400)))

    def batch_until(self, end: threading.Event, seed: int) -> None:
        """Commit batches, and leave some staged, until told to end."""
        drawn = random.Random(seed)
        while not end.is_set():
            write = self.commit if drawn.random() < 0.8 else self.abandon
            write(drawn.choice((2, 60, 400, 1500)))


class Writers:
    """Clients that write, each in a thread, while the store processes under them are killed.

    Args:
        ends: what ends them, if it comes to that before `end`.
        endpoint: of the store processes.
        count: how many; one puts and commits, several commit batches and leave some.

    Attributes:
        claims: what each was told.
        is_over: set when they are to end.
    """

    def __init__(self, ends: ExitStack, endpoint: str, count: int = 1) -> None:
        self.claims = [Claims(number * CLIENT) for number in range(count)]
        self.is_over = threading.Event()
        self._clients = [
            RemoteWriter(endpoint, claims, patience_s=_LONG_S, query=f"query-{number}")
            for number, claims in enumerate(self.claims)
        ]
        self._threads = ends.enter_context(ThreadPoolExecutor(count))
        ends.callback(self.is_over.set)
        self._writing: list[Future[None]] = []

    def begin(self, seed: int) -> None:
        """Make the topics, and begin to write."""
        self._clients[0].make_topics()
        for number, client in enumerate(self._clients):
            write = client.write_until if len(self._clients) == 1 else client.batch_until
            self._writing.append(self._threads.submit(write, self.is_over, seed + number))

    def is_served(self) -> None:
        """Note that an undisturbed store process serves them from now on."""
        for client in self._clients:
            client.served_since = time.monotonic()

    def wait_for_more(self) -> None:
        """Wait until each of them was acknowledged more than it was, or has failed."""
        before = [claims.acknowledged for claims in self.claims]
        eventually(
            lambda: all(
                claims.acknowledged > count or writing.done()
                for claims, count, writing in zip(self.claims, before, self._writing, strict=True)
            ),
            _LONG_S,
        )

    @property
    def failures(self) -> int:
        """How many of their requests have failed."""
        return sum(client.failures for client in self._clients)

    def end(self) -> int:
        """Let them end; returns how many of their requests failed."""
        self.is_over.set()
        for writing in self._writing:
            writing.result()
        return self.failures
