"""Decides whether a store accepts a block: by the store's state, the records and their topics.

(Upstream: DefaultMessageStore.checkStoreStatus, AbstractSendMessageProcessor.msgCheck.)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.health import Health
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.topics import MOST_QUEUES, PERM_WRITE, TopicConfig
from rmqstore_spark.errors import OptionError, RefusedError, StoreWriteError
from rmqstore_spark.layout.constants import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    MULTI_TAGS_FLAG,
    is_topic_of_group,
    topic_fault,
)
from rmqstore_spark.layout.record.block import (
    Block,
    Route,
    check_block,
    check_bodies,
    check_properties,
)
from rmqstore_spark.layout.record.delayed import schedule
from rmqstore_spark.layout.record.single import SingleRecord, single_record
from rmqstore_spark.layout.spans import U1

_log = logging.getLogger(__name__)

CLIENTS_SYS_FLAG: Final = COMPRESSED_FLAG | MULTI_TAGS_FLAG | COMPRESSION_TYPE_MASK
"""The bits of a sysFlag that clients may set."""
_UNPACKING: Final = max(1, (os.cpu_count() or 1) // 2)
"""The number of blocks whose bodies are decompressed at a time.

A small block can take long. The bound leaves processors for other puts.
"""


def disk_used_ratio(path: str) -> float:
    """Return the used share of a path's disk, 0 to 1, as `df` and a broker count it."""
    disk = os.statvfs(path)
    used = disk.f_blocks - disk.f_bfree
    entire = used + disk.f_bavail
    return used / entire if entire else 1.0


