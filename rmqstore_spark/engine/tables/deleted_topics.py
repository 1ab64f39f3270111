"""What a store remembers of topics that were deleted: their messages stay in the log, out of sight.

    <store>/rmqstore/deleted.json      by topic, where the log ended when it was deleted

Recovery makes queues of the log, and would bring back what was deleted: as soon as a topic of that
name is made again, or after a crash. Records of a topic that lie before the place named here get
no entries any more. (A broker has nothing of the kind.)
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import explained, make_folder, remove_file, replace_file
from rmqstore_spark.files.own_names import OWN_FOLDER
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.queue import Queue

__all__ = ["DeletedTopics"]

_log = logging.getLogger(__name__)

_MOST = 64 << 20  # bytes of such a file


class DeletedTopics:
    """The topics that were deleted from a store. Changed by one thread at a time.

    Args:
        store: the store directory.
    """

    def __init__(self, store: str) -> None:
        self.path = os.path.join(store, OWN_FOLDER, "deleted.json")
        self._ends = _load(self.path)

    def end(self, topic: str) -> int:
        """Physical offset up to which records of a topic are deleted; 0 for none."""
        return self._ends.get(topic, 0)

    @contextmanager
    def adding(self, topic: str, log_end: int) -> Iterator[None]:
        """Let the records of a topic be deleted, unless what is done inside fails.

        Args:
            topic: its name.
            log_end: where the log ends, all of which is flushed.

        Raises:
            StoreWriteError: that could not be written down.
        """
        before = self._ends
        self._replace({**before, topic: log_end})
        try:
            yield
        except BaseException:
            self._replace(before)
            raise

    def settle(self, log_begin: int, log_end: int) -> None:
        """Forget what has expired, and what a cut has taken from the log.

        Raises:
            StoreWriteError: that could not be written down.
        """
        ends = {topic: min(end, log_end) for topic, end in self._ends.items()}
        ends = {topic: end for topic, end in ends.items() if end > log_begin}
        if ends != self._ends:
            self._replace(ends)

    def finish(self, directory: StoreDirectory, log: CommitLog) -> None:
        """Remove the queues of which a deletion that was interrupted has left all entries.

        Raises:
            StoreWriteError: one cannot be removed.
        """
        for topic in self._ends:
            for queue_id in directory.topology.queues.get(topic, ()):
                segments = directory.queue(topic, queue_id)
                queue = Queue(log, topic, queue_id, segments, None, lambda _: (log.file_end, False))
                if segments and 0 < _named_end(queue) <= self._ends[topic]:
                    folder = os.path.dirname(segments[0].path)
                    with explained(folder, "removed"):
                        shutil.rmtree(folder)
        directory.refresh()

    def _replace(self, ends: dict[str, int]) -> None:
        if ends:
            make_folder(os.path.dirname(self.path))
            replace_file(self.path, json.dumps(ends, indent=1).encode())
        else:
            remove_file(self.path)
        self._ends = ends


def _named_end(queue: Queue) -> int:
    """One past the newest record that a queue names; 0 where it names none."""
    try:
        newest = queue.max_offset - 1
        if newest < queue.min_offset:
            return 0
        entry = queue.entries(newest, newest + 1)
    except (SegmentExpiredError, CorruptStoreError):
        return 0
    return int(entry["physicalOffset"][0]) + int(entry["size"][0])


def _load(path: str) -> dict[str, int]:
    """What the file says; nothing where it is not there, or says something else."""
    try:
        with open(path, "rb") as file:
            raw: Any = json.loads(file.read(_MOST))
        return {str(topic): int(end) for topic, end in raw.items() if int(end) > 0}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _log.warning(
            "%s cannot be read (%s). Topics that were deleted may be back if the store was not "
            "closed in order: delete them again.", path, error,
        )  # fmt: skip
        return {}
