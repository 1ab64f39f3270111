"""Records at a clean close what a store holds, so that the next start notices what is missing.

    <store>/rmqstore/state.json

A broker does not notice that a queue's folder or the index is gone. This file lists the queues and
where they began, and how far the index is known to be complete. It is only used to decide what to
check: a store also opens without it, or with an old one (a broker has used the store since).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.names import OWN_FOLDER

_log = logging.getLogger(__name__)

_MOST = 64 << 20  # bytes that are read of the file

T = TypeVar("T")


@dataclass(frozen=True)
class StoreState:
    """The recorded state of a store.

    Attributes:
        queues: (topic, queueId) of the queues that held messages.
        begins: offset of the first entry in each queue's files.
        absent: (topic, queueId) of the queues that a consumer's offset named, and the whole log did
            not.
        index_end: physical offset up to which the index held every key; 0 if unknown.
        index_files: names of the index files at that time, the oldest first.
        config: names of the files of `config/` at that time; empty if they were not recorded.
    """

    queues: frozenset[tuple[str, int]] = frozenset()
    begins: Mapping[tuple[str, int], int] = field(default_factory=dict)
    absent: frozenset[tuple[str, int]] = frozenset()
    index_end: int = 0
    index_files: tuple[str, ...] = ()
    config: frozenset[str] = frozenset()

    @classmethod
    def load(cls, store: str) -> StoreState:
        """Load the recorded state; an empty one if the file is missing or invalid."""
        return _recorded(store, cls._of) or cls()

    @classmethod
    def _of(cls, raw: Any) -> StoreState:
        begins = {
            (str(topic), _number(int(queue_id))): _number(begin)
            for topic, numbers in raw["queues"].items()
            for queue_id, begin in numbers.items()
        }
        absent = frozenset((str(topic), _number(queue_id)) for topic, queue_id in raw["absent"])
        names = tuple(str(name) for name in raw["indexFiles"])
        index_end = _number(raw["indexEnd"])
        return cls(frozenset(begins), begins, absent, index_end, names, _config_of(raw))

    def complete_end(self, directory: StoreDirectory) -> int:
        """Return the offset up to which the index holds every key; 0 if a file is missing."""
        there = {info.name for info in directory.index_files()[0]}
        return self.index_end if there.issuperset(self.index_files) else 0


def recorded_config(store: str) -> frozenset[str]:
    """Return the names of the files of `config/` that a store had, as `StoreState` has them."""
    return _recorded(store, _config_of) or frozenset()


def _config_of(raw: Any) -> frozenset[str]:
    return frozenset(map(str, raw.get("config", ())))


def _recorded(store: str, take: Callable[[Any], T]) -> T | None:
    """Take something from the file; None if it is missing or invalid."""
    try:
        with open(_path(store), "rb") as file:
            return take(json.loads(file.read(_MOST)))
    except FileNotFoundError:
        return None
    except (
        OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
        _log.warning(
            "%s cannot be read (%r). Recovery does not notice queues and index files that "
            "went missing since the last close. `rmqstore verify` finds them.",
            _path(store), error,
        )  # fmt: skip
        return None


def remember(
    store: str,
    queues: ConsumeQueues,
    *,
    absent: Collection[tuple[str, int]],
    index_end: int,
) -> None:
    """Record what a store holds, at a clean close and after a recovery.

    Args:
        store: the store directory.
        queues: all its queues.
        absent: as in `StoreState`.
        index_end: where the log ends, if the index holds all keys up to there; else 0.
    """
    table = {
        topic: {
            queue_id: queues.begin(topic, queue_id)
            for queue_id, (_, end) in sorted(numbers.items())
            if end > 0
        }
        for topic, numbers in sorted(queues.ranges().items())
    }
    state = {
        "queues": table,
        "absent": sorted(absent),
        "indexEnd": index_end,
        "indexFiles": _names(os.path.join(store, "index")),
        "config": [n for n in _names(os.path.join(store, "config")) if n.endswith(".json")],
    }
    make_folder(os.path.dirname(_path(store)))
    replace_file(_path(store), json.dumps(state, indent=1).encode())


def _names(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _number(value: Any) -> int:
    """Return a number of the file.

    Raises:
        ValueError: no queue or log can have it.
    """
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.100} is not an offset")
    return value


def _path(store: str) -> str:
    return os.path.join(store, OWN_FOLDER, "state.json")
