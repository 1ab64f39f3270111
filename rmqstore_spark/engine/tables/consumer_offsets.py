"""The progress of consumer groups, in `config/consumerOffset.json` as a broker keeps it.

See docs/format.md, "A store directory" (upstream: ConsumerOffsetManager). A broker writes the file
every five seconds and accepts any value, and so do `report` and `save` for RocketMQ's consumers.
An offset that Spark commits is on disk when that is answered, and moves forward unless it is reset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.tables.config_file import ConfigFile
from rmqstore_spark.engine.tables.topics import MOST_QUEUES
from rmqstore_spark.errors import OptionError, RefusedError
from rmqstore_spark.files.configfiles import is_data_version
from rmqstore_spark.layout.constants import (
    TRANS_GROUP,
    group_fault,
    is_listed_topic_name,
    is_safe_group_name,
)

_log = logging.getLogger(__name__)

_Ends = Mapping[str, Mapping[int, tuple[int, int]]]
_Queue = tuple[str, int]


_TABLE: Final = "offsetTable"
_VERSION: Final = "dataVersion"
_MOST_OFFSET: Final = (1 << 63) - 1
_MOST_ENTRIES: Final = 100_000
"""Most pairs of a topic and a group that RocketMQ's consumers may add."""


class ConsumerOffsets:
    """The offsets of consumer groups. Thread-safe.

    Args:
        store: the store directory.
        ends: returns minOffset and maxOffset of the store's queues, by topic and queueId.

    Raises:
        CorruptStoreError: the file is damaged, and so is its backup.
    """

    def __init__(self, store: str, ends: Callable[[], _Ends]) -> None:
        self._read_ends = ends
        self._ends: _Ends = {}
        self._writing = threading.Lock()
        self._lock = threading.Lock()  # taken last; never held while files are written
        self._file = _opened(store)
        self._reported: dict[str, dict[int, int]] = {}

    def commit(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> int:
        """Move the offsets of a group forward; all of them or none.

        An offset below the recorded one is ignored, unless the recorded one lies past the end of
        its queue. So is an offset past the end of its queue. In both cases the queue was cut, or
        deleted and created again.

        Args:
            group: its name.
            offsets: the next offsets to consume, by topic and queueId.

        Returns:
            How many offsets have changed.

        Raises:
            OptionError: no broker accepts the group's name.
            StoreWriteError: the file could not be written; nothing has changed.
        """

        def moves(queue: _Queue, held: int, offset: int) -> bool:
            end = self._end(queue)
            return offset <= end and (offset > held or held > end)

        return self._move(group, offsets, moves)

    def reset(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> int:
        """Set the offsets of a group, also to lower ones; all of them or none.

        Args and return value are those of `commit`.

        Raises:
            OptionError: no broker accepts the group's name.
            RefusedError: the store has no such queue, or it ends before the offset.
            StoreWriteError: the file could not be written; nothing has changed.
        """

        def moves(queue: _Queue, held: int, offset: int) -> bool:
            end = self._end(queue)
            if offset > max(end, 0):
                topic, queue_id = queue
                raise RefusedError(
                    f"{offset} is not an offset of queue {queue_id} of the topic {topic!r}: "
                    + (f"it ends at {end}." if end >= 0 else "the store has no such queue."),
                    PutStatus.MESSAGE_ILLEGAL,
                )
            return offset != held

        return self._move(group, offsets, moves)

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset that a group consumes of a queue; -1 if none is known."""
        name = f"{topic}@{group}"
        with self._lock:
            reported = self._reported.get(name, {}).get(queue_id)
            if reported is not None:
                return reported
            held = self._file.value[_TABLE].get(name)
            return _offset(held.get(queue_id)) if isinstance(held, dict) else -1

    def table(self) -> dict[str, dict[int, int]]:
        """Return all offsets by queueId, by `TOPIC@GROUP`."""
        table, _ = self._snapshot()
        return {
            name: {queue: at for queue, at in _objects(held).items() if _offset(at) >= 0}
            for name, held in table.items()
        }

    def version(self) -> dict[str, int]:
        """Return the number of the last change that is told to slaves, and its time.

        That is the one of the file, which brokers of RocketMQ 5 write into it; zeros otherwise.
        """
        found = self._file.value.get(_VERSION)
        version: dict[str, int] = found if found and is_data_version(found) else {}
        return {name: version.get(name) or 0 for name in ("counter", "stateVersion", "timestamp")}

    def report(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset in memory, as a broker does: any, also a lower one. `save` writes it.

        The group of the store's own transactions is left alone: its offsets tell which of them
        wait.

        Args:
            group, topic: valid names.
            queue_id: of the topic's queues.
            offset: not negative.

        Returns:
            False if there are too many groups with offsets; then nothing has changed.
        """
        if group == TRANS_GROUP:
            return True
        name = f"{topic}@{group}"
        with self._lock:
            if name not in self._reported:
                known = self._file.value[_TABLE]
                if name not in known and len(known) + len(self._reported) >= _MOST_ENTRIES:
                    return False
            self._reported.setdefault(name, {})[queue_id] = offset
            return True

    def save(self) -> None:
        """Write the reported offsets.

        Raises:
            StoreWriteError: the file could not be written; the offsets are kept for the next time.
        """
        with self._writing:
            table, reported = self._snapshot()
            if reported:
                self._replace(table, reported)

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, dict[int, int]]]:
        """Return the table with what was reported, and what of it was reported."""
        with self._lock:
            reported = {name: dict(offsets) for name, offsets in self._reported.items()}
            table = _objects(self._file.value.get(_TABLE))
            for name, offsets in reported.items():
                table[name] = {**_objects(table.get(name)), **offsets}
            return table, reported

    def _replace(self, table: Mapping[str, Any], reported: Mapping[str, Mapping[int, int]]) -> None:
        """Write a table in place of the file's; what was reported since its snapshot stays so.

        Args:
            table: the new table.
            reported: what had been reported at its snapshot: it counts no more.
        """
        self._file.replace({**self._file.value, _TABLE: table})
        with self._lock:
            for name, offsets in reported.items():
                left = self._reported[name]
                for queue_id, offset in offsets.items():
                    if left[queue_id] == offset:
                        del left[queue_id]
                if not left:
                    del self._reported[name]

    def follow(self, table: Mapping[str, Any]) -> None:
        """Take the offsets of a master, which may be ahead of what a slave has of its queues.

        They replace those of the same queue, also by lower ones: the master does not tell a reset
        from an offset that it lost in a crash, and to keep the higher one after a reset would skip
        messages. Groups and queues that it does not name keep theirs.

        Args:
            table: offsets by queueId, by `TOPIC@GROUP`. What no broker writes is left out.

        Raises:
            StoreWriteError: the file could not be written; nothing has changed.
        """
        with self._writing:
            with self._lock:
                held = _objects(self._file.value.get(_TABLE))
            told = {name: _valid(of) for name, of in table.items() if _is_name(name)}
            made = {**held, **{n: {**_objects(held.get(n)), **of} for n, of in told.items()}}
            if made != held:
                self._replace(made, {})

    def _move(
        self,
        group: str,
        offsets: Mapping[str, Mapping[int, int]],
        moves: Callable[[_Queue, int, int], bool],
    ) -> int:
        fault = group_fault(group, "consumer")
        if fault is not None:
            raise OptionError(fault)
        with self._writing:
            self._ends = self._read_ends()
            table, reported = self._snapshot()
            changed = 0
            for topic, wanted in offsets.items():
                name = f"{topic}@{group}"
                held = _objects(table.get(name))
                moved = {
                    queue_id: offset
                    for queue_id, offset in wanted.items()
                    if moves((topic, queue_id), _offset(held.get(queue_id)), offset)
                }
                if moved:
                    table[name] = {**held, **moved}
                    changed += len(moved)
            if changed:
                self._replace(table, reported)
            return changed

    def _end(self, queue: _Queue) -> int:
        """Return one past a queue's last message; -1 if the store does not have the queue."""
        topic, queue_id = queue
        return self._ends.get(topic, {}).get(queue_id, (0, -1))[1]

    def forget(self, topics: Collection[str]) -> None:
        """Remove the offsets of all groups in topics that are deleted.

        Raises:
            StoreWriteError: the file could not be written.
        """
        self._forget(lambda name: name.partition("@")[0] in topics)

    def forget_groups(self, groups: Collection[str]) -> None:
        """Remove the offsets of groups that are deleted. The store's own group stays.

        Raises:
            StoreWriteError: the file could not be written.
        """
        gone = set(groups) - {TRANS_GROUP}
        self._forget(lambda name: name.rpartition("@")[2] in gone)

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        with self._writing:
            table, reported = self._snapshot()
            kept = {name: held for name, held in table.items() if not is_gone(name)}
            if len(kept) != len(table):
                self._replace(kept, reported)


