"""Where queues end of which a slave, or a member of a group, never had a message.

One that began without files gets what its master, or the other members, still have. Of a queue
whose messages have all expired by then, it has nothing, and would number from 0 on as the master:
consumers that have read further would miss what comes. So it learns where the queues end; a member
does not lead before that. (RocketMQ's begin again at 0.)
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained, make_folder, replace_file
from rmqstore_spark.files.names import OWN_FOLDER, QUEUE_ENDS_NAME

QUEUE_ENDS: Final = "queueEnds"
"""The field with which a slave asks its master's broker for them, and the name of the answer."""

_KNOWN: Final = "known"
_ENDS: Final = "ends"
_MOST: Final = 1 << 58
_MOST_ID: Final = 1 << 31
MOST_QUEUES: Final = 1 << 22
"""Four queues of each topic, with as many topics as maxTopics allows."""


class QueueEnds:
    """The ends that a store was told. Thread-safe.

    Args:
        store: the store directory.

    Attributes:
        path: the file with them.
        are_lacking: whether the store has to learn them before it gives offsets.

    Raises:
        CorruptStoreError: the file with them cannot be read.
    """

    def __init__(self, store: str) -> None:
        self.path = os.path.join(store, OWN_FOLDER, QUEUE_ENDS_NAME)
        self._ends: dict[tuple[str, int], int] = {}
        self._changing = threading.Lock()
        self.are_lacking = False
        with explained(self.path, "read"):
            try:
                with open(self.path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                return
        try:
            kept = json.loads(data)
            self.are_lacking = not kept[_KNOWN]
            self._ends = told_ends(kept[_ENDS])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStoreError(
                "the file does not say where queues end", file=self.path,
                remedy=f'Write {{"{_KNOWN}": false, "{_ENDS}": {{}}}} into it: the store then asks '
                "the others again.",
            ) from error  # fmt: skip

    def of(self, route: tuple[str, int]) -> int:
        """Return where a queue ended when this was learned; 0 if nobody said it."""
        return self._ends.get(route, 0)

    def with_those_of(
        self, ranges: Mapping[str, Mapping[int, tuple[int, int]]]
    ) -> dict[str, dict[str, int]]:
        """Return where all queues end, for another member, in JSON.

        Args:
            ranges: minOffset and maxOffset of the store's own queues, by topic and queueId.
        """
        own = {(topic, n): end for topic, of in ranges.items() for n, (_, end) in of.items()}
        return _by_topic({**self._ends, **{route: end for route, end in own.items() if end}})

    def lack(self) -> None:
        """Note that the store has to learn them: it lost its log, or begins.

        Raises:
            StoreWriteError: that is not on disk.
        """
        with self._changing:
            if not self.are_lacking:
                self._save(self._ends, is_known=False)

    def learn(self, told: Mapping[tuple[str, int], int]) -> None:
        """Take what others say; nothing that was known is forgotten.

        Args:
            told: the ends, by topic and queueId.

        Raises:
            StoreWriteError: they are not on disk.
        """
        with self._changing:
            ends = {
                route: max(told.get(route, 0), self.of(route)) for route in {*told, *self._ends}
            }
            self._save(ends, is_known=True)

    def forget(self, topics: Collection[str]) -> None:
        """Forget topics that are deleted: if they are created again, they begin at 0.

        Raises:
            StoreWriteError: that is not on disk.
        """
        with self._changing:
            left = {route: end for route, end in self._ends.items() if route[0] not in topics}
            if len(left) < len(self._ends):
                self._save(left, is_known=not self.are_lacking)

    def _save(self, ends: dict[tuple[str, int], int], *, is_known: bool) -> None:
        make_folder(os.path.dirname(self.path))
        replace_file(self.path, json.dumps({_KNOWN: is_known, _ENDS: _by_topic(ends)}).encode())
        self._ends, self.are_lacking = ends, not is_known


def _by_topic(ends: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    shown: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in ends.items():
        shown.setdefault(topic, {})[str(queue_id)] = end
    return shown


def told_ends(told: Any, most: int = MOST_QUEUES) -> dict[tuple[str, int], int]:
    """Return the ends in JSON, by topic and queueId.

    Raises:
        ValueError, TypeError: they are none, or those of more queues than a number.
    """
    if not (isinstance(told, dict) and all(isinstance(each, dict) for each in told.values())):
        raise TypeError("ends are an object of topics, and each is one of queues")
    if sum(map(len, told.values())) > most:
        raise ValueError(f"more than {most} queues have an end")
    found = {
        (topic, int(queue_id)): end
        for topic, queues in told.items()
        for queue_id, end in queues.items()
    }
    if not all(type(end) is int and 0 <= end < _MOST for end in found.values()):
        raise ValueError("an end is not an offset")
    if not all(0 <= queue_id < _MOST_ID for _, queue_id in found):
        raise ValueError("a queueId is none")
    return found
