"""Where queues end of which a slave, or a member of a group, never had a message.

One that began without files gets what its master, or the other members, still have. Of a queue
whose messages have all expired by then, it has nothing, and would number from 0 on as the master:
consumers that have read further would miss what comes. So it learns where the queues end; a member
does not lead before that. (RocketMQ's begin again at 0.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.durable import explained, make_folder, replace_file
from rmqstore_spark.files.names import OWN_FOLDER, QUEUE_ENDS_NAME

QUEUE_ENDS: Final = "queueEnds"
"""The field with which a member asks another one's broker for them, and the name of the answer."""

_KNOWN: Final = "known"
_ENDS: Final = "ends"
_MOST: Final = 1 << 60


class QueueEnds:
    """The ends that a store was told. One thread changes them; any may read them.

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
                remedy="Remove it if another member of the group has led since this one began: "
                "then queues of this one end where theirs do.",
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
        ends = dict(self._ends)
        for topic, queues in ranges.items():
            for queue_id, (_, end) in queues.items():
                ends[topic, queue_id] = max(end, self.of((topic, queue_id)))
        return _by_topic(ends)

    def lack(self) -> None:
        """Note that the store has to learn them: it lost its log, or begins.

        Raises:
            StoreWriteError: that is not on disk.
        """
        self._save({}, is_known=False)

    def learn(self, told: Mapping[tuple[str, int], int]) -> None:
        """Take what another member says.

        Args:
            told: the ends, by topic and queueId.

        Raises:
            StoreWriteError: they are not on disk.
        """
        self._save(dict(told), is_known=True)

    def _save(self, ends: dict[tuple[str, int], int], *, is_known: bool) -> None:
        make_folder(os.path.dirname(self.path))
        replace_file(self.path, json.dumps({_KNOWN: is_known, _ENDS: _by_topic(ends)}).encode())
        self._ends, self.are_lacking = ends, not is_known


def _by_topic(ends: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    shown: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in ends.items():
        shown.setdefault(topic, {})[str(queue_id)] = end
    return shown


def told_ends(told: Any) -> dict[tuple[str, int], int]:
    """Return the ends in JSON, by topic and queueId.

    Raises:
        ValueError, TypeError: they are none.
    """
    if not (isinstance(told, dict) and all(isinstance(each, dict) for each in told.values())):
        raise TypeError("ends are an object of topics, and each is one of queues")
    found = {
        (topic, int(queue_id)): end
        for topic, queues in told.items()
        for queue_id, end in queues.items()
    }
    if not all(type(end) is int and 0 <= end < _MOST for end in found.values()):
        raise ValueError("an end is not an offset")
    return found
