"""The messages: the same ones for all stores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["FIRST", "SPAN", "Load", "Message"]

FIRST: Final = 1_700_000_000_000
"""When the first message is stored: milliseconds since 1970."""
SPAN: Final = 8 * 3_600_000
"""Milliseconds from there to when the last message of a load is stored."""
_POOL: Final = 1 << 20


class Message(NamedTuple):
    """One message.

    Attributes:
        queue: number of its queue.
        position: its number in the queue, from 0 on without gaps.
        stored: when, milliseconds since 1970.
        key: one key, unique.
        body: printable characters that no compression makes much smaller.
    """

    queue: int
    position: int
    stored: int
    key: str
    body: bytes


class Load:
    """A number of messages; they take turns over the queues.

    Args:
        size: bytes of a body.
        queues: how many.
        count: messages of all queues.
    """

    def __init__(self, size: int, queues: int, count: int) -> None:
        self.size, self.queues, self.count = size, queues, count
        letters = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-"
        self._pool = bytes(random.Random(1).choices(letters, k=_POOL + size))  # noqa: S311

    def key(self, number: int) -> str:
        """Return the key of a message."""
        return f"order-{number:010d}"

    def body(self, number: int) -> bytes:
        """Return the body of a message."""
        start = number * 7919 % _POOL
        return self._pool[start : start + self.size]

    def stored(self, number: int) -> int:
        """Return when a message is stored."""
        return FIRST + number * SPAN // self.count

    def message(self, number: int) -> Message:
        """Return a message."""
        position, queue = divmod(number, self.queues)
        return Message(queue, position, self.stored(number), self.key(number), self.body(number))

    def batches(self, size: int, first: int = 0) -> Iterator[list[Message]]:
        """Return all messages from one on, a number of them at a time."""
        for begin in range(first, self.count, size):
            yield [self.message(n) for n in range(begin, min(begin + size, self.count))]
