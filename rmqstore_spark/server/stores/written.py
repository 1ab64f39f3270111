"""A store that this process writes, and its replication."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmqstore_spark.engine.tables.store_id import served_store_id
from rmqstore_spark.engine.tables.topics import require_clients_topic
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.ha.replication import Replication
from rmqstore_spark.reader.store import Store
from rmqstore_spark.server.put_turns import CAN_WATCH, PutTurns
from rmqstore_spark.server.stores.served import ServedPort, ServedStore, StoreService
from rmqstore_spark.server.view import MemberView, StoreView
from rmqstore_spark.wire.endpoint import announced_endpoint
from rmqstore_spark.wire.messages import OffsetsReply, QueueOffsets
from rmqstore_spark.wire.protocol import PROTOCOL, UNAVAILABLE
from rmqstore_spark.wire.reading import OpenReply, OpenRequest, TopicSettings

if TYPE_CHECKING:
    from rmqstore_spark.broker.core.clients import Group
    from rmqstore_spark.broker.runner import BrokerRunner
    from rmqstore_spark.engine.store import StoreWriter
    from rmqstore_spark.engine.tables.topics import TopicConfig
    from rmqstore_spark.ha.follower import LogFollower

_log = logging.getLogger(__name__)

_WATCH_SECONDS: Final = 0.2


class WrittenStore(ServedStore):
    """A store that this process writes.

    Args:
        store: the store; it is not closed here.
    """

    def __init__(self, store: StoreWriter) -> None:
        def published_end() -> int:
            return store.published_end

        view = (
            MemberView(store.path, store.log_folder, published_end)
            if store.config.enable_d_leger_commit_log
            else StoreView(store.path, [store.log_folder], published_end)
        )
        super().__init__(store.config.broker_name, store.path, view)
        self._store = store
        self._id = served_store_id(store.path)
        self._put_turns = PutTurns(store.puts) if CAN_WATCH else None
        self._replication: Replication | None = None

    @property
    def put_turns(self) -> PutTurns | None:
        return self._put_turns

    @property
    def writer(self) -> StoreWriter:
        """The store."""
        return self._store

    @property
    def permission(self) -> int:
        return self._store.config.broker_permission

    @property
    def replication(self) -> Replication:
        """Its part in replication, once that has begun."""
        if self._replication is None:
            raise RefusedError("The store is not served yet. Try again.", UNAVAILABLE)
        return self._replication

    def replicate(self) -> Replication:
        """Begin to follow a master, or to serve slaves, as the store's role says.

        Raises:
            OptionError, ServiceError: see `Replication`.
        """
        self._replication = Replication(self._store)
        return self._replication

    def open(self, request: OpenRequest) -> OpenReply:
        """Return what is needed to encode records; create missing topics if that is configured."""
        config, topics = self._store.config, request.topics
        for name in topics or ():
            require_clients_topic(name)
        missing = [name for name in topics or () if name not in self._store.topics]
        if missing and request.creates and config.auto_create_topic_enable:
            self._store.create_topics(missing)
        return OpenReply(
            protocol=PROTOCOL,
            store_id=self._id,
            broker_name=config.broker_name,
            is_master=not self._store.role.follows,
            store_host_v6=config.store_host_v6,
            max_message_size=config.max_message_size,
            max_block_bytes=config.max_block_bytes,
            max_block_rows=config.max_block_rows,
            auto_create_topic_enable=config.auto_create_topic_enable,
            default_topic_queue_nums=config.default_topic_queue_nums,
            topics=self._settings(topics),
        )

    def reading(self, path: str) -> AbstractContextManager[None]:
        """Mark a file as being read: expiry waits for that."""
        return self._store.reading(path)

    def topics(self) -> dict[str, TopicSettings]:
        """Return the settings of all topics by name."""
        return self._settings(None)

    def _settings(self, names: Sequence[str] | None) -> dict[str, TopicSettings]:
        table = self._store.topics
        if names is None:
            return {topic.name: _settings_of(topic) for topic in table}
        found = (table.get(name) for name in names)
        return {topic.name: _settings_of(topic) for topic in found if topic is not None}

    def offsets(self, topics: Sequence[str] | None) -> OffsetsReply:
        """Return the ends of the log, and of queues."""
        stats = self._store.stats()
        queues = stats["queues"]
        wanted = queues if topics is None else topics
        return OffsetsReply(
            stats["commitLogMinOffset"],
            stats["commitLogMaxOffset"],
            stats["commitLogFlushedOffset"],
            {
                topic: {
                    str(queue_id): QueueOffsets(*ends) for queue_id, ends in queues[topic].items()
                }
                for topic in wanted
                if topic in queues
            },
        )

    def stats(self) -> dict[str, Any]:
        """Return the figures of the store and its replication."""
        replication = self._replication.stats() if self._replication is not None else {}
        return {**self._store.stats(), **replication}

    def reader(self) -> Store:
        """Open the store for reading."""
        return Store.open(self.path)


class FollowerWatch(Protocol):
    """Looks at the follower of a store while the store is served."""

    def continues(self, follower: LogFollower, /) -> bool:
        """Return whether the process should continue."""
        ...


class WriterService(StoreService):
    """The one store that a process writes, and its replication.

    Args:
        store: the store; the caller opened it.
        watch: looks at the follower of a slave a few times a second, and may end the process.
    """

    def __init__(self, store: StoreWriter, watch: FollowerWatch | None) -> None:
        self._served = WrittenStore(store)
        super().__init__([self._served])
        self._store = store
        self._watch = watch
        self._replication: Replication | None = None
        self._broker: BrokerRunner | None = None

    @property
    def broker(self) -> str | None:
        """Where RocketMQ's clients connect, as host:port; None if none are served."""
        return self._broker.address if self._broker is not None else None

    @property
    def slaves(self) -> str | None:
        """Where slaves connect, as host:port; None if none are taken."""
        return self._replication.address if self._replication is not None else None

    @property
    def broker_held(self) -> int:
        """Bytes of requests and answers of RocketMQ's clients in memory."""
        return 0 if self._broker is None else self._broker.held

    def consumer_groups(self) -> Mapping[str, Group]:
        """Return RocketMQ's consumer groups of which a member is connected, by name."""
        return {} if self._broker is None else self._broker.consumer_groups()

    def start(self, port: ServedPort) -> None:
        """Follow a master, or serve slaves, as the store's role says; serve RocketMQ's clients.

        Raises:
            OptionError: there is no port for slaves, `brokerId` does not fit the role, or a file
                of TLS or with an access key cannot be used.
            ServiceError: the address for slaves or for clients cannot be bound.
        """
        self._replication = self._served.replicate()
        if self._watch is not None and self._replication.follower is not None:
            self.look_seconds = _WATCH_SECONDS
        if self._store.role.is_elected:
            self.look_seconds = _WATCH_SECONDS
        config = self._store.config
        if config.is_broker and port.bound is not None:
            from rmqstore_spark.broker.runner import BrokerRunner

            self._broker = BrokerRunner(
                self._store,
                port.bound,
                port.protection,
                lambda: self.slaves or "",
                announced_endpoint(port.endpoints, config.broker_ip1),
                port.other,
            )
        if config.namesrv_addr and not config.serves_rocketmq:
            _log.warning(
                "namesrvAddr is %s, but no broker registers there: clients is not rocketmq or all.",
                config.namesrv_addr,
            )

    def stats(self) -> Mapping[str, Any]:
        """Return the figures of the store, ready for JSON."""
        return self._served.stats()

    def continues(self) -> bool:
        """Ask the watch.

        Raises:
            RmqStoreError: the store is a member of a group and has failed: its next start reads the
                disk again.
        """
        if self._store.role.is_elected and self._store.state == "FAILED":
            self._store.raise_failure()
        follower = self._replication.follower if self._replication is not None else None
        return self._watch is None or follower is None or self._watch.continues(follower)

    def close(self) -> None:
        """End the broker and the replication, and close the store."""
        if self._broker is not None:
            self._broker.close()
        if self._replication is not None:
            self._replication.close()
        self._store.close()


def _settings_of(topic: TopicConfig) -> TopicSettings:
    return TopicSettings(topic.read_queue_nums, topic.write_queue_nums, topic.perm)
