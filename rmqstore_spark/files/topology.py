"""List the topics and queues of a store from its folders: `{kind}/{topic}/{queueId}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rmqstore_spark.errors import StoreAccessError
from rmqstore_spark.files.systems.base import FileInfo, Files, Listing, Skipped, join

_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}")
_MAX_QUEUE_ID = (1 << 31) - 1

# A folder of the file system at the root of a mount. Only root can read it.
_NOT_OURS = "lost+found"


class Topology(NamedTuple):
    """The topics and queues below `consumequeue/`, or a folder of the same structure.

    Attributes:
        queues: ids of the queues of each topic, ascending, by topic in the order of names.
        listings: entries of a queue's folder by (topic, queueId), if the listing of the tree
            included them.
        skipped: everything else in the folder.
    """

    queues: dict[str, tuple[int, ...]]
    listings: dict[tuple[str, int], Listing]
    skipped: list[Skipped]

    @classmethod
    def load(cls, files: Files, folder: str) -> Topology:
        """List topics and queues; a folder that does not exist has none.

        Raises:
            StoreAccessError: a folder may not be listed. (Messages would be missed silently.)
        """
        return _Loader(files, folder).load()


class _Loader:
    """One run of `Topology.load`."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._skipped: list[Skipped] = []

    def load(self) -> Topology:
        depth = 2 if self._files.lists_trees else 1
        tree = dict(self._files.walk(self._folder, depth, self._on_error))
        queues: dict[str, tuple[int, ...]] = {}
        listings: dict[tuple[str, int], Listing] = {}
        for topic in self._topics(tree.get("", [])):
            if topic not in tree:
                continue
            ids = {}
            for info in tree[topic]:
                queue_id = self._queue_id(topic, info)
                if queue_id is not None:
                    ids[queue_id] = info.name
            if not ids:
                self._skip(topic, "a folder without queues")
                continue
            queues[topic] = tuple(sorted(ids))
            for queue_id, name in ids.items():
                within = tree.get(f"{topic}/{name}")
                if within is not None:
                    listings[topic, queue_id] = within
        return Topology(queues, listings, self._skipped)

    def _topics(self, listing: Listing) -> Iterator[str]:
        for info in listing:
            fault = self._fault(info.name, info) or _odd_name(info.name)
            if fault:
                self._skip(info.name, fault)
            else:
                yield info.name

    def _queue_id(self, topic: str, info: FileInfo) -> int | None:
        """Return the id that a queue's folder has as its name, or None if it is not a queue."""
        number = int(info.name) if _QUEUE_ID.fullmatch(info.name) else None
        if number is None or number > _MAX_QUEUE_ID:
            fault = "the name is not a queue id"
        elif info.is_dir and not info.is_link:
            return number
        else:
            fault = self._fault(f"{topic}/{info.name}", info)
        if fault:
            self._skip(f"{topic}/{info.name}", fault)
            return None
        return number

    def _fault(self, relative: str, info: FileInfo) -> str:
        """Return why an entry is not a folder of a topic or queue; empty if it is one."""
        if not info.is_dir:
            return "a file instead of a folder"
        if info.is_link:
            root = join(self._files.resolve(self._folder), "")
            target = join(self._files.resolve(join(self._folder, relative)), "")
            # Its messages would be read twice, or the listing would never end.
            if target.startswith(root) or root.startswith(target):
                return "a link to another folder of the same store"
        return ""

    def _skip(self, relative: str, reason: str) -> None:
        path = join(self._folder, relative)
        self._skipped.append(
            Skipped(path.encode("utf-8", "backslashreplace").decode("utf-8"), reason)
        )

    def _on_error(self, relative: str, error: Exception) -> None:
        if isinstance(error, FileNotFoundError):
            return  # removed since it was listed; a missing root has no queues
        if isinstance(error, StoreAccessError) and relative == _NOT_OURS:
            self._skip(relative, "the file system's own folder")
            return
        raise error


def _odd_name(topic: str) -> str:
    """Return why a folder's name cannot be a topic; empty if it can."""
    if topic in (".", ".."):
        return "the name is not a topic"
    try:
        topic.encode("utf-8")
    except UnicodeEncodeError:
        return "the name is not UTF-8"
    return "" if topic.isprintable() else "the name holds control characters"
