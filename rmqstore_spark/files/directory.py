"""Find out whether a folder is a store, and locate the store's parts.

See `docs/format.md`, "A store directory".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.errors import (
    OptionError,
    RmqStoreError,
    StoreAccessError,
    StoreNotFoundError,
    UnsupportedStoreError,
)
from rmqstore_spark.files.configfiles import read_config
from rmqstore_spark.files.joined import JoinedFiles
from rmqstore_spark.files.log_files import segment_start
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.base import FileInfo, Files, Listing, Skipped, join
from rmqstore_spark.files.systems.open import open_files
from rmqstore_spark.files.systems.reads import PLAIN, DiskReads
from rmqstore_spark.files.systems.schemes import is_endpoint, local_path
from rmqstore_spark.files.topology import Topology
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.queues.format import QueueFormat

_COMMITLOG = "commitlog"
DLEDGER_PREFIX: Final = "dledger-"
SERVED: Final = ("consumequeue", "index", "checkpoint")
"""What a store has once it has served clients."""

# A broker creates these beside the CommitLog. If one exists, an empty `commitlog/` is a new store.
_COMPANIONS = frozenset(
    {"abort", "abort.bak", "checkpoint", "config", "consumequeue", "index", "lock"}
)

_ADDRESS = re.compile(r"[\w.-]+:\d+")
_NAMES_SHOWN = 8
_FOLDERS_TRIED = 64
_PARENTS_TRIED = 4
_MEMBER_LEVELS = 1  # of folders in that of a member: data/ and index/


def looks_like_store(files: Files, path: str, listing: Listing) -> bool:
    """Return whether a folder holds a CommitLog or DLedger log, or is the store of a new broker.

    Args:
        files: where the folder lies.
        path: the folder.
        listing: what it holds; sizes are not needed.

    Raises:
        FileNotFoundError: the folder does not exist.
        StoreAccessError: the folder may not be listed.
    """
    folders = {info.name for info in listing if info.is_dir}
    if _COMMITLOG in folders:
        within = files.list(join(path, _COMMITLOG), sizes=False)
        if _has_segments(within):
            return True
        # A new broker's folder is empty, but for what the root of a linked file system has; a store
        # of this project can hold a guard file.
        others = [info for info in within if info.name != "lost+found"]
        if len(others) <= 1 and not _COMPANIONS.isdisjoint(info.name for info in listing):
            return True
    return bool(dledger_folders(files, path, listing))


def dledger_folders(files: Files, path: str, listing: Listing) -> list[str]:
    """Return the names of the folders of a store that hold the log of a DLedger member.

    Args:
        files: where the store lies.
        path: the store.
        listing: its entries.
    """
    names = _dledger_names(listing)
    return [name for name in names if _segments_in(files, join(path, name, "data"))]


def member_folders(files: Files, path: str, listing: Listing) -> list[str]:
    """Return the names of the folders where DLedger members keep anything: at first, a term alone.

    Args:
        files, path, listing: as for `dledger_folders`.
    """
    return [name for name in _dledger_names(listing) if _holds_files(files, join(path, name))]


def _dledger_names(listing: Listing) -> list[str]:
    return [info.name for info in listing if info.is_dir and info.name.startswith(DLEDGER_PREFIX)]


def _holds_files(files: Files, folder: str) -> bool:
    def on_error(_: str, error: Exception) -> None:
        if not isinstance(error, FileNotFoundError):  # else it was removed meanwhile
            raise error

    tree = files.walk(folder, _MEMBER_LEVELS, on_error)
    return any(not info.is_dir for _, listing in tree for info in listing)


def no_store(files: Files, path: str, url: str) -> StoreNotFoundError:
    """Return the error for a path that is not a store: what was expected, what was found, a remedy.

    Args:
        files: the file system.
        path: the path on it.
        url: the path as the user gave it.
    """
    fault = f"no RocketMQ store at {url}: looked for {_COMMITLOG}/ or {DLEDGER_PREFIX}*/data/"
    fault += " with files named by 20 digits; "
    try:
        listing = files.list(path, sizes=False)
        fault += f"found {_some(listing)}"
    except FileNotFoundError:
        listing = []
        fault = f"{fault}it is a file" if files.exists(path) else f"{url} does not exist"
    hint = _inside(files, path) or _below(files, path, listing) or _elsewhere(url, listing)
    if path.endswith(".zip"):
        hint = (
            f"To read an archive, use zip://FOLDER::{path}, where FOLDER is the store's path in it."
        )
    return StoreNotFoundError(f"{fault}. {hint}")


def _some(listing: Listing) -> str:
    if not listing:
        return "an empty folder"
    names = [info.name + ("/" if info.is_dir else "") for info in listing[:_NAMES_SHOWN]]
    more = len(listing) - len(names)
    text = ", ".join(names) + (f" and {more} more" if more else "")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _inside(files: Files, path: str) -> str:
    """Return a hint if the path leads into a store."""
    parent = path
    for _ in range(_PARENTS_TRIED):
        parent, slash, _name = parent.rstrip("/").rpartition("/")
        if not slash or not parent:
            return ""
        if _is_store(files, parent):
            return f"The path is inside the store {parent}: use that path."
    return ""


def _below(files: Files, path: str, listing: Listing) -> str:
    """Return a hint if one or more stores lie below the path."""
    folders = [join(path, info.name) for info in listing if info.is_dir][:_FOLDERS_TRIED]
    tried = [candidate for folder in folders for candidate in (folder, join(folder, "store"))]
    found = [candidate for candidate in tried if _is_store(files, candidate)]
    return f"This looks like a store: {' or '.join(found[:_NAMES_SHOWN])}." if found else ""


def _elsewhere(url: str, listing: Listing) -> str:
    """Return a hint if no store is near."""
    if _ADDRESS.fullmatch(url):
        return f"If a store process listens there, its endpoint is rmq://{url}."
    if not _COMPANIONS.isdisjoint(info.name for info in listing):
        return (
            "The folder has other parts of a store, but no CommitLog. If that is elsewhere "
            "(the broker's storePathCommitLog), name its folders: --commitlog-path of rmqstore, "
            "storePathCommitLog of Spark."
        )
    return "Use the broker's storePathRootDir, or a copy of it."


def _is_store(files: Files, path: str) -> bool:
    try:
        return looks_like_store(files, path, files.list(path, sizes=False))
    except (OSError, RmqStoreError):
        return False


def _segments_in(files: Files, folder: str) -> bool:
    try:
        return _has_segments(files.list(folder, sizes=False))
    except FileNotFoundError:
        return False


def _has_segments(listing: Listing) -> bool:
    return any(not info.is_dir and segment_start(info.name) is not None for info in listing)


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

    @classmethod
    def within(cls, folder: str) -> DLedgerLog:
        """Return the log in a member's folder, `dledger-SELFID`."""
        self_id = folder.rpartition("/")[2].partition("-")[2]
        return cls(self_id, join(folder, "data"), join(folder, "index"), join(folder, "checkpoint"))


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
        self._opened: tuple[Segments, DLedgerLog | None] | None = None
        """The logs that `open` has found, for the first look at them."""

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
            storage_options: as for `open_files`.
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
        found = cls(files, path, folders)
        try:
            listing = files.list(path, sizes=False)
            log = None
            with suppress(StoreAccessError):  # perhaps its files' sizes alone
                log = found.commit_log()
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
        if log is not None:
            found._opened = log, found._dledger_of(members)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        # Without the topology: it can be large, and is stale on arrival.
        return type(self), (self.files, self.path, self.commitlog_folders)

    def __repr__(self) -> str:
        return f"StoreDirectory({self.path!r}, {self.files!r})"

    # ---- logs ----------------------------------------------------------------------------------

    def logs(self) -> tuple[Segments, DLedgerLog | None]:
        """Return `commit_log` and `dledger_log`: the first time, as of `open`."""
        found, self._opened = self._opened, None
        return found or (self.commit_log(), self.dledger_log())

    def commit_log(self) -> Segments:
        """Return the plain CommitLog, in all its folders; empty if there is only a DLedger log."""
        return Segments.load(self.files, self.commitlog_folders)

    def dledger_log(self) -> DLedgerLog | None:
        """Return the DLedger member's log, or None if the store has none."""
        listing = self.files.list(self.path, sizes=False)
        return self._dledger_of(dledger_folders(self.files, self.path, listing))

    def _dledger_of(self, members: Sequence[str]) -> DLedgerLog | None:
        return DLedgerLog.within(join(self.path, members[0])) if members else None

    @property
    def is_member(self) -> bool:
        """Whether the store is that of a DLedger member, which need not have a log yet."""
        listing = self.files.list(self.path, sizes=False)
        return bool(member_folders(self.files, self.path, listing))

    @property
    def never_served(self) -> bool:
        """Whether the store is that of a DLedger member, and no process has served clients."""
        listing = self.files.list(self.path, sizes=False)
        names = {info.name for info in listing}
        return names.isdisjoint(SERVED) and bool(member_folders(self.files, self.path, listing))

    # ---- queues --------------------------------------------------------------------------------

    def refresh(self) -> Topology:
        """List topics and queues again.

        Raises:
            StoreAccessError: a folder may not be listed.
        """
        self._topology = Topology.load(self.files, join(self.path, "consumequeue"))
        return self._topology

    @property
    def topology(self) -> Topology:
        """Topics and queues as of the last `refresh`."""
        return self._topology or self.refresh()

    @property
    def is_listed(self) -> bool:
        """Whether topics and queues have been listed."""
        return self._topology is not None

    def queue(self, topic: str, queue_id: int) -> Segments:
        """Return the files of a ConsumeQueue, from the last `refresh` if that listed them."""
        folder = join(self.path, "consumequeue", topic, str(queue_id))
        if self._topology is not None:
            listing = self._topology.listings.get((topic, queue_id))
            if listing is not None:
                return Segments(self.files, [folder], [listing])
        return Segments.load(self.files, [folder])

    def queue_extension(self, topic: str, queue_id: int) -> Segments:
        """Return the files of a ConsumeQueue's extension units; empty if it has none."""
        folder = join(self.path, "consumequeue_ext", topic, str(queue_id))
        return Segments.load(self.files, [folder])

    def batch_queues(self) -> Topology:
        """Return the topics and queues of RocketMQ 5's batch queues, which cannot be read."""
        return Topology.load(self.files, join(self.path, "batchconsumequeue"))

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
