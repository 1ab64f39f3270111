"""Locate the parts of a store directory (`docs/format.md`, "A store directory")."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.errors import (
    OptionError,
    StoreAccessError,
    StoreNotFoundError,
    UnsupportedStoreError,
)
from rmqstore_spark.files.base import FileInfo, Files, Listing, Skipped, join
from rmqstore_spark.files.configfiles import read_config
from rmqstore_spark.files.disk.reads import PLAIN, DiskReads
from rmqstore_spark.files.finding import dledger_folders, looks_like_store, no_store
from rmqstore_spark.files.joined import JoinedFiles
from rmqstore_spark.files.log.segments import Segments
from rmqstore_spark.files.open import is_endpoint, local_path, open_files
from rmqstore_spark.files.topology import Topology
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.queues.format import QueueFormat

_INDEX_DIGITS = 17  # yyyyMMddHHmmssSSS

# What RocketMQ 5 leaves in a store and RocketMQ 4 does not.
_MARKS_OF_5 = (
    "abort.bak",
    "batchconsumequeue",
    "compaction",
    "consumequeue_rocksdb",
    "timerlog",
    "timerwheel",
)


@dataclass(frozen=True)
class DLedgerLog:
    """The location of a DLedger member's log.

    Attributes:
        self_id: the member's name.
        data: folder of the log.
        index: folder of the units that map an entry's number to its place.
        checkpoint: text file that names the last committed entry.
    """

    self_id: str
    data: str
    index: str
    checkpoint: str


class StoreDirectory:
    """A store directory: its parts, its topics and its queues. Read-only.

    Topics and queues are those of the last `refresh`. Everything else is looked up on each call.

    Args:
        files: the file system of the store.
        path: the store.
        commitlog_folders: folders of the CommitLog, if it is not in `commitlog/`.

    Attributes:
        queue_format: the format of its queues' files, for all who read or write them.
    """

    queue_format: Final[QueueFormat] = CONSUME_QUEUE

    def __init__(
        self, files: Files, path: str, commitlog_folders: Sequence[str] | None = None
    ) -> None:
        self.files = files
        self.path = path
        self.commitlog_folders = tuple(commitlog_folders or (join(path, "commitlog"),))
        self._topology: Topology | None = None
        self._extensions: Topology | None = None
        self._root: Listing | None = None  # the store's folder, as it was listed last
        self._is_root_new = False  # it and the log serve once as `open` has listed them
        self._log: Segments | None = None

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        commitlog_paths: Sequence[str] | None = None,
        archives: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        reads: DiskReads = PLAIN,
    ) -> StoreDirectory:
        """Open the store at a path or URL.

        Args:
            url: the store's folder.
            commitlog_paths: folders or URLs of the CommitLog (the broker's storePathCommitLog) on
                the same file system, if it is not in `commitlog/`.
            archives: paths or URLs of the store's archives, to be read with it as one store.
            storage_options: arguments that fsspec passes to the store's file system.
            reads: how the bytes of local files are read.

        Raises:
            StoreNotFoundError: the path is not a store; the message says what it is instead.
            StoreAccessError: a folder may not be listed.
            OptionError: the CommitLog is on a different file system than the store, or an archive
                is that of another store.
            UnsupportedStoreError: the store holds the logs of several DLedger members.
        """
        files, path = open_files(url, storage_options, reads)
        if archives:
            others = [open_files(archive, None, reads) for archive in archives]
            joined = JoinedFiles((files, path), others)
            joined.require_one_log()
            files = joined
        folders = [_same_system(files, item, storage_options) for item in commitlog_paths or ()]
        for folder in folders:
            _require_folder(files, folder, "CommitLog folder (storePathCommitLog)")
        try:
            listing = files.list(path, sizes=False)
            log = None
            with suppress(StoreAccessError):  # perhaps its files' sizes alone
                log = Segments.load(files, folders or [join(path, "commitlog")])
            if not (folders or log or looks_like_store(files, path, listing)):
                raise no_store(files, path, os.fspath(url))
        except StoreNotFoundError:
            raise
        except FileNotFoundError as error:
            raise no_store(files, path, os.fspath(url)) from error
        members = dledger_folders(files, path, listing)
        if len(members) > 1:
            raise UnsupportedStoreError(
                f"{path} holds the logs of several DLedger members ({', '.join(members)}). "
                "Copy the store with one of them, and read the copy."
            )
        opened = cls(files, path, folders)
        opened._root, opened._is_root_new, opened._log = listing, True, log
        return opened

    def __reduce__(self) -> tuple[object, ...]:
        # Without the topology: it can be large, and is stale on arrival.
        return type(self), (self.files, self.path, self.commitlog_folders)

    def __repr__(self) -> str:
        return f"StoreDirectory({self.path!r}, {self.files!r})"

    # ---- logs ----------------------------------------------------------------------------------

    def commit_log(self) -> Segments:
        """Return the plain CommitLog, in all its folders; empty if there is only a DLedger log."""
        log, self._log = self._log, None
        return Segments.load(self.files, self.commitlog_folders) if log is None else log

    def dledger_log(self) -> DLedgerLog | None:
        """Return the DLedger member's log, or None if the store has none."""
        if self._root is None or not self._is_root_new:
            self._root = self.files.list(self.path, sizes=False)
        self._is_root_new = False
        names = dledger_folders(self.files, self.path, self._root)
        if not names:
            return None
        folder = join(self.path, names[0])
        return DLedgerLog(
            names[0].partition("-")[2],
            join(folder, "data"),
            join(folder, "index"),
            join(folder, "checkpoint"),
        )

    # ---- queues --------------------------------------------------------------------------------

    def refresh(self) -> Topology:
        """List topics and queues again.

        Raises:
            StoreAccessError: a folder may not be listed.
        """
        self._extensions = None
        self._topology = Topology.load(self.files, join(self.path, "consumequeue"))
        return self._topology

    @property
    def is_listed(self) -> bool:
        """Whether topics and queues were listed."""
        return self._topology is not None

    @property
    def topology(self) -> Topology:
        """Topics and queues as of the last `refresh`."""
        return self._topology or self.refresh()

    def queue(self, topic: str, queue_id: int) -> Segments:
        """Return the files of a ConsumeQueue, from the last `refresh` if that listed them."""
        folder = join(self.path, "consumequeue", topic, str(queue_id))
        known = self._topology
        listing = None if known is None else known.listings.get((topic, queue_id))
        if listing is None:
            return Segments.load(self.files, [folder])
        return Segments(self.files, [folder], [listing])

    def queue_extension(self, topic: str, queue_id: int) -> Segments:
        """Return the files of a ConsumeQueue's extension units; empty if it has none."""
        root = join(self.path, "consumequeue_ext")
        folder = join(root, topic, str(queue_id))
        if self._lacks("consumequeue_ext"):
            return Segments(self.files, [folder], [[]])
        if not (self.files.lists_trees and self.is_listed):
            return Segments.load(self.files, [folder])
        if self._extensions is None:
            self._extensions = Topology.load(self.files, root)
        return Segments(
            self.files, [folder], [self._extensions.listings.get((topic, queue_id), [])]
        )

    def batch_queues(self) -> Topology:
        """Return the topics and queues of RocketMQ 5's batch queues, which cannot be read."""
        if self._lacks("batchconsumequeue"):
            return Topology({}, {}, [])
        return Topology.load(self.files, join(self.path, "batchconsumequeue"))

    def _lacks(self, name: str) -> bool:
        """Return whether the store's folder had no such folder when it was listed last."""
        return self._root is not None and all(info.name != name for info in self._root)

    @property
    def has_rocksdb_queues(self) -> bool:
        """Whether the queues lie in RocksDB (RocketMQ 5, `storeType=defaultRocksDB`)."""
        folders = ("consumequeue", "consumequeue_rocksdb")
        return any(self.files.exists(join(self.path, name, "CURRENT")) for name in folders)

    @property
    def marks_of_5(self) -> list[str]:
        """Names of files that only RocketMQ 5 brokers create."""
        return [name for name in _MARKS_OF_5 if self.files.exists(join(self.path, name))]

    # ---- the rest ------------------------------------------------------------------------------

    def index_files(self) -> tuple[list[FileInfo], list[Skipped]]:
        """Return the IndexFiles in the order of their creation, and what else lies in `index/`."""
        folder = self.index_folder
        try:
            listing = self.files.list(folder)
        except FileNotFoundError:
            return [], []
        good, skipped = [], []
        for info in listing:
            if is_index_name(info.name) and not info.is_dir:
                good.append(info)
            else:
                path = join(folder, info.name)
                skipped.append(Skipped(path, "the name is not a time of 17 digits"))
        return good, skipped

    @property
    def index_folder(self) -> str:
        """Folder of the IndexFiles."""
        return join(self.path, "index")

    @property
    def checkpoint_path(self) -> str:
        """The checkpoint file."""
        return join(self.path, "checkpoint")

    @property
    def is_closed_cleanly(self) -> bool:
        """Whether there is no `abort`: no broker is running on the store or was killed on it."""
        return not self.files.exists(join(self.path, "abort"))

    def config(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file of `config/`, such as `topics.json`; see `read_config`."""
        return read_config(self.files, join(self.path, "config", name))


def is_index_name(name: str) -> bool:
    """Return whether a file in `index/` is named as an IndexFile is."""
    return len(name) == _INDEX_DIGITS and name.isascii() and name.isdigit()


def _same_system(files: Files, url: str, storage_options: Mapping[str, Any] | None) -> str:
    """Return the path of a CommitLog folder on the store's own file system."""
    if files.is_local:
        path = local_path(url)
    else:
        is_url = "://" in url or is_endpoint(url)
        path = open_files(url, storage_options)[1] if is_url else url
    if path is None or not path.strip():
        raise OptionError(
            f"the CommitLog folder {url!r} is not on the store's file system. "
            "Name folders on the same one."
        )
    return path.rstrip("/") or "/"


def _require_folder(files: Files, folder: str, what: str) -> None:
    try:
        files.list(folder, sizes=False)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"the {what} {folder} does not exist. Correct its path."
        ) from error
