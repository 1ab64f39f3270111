"""Create the topics that a job writes to, or check that they have enough queues."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql.types import StructType

from rmqstore_spark.client.brokers.publishing import find_write_places
from rmqstore_spark.client.brokers.routes import NameServers
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.parsing import SinkOptions, parse_sink_options
from rmqstore_spark.datasource.options.sink_table import TargetOptions
from rmqstore_spark.datasource.sink.targets import find_targets
from rmqstore_spark.errors import OptionError, ServiceError, TopicNotFoundError

_ROUTE_SECONDS: Final = 30.0
_PAUSE: Final = 0.1


def create_topics(options: Mapping[str, str], queue_nums: Mapping[str, int]) -> None:
    """Create topics that the stores lack, and add queues to those that have too few.

    Through name servers, a topic that exists is changed where it is, and another one is created at
    all brokers. RocketMQ's own brokers are left as they are.

    Args:
        options: the sink's options.
        queue_nums: the required number of queues, by topic.

    Raises:
        OptionError: a topic of RocketMQ's brokers has too few queues.
        TopicNotFoundError: they do not have it.
        ServiceError: a store process or name server does not answer.
    """
    parsed = parse_sink_options(options, streaming=False)
    for topic, count in sorted(queue_nums.items()):
        if not parsed.target.name_servers:
            _create(parsed.target.connection, topic, count)
            continue
        found = _target(parsed, topic)
        if found.to_brokers:
            _check(parsed, topic, count)
            continue
        _create(found.connection, topic, count)
        if not parsed.target.broker_names:  # with names, the write does not look for the topic
            _await_route(parsed.target, topic, len(found.connection.endpoints))


def _target(options: SinkOptions, topic: str) -> TargetOptions:
    """Return the endpoints of the brokers that have a topic, or else of all."""
    # The write itself is checked when it begins.
    once = replace(options.delivery, txn_app_id=None, txn_version=None)

    def found(topic: str | None) -> TargetOptions:
        messages = replace(options.messages, topic=topic)
        wanted = replace(options, messages=messages, delivery=once)
        return find_targets(wanted, StructType(), streaming=False).target

    try:
        return found(topic)
    except TopicNotFoundError:
        target = found(None)
        if target.to_brokers:
            raise
        return target


def _create(connection: ConnectionOptions, topic: str, count: int) -> None:
    for endpoint in connection.endpoints:
        with connection.client(endpoint) as client:
            has = client.topics().get(topic)
            if has is None:
                client.create_topic(topic, read_queue_nums=count, write_queue_nums=count)
                print(f"created topic {topic} with {count} queue(s) at {endpoint}", flush=True)
            elif has.write_queue_nums < count:
                read = max(count, has.read_queue_nums)
                client.create_topic(
                    topic, read_queue_nums=read, write_queue_nums=count, perm=has.perm
                )
                print(f"topic {topic} now has {count} queue(s) at {endpoint}", flush=True)


def _check(options: SinkOptions, topic: str, count: int) -> None:
    """Refuse a topic of RocketMQ's brokers that has not enough queues on any of them.

    Raises:
        OptionError: it has too few.
    """
    with _name_servers(options.target) as servers:
        places = find_write_places(servers, topic, options.target.broker_names)
    most = max(place.queues for place in places)
    if options.messages.queue_selector == "column" and most < count:
        names = ", ".join(place.name for place in places)
        raise OptionError(
            f"The topic {topic} has, or would get, {most} queue(s) at {names}, and the messages "
            f"come from {count}. Give it as many with mqadmin updateTopic, or let messages change "
            "their queues: --write queueSelector=hash."
        )


def _await_route(target: TargetOptions, topic: str, brokers: int) -> None:
    """Wait until name servers know that brokers have a topic: the write finds them there.

    Raises:
        ServiceError: they do not learn of it.
    """
    until = time.monotonic() + _ROUTE_SECONDS
    with _name_servers(target) as servers:
        while len(servers.write_places(topic) or ()) < brokers:
            if time.monotonic() > until:
                raise ServiceError(
                    f"{servers.name} does not learn of the topic {topic}, which store "
                    "processes have created. Check that they register there (namesrvAddr).",
                    can_pass=True,
                )
            time.sleep(_PAUSE)


def _name_servers(target: TargetOptions) -> NameServers:
    return target.connection.name_servers(target.name_servers)
