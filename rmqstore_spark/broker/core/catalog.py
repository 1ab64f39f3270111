"""The topics and consumer groups of a broker, as its clients may use them.

Upstream: TopicConfigManager, SubscriptionGroupManager, TopicValidator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from rmqstore_spark.broker.core.refusal import Reason, Refusal, shown
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.tables.groups import ConsumerGroup
from rmqstore_spark.engine.tables.topics import PERM_READ, PERM_WRITE, TopicConfig
from rmqstore_spark.errors import OptionError, RefusedError, StoreWriteError
from rmqstore_spark.layout.constants import (
    AUTO_CREATE_TOPIC,
    DLQ_GROUP_TOPIC_PREFIX,
    MAX_TOPIC_LENGTH,
    REPLY_SUFFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_safe_group_name,
    is_safe_topic_name,
    is_system_group,
    topic_fault,
)

_INHERIT: Final = 1
_ALL: Final = PERM_READ | PERM_WRITE


class Catalog:
    """Finds topics and groups, and creates those that may be created. Thread-safe.

    Args:
        store: the store.
    """

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self._cluster = store.config.broker_cluster_name
        self._host = store.config.broker_ip1

    @property
    def is_slave(self) -> bool:
        """Whether the store is a slave now."""
        return self._store.role.follows

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write all topics and groups that the body creates or changes with one write, at its end.

        Raises:
            StoreWriteError: they could not be written; none of them counts.
        """
        with self._store.groups.together(), self._store.topics.together():
            yield

    def require_readable(self) -> None:
        """Refuse to give messages to consumers if `brokerPermission` forbids it.

        Raises:
            Refusal: it does.
        """
        if not self._store.config.broker_permission & PERM_READ:
            raise self._forbidden("pulling")

    @property
    def is_writable(self) -> bool:
        """Whether `brokerPermission` lets clients send messages."""
        return bool(self._store.config.broker_permission & PERM_WRITE)

    def require_writable(self) -> None:
        """Refuse to take messages of clients if `brokerPermission` forbids it.

        Raises:
            Refusal: it does.
        """
        if not self.is_writable:
            raise self._forbidden("sending")

    def _forbidden(self, what: str) -> Refusal:
        remark = f"the broker[{self._host}] {what} message is forbidden"
        return Refusal(Reason.NOT_PERMITTED, remark)

    def require_master(self) -> None:
        """Refuse to change topics and groups on a slave.

        Raises:
            Refusal: this is one.
        """
        if self.is_slave:
            raise Refusal(
                Reason.WRONG,
                "Can't modify topic or subscription group from slave broker, please execute it "
                "from master broker.",
            )

    # ---- topics

    def topic_to_send(self, name: str, default_topic: str, queues: int) -> TopicConfig:
        """Return a topic that takes messages of clients; create it if that is allowed.

        Args:
            name: its name, as the client sent it.
            default_topic: the topic whose settings a new one takes.
            queues: how many queues the client wants for a new one.

        Raises:
            Refusal: there is no such topic, or it takes no messages, or the broker does not.
        """
        self.require_writable()
        if topic_fault(name) is not None:
            raise _fault(name)
        found = self._store.topics.get(name)
        if found is None:
            found = self._created(name, default_topic, queues)
        if not found.perm & PERM_WRITE:
            raise Refusal(Reason.NOT_PERMITTED, f"the topic[{name}] sending message is forbidden")
        return found

    def topic_to_read(self, name: str) -> TopicConfig:
        """Return a topic that may be consumed.

        Raises:
            Refusal: there is no such topic, or it may not be read.
        """
        found = self._store.topics.get(name)
        if found is None:
            raise _no_topic(name, "Create it with `rmqstore create-topic`.")
        if not found.perm & PERM_READ:
            raise Refusal(Reason.NOT_PERMITTED, f"the topic[{name}] pulling message is forbidden")
        return found

    def retry_topic(self, group: ConsumerGroup) -> TopicConfig:
        """Return the topic of the messages that a group consumes again; create it if needed."""
        return self._own(RETRY_GROUP_TOPIC_PREFIX + group.name, max(1, group.retry_queues))

    def dead_topic(self, group: ConsumerGroup) -> TopicConfig:
        """Return the topic of the messages that a group gave up; create it if needed."""
        return self._own(DLQ_GROUP_TOPIC_PREFIX + group.name, 1)

    def topics(self) -> dict[str, Any]:
        """Return all topics by name, as a broker's file has them."""
        return {topic.name: topic.to_json() for topic in self._all()}

    def registered(self) -> dict[str, Any]:
        """Return all topics by name, as a broker registers them.

        That is without what `brokerPermission` forbids, so that clients go to other brokers.
        """
        permission = self._store.config.broker_permission
        if permission & _ALL == _ALL:
            return self.topics()
        return {
            topic.name: replace(topic, perm=topic.perm & permission).to_json()
            for topic in self._all()
        }

    def register_again(self) -> None:
        """Have the topics registered again: name servers take them only with a new version.

        Raises:
            Refusal: that version could not be written.
        """
        if self.is_slave:  # name servers take topics only from masters
            return
        try:
            self._store.topics.renew()
        except StoreWriteError as error:
            raise Refusal(
                Reason.UNAVAILABLE,
                f"brokerPermission counts, but could not be registered: {error}",
            ) from error

    def _all(self) -> Iterable[TopicConfig]:
        topics = {topic.name: topic for topic in self._store.topics}
        default = self._default(AUTO_CREATE_TOPIC)
        if default is not None:
            topics.setdefault(default.name, default)
        reply = TopicConfig(self._cluster + REPLY_SUFFIX, 1, 1, _ALL)
        topics.setdefault(reply.name, reply)  # producers look for its route
        return topics.values()

    def version(self) -> dict[str, int]:
        """Return the number of the topics' last change, and its time."""
        found = self._store.topics.version
        return {name: int(found.get(name) or 0) for name in ("counter", "timestamp")}

    def _created(self, name: str, default_topic: str, queues: int) -> TopicConfig:
        if name.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return self._own(name, 1)
        default = self._default(default_topic)
        if default is None or not default.perm & _INHERIT or self.is_slave:
            raise _no_topic(
                name, "Create it with `rmqstore create-topic`, or set autoCreateTopicEnable."
            )
        count = max(1, min(queues, default.write_queue_nums))
        return self._make(name, count, default.perm & _ALL)

    def _default(self, name: str) -> TopicConfig | None:
        found = self._store.topics.get(name)
        if name != AUTO_CREATE_TOPIC:
            return found
        if not self._store.config.auto_create_topic_enable:
            return None
        count = self._store.config.default_topic_queue_nums
        return found or TopicConfig(name, count, count, _ALL | _INHERIT)

    def _own(self, name: str, queues: int) -> TopicConfig:
        """Return a topic that every group may have, and create it if it is missing."""
        found = self._store.topics.get(name)
        return found or self._make(name, queues, _ALL)

    def _make(self, name: str, queues: int, perm: int) -> TopicConfig:
        try:
            return self._store.create_topic(
                name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
        except OptionError as error:
            raise Refusal(Reason.WRONG, f"the topic {name} cannot be created: {error}") from error
        except (RefusedError, StoreWriteError) as error:
            raise Refusal(
                Reason.UNAVAILABLE, f"the topic {name} cannot be created: {error}"
            ) from error

    # ---- groups

    def group(self, name: str) -> ConsumerGroup:
        """Return a consumer group; create it if that is allowed.

        Raises:
            Refusal: there is no such group.
        """
        found = self._store.groups.get(name)
        if found is not None:
            return found
        if not self._is_creatable(name):
            raise Refusal(
                Reason.NO_GROUP,
                f"subscription group [{shown(name)}] does not exist",
            )
        if self.is_slave:
            return ConsumerGroup.from_json(name, {})
        try:
            return self._store.groups.create(name)
        except (OptionError, StoreWriteError) as error:
            raise Refusal(Reason.WRONG, f"the group {name} cannot be created: {error}") from error

    def make_groups(self, groups: Mapping[str, bool]) -> dict[str, Refusal]:
        """Create groups that are missing and may be created, with one write.

        Args:
            groups: whether each needs its retry topic too, by name.

        Returns:
            Why groups could not be created, by name.
        """
        refused = dict[str, Refusal]()
        try:
            with self.together():
                for name, with_topic in groups.items():
                    try:
                        group = self.group(name)
                        if with_topic and not self.is_slave:
                            self.retry_topic(group)
                    except Refusal as error:
                        refused[name] = error
        except StoreWriteError as error:
            text = f"new groups and their topics cannot be created: {error}"
            refused = dict.fromkeys(groups, Refusal(Reason.UNAVAILABLE, text)) | refused
        return refused

    def may_create_group(self, name: str) -> bool:
        """Return whether a group is missing, and is created for a client that names it."""
        is_new = self._store.groups.get(name) is None
        return is_new and not self.is_slave and self._is_creatable(name)

    def _is_creatable(self, name: str) -> bool:
        is_automatic = self._store.config.auto_create_subscription_group
        return is_safe_group_name(name) and (is_automatic or is_system_group(name))

    def introduce(self, name: str) -> None:
        """Create a consumer group and its retry topic, as far as they are missing and may be.

        Raises:
            Refusal: one of them cannot be created.
        """
        if not self.is_known(name):
            group = self.group(name)
            if not self.is_slave:
                self.retry_topic(group)

    def is_known(self, group: str) -> bool:
        """Return whether a group and its retry topic exist."""
        topic = RETRY_GROUP_TOPIC_PREFIX + group
        return self._store.groups.get(group) is not None and topic in self._store.topics


def _fault(name: str) -> Refusal:
    """Return what RocketMQ says of the name of a topic that takes no messages of clients."""
    if is_safe_topic_name(name):
        return Refusal(Reason.NOT_PERMITTED, f"Sending message to topic[{name}] is forbidden.")
    if len(name) > MAX_TOPIC_LENGTH:
        return Refusal(Reason.WRONG, "The specified topic is longer than topic max length.")
    return Refusal(
        Reason.WRONG,
        "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    )


def _no_topic(name: str, remedy: str) -> Refusal:
    return Refusal(
        Reason.NO_TOPIC,
        f"topic[{shown(name)}] not exist, apply first please!\n{remedy}",
    )
