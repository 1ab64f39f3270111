"""Remembers deleted topics: their messages stay in the log, and must not come back.

    <store>/rmqstore/deleted.json      by topic, where the log ended when it was deleted

Recovery builds queues from the log. It would bring deleted messages back after a crash, or as soon
as a topic of the same name is created. So a topic's records before the offset in this file get no
queue entries. (A broker has nothing like this.)
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rmqstore_spark.errors import CorruptStoreError, SegmentExpiredError
from rmqstore_spark.files.deletions import deleted_ends
from rmqstore_spark.files.directory import StoreDirectory
from rmqstore_spark.files.durable import explained, make_folder, remove_file, replace_file
from rmqstore_spark.files.names import DELETED_NAME, OWN_FOLDER
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.reader.log.commitlog import CommitLog
from rmqstore_spark.reader.queue import Queue


class DeletedTopics:
    """The deleted topics of a store. Changed by one thread at a time, read by any.

    Args:
        store: the store directory.

    Attributes:
        ends: by topic, the physical offset up to which its records are deleted. Each deletion in it
            is complete.
        copying: is held while records of a group's log go to the queues, which needs no append
            lock, and while a leader's deletions are taken over: what comes in between would be in
            queues again.
    """

    def __init__(self, store: str) -> None:
        self.path = os.path.join(store, OWN_FOLDER, DELETED_NAME)
        self.ends: Mapping[str, int] = deleted_ends(LocalFiles(), store)
        self.copying = threading.Lock()

    def end(self, topic: str) -> int:
        """Return the physical offset up to which a topic's records are deleted; 0 if none are."""
        return self.ends.get(topic, 0)

    @contextmanager
    def adding(self, ends: Mapping[str, int]) -> Iterator[None]:
        """Mark records of topics as deleted, unless the body fails.

        Args:
            ends: by topic, the physical offset up to which its records are deleted.

        Raises:
            StoreWriteError: the file could not be written.
        """
        before = self.ends
        made = {**before, **ends}
        self._write(made)
        try:
            yield
        except BaseException:
            self._write(before)
            raise
        self.ends = made

    def settle(self, log_begin: int, log_end: int) -> None:
        """Forget deletions that have expired, and limit the others to the end of the log.

        Raises:
            StoreWriteError: the file could not be written.
        """
        ends = {topic: min(end, log_end) for topic, end in self.ends.items()}
        ends = {topic: end for topic, end in ends.items() if end > log_begin}
        if ends != self.ends:
            self._write(ends)
            self.ends = ends

    def finish(self, directory: StoreDirectory, log: CommitLog) -> None:
        """Finish interrupted deletions: remove queues that name only deleted records.

        Those that name later ones too are for `ConsumeQueues.drop_older`, once they are whole.

        Raises:
            StoreWriteError: a queue cannot be removed.
        """
        for topic, end in self.ends.items():
            for queue_id in directory.topology.queues.get(topic, ()):
                segments = directory.queue(topic, queue_id)
                queue = Queue(
                    directory.queue_format,
                    log,
                    topic,
                    queue_id,
                    segments,
                    None,
                    lambda _: (log.file_end, False),
                )
                if segments and 0 < _named_end(queue) <= end:
                    folder = os.path.dirname(segments[0].path)
                    with explained(folder, "removed"):
                        shutil.rmtree(folder)
        directory.refresh()

    def _write(self, ends: Mapping[str, int]) -> None:
        if ends:
            make_folder(os.path.dirname(self.path))
            replace_file(self.path, json.dumps(dict(ends), indent=1).encode())
        else:
            remove_file(self.path)


def _named_end(queue: Queue) -> int:
    """Return one past the newest record that a queue names; 0 if it names none."""
    try:
        newest = queue.max_offset - 1
        if newest < queue.min_offset:
            return 0
        entry = queue.entries(newest, newest + 1)
    except (SegmentExpiredError, CorruptStoreError):
        return 0
    return int(entry["physicalOffset"][0]) + int(entry["size"][0])