class Admission:
    """Decides whether a store accepts messages. Thread-safe.

    Args:
        store: the open store.
        dispatcher: writes its queues and index.
        health: what failed in it, and whether it was closed.
    """

    def __init__(self, store: OpenStore, dispatcher: Dispatcher, health: Health) -> None:
        self._paths = (store.path, store.log_folder)  # which may be on different disks
        self._config = store.config
        self._role = store.role
        self._topics = store.topics
        self._queues = store.queues
        self._log = store.log
        self._reserve = store.reserve
        self._dispatcher = dispatcher
        self._health = health
        self._unpacking = threading.Semaphore(_UNPACKING)
        # Queues that accept messages, as long as no topic changes.
        self._sound: tuple[Mapping[str, TopicConfig], set[Route]] = self._topics.content, set()
        self.disk_used_ratio = 0.0
        self._full_ratio = store.config.disk_full_ratio
        self.look_at_disk()

    def reconfigure(self, config: StoreConfig) -> None:
        """Follow another configuration from now on."""
        self._config = config
        self._full_ratio = config.disk_full_ratio

    @property
    def state(self) -> str:
        """One of `status.STATES`. The store accepts messages only when RUNNING."""
        if self._health.is_closed:
            return "CLOSED"
        if self._health.failure is not None:
            return "FAILED"
        if self._role.follows:
            return "SLAVE"
        return "DISK_FULL" if self.lacks_disk else "RUNNING"

    @property
    def lacks_disk(self) -> bool:
        """Whether the disk has no room for messages, whatever the role."""
        return self._is_disk_full() or self._lacks_room()

    @property
    def health(self) -> Health:
        """What failed in the store, and whether it was closed."""
        return self._health

    @property
    def failure(self) -> Exception | None:
        """The error that made it unsafe to continue."""
        return self._health.failure

    def fail(self, error: Exception) -> None:
        """Stop accepting messages: it is no longer known what is on disk."""
        self._health.fail(error)

    def close(self) -> None:
        """Stop accepting messages: the store is being closed."""
        self._health.close()

    def look_at_disk(self) -> None:
        """Measure how full the disks are, and log when that begins or ceases to matter."""
        was_full = self._is_disk_full()
        self.disk_used_ratio = max(disk_used_ratio(path) for path in self._paths)
        if self._is_disk_full() == was_full:
            return
        if was_full:
            _log.info(
                "The disk is %.0f%% full, within the limit (%s): puts are accepted.",
                100 * self.disk_used_ratio, self._disk_limit,
            )  # fmt: skip
        else:
            _log.warning(
                "The disk is %.0f%% full, and %s: puts are refused until there is room.",
                100 * self.disk_used_ratio, self._disk_limit,
            )  # fmt: skip

    def check_state(self) -> None:
        """Check that the store accepts messages at all.

        Raises:
            RefusedError: it does not.
        """
        health = self._health
        if health.is_closed or health.failure is not None or not self._role.accepts:
            self.require_master()
        if self.disk_used_ratio > self._full_ratio:
            raise RefusedError(
                f"The disk of the store {self._paths[0]} is {self.disk_used_ratio:.0%} full, and "
                f"{self._disk_limit}. Free some space: the store then accepts messages again.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
        if self._reserve.lacking is not None:
            raise RefusedError(
                f"The disk of the store {self._paths[0]} is full: {self._reserve.lacking} Free "
                "some space: the store then accepts messages again.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    def require_master(self) -> None:
        """Refuse to change a store whose changes come from a master, or that has failed.

        Raises:
            RefusedError: the store is a slave, has failed, or is closed.
        """
        self.require_alive()
        if not self._role.accepts:
            raise RefusedError(
                "The store is a slave (brokerRole) and accepts no messages. " + self._role.master,
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    def require_alive(self) -> None:
        """Refuse to change a store that has failed, or is closed: another process may have it.

        Raises:
            RefusedError: the store has failed, or is closed.
        """
        if self._health.is_closed:
            raise RefusedError("The store is closed.", PutStatus.SERVICE_NOT_AVAILABLE)
        if self._health.failure is not None:
            raise RefusedError(
                f"The store refuses messages because a write failed: {self._health.failure} "
                "Restart the store process: it recovers what is on disk.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )

    def check(self, data: U1) -> Block:
        """Check a block, and that the store and the topics accept it. Create missing topics.

        Returns:
            The block to store. If messages have a delay level, it has other bytes: these messages
            belong to SCHEDULE_TOPIC_XXXX then.

        Raises:
            BlockError: a record is invalid.
            RefusedError: the block is too large, or the store or a topic accepts no messages.
        """
        block = self.check_clients(data)
        return self.scheduled(block) if block.delayed else block

    def scheduled(self, block: Block) -> Block:
        """Return the block to store for one with delays that `check_clients` has checked.

        Raises:
            BlockError: a delay level is invalid, or a delayed message would be too long.
        """
        return schedule(block, self._config.delays)

    def check_single(self, data: U1) -> SingleRecord | None:
        """Check a block as `check` does, if it is one usual record.

        Returns:
            The record; None if `check` is to be asked.

        Raises:
            RefusedError: as `check`.
        """
        self.check_state()
        config = self._config
        if data.nbytes > config.max_block_bytes:
            return None
        record = single_record(
            data,
            max_body=config.max_message_size,
            store_host_v6=config.store_host_v6,
            allowed_sys_flag=CLIENTS_SYS_FLAG,
        )
        if record is not None:
            self.check_routes((record.route,))
        return record

    def check_clients(self, data: U1, *, creates: bool = True, digested: bool = False) -> Block:
        """Check a block as `check` does, and return its messages as they are.

        Args:
            data: its bytes.
            creates: whether missing topics are created. Otherwise they need not exist yet, if the
                store creates topics.
            digested: whether to add up the hashes of the messages.
        """
        self.check_state()
        if data.nbytes > self._config.max_block_bytes:
            raise RefusedError(
                f"A block of {data.nbytes} bytes exceeds maxBlockBytes "
                f"({self._config.max_block_bytes}). Send smaller blocks.",
                PutStatus.MESSAGE_ILLEGAL,
            )
        block = check_block(
            data,
            max_body=self._config.max_message_size,
            store_host_v6=self._config.store_host_v6,
            allowed_sys_flag=CLIENTS_SYS_FLAG,
            max_rows=self._config.max_block_rows,
            digested=digested,
        )
        self._check_found(block, creates=creates)
        return block

    def written(self, block: Block) -> Block:
        """Return a block of records that this process has written, once it is checked.

        Args:
            block: sound records, none with a delay, for topics that exist.

        Raises:
            BlockError, RefusedError: as `check_clients`.
        """
        self.check_state()
        self._check_found(block, creates=True)
        return block

    def check_written(self, route: Route) -> None:
        """Check that the store and a queue accept a record that this process has written.

        Raises:
            RefusedError: they do not.
        """
        self.check_state()
        self.check_routes((route,))

    def _check_found(self, block: Block, *, creates: bool) -> None:
        if block.compressed:
            with self._unpacking:
                check_bodies(block)
        if self._log.lead:  # a start would take zeros for what has not reached the disk
            check_properties(block)
        self.check_routes(block.routes, creates=creates)

    def check_routes(self, routes: Collection[Route], *, creates: bool = True) -> None:
        """Check that queues accept messages.

        Args:
            routes: the queues.
            creates: see `check_clients`.

        Raises:
            RefusedError: a queue does not accept messages.
        """
        topics, sound = self._sound
        if topics is not self._topics.content:  # one has changed
            topics, sound = self._sound = self._topics.content, set()
        if sound.issuperset(routes):
            return
        self._look_up(routes, creates=creates)
        if creates and topics is self._topics.content:
            sound.update(routes)

    def _look_up(self, routes: Collection[Route], *, creates: bool) -> None:
        last: dict[str, int] = {}
        for name, queue_id in routes:
            last[name] = max(last.get(name, 0), queue_id)
        found = dict(zip(last, map(self._topics.get, last), strict=True))
        faults = list(filter(None, map(topic_fault, last)))
        if faults:
            raise _illegal(faults[0])
        if not all(found.values()):
            missing = [name for name, topic in found.items() if topic is None]
            if not self._config.auto_create_topic_enable:
                raise _no_topic(missing[0])
            if creates:
                self._create(missing)
                found = dict(zip(last, map(self._topics.get, last), strict=True))
            else:
                counts = zip(missing, self.queue_nums(missing), strict=True)
                found.update((name, TopicConfig(name, k, k)) for name, k in counts)
        for name, queue_id in last.items():
            topic = found[name]
            if topic is None:  # deleted in the meantime
                raise _no_topic(name)
            if not topic.perm & PERM_WRITE:
                raise RefusedError(
                    f"The topic {topic.name} is not writable (perm {topic.perm}).",
                    PutStatus.NO_PERMISSION,
                )
            if queue_id >= topic.write_queue_nums:
                raise _illegal(
                    f"The topic {topic.name} has no queue {queue_id} to write to: it has "
                    f"{topic.write_queue_nums} (writeQueueNums)."
                )

    def queue_nums(self, names: Iterable[str]) -> list[int]:
        """Return how many queues each topic gets: the default, or more if the store holds more."""
        ranges, default = self._queues.ranges(), self._config.default_topic_queue_nums
        counts = []
        for name in names:
            least = 1 if is_topic_of_group(name) else default
            held = max(ranges.get(name, ()), default=-1) + 1
            counts.append(min(max(least, held), MOST_QUEUES))
        return counts

    def _create(self, missing: Sequence[str]) -> None:
        """Create missing topics with one write of the file."""
        counts = self.queue_nums(missing)
        try:
            self._topics.create_all(
                [TopicConfig(name, k, k) for name, k in zip(missing, counts, strict=True)]
            )
        except OptionError as error:
            raise _illegal(f"The topic cannot be created: {error}") from error
        except StoreWriteError as error:
            raise RefusedError(
                f"The topic {missing[0]} cannot be created: {error}",
                PutStatus.SERVICE_NOT_AVAILABLE,
            ) from error

    def _lacks_room(self) -> bool:
        """Return whether a segment, queues and index, or the reserve lack room: puts fail then."""
        found = (self._dispatcher.stalled, self._log.lacking, self._reserve.lacking)
        return any(error is not None for error in found)

    def _is_disk_full(self) -> bool:
        return self.disk_used_ratio > self._full_ratio

    @property
    def _disk_limit(self) -> str:
        """The key that limits how full the disk may be, and its value."""
        config = self._config
        if config.disk_full_ratio * 100 > config.disk_max_used_space_ratio:
            return f"diskSpaceWarningLevelRatio is {config.disk_space_warning_level_ratio:g}"
        return f"diskMaxUsedSpaceRatio is {config.disk_max_used_space_ratio}"


def _illegal(text: str) -> RefusedError:
    return RefusedError(text, PutStatus.MESSAGE_ILLEGAL)


def _no_topic(name: str) -> RefusedError:
    return RefusedError(
        f"The topic {name!r} does not exist. Create it with `rmqstore create-topic`, or set "
        "autoCreateTopicEnable.",
        PutStatus.TOPIC_NOT_EXIST,
    )
