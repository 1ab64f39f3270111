"""Sends to topics that do not exist: all that gather get their topics with one write of a file.

They wait in a thread of their own, so that sends to topics that exist pass by. (Upstream:
TopicConfigManager.createTopicInSendMessageMethod, which writes the file for each topic.)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.faces.remoting.headers import named_topic
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker, take_requests
from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.remoting.connection import Request


class NewTopics:
    """Creates the topics of sends, and lets them be stored. Its requests come from one thread.

    Args:
        catalog: the topics.
        create: creates what a request needs, unless it is refused later anyway.
        store: stores the messages of requests.
        most: requests that may wait.
    """

    def __init__(
        self,
        catalog: Catalog,
        create: Callable[[Request], None],
        store: Callable[[Sequence[Request]], None],
        most: int,
    ) -> None:
        self._catalog = catalog
        self._create = create
        self._store = store
        self._most = most
        self._lock = threading.Lock()
        self._named: Counter[str] = Counter()
        self._worker: Worker[Request] = Worker("rmqstore-new-topics", self)
        self._worker.start()

    def __len__(self) -> int:
        return len(self._worker)

    def __contains__(self, topic: str) -> bool:
        """Return whether a request to a topic is here: later ones must not overtake it."""
        return topic in self._named

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        names = [named_topic(request.command) for request in requests]
        with self._lock:
            self._named.update(names)
        refused = take_requests(self._worker, requests, self._most)
        self._done([named_topic(request.command) for request in refused])

    def handle(self, jobs: Sequence[Request]) -> None:
        """Create the topics of requests, and store their messages."""
        try:
            with suppress(StoreWriteError), self._catalog.together():
                for request in jobs:
                    self._create(request)
            self._store(jobs)
        finally:
            self._done([named_topic(request.command) for request in jobs])

    def close(self) -> None:
        """Store what waits, and end the thread."""
        self._worker.close()

    def _done(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._named[name] -= 1
                if not self._named[name]:
                    del self._named[name]
