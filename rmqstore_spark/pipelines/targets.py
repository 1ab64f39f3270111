"""What a job writes to: the options of the sink, and topics, which it creates or checks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer
from pyspark.sql.types import StructType

from rmqstore_spark.client.brokers.routes import NameServers, find_write_places
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.option import BATCH
from rmqstore_spark.datasource.options.parsing import SinkOptions, parse_options, parse_sink_options
from rmqstore_spark.datasource.options.sink_table import WRITING, TargetOptions
from rmqstore_spark.datasource.sink.masters import at_master, with_masters
from rmqstore_spark.datasource.sink.targets import find_targets
from rmqstore_spark.datasource.sources import open_sources
from rmqstore_spark.datasource.sources.queues import (
    check_pattern,
    check_topics,
    chosen_queues,
    topics_of,
)
from rmqstore_spark.errors import OptionError, ServiceError, TopicNotFoundError
from rmqstore_spark.pipelines.arguments import place_option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from rmqstore_spark.client import StoreClient

_SAID_ELSEWHERE: Final = {
    "endpoint": "ENDPOINT",
    "namesrvAddr": "ENDPOINT",
    "topic": "--map (of replay) or --as",
}


def write_option(*, streaming: bool) -> Any:
    """Return `--write NAME=VALUE`, as a parameter of typer."""
    names = [
        o.name
        for o in WRITING.options
        if o.name not in _SAID_ELSEWHERE and not (streaming and o.group == BATCH)
    ]
    return typer.Option(
        "--write",
        metavar="NAME=VALUE",
        help=f"an option of the sink (see docs/options.md): {', '.join(names)}; repeat it for "
        "several  [default: queueSelector=column, so that messages keep their queues]",
    )


def target_options(endpoint: str, given: Sequence[str], *, streaming: bool) -> dict[str, str]:
    """Return the sink's options, with what says where to write.

    Args:
        endpoint: the argument ENDPOINT.
        given: options of the sink as `NAME=VALUE`.

    Raises:
        OptionError: an option is unknown or wrong.
    """
    name, place = place_option(endpoint, otherwise="endpoint")
    options = {name: place, "queueSelector": "column"}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise OptionError(f"--write must be NAME=VALUE, not {text!r}.")
        name = name.strip()
        for known, argument in _SAID_ELSEWHERE.items():
            if name.lower() == known.lower():
                raise OptionError(f"--write does not accept {name}: use {argument}.")
        options[name] = value
    parse_sink_options(options, streaming)
    return options


def queues_read(source: Mapping[str, str], *, streaming: bool) -> dict[str, int]:
    """Return the number of queues of each topic that is read: its highest queue id plus 1.

    Args:
        source: options of the source.

    Raises:
        TopicNotFoundError: a topic does not exist.
    """
    chosen = parse_options(source, streaming=streaming)
    counts: dict[str, int] = {}
    opened = open_sources(chosen)
    try:
        known = topics_of(opened)
        check_topics(chosen.queues, known)
        check_pattern(chosen.queues, known)
        for key, _, _ in chosen_queues(chosen.queues, known):
            counts[key.topic] = max(counts.get(key.topic, 0), key.queue_id + 1)
    finally:
        for each in opened:
            each.close()
    return counts


@dataclass(frozen=True)
class TopicMap:
    """Maps topics that are read to topics that are written.

    Args:
        rules: (old, new) in the order in which they are tried. `*` in the first matches any text,
            and in the second is replaced by that text.
    """

    rules: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> TopicMap:
        """Parse `OLD=NEW` rules.

        Raises:
            OptionError: a rule is invalid.
        """
        rules = []
        for text in texts:
            old, separator, new = (part.strip() for part in text.partition("="))
            stars = old.count("*"), new.count("*")
            if not (separator and old and new) or stars not in ((0, 0), (1, 0), (1, 1)):
                raise OptionError(
                    f"--map must be OLD=NEW, such as orders=orders_2 or *=copy_*, not {text!r}. "
                    "OLD and NEW can have one * each, and NEW only if OLD has one."
                )
            rules.append((old, new))
        return cls(tuple(rules))

    def __call__(self, topic: str) -> str:
        """Return the topic to write in place of a topic."""
        for old, new in self.rules:
            found = re.fullmatch(_pattern(old), topic)
            if found:
                return new.replace("*", found[1] if found.groups() else "*")
        return topic

    def queues(self, read: Mapping[str, int]) -> dict[str, int]:
        """Return how many queues each written topic needs, so that messages keep their queues.

        Args:
            read: the number of queues of each topic that is read.

        Raises:
            OptionError: a rule names a topic that is not read.
        """
        for old, new in self.rules:
            if "*" not in old and old not in read:
                there = ", ".join(sorted(read)) or "none"
                raise OptionError(f"--map {old}={new} matches no topic that is read: {there}.")
        counts: dict[str, int] = {}
        for topic, count in read.items():
            name = self(topic)
            counts[name] = max(counts.get(name, 0), count)
        return counts

    def column(self, topic: Column) -> Column:
        """Map a column of topics."""
        from pyspark.sql import functions as sf

        mapped = topic
        for old, new in reversed(self.rules):
            pattern = f"^{_pattern(old)}$"
            replaced = sf.regexp_replace(topic, pattern, new.replace("*", "$1"))
            mapped = sf.when(topic.rlike(pattern), replaced).otherwise(mapped)
        return mapped

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return the rows with their topics replaced."""
        return rows.withColumn("topic", self.column(rows["topic"])) if self.rules else rows


def _pattern(rule: str) -> str:
    # Topics contain only letters, digits and %|_-, whose escapes mean the same in Python and Java.
    return re.escape(rule).replace(r"\*", "(.*)")


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
    found = with_masters(connection)
    for store in range(len(found.endpoints)):
        at_master(found, store, partial(_create_at, topic, count))


def _create_at(topic: str, count: int, client: StoreClient) -> None:
    has = client.open((topic,), creates=False).topics.get(topic)
    if has is None:
        client.create_topic(topic, read_queue_nums=count, write_queue_nums=count)
        print(f"created topic {topic} with {count} queue(s) at {client.endpoint}", flush=True)
    elif has.write_queue_nums < count:
        read = max(count, has.read_queue_nums)
        client.create_topic(topic, read_queue_nums=read, write_queue_nums=count, perm=has.perm)
        print(f"topic {topic} now has {count} queue(s) at {client.endpoint}", flush=True)


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
