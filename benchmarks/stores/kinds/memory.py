"""Python's lists and dictionaries: no disk at all."""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stores.kind import Opening
from benchmarks.stores.messages import Message

__all__ = ["Memory"]


class Memory:
    """The floor of what Python takes: nothing is kept."""

    name = "memory"
    keeps = False
    schema = "a list of messages for each queue; a dictionary of messages by key"
    settings = "threads take turns with a lock"

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return f"Python {platform.python_version()}"

    def server(self, folder: Path) -> None:  # noqa: ARG002
        return None

    def open(self, opening: Opening) -> _Memory:
        return _Memory(opening)


class _Memory:
    def __init__(self, opening: Opening) -> None:
        self._lock = threading.Lock()
        self._queues: list[list[Message]] = [[] for _ in range(opening.queues)]
        self._first = [0] * opening.queues
        self._keys: dict[str, Message] = {}

    def append(self, batch: Sequence[Message], writer: int) -> None:  # noqa: ARG002
        with self._lock:
            for each in batch:
                self._queues[each.queue].append(each)
                self._keys[each.key] = each

    def settle(self) -> None:
        pass

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        begin = position - self._first[queue]
        return [each.body for each in self._queues[queue][begin : begin + most]]

    def find(self, key: str) -> list[bytes]:
        found = self._keys.get(key)
        return [] if found is None else [found.body]

    def expire(self, before: int) -> None:
        for number, queue in enumerate(self._queues):
            expired = next((n for n, each in enumerate(queue) if each.stored >= before), len(queue))
            for each in queue[:expired]:
                del self._keys[each.key]
            del queue[:expired]
            self._first[number] += expired

    def close(self) -> None:
        pass
