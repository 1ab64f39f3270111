"""The requests for messages that wait, by queue and by the tags that they want.

Those that want the same tags are looked at together, so that a message costs little however many
wait for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rmqstore_spark.broker.core.clients import Peer
from rmqstore_spark.broker.core.consumers.pulls import Pull

_MOST: Final = 100_000
"""Requests that may wait, over all connections."""
_MOST_OF_ONE: Final = 16_384
_MOST_OF_QUEUE: Final = 10_000
_MOST_OF_ONE_AND_QUEUE: Final = 64
"""Requests of a connection for a queue: one for each group of the consumers that share it."""
_MOST_TAGS: Final = 1 << 18
"""Tags in the different sets of tags that are waited for, over all queues."""

Queue: TypeAlias = tuple[str, int]
_Tags: TypeAlias = frozenset[int] | None


@dataclass(slots=True)
class _OfQueue:
    """The requests that wait for messages of a queue.

    Attributes:
        tested: all entries before this offset are known to concern none of them.
        by_tags: the requests, by the hash codes of the tags that they want; None: all messages.
        count: how many.
    """

    tested: int
    by_tags: dict[_Tags, dict[Pull, None]] = field(default_factory=dict)
    count: int = 0


class WaitingPulls:
    """Requests that wait. Used by one thread; others may ask whether a queue is in it."""

    def __init__(self) -> None:
        self._queues: dict[Queue, _OfQueue] = {}
        self._tags: dict[Pull, _Tags] = {}
        self._of: dict[Peer, set[Pull]] = {}
        self._of_both: Counter[tuple[Peer, Queue]] = Counter()
        self._tag_count = 0

    def __len__(self) -> int:
        return len(self._tags)

    def __contains__(self, queue: Queue) -> bool:
        """Return whether a request waits for messages of a queue."""
        return queue in self._queues

    def has(self, pull: Pull) -> bool:
        """Return whether a request waits."""
        return pull in self._tags

    def is_full(self, connection: Peer) -> bool:
        """Return whether no more requests may wait: at all, or of a connection."""
        return len(self) >= _MOST or len(self._of.get(connection, ())) >= _MOST_OF_ONE

    def add(self, pull: Pull) -> bool:
        """Let a request wait; return False if too many wait for its queue, or for other tags."""
        tags = None if pull.codes is None else frozenset(pull.codes.tolist())
        of_queue = self._queues.get(pull.queue)
        both = pull.asker.connection, pull.queue
        if of_queue is not None and (
            of_queue.count >= _MOST_OF_QUEUE or self._of_both[both] >= _MOST_OF_ONE_AND_QUEUE
        ):
            return False
        if of_queue is None or tags not in of_queue.by_tags:
            if self._tag_count + len(tags or ()) > _MOST_TAGS:
                return False
            self._tag_count += len(tags or ())
        if of_queue is None:
            of_queue = self._queues[pull.queue] = _OfQueue(pull.offset)
        of_queue.tested = min(of_queue.tested, pull.offset)
        of_queue.by_tags.setdefault(tags, {})[pull] = None
        of_queue.count += 1
        self._tags[pull] = tags
        self._of.setdefault(pull.asker.connection, set()).add(pull)
        self._of_both[both] += 1
        return True

    def remove(self, pull: Pull) -> None:
        """Let a request wait no more. It must be one that waits."""
        tags = self._tags.pop(pull)
        of_queue = self._queues[pull.queue]
        alike = of_queue.by_tags[tags]
        del alike[pull]
        of_queue.count -= 1
        if not alike:
            del of_queue.by_tags[tags]
            self._tag_count -= len(tags or ())
        if not of_queue.by_tags:
            del self._queues[pull.queue]
        connection = pull.asker.connection
        self._of[connection].discard(pull)
        if not self._of[connection]:
            del self._of[connection]
        self._of_both[connection, pull.queue] -= 1
        if not self._of_both[connection, pull.queue]:
            del self._of_both[connection, pull.queue]

    def of_connection(self, connection: Peer) -> list[Pull]:
        """Return the requests of a connection."""
        return list(self._of.get(connection, ()))

    def all(self) -> list[Pull]:
        """Return all requests."""
        return list(self._tags)

    def ended(self, now: float) -> list[Pull]:
        """Return the requests whose time is over."""
        return [pull for pull in self._tags if pull.ends <= now]

    def tested(self, queue: Queue) -> int:
        """Return the offset before which no entry concerns the requests for a queue in it."""
        return self._queues[queue].tested

    def concerned(self, queue: Queue, end: int, arrived: Iterable[int] | None) -> list[Pull]:
        """Return the requests that messages of a queue in it may concern.

        They continue from where all entries were tested.

        Args:
            queue: the queue.
            end: one past the last of these messages, of which the first is at `tested`.
            arrived: the hash codes of their tags; None: they are not known.
        """
        of_queue = self._queues[queue]
        begin, of_queue.tested = of_queue.tested, end
        codes = None if arrived is None else frozenset(arrived)
        found = [
            pull
            for tags, alike in of_queue.by_tags.items()
            if tags is None or codes is None or not tags.isdisjoint(codes)
            for pull in alike
        ]
        for pull in found:
            pull.offset = max(pull.offset, begin)
        return found
