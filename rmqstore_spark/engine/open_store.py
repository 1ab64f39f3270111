"""A store that is open for writing: takes its lock, recovers it, and opens its parts. Closes it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from rmqstore_spark.consensus.driver.protection import MemberProtection
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.dispatch.indexes import IndexFiles, IndexShape
from rmqstore_spark.engine.dispatch.queues import ConsumeQueues
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.group.group_role import GroupRole
from rmqstore_spark.engine.group.member_thread import MemberThread
from rmqstore_spark.engine.group.store_group import brokers_of_group, check_no_group
from rmqstore_spark.engine.lock import OpenMark, StoreGuard, StoreLock
from rmqstore_spark.engine.log.commitlog import CommitLogWriter
from rmqstore_spark.engine.log.flush import FlushMarkKeeper
from rmqstore_spark.engine.log.member_log import MemberLog
from rmqstore_spark.engine.log.segment_files import SegmentFiles
from rmqstore_spark.engine.recovery.clean_close import remember
from rmqstore_spark.engine.recovery.configuration import check_configuration, check_progress
from rmqstore_spark.engine.recovery.member import recover_member
from rmqstore_spark.engine.recovery.old_log import close_old_log
from rmqstore_spark.engine.recovery.queues_and_index import Progress, RecoverySettings
from rmqstore_spark.engine.recovery.recover import Recovered, recover
from rmqstore_spark.engine.recovery.summary import Recovery
from rmqstore_spark.engine.reserve import Reserve
from rmqstore_spark.engine.role import Role
from rmqstore_spark.engine.tables.checkpoint import CheckpointKeeper
from rmqstore_spark.engine.tables.consumer_offsets import ConsumerOffsets
from rmqstore_spark.engine.tables.deleted_topics import DeletedTopics
from rmqstore_spark.engine.tables.groups import ConsumerGroups
from rmqstore_spark.engine.tables.queue_ends import QueueEnds
from rmqstore_spark.engine.tables.topics import TopicTable
from rmqstore_spark.errors import OptionError, StoreWriteError, UnsupportedStoreError
from rmqstore_spark.files.directory import DLEDGER_PREFIX, looks_like_store
from rmqstore_spark.files.durable import NO_ROOM, make_folder
from rmqstore_spark.files.links import LINKABLE, refuse_links
from rmqstore_spark.files.names import GUARD_NAME, OWN_FOLDER
from rmqstore_spark.files.systems.local import LocalFiles

_log = logging.getLogger(__name__)

_MOST_GROUPS: Final = 10_000

# Names that a folder may hold before its store is created or first written to.
_HARMLESS: Final = frozenset(
    {"abort", "checkpoint", "commitlog", "config", "lock", "lost+found", OWN_FOLDER}
)


_OWN_FOLDERS: Final = ("cut", "ready", "staging")


@dataclass(frozen=True)
class OpenStore:
    """A recovered store that this process may write.

    Attributes:
        path: the store directory.
        log_folder: the folder of the CommitLog.
        config: the store's configuration.
        role: what it may do now.
        clock: returns milliseconds since the epoch.
        log: the CommitLog.
        queues: all queues.
        indexes: the index; None if the store keeps none.
        checkpoint: the checkpoint.
        topics: the topics.
        consumer_offsets: the offsets of consumer groups.
        groups: the consumer groups that RocketMQ's clients use.
        deleted: the topics that were deleted, and whose messages are still in the log.
        queue_ends: where queues end of which a member of a group never had a message.
        recovery: what recovery found and did.
        absent: (topic, queueId) of queues that somebody has consumed from, and the log does not
            know.
        reserve: the room that is kept for the next start.
        member: runs it as a member of a DLedger group; None without one.
    """

    path: str
    log_folder: str
    config: StoreConfig
    role: Role
    clock: Callable[[], int]
    log: CommitLogWriter
    queues: ConsumeQueues
    indexes: IndexFiles | None
    checkpoint: CheckpointKeeper
    topics: TopicTable
    consumer_offsets: ConsumerOffsets
    groups: ConsumerGroups
    deleted: DeletedTopics
    queue_ends: QueueEnds
    recovery: Recovery
    absent: frozenset[tuple[str, int]]
    reserve: Reserve
    member: MemberThread | None
    _files: ExitStack

    def close(self, *, clean: bool) -> None:
        """Close all files and release the lock.

        Args:
            clean: everything is flushed and dispatched. Otherwise the store is left unclean, and
                the next opening recovers it.
        """
        with self._files:
            self.log.close()
            if clean:
                self._mark_closed()

    def _mark_closed(self) -> None:
        reach("close.before_checkpoint")
        self.checkpoint.write()
        end = self.log.max_offset if self.indexes is not None else 0
        remember(self.path, self.queues, absent=self.absent, index_end=end)
        reach("close.before_guard")
        StoreGuard(os.path.join(self.path, "commitlog")).remove()
        reach("close.after_guard")
        OpenMark(self.path).remove()


def open_store(
    path: str,
    config: StoreConfig,
    *,
    clock: Callable[[], int],
    progress: Progress,
    cut: bool,
    rebuild: bool,
    protection: MemberProtection | None = None,
) -> OpenStore:
    """Take a store's lock and recover the store; create it if it does not exist.

    Args:
        path: the store directory.
        config: the store's configuration. Sizes of existing files take precedence over it.
        clock: returns milliseconds since the epoch.
        progress: called with the progress of recovery.
        cut: cut the log even where this removes bytes that were known to be flushed.
        rebuild: rebuild all queues and the index from the log.
        protection: of a member of a group; see `MemberThread`.

    Raises:
        OptionError: the folder holds something else, or a link where none is allowed, or the
            configuration does not fit the store.
        StoreLockedError: another process has the store open for writing.
        UnsupportedStoreError: the store is of a kind that can only be read.
        CorruptStoreError: the store has damage that no crash explains, or the file with its role,
            or a file of `config/` and its backup are damaged.
        StoreWriteError: a file could not be written.
    """
    log_folder = os.path.join(path, "commitlog")
    check_no_group(config)
    _require_one_log(config, log_folder)
    refuse_links(path)
    _require_store_or_nothing(path)
    reserve = Reserve(path, config.mapped_file_size_commit_log)
    shape = IndexShape(config.max_hash_slot_num, config.max_index_num)
    settings = RecoverySettings(
        clock,
        queue_file_size=config.mapped_file_size_consume_queue,
        index_shape=shape if config.message_index_enable else None,
        delay_levels=config.message_delay_level,
        cut=cut,
        rebuild=rebuild,
        progress=progress,
    )
    try:
        return _opened(path, config, reserve, settings, protection)
    except StoreWriteError as error:
        if error.errno not in NO_ROOM:
            raise
        reserve.free()
        _log.warning("%s The start tries again, with the room that was kept for it.", error)
        return _opened(path, config, reserve, replace(settings, is_full=True), protection)


def _opened(
    path: str,
    config: StoreConfig,
    reserve: Reserve,
    settings: RecoverySettings,
    protection: MemberProtection | None,
) -> OpenStore:
    """Open a store; on a disk that is known to be full, what can wait is left out."""
    log_folder, clock = os.path.join(path, "commitlog"), settings.clock
    with ExitStack() as files:
        make_folder(path)
        lock = StoreLock(path)
        lock.take()
        files.callback(lock.release)
        _require_own_folders(path)
        check_configuration(path)
        member: MemberThread | None = None
        if config.enable_d_leger_commit_log:
            if config.archive_to:
                raise OptionError(
                    "archiveTo is not supported with enableDLegerCommitLog=true: segments of a "
                    "group's log expire without being copied. Remove the key archiveTo."
                )
            brokers = brokers_of_group(config)  # what is wrong is refused before the old log ends
            role: Role = GroupRole(path, config, brokers)
            is_clean = not OpenMark(path).is_placed
            old = close_old_log(
                path, settings, config.mapped_file_size_commit_log, config.d_leger_self_id
            )
            member = MemberThread(path, config, brokers, protection, old)
            files.callback(member.close)
            log_folder = member.data_folder
            found = recover_member(path, settings, log_folder, member.committed, was_clean=is_clean)
        else:
            role = Role(path, config)
            found = recover(path, settings)
            if role.follows and not len(found.queues) and (found.log_begin or not found.log_end):
                QueueEnds(path).lack()
        if found.indexes is not None:
            files.callback(found.indexes.close)
        files.callback(found.queues.close)
        size = found.segment_size or config.mapped_file_size_commit_log
        if member is not None:
            size = member.segment_size
        if found.log_begin % size:
            raise UnsupportedStoreError(
                f"{path} can be read but not written: its CommitLog begins at {found.log_begin}, "
                f"and its segments have {size} bytes. Make a new store, and copy the messages."
            )
        if not found.checkpoint.existed:
            found.checkpoint.write()  # by which readers know a store that is still empty
        last = max(found.last_timestamp, found.checkpoint.value.physic_msg_timestamp)
        segments = SegmentFiles(log_folder, _ready_path(path, log_folder), size)
        mark = FlushMarkKeeper(path, size)
        mark.begin(found.log_end)
        files.callback(mark.close)
        reserve.fill()
        topics = TopicTable(path, clock, config.max_topics)
        consumer_offsets = ConsumerOffsets(path, found.queues.ranges)
        if role.accepts and member is None:  # a slave's offsets are its master's, and may be ahead
            names = {topic.name for topic in topics}
            check_progress(path, consumer_offsets.table(), found.queues.ranges(), names)
        return OpenStore(
            path=path,
            log_folder=log_folder,
            config=role.applied(config),
            role=role,
            clock=clock,
            log=_log_of(member, segments, found, last, mark),
            queues=found.queues,
            indexes=found.indexes,
            checkpoint=found.checkpoint,
            topics=topics,
            consumer_offsets=consumer_offsets,
            # Each group has a topic for what it consumes again: leave most topics to others.
            groups=ConsumerGroups(path, clock, min(_MOST_GROUPS, max(1, config.max_topics // 4))),
            deleted=DeletedTopics(path),
            queue_ends=QueueEnds(path),
            recovery=found.summary,
            absent=found.absent,
            reserve=reserve,
            member=member,
            _files=files.pop_all(),
        )


def _log_of(
    member: MemberThread | None,
    segments: SegmentFiles,
    found: Recovered,
    last: int,
    mark: FlushMarkKeeper,
) -> CommitLogWriter:
    if member is None:
        return CommitLogWriter(segments, found.log_begin, found.log_end, last, mark.advance)
    return MemberLog(
        segments, found.log_begin, found.log_end, last, member.propose, member.remove_first,
        member.old,
    )  # fmt: skip


def _require_one_log(config: StoreConfig, log_folder: str) -> None:
    """Refuse a CommitLog in another folder, or in several."""
    given = config.store_path_commit_log
    if given and os.path.realpath(given) != os.path.realpath(log_folder):
        raise UnsupportedStoreError(
            f"storePathCommitLog = {given}: a store is writable only if its CommitLog is in "
            f"{log_folder}. Move its files there, or only read the store."
        )


def _ready_path(path: str, log_folder: str) -> str:
    """Return where the next segment is made ahead: on the disk of the log, to be renamed into it.

    If `commitlog` is a link to another disk, it is in the folder of the segments, with a name by
    which readers take it for a part of the guard.
    """
    own = os.path.join(path, OWN_FOLDER)
    make_folder(own)
    if os.stat(own).st_dev == os.stat(log_folder).st_dev:
        return os.path.join(own, "ready")
    return os.path.join(log_folder, f"{GUARD_NAME}.ready")


def _require_own_folders(path: str) -> None:
    """Refuse links in place of folders that are cleaned at the start: the files may be foreign."""
    own = os.path.join(path, OWN_FOLDER)
    for folder in (own, *(os.path.join(own, name) for name in _OWN_FOLDERS)):
        if os.path.islink(folder):
            raise OptionError(
                f"{folder} is a link to {os.readlink(folder)}, and the store would remove files "
                "there. Replace the link with a folder."
            )


def _require_store_or_nothing(path: str) -> None:
    """Refuse to create a store in a folder that holds other things."""
    try:
        files = LocalFiles()
        listing = files.list(path, sizes=False)
        listed = {info.name for info in listing}
        others = {name for name in listed - _HARMLESS if not name.startswith(DLEDGER_PREFIX)}
        names = {name for name in others if not _is_prepared(os.path.join(path, name))}
        if not names or looks_like_store(files, path, listing):
            return
    except FileNotFoundError:
        if not os.path.lexists(path):
            return
        raise OptionError(f"{path} is not a folder. Give the path of a store.") from None
    if "consumequeue" in names:
        raise UnsupportedStoreError(
            f"{path} has queues, but no CommitLog in its folder commitlog. If the CommitLog is "
            "in other folders (storePathCommitLog), the store can be read but not written: "
            "make a new store, and copy the messages. If it was lost, put its files back."
        )
    shown = ", ".join(sorted(names)[:5])
    raise OptionError(
        f"{path} is not a store, and holds other files ({shown}). Give the path of a store, or "
        "of an empty folder for a new one."
    )


def _is_prepared(path: str) -> bool:
    """Return whether this is a folder of a store that is empty, as a link to another disk is."""
    if os.path.basename(path) not in LINKABLE or not os.path.isdir(path):
        return False
    return set(os.listdir(path)) <= {"lost+found"}
