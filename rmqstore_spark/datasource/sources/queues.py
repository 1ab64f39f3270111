"""Choose the queues of a query among those of its sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.table import QueueOptions
from rmqstore_spark.datasource.sources.source import ChosenQueue, QueueName, Source
from rmqstore_spark.errors import TopicNotFoundError

if TYPE_CHECKING:
    from rmqstore_spark.reader.topics import Topic


Known: TypeAlias = "Mapping[Source, Sequence[Topic]]"
"""The topics of each source."""


def topics_of(sources: Iterable[Source]) -> Known:
    """List the topics of some sources."""
    return {source: source.known_topics() for source in sources}


def chosen_queues(chosen: QueueOptions, known: Known) -> Iterator[ChosenQueue]:
    """Yield the queues of sources that the options choose.

    A broker has queues that never had a message. They are left out, as they have no files.
    """
    for source, topics in known.items():
        names = chosen_names(chosen, topics)
        for name, queue in source.queues(names):
            yield ChosenQueue(QueueKey(source.broker_name, *name), source, queue)


def chosen_names(chosen: QueueOptions, topics: Iterable[Topic]) -> list[QueueName]:
    """Return topic and queueId of the queues that the options choose."""
    return [(topic.name, number) for topic in topics for number in _chosen_ids(chosen, topic)]


def _chosen_ids(chosen: QueueOptions, topic: Topic) -> Sequence[int]:
    if not chosen.wants_topic(topic.name):
        return ()
    if chosen.assign is None:
        return topic.queue_ids
    return [number for number in chosen.assign[topic.name] if number in topic.queue_ids]


def check_topics(chosen: QueueOptions, known: Known) -> None:
    """Check that the topics and queues of `subscribe` and `assign` exist.

    The log of a store without queues is scanned until all topics are found.

    Raises:
        TopicNotFoundError: no source has a topic, or a topic lacks a queue.
    """
    existing: dict[str, set[int]] = {}
    for topics in known.values():
        for topic in topics:
            existing.setdefault(topic.name, set()).update(topic.queue_ids)
    named = set(chosen.named or ())
    without_queues = [source for source in known if not source.has_queues]
    in_logs: set[str] = set()
    for source in without_queues:
        if not named <= existing.keys() | in_logs:
            in_logs |= source.topics_in_log(named - existing.keys() - in_logs)
    for name in in_logs:
        existing.setdefault(name, set())
    where = some(source.path for source in known)
    for name in chosen.named or ():
        if name not in existing:
            raise TopicNotFoundError(
                f"Topic {name!r} does not exist in {where}. Existing topics: "
                f"{some(_of_users(existing))}."
            )
    if without_queues:
        return  # only reading them shows which queues their topics have
    for name, queue_ids in (chosen.assign or {}).items():
        missing = sorted(set(queue_ids) - existing[name])
        if missing:
            raise TopicNotFoundError(
                f"Topic {name!r} has no queue {some(map(str, missing))} in {where}. Its queues: "
                f"{some(map(str, sorted(existing[name])))}."
            )


def check_pattern(chosen: QueueOptions, known: Known) -> None:
    """Check that `subscribePattern` matches a topic, if all sources have queues.

    Raises:
        TopicNotFoundError: it matches no topic.
    """
    if chosen.pattern is None or not all(source.has_queues for source in known):
        return
    names = {topic.name for topics in known.values() for topic in topics}
    if any(chosen.wants_topic(name) for name in names):
        return
    remedy = ""
    if any(map(chosen.pattern.fullmatch, names)):
        remedy = "It matches system topics: set includeSystemTopics=true to read them. "
    raise TopicNotFoundError(
        f"subscribePattern {chosen.pattern.pattern!r} matches no topic in "
        f"{some(source.path for source in known)}. {remedy}Existing topics: "
        f"{some(_of_users(names))}."
    )


def _of_users(topics: Iterable[str]) -> list[str]:
    """Return the topics that are not a broker's own, sorted by name."""
    from rmqstore_spark.layout.constants import is_system_topic

    return sorted(name for name in topics if not is_system_topic(name))
