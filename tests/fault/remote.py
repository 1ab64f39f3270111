"""A client of a store process that continues whatever happens to it or to the connection."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.wire.messages import CommitRequest, CommitResult, StageInfo, WriterId
from tests.fault.claims import Claims
from tests.fault.messages import TOPICS, block
from tests.fault.rounds.life import SMALL
from tests.support.processes.serving import StoreProcess

__all__ = ["RemoteWriter", "request_of", "serve", "stage"]

_PATIENCE_S: Final = 60.0
_QUERY: Final = "fault-test"


def serve(
    store: Path, port: int = 0, *settings: str, environment: Mapping[str, str] | None = None
) -> StoreProcess:
    """Start `rmqstore serve` with small files."""
    given = (f"listenPort={port}", *SMALL, *settings)
    arguments = [f"--set={pair}" for pair in given]
    return StoreProcess(store, store.parent, *arguments, environment=environment)


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

    def write_until(
        self, end: threading.Event, seed: int, commits: float = 0.5, *, most: int = sys.maxsize
    ) -> None:
        """Put and commit until told to end, or until there are so many messages."""
        drawn = random.Random(seed)
        while not end.is_set() and self.claims.next_number < most:
            write = self.commit if drawn.random() < commits else self.put
            write(drawn.choice((2, 7, 60, 400)))
