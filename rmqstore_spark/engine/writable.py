"""Decides which stores can be written, and which only read.

A store of RocketMQ 5 is the same as one of 4.9 as long as its newer parts are not in use. A broker
keeps those parts consistent with the log, and this package does not. Appending to the log would
make them stale, so a store that uses them is refused.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from rmqstore_spark.errors import UnsupportedStoreError
from rmqstore_spark.files.directory import StoreDirectory

_log = logging.getLogger(__name__)

_ROCKSDB: Final = "CURRENT"
"""A file that every RocksDB has."""
_ACCESS: Final = ("users", "acls")
"""Folders of `config/` with the RocksDB of who may do what at a broker of RocketMQ 5. They tell
nothing of the log, and stay as they are. (Upstream: LocalAuthenticationMetadataProvider,
LocalAuthorizationMetadataProvider.)"""


def refuse_other_kinds(directory: StoreDirectory, *, is_member: bool = False) -> None:
    """Refuse a store with parts that are not written here. Warn of a plain store of RocketMQ 5.

    Args:
        directory: the store.
        is_member: whether it is opened as a member of its DLedger group.

    Raises:
        UnsupportedStoreError: the text names the part and the reason.
    """
    if not is_member and directory.is_member:
        raise UnsupportedStoreError(
            f"{directory.path} can be read but not written: its log belongs to a DLedger group, "
            "whose members write it together. Start it as one of them (rmqstore serve with "
            "enableDLegerCommitLog=true and the keys of the group): that repairs what a crash has "
            "left. If files are damaged, read docs/operate.md, A group that elects its master."
        )
    kind = _other_kind(directory)
    if kind:
        raise UnsupportedStoreError(
            f"{directory.path} can be read but not written: {kind}. Make a new store, and copy "
            "the messages into it."
        )
    marks = directory.marks_of_5
    if marks:
        _log.warning(
            "%s is a store of RocketMQ 5 (%s). Messages go into its log, queues and index in "
            "the format that 4.9 and 5 share. A broker that opens it later should be RocketMQ "
            "5.",
            directory.path, ", ".join(marks),
        )  # fmt: skip
    if any((Path(directory.path) / "config" / name / _ROCKSDB).exists() for name in _ACCESS):
        _log.warning(
            "%s has users of RocketMQ 5 and their rights (config/users, config/acls). They count "
            "at a broker of RocketMQ 5 alone: here, aclEnable and aclPath say who may do what.",
            directory.path,
        )  # fmt: skip


def _other_kind(directory: StoreDirectory) -> str:
    """Return why a store is of another kind; "" if it is not."""
    store = Path(directory.path)
    if (store / "epochFileCheckpoint").exists():
        return (
            "a group of brokers with a controller writes its log together (RocketMQ 5, "
            "epochFileCheckpoint), and the other brokers would not get messages put here"
        )
    if directory.has_rocksdb_queues:
        return "its queues are in RocksDB (RocketMQ 5)"
    if directory.batch_queues().queues:
        return "it has batch queues (RocketMQ 5)"
    config = [each for each in _folders(store / "config") if each.name not in _ACCESS]
    for folder in _folders(store) + config:
        if (folder / _ROCKSDB).exists():
            return (
                f"{folder.relative_to(store)} is a RocksDB (RocketMQ 5), which this package "
                "cannot update"
            )
    if _holds_files(store / "timerlog"):
        return (
            "it has a timer wheel with messages (RocketMQ 5, timerlog), which points into the "
            "log and which this package cannot update"
        )
    if any(_holds_files(store / "compaction" / name) for name in ("compactionLog", "compactionCq")):
        return (
            "it has compacted topics (RocketMQ 5, compaction), whose separate logs and queues "
            "this package cannot update"
        )
    return ""


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def _holds_files(path: Path) -> bool:
    return any(files for _, _, files in os.walk(path))