def _opened(store: str) -> ConfigFile:
    file = ConfigFile(store, "consumerOffset")
    table = _objects(file.value.get(_TABLE))
    file.value[_TABLE] = {name: _numbered(held) for name, held in table.items()}
    none = sum(at < 0 for held in table.values() for at in held.values())
    if none:
        _log.warning(
            "%s: %d offsets are -1, as some clients report before they have read anything. Where "
            "a group has -1, it starts as a new group does.", file.path, none,
        )  # fmt: skip
    return file


def _objects(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _numbered(held: Any) -> Any:
    """Return offsets with queueIds as numbers, which a broker writes without quotes."""
    if not isinstance(held, dict):
        return held
    return {int(key) if key.isdecimal() and key.isascii() else key: at for key, at in held.items()}


def _is_name(name: str) -> bool:
    """Return whether a key of the table names a topic and a group."""
    topic, _, group = name.partition("@")
    return is_listed_topic_name(topic) and is_safe_group_name(group)


def _valid(held: Any) -> dict[int, int]:
    return {
        key: at
        for key, at in _objects(_numbered(held)).items()
        if isinstance(key, int) and key < MOST_QUEUES
        if type(at) is int and 0 <= at <= _MOST_OFFSET
    }


def _offset(held: Any) -> int:
    """Return the recorded offset of a queue; -1 if there is none."""
    return held if type(held) is int else -1
