"""What a store must be able to do to be compared."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.stores.messages import Message

__all__ = ["Kind", "OpenStore", "Opening", "Server", "package", "package_missing"]


@dataclass(frozen=True)
class Opening:
    """How a store is opened.

    Attributes:
        place: its folder; for servers, the folder of their socket.
        queues: how many queues it has, or will have.
        sync: an append returns when its messages are on disk.
        writers: how many threads append.
        new: make it; it replaces the one before.
    """

    place: str
    queues: int
    sync: bool = False
    writers: int = 1
    new: bool = False


class OpenStore(Protocol):
    """A store that is open. Each writer is a thread; all else is done by one."""

    def append(self, batch: Sequence[Message], writer: int) -> None:
        """Store messages: all of them or none. Return when they are acknowledged.

        Args:
            batch: the messages.
            writer: number of the thread, below `Opening.writers`.
        """
        ...

    def settle(self) -> None:
        """Wait until readers find all that was appended."""
        ...

    def read(self, queue: int, position: int, most: int) -> list[bytes]:
        """Return the bodies of a queue from a position on, at most so many."""
        ...

    def find(self, key: str) -> list[bytes]:
        """Return the bodies of the messages with a key."""
        ...

    def expire(self, before: int) -> None:
        """Remove messages that were stored before a time; return when that is done.

        A store that removes in larger pieces keeps those that have newer messages too.
        """
        ...

    def close(self) -> None:
        """Close it cleanly."""
        ...


class Server(Protocol):
    """A server of its own, with its files in a folder of its own.

    Attributes:
        place: for `Opening.place`.
        pid: of its first process, when it runs.
    """

    place: str

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Start it; return when it answers a query."""
        ...

    def stop(self) -> None:
        """Stop it as its manual says, so that all is in its files; return when it has ended."""
        ...

    def killed(self) -> None:
        """Wait for it after its processes were killed."""
        ...


class Kind(Protocol):
    """A kind of store.

    Attributes:
        name: as the table calls it.
        schema: how it holds the messages.
        settings: how it is configured, and where its manual says so.
        keeps: whether messages are still there when its process has ended.
    """

    name: str
    schema: str
    settings: str
    keeps: bool

    def missing(self) -> str:
        """Return why it cannot be measured here; empty if it can."""
        ...

    def version(self) -> str:
        """Return the version of the store, and of what connects Python to it."""
        ...

    def open(self, opening: Opening) -> OpenStore:
        """Open the store."""
        ...

    def server(self, folder: Path) -> Server | None:
        """Return a server with its files in a folder; None for a store that needs none."""
        ...


def package(name: str) -> Any:
    """Import a package that only these measurements need (`pip install .[bench-stores]`)."""
    return importlib.import_module(name)


def package_missing(name: str) -> str:
    """Return why a package cannot be imported; empty if it can."""
    try:
        package(name)
    except ImportError as error:
        return f"{error}; install the group bench-stores"
    return ""
